"""Adaptive AMQP consumer for any broker: adapts its prefetch to hold a rate or a latency, or to keep its handlers
busy.

Needs aio-pika: `pip install flyball[control]`.
"""

from flyball.client.adaptive.actuators import FractionalWindow, Pacer, Window
from flyball.client.adaptive.consumer import AdaptiveConsumer
from flyball.client.adaptive.goals import Fast, Goal, Latency, Rate
from flyball.client.adaptive.options import AdaptiveOptions
from flyball.client.adaptive.state import ConsumerState

__all__ = [
    "AdaptiveConsumer",
    "AdaptiveOptions",
    "ConsumerState",
    "Fast",
    "FractionalWindow",
    "Goal",
    "Latency",
    "Pacer",
    "Rate",
    "Window",
]
