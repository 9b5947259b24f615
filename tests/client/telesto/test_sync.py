"""What is special about the synchronous client: its thread, interruptions, and use from several threads."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from tests.telesto_client import ClientClosed, ConnectionFailed
from tests.telesto_client.sync import Client

Unique = Callable[[str], str]

INTERRUPTED = """
import signal, sys, threading
from tests.telesto_client.sync import Client

with Client.connect(sys.argv[1], name=sys.argv[2]) as client:
    queue = client.create_queue(sys.argv[2])
    try:
        print("waiting", flush=True)
        client.take(queue, wait_s=600)
    except KeyboardInterrupt:
        print(f"{client.ping() > 0} interrupted", flush=True)
assert [thread.name for thread in threading.enumerate()] == ["MainThread"]
print("closed", flush=True)
"""


def clients_threads() -> int:
    return sum(thread.name == "flyball-client" for thread in threading.enumerate())


def test_ctrl_c_ends_a_call_and_leaves_the_client_usable(address: str, unique: Unique) -> None:
    program = subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", INTERRUPTED, address, unique("alice")], stdout=subprocess.PIPE, text=True
    )
    with program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "waiting\n"
            program.send_signal(signal.SIGINT)
            assert program.stdout.read() == "True interrupted\nclosed\n"
        finally:
            program.kill()
    assert program.returncode == 0


def test_the_thread_ends_with_the_client(address: str) -> None:
    before = clients_threads()
    client = Client.connect(address)
    assert clients_threads() == before
    with client:
        client.ping()
        assert clients_threads() == before + 1
    assert clients_threads() == before
    with pytest.raises(ConnectionFailed):
        Client.connect("127.0.0.1:1").open()
    assert clients_threads() == before


def test_threads_may_share_a_client(address: str, unique: Unique) -> None:
    with Client.connect(address, name=unique("alice")) as client:
        queue = client.create_queue(unique("orders"))
        threads = [threading.Thread(target=lambda: [client.put(queue, "x") for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(client.take_many(queue, 1000)) == 200


def test_closing_ends_the_iteration_of_another_thread(address: str, unique: Unique) -> None:
    ended: list[BaseException] = []
    started = threading.Event()
    client = Client.connect(address, name=unique("alice"))
    client.open()
    queue = client.create_queue(unique("orders"))

    def iterate() -> None:
        try:
            with client.consume(queue) as consumer:
                started.set()
                for _ in consumer:
                    pass
        except ClientClosed as error:
            ended.append(error)

    thread = threading.Thread(target=iterate)
    thread.start()
    started.wait()
    client.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(ended) == 1


def test_messages_are_iterated_page_by_page(address: str, unique: Unique) -> None:
    with Client.connect(address, name=unique("alice")) as client:
        queue = client.create_queue(unique("orders"))
        client.put_many(queue, [f"{number}" for number in range(25)])
        texts = [message.text for message in client.iterate_messages(queue, page=10)]
        assert texts == [f"{number}" for number in range(25)]
        for _ in client.iterate_messages(queue, page=10):
            break


def test_a_call_from_the_clients_own_loop_is_refused(address: str) -> None:
    with Client.connect(address) as client:

        async def call() -> float:
            return client.ping()

        with pytest.raises(RuntimeError, match="own event loop"):
            client._portal.call(call())
