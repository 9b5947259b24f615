"""A service that answers requests over AMQP, and a client that asks it and gets the answers by direct reply-to.

Needs `pip install pika`. Start a node with `./run`, then: python examples/amqp_rpc.py [URL]
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import pika

QUEUE = "rpc.squares"
REPLIES = "amq.rabbitmq.reply-to"
"""Stands for the channel that asks: answers go straight there, without a queue."""


def serve(url: str, ready: threading.Event) -> None:
    """Answer each request with the square of its number, until a request asks for the end."""

    def answer(channel: Any, request: Any, properties: Any, body: bytes) -> None:
        if body == b"end":
            channel.stop_consuming()
            return
        about = pika.BasicProperties(correlation_id=properties.correlation_id)
        channel.basic_publish("", properties.reply_to, str(int(body) ** 2), about)

    # A connection of pika belongs to the thread that has made it.
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, auto_delete=True)
        channel.basic_consume(QUEUE, answer, auto_ack=True)
        ready.set()
        channel.start_consuming()


def ask(connection: Any, numbers: range) -> None:
    """Send all requests, and print the answers as they come."""
    unanswered = {str(number) for number in numbers}

    def answered(channel: Any, answer: Any, properties: Any, body: bytes) -> None:
        unanswered.remove(properties.correlation_id)
        print(f"{properties.correlation_id} squared is {body.decode()}")

    channel = connection.channel()
    # The consumer of the answers must be there first, and on the channel that asks.
    channel.basic_consume(REPLIES, answered, auto_ack=True)
    for number in numbers:
        about = pika.BasicProperties(reply_to=REPLIES, correlation_id=str(number))
        channel.basic_publish("", QUEUE, str(number), about)
    while unanswered:
        connection.process_data_events(time_limit=None)
    channel.basic_publish("", QUEUE, "end")


def main(url: str) -> None:
    ready = threading.Event()
    service = threading.Thread(target=serve, args=(url, ready), daemon=True)
    service.start()
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        ready.wait()
        ask(connection, range(1, 4))
    service.join()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "amqp://guest:guest@127.0.0.1:5672/%2F")
