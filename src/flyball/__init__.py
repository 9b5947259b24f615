"""Flyball: a message broker that governs itself."""

from importlib.metadata import version

__version__ = version("flyball")
