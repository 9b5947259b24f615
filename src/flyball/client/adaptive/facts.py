"""Describes the loop of an adaptive consumer for the console."""

from __future__ import annotations

from typing import Any

from flyball.client.adaptive.actuators import ConsumerActuator, Pacer
from flyball.client.adaptive.goals import Fast, Goal, Latency
from flyball.control.certificate import certificate_summary
from flyball.control.laws import law_to_json
from flyball.control.loop import Loop


def loop_facts(loop: Loop, goal: Goal, actuator: ConsumerActuator, queue_name: str) -> dict[str, Any]:
    """Return the description that `flyball.client.reporting` sends."""
    controller, certificate = loop.controller, loop.certificate
    gains = {name: value for name, value in law_to_json(controller.law).items() if name != "kind"}
    return {
        "about": f"Consumes the queue {queue_name!r}: {_goal_words(goal)}.",
        "measures": {"what": _measured_words(goal), "unit": goal.unit},
        "acts": {
            "what": "rate at which handlers start" if isinstance(actuator, Pacer) else "prefetch window",
            "unit": "messages/s" if isinstance(actuator, Pacer) else "messages",
        },
        "law": controller.law.kind,
        "gains": gains,
        "limits": {"lowest": controller.limits.lowest, "highest": controller.limits.highest},
        "sample_time_s": loop.sample_time_s,
        "certificate": None if certificate is None else certificate_summary(certificate),
    }


def _goal_words(goal: Goal) -> str:
    if isinstance(goal, Latency):
        return f"{goal.seconds:g} s from arrival to ack"
    if isinstance(goal, Fast):
        return f"handlers are busy, with {goal.waiting:g} messages waiting"
    return f"handlers start {goal.per_s:g} messages/s"


def _measured_words(goal: Goal) -> str:
    if isinstance(goal, Latency):
        return "time from arrival to ack"
    return "messages waiting for a handler" if isinstance(goal, Fast) else "messages that handlers start"
