"""Tasks of the Celery worker of the tests. The broker and the queue come from the environment, since the worker is
a process of its own.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from celery import Celery
from kombu import Producer

BROKER_VARIABLE = "CELERY_TEST_BROKER"
QUEUE_VARIABLE = "CELERY_TEST_QUEUE"


def make_app(broker_url: str, queue: str) -> Any:
    """Return an application whose tasks go through one queue, with results that come back over the broker."""
    app = Celery("celery_tasks", broker=broker_url, backend="rpc://")
    app.conf.update(
        task_default_queue=queue,
        result_expires=60,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"confirm_publish": True},
    )
    app.task(name="add")(add)
    app.task(name="fail")(fail)
    app.task(name="succeed_after_retries", bind=True, max_retries=5)(succeed_after_retries)
    app.task(name="outlive_the_worker", bind=True, acks_late=True, reject_on_worker_lost=True)(outlive_the_worker)
    return app


def add(first: int, second: int) -> int:
    return first + second


def fail(text: str) -> None:
    raise ValueError(text)


def succeed_after_retries(task: Any, wanted: int) -> int:
    """Fail until this many retries were made, and return their number."""
    if task.request.retries < wanted:
        raise task.retry(countdown=0)
    return int(task.request.retries)


def outlive_the_worker(task: Any, started_queue: str) -> str:
    """Say that it started and then hang, forever if it is the first to try."""
    if task.request.delivery_info["redelivered"]:
        return "done by another worker"
    with task.app.connection_for_write() as connection:
        Producer(connection).publish("started", routing_key=started_queue)
    threading.Event().wait()
    return "never"


if BROKER_VARIABLE in os.environ:
    app = make_app(os.environ[BROKER_VARIABLE], os.environ[QUEUE_VARIABLE])
