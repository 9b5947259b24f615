"""ThorBangMQ's clients at one node use the queues of another: everything works as if they were there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball.broker.node.node import Node
from tests.broker.domains import Pair, two_nodes
from tests.broker.peers import thorbang, wide


class Afar:
    """A client at the first node and one at the second; the queue is the first's."""

    def __init__(self, nodes: Pair) -> None:
        self.nodes = nodes
        self.near, self.far = thorbang(nodes[0]), thorbang(nodes[1])
        self.client_id, self.queue_id = self.near.set_up()

    def message(self, text: str, *, receiver: int = -1, priority: int = 1, queues: str = "") -> str:
        return f"MSG,{receiver},{self.client_id},{queues or self.queue_id},{priority},7,{text}"

    def pop(self, by_time: int = 1, receiver: int | None = None) -> str:
        return f"POPQ,{self.client_id if receiver is None else receiver},{self.queue_id},{by_time}"

    def pop_from(self, sender: int) -> str:
        return f"POPS,{self.client_id},{self.queue_id},{sender},1"

    def peek(self, by_time: int = 1) -> str:
        return f"PEEKQ,{self.client_id},{self.queue_id},{by_time}"


@pytest.fixture
def afar(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Afar]:
    with two_nodes(tmp_path, new_database, amqp="off") as nodes:
        yield Afar(nodes)


def text_of(answer: str) -> str:
    return answer.split(",", 4)[-1]


def test_messages_are_sent_looked_at_and_popped_from_afar_in_their_order(afar: Afar) -> None:
    answers = afar.far.ask(
        afar.pop(), afar.message("one"), afar.message("two"), afar.peek(), afar.pop(), afar.pop(), afar.pop()
    )
    assert [text_of(answer) for answer in answers] == ["MSG0", "OK", "OK", "one", "one", "two", "MSG0"]
    assert answers[4].startswith(f"MSG,{afar.client_id},7,")
    afar.near.ask(afar.message("three"))
    assert text_of(*afar.far.ask(afar.pop())) == "three"
    afar.far.ask(afar.message("four"))
    assert text_of(*afar.near.ask(afar.pop())) == "four"


def test_who_sees_what_first_is_decided_as_at_the_owner(afar: Afar) -> None:
    (other,) = afar.far.ask("CREATECLIENT,other")
    sent = [
        afar.message("for the other", receiver=int(other), priority=9),
        afar.message("low", receiver=afar.client_id),
        afar.message("high", receiver=afar.client_id, priority=5),
        afar.message("for all", priority=9),
        f"MSG,{afar.client_id},{other},{afar.queue_id},1,7,of the other",
    ]
    assert afar.far.ask(*sent) == ["OK"] * 5
    requests = [
        afar.pop_from(int(other)),
        afar.pop(by_time=0),
        afar.pop(by_time=0),
        afar.pop(by_time=0),
        afar.pop(),
        afar.pop(receiver=int(other)),
    ]
    answers = [text_of(answer) for answer in afar.far.ask(*requests)]
    # By priority nobody gets what is for all.
    assert answers == ["of the other", "high", "low", "MSG0", "for all", "for the other"]


def test_a_message_may_go_to_queues_of_several_nodes_up_to_the_first_that_is_missing(afar: Afar) -> None:
    (mine,) = afar.far.ask("CREATEQUEUE,queue")
    there = afar.queue_id
    assert afar.far.ask(afar.message("both", queues=f"{mine};{there}")) == ["OK"]
    assert afar.far.ask(afar.message("one", queues=f"{there};999999;{mine}")) == ["FAIL QUEUE 999999"]
    assert afar.far.ask(afar.message("none", queues="999999")) == ["FAIL QUEUE 999999"]
    assert [text_of(answer) for answer in afar.near.ask(*[afar.pop()] * 3)] == ["both", "one", "MSG0"]
    pop_mine = f"POPQ,{afar.client_id},{mine},1"
    assert [text_of(answer) for answer in afar.near.ask(pop_mine, pop_mine)] == ["both", "MSG0"]


def test_what_the_other_node_has_made_just_now_is_known(afar: Afar) -> None:
    for number in range(5):
        client_id, queue_id = afar.near.ask(f"CREATECLIENT,c{number}", f"CREATEQUEUE,q{number}")
        assert afar.far.ask(f"MSG,-1,{client_id},{queue_id},1,0,x") == ["OK"]
        assert afar.near.ask(f"REMOVECLIENT,{client_id}") == ["FAIL UNKNOWN -1"]


def test_a_queue_is_removed_from_afar_only_when_it_is_empty(afar: Afar) -> None:
    remove = f"REMOVEQUEUE,{afar.queue_id}"
    assert afar.far.ask(afar.message("x"), remove, remove) == ["OK", "FAIL UNKNOWN -1", "FAIL UNKNOWN -1"]
    assert text_of(*afar.far.ask(afar.pop())) == "x"
    answers = afar.far.ask(remove, remove, afar.message("y"), afar.pop())
    assert answers == ["OK", "OK", f"FAIL QUEUE {afar.queue_id}", "MSG0"]
    assert afar.near.ask(afar.message("y")) == [f"FAIL QUEUE {afar.queue_id}"]


def test_a_client_stays_while_any_node_has_messages_of_its(afar: Afar) -> None:
    remove = f"REMOVECLIENT,{afar.client_id}"
    assert afar.near.ask(afar.message("x")) == ["OK"]
    assert afar.far.ask(afar.peek(), remove)[1] == "FAIL UNKNOWN -1"
    assert text_of(*afar.far.ask(afar.pop())) == "x"
    assert afar.far.ask(remove) == ["OK"]
    afar.nodes[0].wait_until(lambda node: not node.hub.broker.engine.has_client(afar.client_id))


def test_a_message_with_a_zero_byte_stays_where_it_is(afar: Afar) -> None:
    writer = wide(afar.nodes[0], "writer")
    writer.put(afar.queue_id, b"a\0b")
    assert afar.far.ask(afar.pop(), afar.peek()) == ["FAIL UNKNOWN -1"] * 2
    assert writer.peek(afar.queue_id) == [b"a\0b"]


def test_a_pop_is_answered_when_the_owner_has_written_it_down(afar: Afar) -> None:
    owner = afar.nodes[0]
    assert afar.far.ask(afar.message("x"), "HELLO") == ["OK", "OK"]
    opened = owner.call(hold_commits)
    afar.far.send(afar.pop())
    owner.wait_until(lambda node: node.hub.broker.journal.pending_count > 0)
    # Whatever the link sent before this answer has arrived by then.
    afar.nodes[1].wait_until(lambda node: True)
    afar.far.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        afar.far.receive()
    afar.far.socket.settimeout(20)
    owner.call(lambda _: opened.set())
    assert text_of(afar.far.receive()) == "x"


def hold_commits(node: Node) -> asyncio.Event:
    """Let the node's store write nothing until the event is set."""
    store = node.hub.broker.store
    commit, opened = store.commit, asyncio.Event()

    async def commit_later(*arguments: Any, **options: Any) -> None:
        await opened.wait()
        await commit(*arguments, **options)

    store.commit = commit_later  # type: ignore[method-assign]
    return opened


def test_while_the_owner_is_gone_requests_are_refused_in_time(afar: Afar) -> None:
    assert afar.far.ask(afar.message("x"), afar.peek())[0] == "OK"
    afar.nodes[1].call(lambda node: setattr(node.remotes, "_wait_s", 0.2))
    afar.nodes[1].call(lambda node: setattr(node.remotes.puts, "wait_s", 0.2))
    afar.nodes[0].stop()
    for request in (afar.peek(), afar.pop(), afar.message("y"), f"REMOVEQUEUE,{afar.queue_id}"):
        assert afar.far.ask(request, "HELLO") == ["FAIL UNKNOWN -1", "OK"]


def test_a_queue_that_has_come_here_meanwhile_is_served_here(afar: Afar) -> None:
    assert afar.far.ask(afar.message("x")) == ["OK"]
    here = afar.nodes[1].call(lambda node: node.membership.node_id)
    afar.nodes[0].call(lambda node: node.hub.broker.release_queue(afar.queue_id, here, lambda error: None))
    assert afar.far.ask(afar.message("y", receiver=afar.client_id)) == ["OK"]
    assert [text_of(answer) for answer in afar.far.ask(*[afar.pop()] * 3)] == ["x", "y", "MSG0"]
    assert afar.nodes[1].call(lambda node: node.hub.broker.engine.has_queue(afar.queue_id))
