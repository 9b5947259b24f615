"""A real Celery worker: tasks, results over the broker, retries, remote control, and a worker that dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kombu.pools
import pytest

from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.broker.protocols.amqp.compatibility.clients.celery_tasks import BROKER_VARIABLE, QUEUE_VARIABLE, make_app
from tests.broker.protocols.amqp.compatibility.queues import count, take

LIMIT_S = 60.0
ROOT = Path(__file__).parents[6]
TASKS = "tests.broker.protocols.amqp.compatibility.clients.celery_tasks"
StartWorker = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def app(broker: Broker, name: str) -> Iterator[Any]:
    """The application, as those who send tasks have it."""
    app = make_app(broker.url(), name)
    yield app
    if app.backend.result_consumer._consumer is not None:
        app.backend.result_consumer.stop()
    app.close()
    # Their connections are kept for the whole process otherwise, closed as they are.
    kombu.pools.reset()


@pytest.fixture
def start_worker(broker: Broker, name: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Start a worker, with further options; it is stopped after the test."""
    log = (tmp_path / "worker.log").open("w")

    def start(*options: str) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "celery",
            "--app",
            TASKS,
            "worker",
        ]
        command += ["--pool", "solo", "--loglevel", "INFO", "--hostname", f"{name}-{len(workers)}@localhost"]
        command += options
        environment = {**os.environ, BROKER_VARIABLE: broker.url(), QUEUE_VARIABLE: name}
        worker = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT)
        workers.append(worker)
        return worker

    workers: list[subprocess.Popen[str]] = []
    with ExitStack() as ends:
        ends.enter_context(log)
        yield start
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(LIMIT_S)


def test_tasks_are_done_and_their_results_come_back(app: Any, start_worker: StartWorker) -> None:
    start_worker()
    results = [app.send_task("add", (number, 1)) for number in range(20)]
    assert [result.get(timeout=LIMIT_S) for result in results] == list(range(1, 21))


def test_the_exception_of_a_task_comes_back(app: Any, start_worker: StartWorker) -> None:
    start_worker()
    with pytest.raises(ValueError, match="no such thing"):
        app.send_task("fail", ("no such thing",)).get(timeout=LIMIT_S)


def test_a_task_is_tried_again(app: Any, start_worker: StartWorker) -> None:
    start_worker()
    assert app.send_task("succeed_after_retries", (3,)).get(timeout=LIMIT_S) == 3


def test_a_task_with_a_delay_and_one_that_expired(app: Any, start_worker: StartWorker) -> None:
    expired = app.send_task("add", (1, 1), expires=0.001)
    delayed = app.send_task("add", (2, 2), countdown=0.5)
    start_worker()
    assert delayed.get(timeout=LIMIT_S) == 4
    assert expired.state in ("PENDING", "REVOKED")


def test_a_worker_answers_to_remote_control(app: Any, start_worker: StartWorker, name: str) -> None:
    start_worker()
    # Its mailbox is open once it works.
    app.send_task("add", (1, 1)).get(timeout=LIMIT_S)
    assert app.control.ping(timeout=LIMIT_S, limit=1) == [{f"{name}-0@localhost": {"ok": "pong"}}]
    inspected = app.control.inspect(timeout=LIMIT_S, limit=1).registered()
    assert "add" in inspected[f"{name}-0@localhost"]


def test_a_task_that_is_acknowledged_late_survives_its_worker(
    app: Any, start_worker: StartWorker, channel: Any, new_name: Callable[[], str]
) -> None:
    started = new_name()
    channel.queue_declare(started)
    doomed = start_worker()
    result = app.send_task("outlive_the_worker", (started,))
    take(channel, started)
    doomed.kill()
    doomed.wait(LIMIT_S)
    start_worker()
    assert result.get(timeout=LIMIT_S) == "done by another worker"


def test_worker_of_three_queues_holds_as_many_tasks_as_its_prefetch(
    app: Any, start_worker: StartWorker, channel: Any, new_name: Callable[[], str]
) -> None:
    started, queues = new_name(), [new_name() for _ in range(3)]
    for queue in (started, *queues):
        channel.queue_declare(queue, durable=queue != started)
    for queue in queues * 2:
        app.send_task("outlive_the_worker", (started,), queue=queue)
    worker = start_worker("--queues", ",".join(queues), "--concurrency", "1")
    take(channel, started)
    # It works on one, acknowledged late, and holds no other in reserve: its prefetch is one for all queues together.
    assert sum(count(channel, queue) for queue in queues) == 5
    worker.kill()
    worker.wait(LIMIT_S)
    for queue in queues:
        channel.queue_delete(queue)
