"""The domain: two real nodes, a clustered queue, its clients, the manager's decisions and their reasons."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pika
import psycopg
import pytest
from playwright.sync_api import Browser, Locator, expect

from flyball.broker.store.postgres.embedded import EmbeddedPostgres
from tests.broker.management.browser.conftest import GUEST, READER
from tests.broker.management.browser.visitor import PHONE, PHONE_OPTIONS, Visitor
from tests.nodes import ANSWER_LIMIT_S, ServeProcess

ONLY = "Read-only access: only administrators may change the domain."
# For what nodes agree on, and for one that is started.
LONG_MS = 120_000


@pytest.fixture(scope="module")
def nodes(
    browser: Browser, postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServeProcess, ServeProcess]]:
    """The nodes north and south of one domain."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE console_domain")
    store = postgres.dsn.replace("/postgres?", "/console_domain?")

    def node(name: str) -> ServeProcess:
        return ServeProcess(tmp_path_factory.mktemp(name), name=name, store=store, http="127.0.0.1:0", thorbang="off")

    with node("north") as north, node("south") as south:
        yield north, south


@pytest.fixture(scope="module")
def domain(nodes: tuple[ServeProcess, ServeProcess]) -> Iterator[httpx.Client]:
    """Flyball's own part of the HTTP interface of the node north, when both nodes are there and one leads."""
    address = nodes[0].address("http")
    with httpx.Client(base_url=f"http://{address}/api/flyball", auth=GUEST, timeout=ANSWER_LIMIT_S) as client:
        until(client, lambda tree: len(tree["nodes"]) == 2 and tree["leader"] is not None)
        yield client


def until(client: httpx.Client, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the tree when it is as wanted."""
    while True:
        answer = client.get("/domain")
        if answer.status_code == 200 and condition(answer.json()):
            return dict(answer.json())


def order(client: httpx.Client, command: str, **arguments: Any) -> None:
    client.post(f"/domain/commands/{command}", json=arguments).raise_for_status()


@pytest.fixture(scope="module")
def cluster(domain: httpx.Client) -> str:
    """A clustered queue with a member on each node."""
    order(domain, "cluster.create", name="orders", members=["north", "south"])
    until(domain, lambda tree: [len(each["members"]) for each in tree["clusters"]] == [2])
    return "orders"


@pytest.fixture(scope="module")
def north_window(
    browser: Browser, nodes: tuple[ServeProcess, ServeProcess], domain: httpx.Client
) -> Iterator[Visitor]:
    with Visitor(browser, nodes[0]) as found:
        yield found.log_in()


@pytest.fixture
def north(north_window: Visitor) -> Visitor:
    """An administrator before the console of the node north."""
    return north_window.begin()


@pytest.fixture(scope="module")
def consumer(cluster: str, nodes: tuple[ServeProcess, ServeProcess]) -> Iterator[pika.BlockingConnection]:
    """The connection of a consumer of the clustered queue on the node south; a test may close it."""
    host, port = nodes[1].address("amqp")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))
    connection.channel().basic_consume(cluster, lambda *_: None)
    yield connection
    if connection.is_open:
        connection.close()


def opened(visitor: Visitor) -> Visitor:
    return visitor.open("/domain", "Domain")


def decisions(visitor: Visitor, text: str) -> Locator:
    return visitor.main.get_by_role("list", name="Decisions").get_by_role("listitem").filter(has_text=text)


def test_a_node_alone_says_how_to_make_a_domain(visitor: Visitor) -> None:
    opened(visitor)
    expect(
        visitor.main.get_by_text("This is the only node. Nodes that share one PostgreSQL form a domain")
    ).to_be_visible()
    expect(visitor.main.get_by_text("No clustered queues")).to_be_visible()
    expect(visitor.main.get_by_text("No sessions")).to_be_visible()
    expect(visitor.card("Nodes").get_by_role("row").filter(has_text="up")).to_contain_text("amqp 127.0.0.1:")
    assert visitor.complaints == []


def test_nodes_are_shown_with_state_lease_and_addresses(north: Visitor) -> None:
    opened(north)
    rows = north.card("Nodes").get_by_role("row")
    expect(rows.filter(has_text="north")).to_contain_text("up")
    expect(rows.filter(has_text="south")).to_contain_text("amqp 127.0.0.1:")
    expect(rows.filter(has_text="south").locator("td[data-label=Lease]")).to_have_text(re.compile(r"\d s$"))
    expect(rows.filter(has_text="leader")).to_have_count(1)
    expect(decisions(north, "leads the domain")).to_be_visible()
    north.page.get_by_text("Moves", exact=True).click()
    expect(north.main.get_by_text("No decisions of this kind")).to_be_visible()
    assert north.complaints == []


def test_members_and_sessions_are_shown_with_their_figures(
    north: Visitor, cluster: str, consumer: pika.BlockingConnection
) -> None:
    opened(north)
    member = north.card(cluster).get_by_role("row").filter(has_text="south")
    expect(member.locator("td[data-label='Share y']")).to_have_text("100 %", timeout=LONG_MS)
    expect(member.locator("td[data-label='Share x']")).to_have_text("0 %")
    expect(member.locator("td[data-label='Load L']")).to_have_text("1 %")
    expect(member.locator("td[data-label=Capacity]")).to_have_text("100")
    expect(member).to_contain_text("fixed")
    expect(north.tile("Sessions")).to_have_text("1")
    session = north.card("Sessions").get_by_role("row").filter(has_text="consumer")
    expect(session).to_contain_text("south", timeout=LONG_MS)
    expect(session).to_contain_text(cluster)
    north.keep_picture("domain")
    assert north.complaints == []


def test_removal_of_a_member_is_confirmed_and_explained(
    north: Visitor, cluster: str, consumer: pika.BlockingConnection
) -> None:
    opened(north)
    member = north.card(cluster).get_by_role("row").filter(has_text="south")
    member.get_by_role("button", name="Remove").click()
    north.dialog.get_by_role("button", name="Cancel").click()
    member.get_by_role("button", name="Remove").click()
    north.dialog.get_by_role("button", name="Remove").click()
    expect(north.toast("Draining the member on “south”")).to_be_visible()
    marked = decisions(north, "Drain the member of orders on 'south'")
    expect(marked).to_contain_text("because its removal was requested", timeout=LONG_MS)
    expect(member).to_contain_text("draining", timeout=LONG_MS)
    north.page.get_by_text("Moves", exact=True).click()
    move = decisions(north, "Ask a consumer of orders to move from 'south' to 'north'")
    expect(move.first).to_contain_text("because the member on 'south' is draining", timeout=LONG_MS)
    expect(marked).to_have_count(0)
    north.keep_picture("domain-decisions")
    consumer.close()
    north.page.get_by_text("Scaling").click()
    expect(decisions(north, "Remove the member of orders on 'south'")).to_be_visible(timeout=LONG_MS)
    expect(marked).to_be_visible()
    expect(member).to_have_count(0, timeout=LONG_MS)
    north.button("Add a member").click()
    north.dialog.get_by_label("On node").select_option("south")
    north.dialog.get_by_role("button", name="Add").click()
    expect(member).to_have_count(1, timeout=LONG_MS)
    assert north.complaints == []


def test_a_clustered_queue_is_created_changed_and_deleted(north: Visitor, domain: httpx.Client) -> None:
    opened(north)
    north.button("New clustered queue").click()
    north.dialog.get_by_label("Name").fill("mails")
    north.dialog.get_by_label("Members on these nodes").fill("east")
    north.dialog.get_by_role("button", name="Create").click()
    expect(north.dialog.get_by_role("alert")).to_contain_text("east")
    north.dialog.get_by_label("Members on these nodes").fill("south")
    north.keep_picture("domain-question")
    north.dialog.get_by_role("button", name="Create").click()
    expect(north.toast("Created clustered queue “mails”")).to_be_visible(timeout=LONG_MS)
    card = north.card("mails")
    expect(card.get_by_role("row").filter(has_text="south")).to_be_visible(timeout=LONG_MS)
    card.get_by_role("button", name="Change").click()
    north.dialog.get_by_label("Maximum members").fill("3")
    north.dialog.get_by_label("Other options").fill('{"surplus": 5}')
    north.dialog.get_by_role("button", name="Change").click()
    expect(card).to_contain_text("1 to 3", timeout=LONG_MS)
    [options] = [each["options"] for each in domain.get("/domain").json()["clusters"] if each["name"] == "mails"]
    assert (options["max_members"], options["surplus"]) == (3, 5)
    card.get_by_role("button", name="Delete").click()
    north.dialog.get_by_role("textbox").fill("mails")
    north.dialog.get_by_role("button", name="Delete").click()
    expect(card).to_have_count(0, timeout=LONG_MS)
    assert north.own_complaints == []


def test_rebalancing_says_first_what_would_move(north: Visitor, nodes: tuple[ServeProcess, ServeProcess]) -> None:
    host, port = nodes[0].address("amqp")
    with pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0)) as connection:
        channel = connection.channel()
        for number in range(6):
            channel.queue_declare(f"balance-{number}", durable=True)
        opened(north)
        node = north.card("Nodes").get_by_role("row").filter(has_text="north")
        expect(node.locator("td[data-label=Queues]")).to_have_text("6", timeout=LONG_MS)
    north.button("Rebalance").click()
    expect(north.dialog).to_contain_text(re.compile(r"queue balance-\d: north → south"), timeout=LONG_MS)
    north.keep_picture("domain-rebalance")
    north.dialog.get_by_role("button", name="Rebalance").click()
    expect(north.toast("begun")).to_be_visible(timeout=LONG_MS)
    expect(node.locator("td[data-label=Queues]")).to_have_text("3", timeout=LONG_MS)
    assert north.complaints == []


def test_a_node_is_added_by_a_provisioner_and_removed(north: Visitor, domain: httpx.Client) -> None:
    opened(north)
    try:
        north.button("Add a node").click()
        north.dialog.get_by_label("Name").fill("north")
        north.dialog.get_by_role("button", name="Start it").click()
        expect(north.dialog.get_by_role("alert")).to_contain_text("already exists: choose another name")
        north.dialog.get_by_label("Name").fill("east")
        north.dialog.get_by_role("button", name="Start it").click()
        row = north.card("Nodes").get_by_role("row").filter(has_text="east")
        expect(row).to_contain_text("by local", timeout=LONG_MS)
        expect(row).to_contain_text("up", timeout=LONG_MS)
        row.get_by_role("button", name="Remove").click()
        north.dialog.get_by_role("textbox").fill("east")
        north.dialog.get_by_role("button", name="Remove").click()
        expect(north.toast("Draining node “east”")).to_be_visible()
        expect(row).to_have_count(0, timeout=LONG_MS)
    finally:
        # A node that was started outlives us: it must not.
        if any(node["name"] == "east" for node in domain.get("/domain").json()["nodes"]):
            domain.post("/domain/commands/node.remove", json={"name": "east"})
            until(
                domain, lambda tree: all(node["name"] != "east" or node["state"] == "dead" for node in tree["nodes"])
            )
    assert north.own_complaints == []


def test_growth_of_a_clustered_queue_is_explained_in_the_timeline(
    north: Visitor, domain: httpx.Client, nodes: tuple[ServeProcess, ServeProcess]
) -> None:
    order(domain, "cluster.create", name="parcels", members=["north"], options={"capacity": 2, "max_members": 2})
    opened(north)
    members = north.card("parcels").locator("tbody").get_by_role("row")
    expect(members).to_have_count(1)
    north.page.get_by_text("Scaling").click()
    growth = decisions(north, "Add a member of parcels on 'south'")
    expect(growth).to_have_count(0)
    host, port = nodes[0].address("amqp")
    with ExitStack() as connections:
        for _ in range(3):
            parameters = pika.ConnectionParameters(host, port, heartbeat=0)
            connection = connections.enter_context(pika.BlockingConnection(parameters))
            connection.channel().basic_consume("parcels", lambda *_: None)
        why = "because load 3 would be 150 % of the members' capacity 2"
        expect(growth).to_contain_text(why, timeout=LONG_MS)
        expect(members.filter(has_text="south")).to_be_visible(timeout=LONG_MS)
        north.keep_picture("domain-growth")
    order(domain, "cluster.delete", name="parcels")
    expect(north.card("parcels")).to_have_count(0, timeout=LONG_MS)
    assert north.complaints == []


def test_who_may_only_look_cannot_change_the_domain(
    browser: Browser, nodes: tuple[ServeProcess, ServeProcess], cluster: str, domain: httpx.Client
) -> None:
    name, password = READER
    users = f"http://{nodes[0].address('http')}/api/users/{name}"
    httpx.put(users, json={"password": password, "tags": "monitoring"}, auth=GUEST).raise_for_status()
    with Visitor(browser, nodes[0]) as looker:
        opened(looker.log_in(name, password))
        expect(looker.card(cluster)).to_be_visible()
        for label in ("Rebalance", "Add a node", "New clustered queue", "Add a member", "Change", "Delete", "Remove"):
            button = looker.button(label).first
            expect(button).to_have_accessible_description(ONLY)
            button.press("Enter")
        expect(looker.toast(ONLY).first).to_be_visible()
        assert looker.dialog.count() == 0
        assert looker.complaints == []
        post = "(where) => import('/web/api.js').then((api) => api.post(where, {})).catch((error) => error.status)"
        assert looker.page.evaluate(post, "/api/flyball/domain/commands/rebalance") == 403


def test_on_a_phone_it_fits(
    browser: Browser, nodes: tuple[ServeProcess, ServeProcess], north_window: Visitor, cluster: str
) -> None:
    session = north_window.context.storage_state()
    with Visitor(browser, nodes[0], **PHONE_OPTIONS, color_scheme="dark", storage_state=session) as phone:
        opened(phone)
        # Of all decisions the newest are shown.
        phone.page.get_by_text("Leader and failures").click()
        expect(decisions(phone, "leads the domain")).to_be_visible()
        expect(phone.main.locator(".loading")).to_have_count(0)
        phone.keep_picture("phone-domain")
        assert phone.width() <= PHONE["width"]
        assert phone.complaints == []
