"""The tally against a naive model: lists of what was sent and received."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flyball.lab.tally import Tally, Verdict, judge

messages = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 300)), max_size=60)
processes = st.lists(st.tuples(messages, messages), min_size=1, max_size=4)


def tally_of(sent: list[tuple[str, int]], received: list[tuple[str, int]]) -> Tally:
    tally = Tally()
    for stream, sequence in sent:
        tally.sent(stream, sequence)
    for stream, sequence in received:
        tally.received(stream, sequence)
    return tally


@given(processes)
def test_the_verdict_on_several_processes_is_that_of_one_list(
    processes: list[tuple[list[tuple[str, int]], list[tuple[str, int]]]],
) -> None:
    verdict = judge(json.loads(json.dumps(tally_of(*process).as_dict())) for process in processes)
    sent = {message for all_sent, _ in processes for message in all_sent}
    received = Counter(message for _, all_received in processes for message in all_received)
    assert verdict == Verdict(
        sent=len(sent),
        received=len(received),
        lost=len(sent - set(received)),
        doubled=sum(received.values()) - len(received),
        unsent=len(set(received) - sent),
    )


@given(messages)
def test_a_message_is_new_once(received: list[tuple[str, int]]) -> None:
    tally = Tally()
    seen: set[tuple[str, int]] = set()
    for message in received:
        assert tally.received(*message) == (message not in seen)
        seen.add(message)


def test_no_tallies_mean_no_messages() -> None:
    assert judge([]) == Verdict(0, 0, 0, 0, 0)


def test_a_million_messages_take_little_room() -> None:
    tally = Tally()
    for sequence in range(1_000_000):
        tally.sent("0", sequence)
    assert len(json.dumps(tally.as_dict())) < 10_000
    assert judge([tally.as_dict()]).lost == 1_000_000
