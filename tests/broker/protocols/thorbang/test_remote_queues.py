"""ThorBangMQ's clients at one node use the queues of another: everything works as if they were there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flyball.broker.node.node import Node
from tests.broker.domains import Pair, two_nodes
from tests.broker.peers import amqp, thorbang


class Clients:
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
def clients(tmp_path: Path, new_database: Callable[[], str]) -> Iterator[Clients]:
    with two_nodes(tmp_path, new_database) as nodes:
        yield Clients(nodes)


def text_of(answer: str) -> str:
    return answer.split(",", 4)[-1]


def test_messages_are_sent_looked_at_and_popped_at_another_node_in_their_order(clients: Clients) -> None:
    answers = clients.far.ask(
        clients.pop(),
        clients.message("one"),
        clients.message("two"),
        clients.peek(),
        clients.pop(),
        clients.pop(),
        clients.pop(),
    )
    assert [text_of(answer) for answer in answers] == ["MSG0", "OK", "OK", "one", "one", "two", "MSG0"]
    assert answers[4].startswith(f"MSG,{clients.client_id},7,")
    clients.near.ask(clients.message("three"))
    assert text_of(*clients.far.ask(clients.pop())) == "three"
    clients.far.ask(clients.message("four"))
    assert text_of(*clients.near.ask(clients.pop())) == "four"


def test_who_sees_what_first_is_decided_as_at_the_owner(clients: Clients) -> None:
    (other,) = clients.far.ask("CREATECLIENT,other")
    sent = [
        clients.message("for the other", receiver=int(other), priority=9),
        clients.message("low", receiver=clients.client_id),
        clients.message("high", receiver=clients.client_id, priority=5),
        clients.message("for all", priority=9),
        f"MSG,{clients.client_id},{other},{clients.queue_id},1,7,of the other",
    ]
    assert clients.far.ask(*sent) == ["OK"] * 5
    requests = [
        clients.pop_from(int(other)),
        clients.pop(by_time=0),
        clients.pop(by_time=0),
        clients.pop(by_time=0),
        clients.pop(),
        clients.pop(receiver=int(other)),
    ]
    answers = [text_of(answer) for answer in clients.far.ask(*requests)]
    # A pop by priority does not get messages that are for all.
    assert answers == ["of the other", "high", "low", "MSG0", "for all", "for the other"]


def test_message_goes_to_queues_of_several_nodes_up_to_a_missing_one(clients: Clients) -> None:
    (mine,) = clients.far.ask("CREATEQUEUE,queue")
    there = clients.queue_id
    assert clients.far.ask(clients.message("both", queues=f"{mine};{there}")) == ["OK"]
    assert clients.far.ask(clients.message("one", queues=f"{there};999999;{mine}")) == ["FAIL QUEUE 999999"]
    assert clients.far.ask(clients.message("none", queues="999999")) == ["FAIL QUEUE 999999"]
    assert [text_of(answer) for answer in clients.near.ask(*[clients.pop()] * 3)] == ["both", "one", "MSG0"]
    pop_mine = f"POPQ,{clients.client_id},{mine},1"
    assert [text_of(answer) for answer in clients.near.ask(pop_mine, pop_mine)] == ["both", "MSG0"]


def test_what_the_other_node_has_made_just_now_is_known(clients: Clients) -> None:
    for number in range(5):
        client_id, queue_id = clients.near.ask(f"CREATECLIENT,c{number}", f"CREATEQUEUE,q{number}")
        assert clients.far.ask(f"MSG,-1,{client_id},{queue_id},1,0,x") == ["OK"]
        assert clients.near.ask(f"REMOVECLIENT,{client_id}") == ["FAIL UNKNOWN -1"]


def test_a_queue_is_removed_at_another_node_only_when_it_is_empty(clients: Clients) -> None:
    remove = f"REMOVEQUEUE,{clients.queue_id}"
    assert clients.far.ask(clients.message("x"), remove, remove) == ["OK", "FAIL UNKNOWN -1", "FAIL UNKNOWN -1"]
    assert text_of(*clients.far.ask(clients.pop())) == "x"
    answers = clients.far.ask(remove, remove, clients.message("y"), clients.pop())
    assert answers == ["OK", "OK", f"FAIL QUEUE {clients.queue_id}", "MSG0"]
    assert clients.near.ask(clients.message("y")) == [f"FAIL QUEUE {clients.queue_id}"]


def test_a_client_stays_while_any_node_has_messages_of_its(clients: Clients) -> None:
    remove = f"REMOVECLIENT,{clients.client_id}"
    assert clients.near.ask(clients.message("x")) == ["OK"]
    assert clients.far.ask(clients.peek(), remove)[1] == "FAIL UNKNOWN -1"
    assert text_of(*clients.far.ask(clients.pop())) == "x"
    assert clients.far.ask(remove) == ["OK"]
    clients.nodes[0].wait_until(lambda node: not node.hub.broker.engine.has_client(clients.client_id))


def test_a_message_with_a_zero_byte_stays_where_it_is(clients: Clients) -> None:
    writer = amqp(clients.nodes[0])
    writer.put("queue", b"a\0b")
    assert clients.far.ask(clients.pop(), clients.peek()) == ["FAIL UNKNOWN -1"] * 2
    assert writer.take("queue") == [b"a\0b"]


def test_a_pop_is_answered_when_the_owner_has_written_it_down(clients: Clients) -> None:
    owner = clients.nodes[0]
    assert clients.far.ask(clients.message("x"), "HELLO") == ["OK", "OK"]
    opened = owner.call(hold_commits)
    clients.far.send(clients.pop())
    owner.wait_until(lambda node: node.hub.broker.journal.pending_count > 0)
    # Whatever the link sent before this answer has arrived by then.
    clients.nodes[1].wait_until(lambda node: True)
    clients.far.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        clients.far.receive()
    clients.far.socket.settimeout(20)
    owner.call(lambda _: opened.set())
    assert text_of(clients.far.receive()) == "x"


def hold_commits(node: Node) -> asyncio.Event:
    """Let the node's store write nothing until the event is set."""
    store = node.hub.broker.store
    commit, opened = store.commit, asyncio.Event()

    async def commit_later(*arguments: Any, **options: Any) -> None:
        await opened.wait()
        await commit(*arguments, **options)

    store.commit = commit_later  # type: ignore[method-assign]
    return opened


def test_while_the_owner_is_gone_requests_are_refused_in_time(clients: Clients) -> None:
    assert clients.far.ask(clients.message("x"), clients.peek())[0] == "OK"
    clients.nodes[1].call(lambda node: setattr(node.remotes, "_wait_s", 0.2))
    clients.nodes[1].call(lambda node: setattr(node.remotes.puts, "wait_s", 0.2))
    clients.nodes[0].stop()
    for request in (clients.peek(), clients.pop(), clients.message("y"), f"REMOVEQUEUE,{clients.queue_id}"):
        assert clients.far.ask(request, "HELLO") == ["FAIL UNKNOWN -1", "OK"]


def test_a_queue_that_has_come_here_meanwhile_is_served_here(clients: Clients) -> None:
    assert clients.far.ask(clients.message("x")) == ["OK"]
    here = clients.nodes[1].call(lambda node: node.membership.node_id)
    clients.nodes[0].call(lambda node: node.topology.lifecycle.release(clients.queue_id, here, lambda error: None))
    assert clients.far.ask(clients.message("y", receiver=clients.client_id)) == ["OK"]
    assert [text_of(answer) for answer in clients.far.ask(*[clients.pop()] * 3)] == ["x", "y", "MSG0"]
    assert clients.nodes[1].call(lambda node: node.hub.broker.engine.has_queue(clients.queue_id))
