"""Checks that every framework must pass: the same site, on a real server, with three lines of admission control."""

from __future__ import annotations

import json
from typing import Any

from flyball.admission.asgi import AdmissionMiddleware
from tests.admission.serving import Database, ask, begin, count, serve, until, waiting


async def check(app: Any, guarded: AdmissionMiddleware, database: Database, item_key: str) -> None:
    """Check the site: `/items/{id}` takes one connection and `POST /items` returns its body; `/error` fails.

    `app` is what is served, and `guarded` the middleware in it.
    """
    admission = guarded.admission
    admission.deadline_s = 3600
    async with serve(app) as port:
        await _check_serving(port, guarded, item_key)
        busy = database.take()
        patient = await begin(port, "/items", "POST", body=b"a bid")
        impatient = await begin(port, "/items/2")
        await until(lambda: waiting(admission) == 2)
        assert json.loads((await ask(port, "/admission")).body)["is_held"]
        await impatient.hang_up()
        await until(lambda: waiting(admission) == 1)
        busy.end()
        response = await patient.response()
        assert response.body == b"a bid"
        assert count(admission, "left") == 1
        database.take()
        admission.deadline_s = 0.01
        refused = await ask(port, "/items/3")
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) >= 1


async def _check_serving(port: int, guarded: AdmissionMiddleware, item_key: str) -> None:
    admission = guarded.admission
    for number in range(3):
        response = await ask(port, f"/items/{number}")
        assert (response.status, response.text) == (200, f"item {number}")
    # Charged to its kind: the handler's connection was counted as this request's.
    assert admission.classifier.keys[item_key].requests == 3
    assert admission.classifier.keys[item_key].mean > 0
    assert (await ask(port, "/error")).status == 500
    assert count(admission, "failed") == 1
    assert admission.in_flight == 0
