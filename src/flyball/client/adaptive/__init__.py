"""An AMQP consumer, for any broker, that holds a rate or a latency, or keeps its handlers busy, by adapting its
prefetch.

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
