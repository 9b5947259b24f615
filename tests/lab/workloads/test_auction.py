"""Visitors of the auction site, against a site that does as the tests say."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flyball.errors import LabError
from flyball.lab.auction.interactions import INTERACTIONS
from flyball.lab.drivers import Target
from flyball.lab.workloads import make_workload
from flyball.lab.workloads.auction import LIKELY_LARGE, Auction, classes_of
from tests.lab.runs import Outcome, conduct

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
FULL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
BROKEN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
GONE = b""
# No answer, ever.
HANGS = b"hangs"
WARM_UPS = 3 * len(INTERACTIONS)

# Says how request number n, counted from 0, with this first line, is answered.
Answers = Callable[[int, bytes], bytes]


def visited(
    answers: Answers, folder: Path, calls: int, set_up: Mapping[str, Any] | None = None, **parameters: Any
) -> Outcome:
    """Let visitors see a site until they have recorded this number of calls."""
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            number, count = count, count + 1
            answer = answers(number, head.split(b"\r\n")[0])
            if answer == HANGS:
                await reader.read()
            writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> Outcome:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            target = Target(name="site", host=host, port=port)
            workload = make_workload({"kind": "auction", "clients": 3, "think_time_s": 0.001, **parameters})
            # What is tried is how visitors wait, and not the first look around.
            patient = workload.model_copy(update={"time_out_s": 60.0})
            made = {**await patient.set_up([target]), **(set_up or {})}
            return await conduct(workload, made, [target], folder / "traces", calls=calls)

    return uvloop.run(main())


def results(outcome: Outcome) -> Counter[str]:
    return Counter(outcome.calls()["result"].to_pylist())


def test_answers_are_calls_by_key_and_cost(tmp_path: Path) -> None:
    outcome = visited(lambda number, line: PAGE, tmp_path, 300)
    calls = outcome.calls().to_pylist()
    assert outcome.failure == ""
    assert {call["result"] for call in calls} == {"ok"}
    assert {call["protocol"] for call in calls} == {"http"}
    assert {call["size_bytes"] for call in calls} == {5}
    large = {INTERACTIONS[name].key for name in LIKELY_LARGE}
    assert {call["queue"] for call in calls if call["kind"] == "large"} <= large
    assert {call["queue"] for call in calls if call["kind"] == "small"}.isdisjoint(large)


@pytest.mark.parametrize(
    ("answer", "result", "time_out_s"),
    [(FULL, "refused", 60.0), (BROKEN, "failed", 60.0), (GONE, "failed", 60.0), (HANGS, "failed", 0.05)],
)
def test_who_is_not_served_goes_on_and_the_run_does_too(
    answer: bytes, result: str, time_out_s: float, tmp_path: Path
) -> None:
    outcome = visited(
        lambda number, line: PAGE if number < WARM_UPS or number % 2 else answer, tmp_path, 40, time_out_s=time_out_s
    )
    assert outcome.failure == ""
    found = results(outcome)
    assert found.keys() == {"ok", result}
    assert min(found.values()) > 5


def test_a_time_out_is_recorded_with_how_long_it_was_waited(tmp_path: Path) -> None:
    outcome = visited(lambda number, line: PAGE if number < WARM_UPS else HANGS, tmp_path, 3, time_out_s=0.2)
    took_ns = outcome.calls()["response_ns"].to_pylist()
    # A loop's timers know only milliseconds.
    assert all(took > 0.19e9 for took in took_ns)


def test_what_is_under_way_when_the_run_stops_is_given_up(tmp_path: Path) -> None:
    # With a time-out of an hour the run would not end if it waited.
    outcome = visited(
        lambda number, line: HANGS if number > WARM_UPS + 20 else PAGE, tmp_path, 20, time_out_s=3600, clients=1
    )
    assert outcome.failure == ""
    assert results(outcome).keys() == {"ok"}


def test_small_clients_ask_only_for_what_the_profile_calls_small(tmp_path: Path) -> None:
    classes = {one.key: "large" for one in INTERACTIONS.values()}
    classes["GET /browse"] = classes["GET /items/{item_id}"] = "small"
    outcome = visited(lambda number, line: PAGE, tmp_path, 50, {"classes": classes}, clients=0, small_clients=2)
    calls = outcome.calls()
    assert set(calls["queue"].to_pylist()) == {"GET /browse", "GET /items/{item_id}"}
    assert set(calls["kind"].to_pylist()) == {"small"}
    assert set(calls["role"].to_pylist()) == {"small_only"}


def test_site_that_fails_before_the_first_visitor_is_reported() -> None:
    with pytest.raises(LabError, match="answers GET / with 500 before the first visitor"):
        visited(lambda number, line: BROKEN, Path("unused"), 1)


def test_a_profile_without_a_key_leaves_it_to_what_is_likely() -> None:
    classes = classes_of({"classes": {"GET /": "large"}})
    assert classes["GET /"] == "large"
    assert classes["GET /browse"] == "small"
    assert classes["GET /users/{user_id}"] == "large"


SCHEDULE: Sequence[Mapping[str, int]] = (
    {"at_s": 420, "clients": 200, "small_clients": 100},
    {"at_s": 600, "clients": 400, "small_clients": 100},
    {"at_s": 1020, "clients": 200, "small_clients": 100},
)


def test_visitors_come_and_go_as_the_schedule_says() -> None:
    workload = Auction.model_validate({"clients": 200, "schedule": SCHEDULE, "time_scale": 0.1})
    assert workload.client_count == 500
    infinity = float("inf")
    assert workload.spans_of(0) == workload.spans_of(199) == [(0.0, infinity)]
    assert workload.spans_of(200) == workload.spans_of(399) == [(60.0, 102.0)]
    assert workload.spans_of(400) == workload.spans_of(499) == [(42.0, infinity)]
    assert [workload.role_of(number) for number in (0, 399, 400)] == ["normal", "normal", "small_only"]


def test_visitors_who_have_left_send_nothing(tmp_path: Path) -> None:
    schedule = [{"at_s": 0.01, "clients": 1, "small_clients": 0}]
    outcome = visited(lambda number, line: PAGE, tmp_path, 200, clients=3, schedule=schedule)
    last = outcome.calls().sort_by("intended_us")["client_id"].to_pylist()[-50:]
    assert set(last) == {0}


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"clients": 0}, "there must be a client"),
        ({"schedule": [SCHEDULE[1], SCHEDULE[0]]}, "must increase"),
        ({"protocol": "amqp"}, "run over http"),
        ({"mix": "buying"}, "bidding"),
    ],
)
def test_what_makes_no_sense_is_refused(parameters: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(LabError, match=complaint):
        make_workload({"kind": "auction", **parameters})


def test_a_site_is_started_with_what_was_prepared() -> None:
    workload = make_workload({"kind": "auction"})
    assert workload.target_settings({}) == {}
    prepared = {"profile": {"kind": "profile"}, "classes": {}, "reference": None}
    assert workload.target_settings(prepared) == {"profile": {"kind": "profile"}}
    assert workload.target_settings({**prepared, "reference": 7.0})["reference"] == 7.0
