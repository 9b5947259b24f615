"""Stopping and starting a node: gracefully, quickly, and with one clear line when it fails."""

from __future__ import annotations

import signal
import socket
from decimal import Decimal
from pathlib import Path

import pytest

from tests.broker.chaos import KEPT, POPPED, Client, Dialect, Ledger, Telesto, ThorBang, drain
from tests.broker.peers import Closed, ThorBangPeer, amqp
from tests.nodes import ANSWER_LIMIT_S, ServeProcess, StartFailed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_that_is_told_to_stop_under_load_keeps_every_promise(number: signal.Signals, tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="embedded", telesto_time_order="oldest") as node:
        queue_ids = create_queues(node)
        clients = [start_client(node, at, queue_ids) for at in range(6)]
        for client in clients:
            assert client.is_under_way.wait(ANSWER_LIMIT_S)
        node.signal(number)
        code, complaints = node.wait()
        assert (code, complaints) == (0, "")
        ledgers = [client.stop() for client in clients]
        node.start()
        assert "was not properly shut down" not in (tmp_path / "postgresql.log").read_text(), "it had to recover"
        expect_all_there(node, ledgers, queue_ids)


def expect_all_there(node: ServeProcess, ledgers: list[Ledger], queue_ids: dict[str, int]) -> None:
    popped = {body for ledger in ledgers for body in ledger.popped}
    perhaps = {body for ledger in ledgers for body in ledger.perhaps_put}
    open_pops = sum(ledger.open_pops for ledger in ledgers)
    for queue_name in queue_ids:
        put = {body for ledger in ledgers for body in ledger.put[queue_name]}
        left = drain(node, queue_name)
        assert not popped & set(left)
        assert set(left) <= put | perhaps
        assert len(put - popped - set(left)) <= (open_pops if queue_name == POPPED else 0)


def test_requests_under_way_are_answered_before_the_node_ends(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="embedded") as node:
        peer = ThorBangPeer(node.connect("thorbang"))
        client_id, queue_id = peer.set_up()
        count = 200
        peer.send(*[f"MSG,{client_id},{client_id},{queue_id},1,0,{number}" for number in range(count)])
        # The first answer shows that the node has read them.
        answers = [peer.receive()]
        node.signal(signal.SIGTERM)
        try:
            while True:
                answers.append(peer.receive())
        except Closed:
            pass
        assert node.wait() == (0, "")
        assert set(answers) == {"OK"}
        node.start()
        found = ThorBangPeer(node.connect("thorbang")).ask(*[f"POPQ,{client_id},{queue_id},1"] * count)
        assert [answer for answer in found if answer != "MSG0"][len(answers) :] == []
        assert len([answer for answer in found if answer != "MSG0"]) == len(answers)


def test_a_node_stops_quickly_with_idle_clients_waiting_readers_and_consumers(tmp_path: Path) -> None:
    # The limit is what a node would wait for: far longer than the test waits for its end.
    with ServeProcess(tmp_path, store="memory", store_time_limit_s=600) as node:
        node.connect("telesto")
        node.connect("thorbang")
        peer, waiting = amqp(node), amqp(node)
        peer.put(peer.declare(), b"body")
        peer.consume("queue", {"x-prefetch": Decimal("0.5")})
        peer.next_delivery()
        waiting.consume("queue")
        assert node.stop() == (0, "")
        peer.expect_connection_close(320, "CONNECTION_FORCED")


def test_a_second_signal_while_stopping_does_no_harm(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="embedded") as node:
        node.signal(signal.SIGTERM)
        node.signal(signal.SIGINT)
        node.signal(signal.SIGTERM)
        assert node.wait() == (0, "")


@pytest.mark.parametrize("protocol", ["telesto", "thorbang"])
@pytest.mark.parametrize("store", ["memory", "embedded"])
def test_an_address_in_use_is_one_line_and_exit_code_1(protocol: str, store: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed) as failed:
            ServeProcess(tmp_path, store=store, **{protocol: f"127.0.0.1:{port}"}).start()
    expect_one_line(failed.value, f"cannot listen on 127.0.0.1:{port}", code=1)


def test_a_data_folder_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, store="embedded") as node:
        with pytest.raises(StartFailed) as failed:
            ServeProcess(tmp_path, store="embedded").start()
        expect_one_line(failed.value, f"another broker uses the data folder {tmp_path}", code=1)
        assert ThorBangPeer(node.connect("thorbang")).ask("HELLO") == ["OK"]


def test_a_store_out_of_reach_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as failed:
        ServeProcess(tmp_path, store="postgresql://user:secret@127.0.0.1:1/nothing").start()
    expect_one_line(failed.value, "the store failed", code=1)
    assert "secret" not in failed.value.complaints


def test_a_bad_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with pytest.raises(StartFailed) as failed:
        ServeProcess(tmp_path, telesto="nowhere").start()
    expect_one_line(failed.value, "--telesto: 'nowhere' is not a valid address", code=2)


def expect_one_line(failed: StartFailed, part: str, code: int) -> None:
    assert failed.code == code
    assert failed.complaints.count("\n") == 1, failed.complaints
    assert failed.complaints.startswith("flyball: ")
    assert part in failed.complaints


def create_queues(node: ServeProcess) -> dict[str, int]:
    peer = ThorBangPeer(node.connect("thorbang"))
    return {name: int(peer.ask(f"CREATEQUEUE,{name}")[0]) for name in (POPPED, KEPT)}


def start_client(node: ServeProcess, at: int, queue_ids: dict[str, int]) -> Client:
    dialect: Dialect = (ThorBang, Telesto)[at % 2](node, f"client-{at}", queue_ids)
    return Client(f"client-{at}", dialect, seed=at)
