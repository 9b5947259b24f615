"""Links between nodes: authentication, requests and their errors, and what happens when a node is lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import aio_pika
import aiormq.exceptions
import pytest

from flyball.backoff import Retries
from flyball.broker.peering.link import Link, peers
from flyball.broker.transport.handshakes import MAX_LINK_HANDSHAKES
from flyball.broker.wire import link
from flyball.errors import ClusterError, PeerLost, QueueNotFound
from tests.broker.peering.link.domains import SECRET, HandMadeDomain, client, domain, run, until


def test_a_node_answers_the_requests_of_another() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes

            async def double(number: int) -> dict[str, int]:
                return {"double": 2 * number}

            second.peers.commands["double"] = double
            assert await first.peers.request(2, "double", {"number": 21}) == {"double": 42}

    run(test())


def test_an_error_of_the_other_node_is_raised_as_what_it_is() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes

            async def fail() -> None:
                raise QueueNotFound("orders", "/")

            second.peers.commands["fail"] = fail
            with pytest.raises(QueueNotFound, match="no queue 'orders' in vhost '/'"):
                await first.peers.request(2, "fail", {})
            with pytest.raises(ClusterError, match="unknown command 'dance'"):
                await first.peers.request(2, "dance", {})
            with pytest.raises(ClusterError, match="unexpected keyword"):
                await first.peers.request(2, "fail", {"why": 1})

    run(test())


def test_unexpected_error_of_a_request_affects_only_its_requester() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes

            async def fail() -> None:
                raise FileNotFoundError("the data folder is gone")

            second.peers.commands["fail"] = fail
            for _ in range(2):
                with pytest.raises(ClusterError, match="the data folder is gone"):
                    await first.peers.request(2, "fail", {})

    run(test())


def test_a_request_to_a_node_that_dies_fails_at_once() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            begun, never = asyncio.Event(), asyncio.Event()

            async def wait() -> None:
                begun.set()
                await never.wait()

            second.peers.commands["wait"] = wait
            asking = asyncio.ensure_future(first.peers.request(2, "wait", {}))
            await begun.wait()
            made.kill(second)
            with pytest.raises(PeerLost, match="node 2 was lost"):
                await asking
            with pytest.raises(PeerLost, match="node 2 is not reachable"):
                await first.peers.request(2, "wait", {})

    run(test())


def test_a_request_that_is_not_answered_in_time_fails() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            never = asyncio.Event()

            async def wait() -> None:
                await never.wait()

            second.peers.commands["wait"] = wait
            with pytest.raises(PeerLost, match="did not respond to 'wait'"):
                await first.peers.request(2, "wait", {}, time_limit_s=0.01)

    run(test())


def test_a_broken_link_is_opened_again_for_the_next_request() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            assert await first.peers.request(2, "flush", {}) is None
            second.cut()
            await until(lambda: not first.peers.links)
            assert await first.peers.request(2, "flush", {}) is None

    run(test())


def test_link_that_breaks_soon_is_opened_again_after_longer_and_longer_delays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []
    next_delay_s = Retries.next_delay_s

    def note_delay(retries: Retries) -> float:
        delays.append(next_delay_s(retries))
        return 0.0

    monkeypatch.setattr(Retries, "next_delay_s", note_delay)

    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes

            async def use_and_break() -> None:
                await first.peers.request(2, "flush", {})
                second.cut()
                await until(lambda: not first.peers.links)

            for _ in range(4):
                await use_and_break()
            assert delays == [0.05, 0.1, 0.2]
            monkeypatch.setattr(peers, "STEADY_S", 0.0)
            for _ in range(3):
                await use_and_break()
            # The first of them came after the last link that had broken soon.
            assert delays == [0.05, 0.1, 0.2, 0.4]

    run(test())


def test_who_does_not_know_the_secret_is_not_let_in_and_lets_nobody_in() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            second.peers.identity = replace(second.peers.identity, secret=b"another")
            for asking, asked in ((first, second), (second, first)):
                with pytest.raises(PeerLost):
                    await asking.peers.request(asked.id, "flush", {}, time_limit_s=1.0)
            assert not first.peers.sessions
            assert not second.peers.sessions

    run(test())


def test_a_node_that_answers_in_the_place_of_another_is_not_trusted() -> None:
    async def test() -> None:
        async with domain(3) as made:
            first, second, third = made.nodes
            second.addresses["link"] = third.addresses["link"]
            first.peers.update(node.record for node in made.nodes)
            with pytest.raises(PeerLost):
                await first.peers.request(2, "flush", {}, time_limit_s=1.0)
            assert third.id not in first.peers.sessions

    run(test())


def test_a_new_link_of_a_node_takes_the_place_of_one_that_it_has_lost() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            await first.peers.request(2, "flush", {})
            old = second.peers.sessions[1]
            # The other side has not noticed that it is broken.
            link = first.peers.link(2)
            assert link is not None
            first.peers.link_lost(link)
            await first.peers.request(2, "flush", {})
            assert second.peers.sessions[1] is not old
            await until(lambda: old not in second.hub.connections)

    run(test())


def test_nodes_full_of_clients_still_open_links_to_each_other() -> None:
    async def test() -> None:
        async with domain() as made, client(made.nodes[0]), client(made.nodes[1]):
            for node in made.nodes:
                node.hub.entrance.max_connections = 1
            for node, other in (made.nodes, made.nodes[::-1]):
                assert await node.peers.request(other.id, "flush", {}) is None
                assert node.hub.entrance.clients == 1
            with pytest.raises(aiormq.exceptions.AMQPError):
                async with client(made.nodes[0]):
                    pass

    run(test())


def test_silent_peers_on_the_link_port_keep_neither_clients_nor_nodes_out() -> None:
    async def test() -> None:
        async with domain() as made, asyncio.TaskGroup() as tasks:
            first, second = made.nodes
            first.hub.entrance.max_connections = 1
            host, port = first.addresses["link"].split(":")
            opened = [
                await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0))
                for _ in range(MAX_LINK_HANDSHAKES + 1)
            ]
            reads = [tasks.create_task(reader.read()) for reader, _ in opened]
            await reads[-1]
            assert not any(read.done() for read in reads[:-1])
            assert await second.peers.request(first.id, "flush", {}) is None
            await reads[-2]
            assert not any(read.done() for read in reads[:-2])
            async with client(first):
                assert first.hub.entrance.clients == 1
            for _, writer in opened:
                writer.close()

    run(test())


def test_who_speaks_before_the_proof_is_cut_off() -> None:
    async def test() -> None:
        async with domain(1) as made:
            host, port = made.nodes[0].addresses["link"].split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"\0\0\0\x09\x03" + bytes(8))
            assert await reader.read() == b""
            writer.close()

    run(test())


async def as_node(made: HandMadeDomain, *frames: bytes) -> list[link.Frame]:
    """Send frames to the first node as node 9 of its domain, which it does not know; return what it answers."""
    host, port = made.nodes[0].addresses["link"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    mine = link.Hello(link.VERSION, 9, 1, bytes(link.NONCE_BYTES))
    writer.write(link.encode_hello(mine))
    decoder = link.LinkDecoder(1_000_000)
    found: list[link.Frame] = []
    while data := await reader.read(65536):
        decoder.feed(data)
        while (frame := decoder.next_frame()) is not None:
            found.append(frame)
            if isinstance(frame, link.Hello):
                writer.write(link.encode_proof(link.proof_of_caller(SECRET, mine, frame)))
                writer.write(b"".join(frames))
                writer.write_eof()
    writer.close()
    return found[2:]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"command": 1}', b'{"command": "flush"}', b"[" * 100_000])
def test_a_request_that_is_none_is_refused_without_a_traceback(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with domain(1) as made:
            [answer] = await as_node(made, link.encode_request(7, text))
            assert isinstance(answer, link.Failure)
            assert (answer.number, answer.kind) == (7, "ClusterError")

    run(test())
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("numbers", [(7, 7), (0,)], ids=["in use", "zero"])
def test_a_consumer_number_that_cannot_be_used_ends_the_link(numbers: tuple[int, ...]) -> None:
    async def test() -> None:
        async with domain(1) as made, client(made.nodes[0]) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("orders", durable=True)
            await channel.default_exchange.publish(aio_pika.Message(b"body"), "orders")
            state = made.nodes[0].broker.engine.find_queue("orders")
            assert state is not None
            consumes = [link.Consume(number, state.queue.id, 10.0, 0, False, None) for number in numbers]
            answers = await as_node(made, *map(link.encode_consume, consumes), link.encode_request(8, b"{}"))
            assert not [answer for answer in answers if isinstance(answer, link.Failure)]
            # No consumer holds what the link was sent.
            assert not state.unacked
            message = await queue.get()
            assert message is not None
            assert message.body == b"body"

    run(test())


def test_a_message_that_lives_longer_than_64_bits_tell_is_stored_and_delivered() -> None:
    async def test() -> None:
        async with domain(1) as made, client(made.nodes[0]) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("orders", durable=True)
            state = made.nodes[0].broker.engine.find_queue("orders")
            assert state is not None
            queue_id = state.queue.id
            content = link.Content(b"body", b"\0\0", b"\0\0", time_us=(1 << 63) - 1)
            consume = link.Consume(2, queue_id, 10.0, 0, False, None)
            answers = await as_node(
                made,
                link.encode_put(1, [queue_id], content),
                link.encode_put(3, [queue_id], replace(content, sender=1)),
                link.encode_consume(consume),
            )
            assert [type(one) for one in answers].count(link.Deliver) == 2
            await queue.delete(if_empty=False)

    run(test())


def test_flush_is_answered_when_all_before_it_is_durable() -> None:
    async def test() -> None:
        async with domain() as made:
            first, second = made.nodes
            gate = asyncio.Event()
            commit = second.broker.store.commit

            async def commit_when_open(*arguments: object, **options: object) -> None:
                await gate.wait()
                await commit(*arguments, **options)  # type: ignore[arg-type]

            second.broker.store.commit = commit_when_open  # type: ignore[method-assign]
            second.topology.create_queue("orders", lambda error: None)
            flushing = asyncio.ensure_future(first.peers.request(2, "flush", {}))
            await first.peers.request(2, "queue.counts", {"queue_id": 2000})
            assert not flushing.done()
            gate.set()
            await flushing

    run(test())


def test_links_are_counted_out_of_the_way_of_stopping() -> None:
    async def test() -> None:
        async with domain() as made:
            first = made.nodes[0]
            await first.peers.request(2, "flush", {})
            assert any(isinstance(connection, Link) for connection in first.hub.connections)
            await first.hub.drain()
            assert await first.peers.request(2, "flush", {}) is None

    run(test())
