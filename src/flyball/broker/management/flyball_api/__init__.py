"""Flyball's own HTTP API, below /api/flyball."""
