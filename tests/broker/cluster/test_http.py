"""The HTTP API of a node places clients and describes the domain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import pytest
import uvloop

from flyball.broker.cluster.gateway import PlacementRequest
from flyball.broker.cluster.http import NodePlaces, placement_routes
from flyball.broker.cluster.placer import HttpPlacer
from flyball.broker.core.authority import Authority
from flyball.broker.core.placement import Place, PlaceRequest, Role
from flyball.broker.settings import Address
from flyball.broker.transport.http import Login, make_app, serving
from flyball.errors import ClusterError, NotPermitted, QueueNotFound, RequestError
from flyball.model import Permission
from tests.broker.authorities import authority_in_memory
from tests.nodes import ANSWER_LIMIT_S

GUEST = ("guest", "guest")
ANSWER = Place("north", 7, "s-1", {"amqp": "10.0.0.1:5672"})


class FakePlaces(NodePlaces):
    """Answers what the test says, and remembers what it was asked."""

    def __init__(self, answer: Place | Exception) -> None:
        self._answer = answer
        self.queries: list[PlaceRequest] = []
        self.ends: list[tuple[str, str]] = []

    async def place(self, request: PlaceRequest) -> Place:
        self.queries.append(request)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    async def ended(self, session_id: str, user_name: str) -> None:
        self.ends.append((session_id, user_name))

    async def domain(self) -> Mapping[str, Any]:
        return {"leader": "north", "nodes": []}


Ask = Callable[[httpx.AsyncClient], Awaitable[httpx.Response]]
Use = Callable[[Authority, Address], Awaitable[None]]


def with_server(places: FakePlaces, use: Use) -> None:
    """Let a test use the application at the address where it is served."""

    async def run() -> None:
        async with authority_in_memory() as authority:
            app = make_app(placement_routes(Login(authority), places))
            async with serving(app, Address("127.0.0.1", 0), 10) as address:
                await use(authority, address)

    uvloop.run(run())


def asked(
    places: FakePlaces, ask: Ask, prepare: Callable[[Authority], Awaitable[None]] | None = None
) -> httpx.Response:
    """Return what the application answers."""
    answers: list[httpx.Response] = []

    async def use(authority: Authority, address: Address) -> None:
        if prepare is not None:
            await prepare(authority)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=ANSWER_LIMIT_S) as client:
            answers.append(await ask(client))

    with_server(places, use)
    return answers[0]


def test_a_client_is_told_where_it_belongs() -> None:
    places = FakePlaces(ANSWER)
    answer = asked(places, lambda client: client.get("/api/place?queue=orders&role=producer", auth=GUEST))
    assert answer.status_code == 200
    assert answer.json() == {
        "node": "north",
        "host": "10.0.0.1",
        "port": 5672,
        "amqp": "10.0.0.1:5672",
        "session": "s-1",
    }
    assert places.queries == [PlaceRequest("/", "orders", Role.PRODUCER, "guest", arrives=False)]


def test_a_client_that_could_not_go_there_says_so() -> None:
    places = FakePlaces(ANSWER)
    target = "/api/place?queue=orders&session=s-1&avoid=north"
    asked(places, lambda client: client.get(target, auth=GUEST))
    assert places.queries == [PlaceRequest("/", "orders", Role.CLIENT, "guest", "s-1", "north", arrives=False)]


def test_the_end_of_a_client_is_noted() -> None:
    places = FakePlaces(ANSWER)
    answer = asked(places, lambda client: client.delete("/api/place?session=s-1", auth=GUEST))
    assert answer.status_code == 204
    assert places.ends == [("s-1", "guest")]


@pytest.mark.parametrize("header", [None, "Basic !", "Basic Z3Vlc3Q=", "Bearer x", "Basic Z3Vlc3Q6d3Jvbmc="])
def test_without_name_and_password_nobody_is_let_in(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    answer = asked(FakePlaces(ANSWER), lambda client: client.get("/api/place?queue=orders", headers=headers))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert set(answer.json()) == {"error", "reason", "advice"}


async def add_reader(authority: Authority) -> None:
    await authority.add_user("reader", "secret", ["management"])
    await authority.set_permission(Permission("reader", "/", "", "", "^orders$"))


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/place?queue=orders&role=consumer", 200),
        ("/api/place?queue=orders&role=client", 200),
        ("/api/place?queue=orders&role=producer", 403),
        ("/api/place?queue=bills&role=consumer", 403),
        ("/api/domain", 403),
    ],
)
def test_a_user_is_placed_for_what_it_may_do_only(target: str, status: int) -> None:
    answer = asked(FakePlaces(ANSWER), lambda client: client.get(target, auth=("reader", "secret")), add_reader)
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("target", "error", "status"),
    [
        ("/api/place", None, 400),
        ("/api/place?queue=orders&role=judge", None, 400),
        ("/api/place?queue=orders&vhost=none", None, 404),
        ("/api/place?queue=orders", QueueNotFound("orders", "/"), 404),
        ("/api/place?queue=orders", ClusterError("no member has room"), 503),
        ("/api/nothing", None, 404),
    ],
)
def test_an_error_is_told_as_json_with_what_to_do(target: str, error: Exception | None, status: int) -> None:
    answer = asked(FakePlaces(error or ANSWER), lambda client: client.get(target, auth=GUEST))
    assert answer.status_code == status
    assert answer.json()["error"]
    assert answer.json()["advice"]


def test_an_administrator_sees_the_domain() -> None:
    answer = asked(FakePlaces(ANSWER), lambda client: client.get("/api/domain", auth=GUEST))
    assert answer.json() == {"leader": "north", "nodes": []}


# Those who ask


def request(role: str = "producer", password: bytes = b"guest") -> PlacementRequest:
    return PlacementRequest("orders", role, "/", "guest", password)


def test_a_placer_asks_the_nodes_until_one_answers() -> None:
    places = FakePlaces(ANSWER)

    async def use(authority: Authority, address: Address) -> None:
        placer = HttpPlacer([Address("127.0.0.1", 1), address])
        first = await placer.place(request())
        assert first.address == Address("10.0.0.1", 5672)
        assert (first.node, first.session) == ("north", "s-1")
        await placer.place(request(), first)
        await placer.ended(request(), first)

    with_server(places, use)
    assert places.queries[0] == PlaceRequest("/", "orders", Role.PRODUCER, "guest", arrives=False)
    assert places.queries[1] == PlaceRequest("/", "orders", Role.PRODUCER, "guest", "s-1", "north", arrives=False)
    assert places.ends == [("s-1", "guest")]


@pytest.mark.parametrize(
    ("answer", "password", "expected"),
    [
        (ANSWER, b"wrong", NotPermitted),
        (QueueNotFound("orders", "/"), b"guest", QueueNotFound),
        (ClusterError("no room"), b"guest", ClusterError),
        (RequestError("no"), b"guest", RequestError),
        (Place("north", 7, "s-1"), b"guest", ClusterError),
    ],
)
def test_a_placer_raises_what_the_node_says(
    answer: Place | Exception, password: bytes, expected: type[Exception]
) -> None:
    async def use(authority: Authority, address: Address) -> None:
        with pytest.raises(expected):
            await HttpPlacer([address]).place(request(password=password))

    with_server(FakePlaces(answer), use)


def test_requests_that_fail_together_leave_the_node_that_answers_in_front() -> None:
    async def use(authority: Authority, address: Address) -> None:
        placer = HttpPlacer([Address("127.0.0.1", 1), address])
        await asyncio.gather(*(placer.place(request()) for _ in range(2)))
        assert placer._nodes == [address, Address("127.0.0.1", 1)]

    with_server(FakePlaces(ANSWER), use)


def test_a_placer_says_whom_it_has_asked_in_vain() -> None:
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:1"):
        uvloop.run(HttpPlacer([Address("127.0.0.1", 1)]).place(request()))
