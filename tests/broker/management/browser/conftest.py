"""A browser, a node with its console, and clients that give it something to show."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from playwright.sync_api import Browser, StorageState, expect, sync_playwright

from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from tests.broker.management.browser.visitor import LOOK_MS, PHONE_OPTIONS, Visitor
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

GUEST = ("guest", "guest")
READER = ("reader", "secret")
# Of a test: it may have a browser and nodes to start, and wait for several things.
LIMIT_S = 300
START_MS = 150_000


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture(scope="package")
def browser(postgres: EmbeddedPostgres) -> Iterator[Browser]:
    """Chromium; one for all, since it costs a second to start.

    Playwright keeps an event loop in this thread, so whatever needs one there, as PostgreSQL, is started before.
    """
    expect.set_options(timeout=LOOK_MS)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"], timeout=START_MS
        )
        yield found
        found.close()


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The node's folder."""
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="package")
def node(data: Path) -> Iterator[ServeProcess]:
    """One node for all: use unique names."""
    with ServeProcess(data, store="memory", http="127.0.0.1:0", trace="on") as process:
        yield process


@pytest.fixture(scope="package")
def api(node: ServeProcess) -> Iterator[httpx.Client]:
    """The node's HTTP interface, as an administrator."""
    with httpx.Client(base_url=f"http://{node.address('http')}/api", auth=GUEST, timeout=ANSWER_LIMIT_S) as client:
        yield client


@pytest.fixture(scope="package")
def reader(api: httpx.Client) -> tuple[str, str]:
    """A user that may look at everything and touch nothing."""
    name, password = READER
    api.put(f"/users/{name}", json={"password": password, "tags": "monitoring"}).raise_for_status()
    nothing = {"configure": "", "write": "", "read": ""}
    api.put(f"/permissions/%2F/{name}", json=nothing).raise_for_status()
    return READER


@pytest.fixture(scope="package")
def new_channel(node: ServeProcess) -> Iterator[Callable[[], Any]]:
    """Open a channel on a connection of its own."""
    host, port = node.address("amqp")
    with ExitStack() as connections:

        def new() -> Any:
            connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
            connections.callback(lambda: connection.is_open and connection.close())
            return connection.channel()

        yield new


@pytest.fixture(scope="package")
def channel(new_channel: Callable[[], Any]) -> Any:
    return new_channel()


@pytest.fixture
def visit(browser: Browser, node: ServeProcess) -> Iterator[Callable[..., Visitor]]:
    """Open a window; it is closed after the test. For a test that needs only a page there are windows already."""
    with ExitStack() as windows:
        yield lambda **options: windows.enter_context(Visitor(browser, node, **options))


@pytest.fixture(scope="package")
def window(browser: Browser, node: ServeProcess) -> Iterator[Visitor]:
    """Where an administrator has logged in; one for all, since it costs a second to open and to fill."""
    with Visitor(browser, node) as found:
        yield found.log_in()


@pytest.fixture(scope="package")
def reader_window(browser: Browser, node: ServeProcess, reader: tuple[str, str]) -> Iterator[Visitor]:
    """A window in which a user with read-only rights has logged in."""
    with Visitor(browser, node) as found:
        yield found.log_in(*reader)


@pytest.fixture(scope="package")
def session(window: Visitor) -> StorageState:
    """Browser storage of an administrator's login; do not log out."""
    return window.context.storage_state()


@pytest.fixture(scope="package")
def phone_window(browser: Browser, node: ServeProcess, session: StorageState) -> Iterator[Visitor]:
    """An administrator's phone."""
    with Visitor(browser, node, **PHONE_OPTIONS, storage_state=session) as found:
        yield found


@pytest.fixture
def visitor(window: Visitor) -> Visitor:
    """An administrator who has logged in. Leave the window as it is: logged in, on line, and with its size."""
    return window.begin()


@pytest.fixture
def looker(reader_window: Visitor) -> Visitor:
    """A user who may look at everything and touch nothing, and has logged in."""
    return reader_window.begin()


@pytest.fixture
def phone(phone_window: Visitor) -> Visitor:
    """An administrator who has logged in with a phone."""
    return phone_window.begin()


@pytest.fixture(scope="package")
def manager(api: httpx.Client) -> tuple[str, str]:
    """A user with the tag management, which is not enough for what is about the whole node."""
    api.put("/users/manager", json={"password": "secret", "tags": "management"}).raise_for_status()
    return ("manager", "secret")
