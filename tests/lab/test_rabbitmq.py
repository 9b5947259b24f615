"""A private RabbitMQ gets ports of its own. How it serves is seen wherever Flyball is compared with it."""

from __future__ import annotations

import random
import socket

import pytest

from flyball.lab.rabbitmq import HOST, free_ports


def chances(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let chance bring these ports, one after the other."""
    coming = iter(ports)
    monkeypatch.setattr(random, "randrange", lambda *_: next(coming))


def test_nobody_is_told_a_port_that_another_is_about_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with free_ports(2) as [first, second]:
        pass
    chances(monkeypatch, first, first, second, first)
    with free_ports(1) as mine, free_ports(1) as others:
        assert (mine, others) == ([first], [second])
    with free_ports(1) as again:
        assert again == [first]


def test_a_port_that_somebody_listens_on_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with free_ports(2) as [taken, other]:
        pass
    chances(monkeypatch, taken, other)
    with socket.create_server((HOST, taken)), free_ports(1) as found:
        assert found == [other]
