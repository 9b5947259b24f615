"""State and loop description of admission control as JSON: for the state page, programs and the console.
Read-only.
"""

from __future__ import annotations

from typing import Any

from flyball.admission.admission import Admission
from flyball.admission.use import Unit
from flyball.control.certificate import certificate_summary
from flyball.control.laws import Integral
from flyball.control.model_free import certify_integral

UNITS = {Unit.BUSY_MS: "busy ms/s", Unit.CONNECTIONS: "connections/s"}


def loop_facts_of(admission: Admission) -> dict[str, Any]:
    """Return the description of the budget's control loop, with its stability certificate."""
    law = Integral(admission.gain)
    # Cost is predicted: the measurement equals the admitted cost, or less where requests wait for something else.
    certificate = certify_integral(law, highest_slope=1.0)
    unit = UNITS[admission.unit]
    return {
        "title": f"admission of {admission.name}",
        "about": "Admits requests at the rate that the backend can handle; the others wait.",
        "measures": {"what": "load of the backend", "unit": unit},
        "acts": {"what": "admitted cost", "unit": unit},
        "law": law.kind,
        "gains": {"ki": admission.gain},
        "limits": {"lowest": 0.0, "highest": None},
        "sample_time_s": admission.period_s,
        "certificate": certificate_summary(certificate),
    }


def state_of(admission: Admission) -> dict[str, Any]:
    """Return the state for display. All loads are cost per second in `unit`."""
    usage = admission.usage
    return {
        "name": admission.name,
        "unit": admission.unit.value,
        "reference": {"value": admission.reference.value, "state": admission.reference.state},
        "load": admission.load_per_s,
        "budget": admission.budget_per_s,
        "period_s": admission.period_s,
        "deadline_s": admission.deadline_s,
        "in_flight": admission.in_flight,
        "streams": admission.streams,
        "is_held": admission.is_held,
        "is_shadow": admission.is_shadow,
        "pool": {
            "size": usage.size,
            "busy": usage.busy,
            "waiting": usage.waiting,
            "connections": usage.connections,
            "busy_s": usage.busy_s,
            "waiting_s": usage.waiting_s,
        },
        "classes": _classes(admission),
        "keys": {
            key: {
                "class": facts.class_number,
                "cost": facts.mean,
                "base_cost": facts.base,
                "requests": facts.requests,
            }
            for key, facts in sorted(admission.classifier.keys.items())
        },
    }


def _classes(admission: Admission) -> list[dict[str, Any]]:
    waiting = admission.gate.waiting
    arrivals = admission.gate.arrivals_per_s
    probabilities = admission.scheduler.probabilities()
    found = []
    for each in admission.classifier.classes:
        number = each.number
        counts = admission.counts_of(number)
        found.append(
            {
                "class": number,
                "cost": each.mean,
                "deadline_s": admission.deadline_of(number),
                "below": each.below,
                "waiting": waiting[number] if number < len(waiting) else 0,
                "arrivals_per_s": arrivals[number] if number < len(arrivals) else 0.0,
                "arrived": counts.arrived,
                "admitted": counts.admitted,
                "refused": counts.refused,
                "left": counts.left,
                "served": counts.served,
                "failed": counts.failed,
                "probability": probabilities[number] if number < len(probabilities) else 1.0,
                "odds": admission.blocking.odds(number),
            }
        )
    return found
