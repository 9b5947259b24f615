"""The OpenAPI document is made from the routes: each of them is in it, with a word about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute, Route

from flyball.broker.management import openapi
from flyball.broker.management.api.context import ApiContext
from flyball.broker.management.part import FACTORIES, console_part
from tests.broker.management.api.conftest import Api
from tests.nodes import RunningNode


@pytest.fixture
def document(api: Api) -> Any:
    return api.get("/openapi.json")


def operations(document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_every_route_is_in_it(tmp_path: Path) -> None:
    routes: list[BaseRoute] = []

    def remember(context: ApiContext) -> list[BaseRoute]:
        routes.extend(route for factory in FACTORIES for route in factory(context))
        return []

    flags = {"store": "memory", "http": "127.0.0.1:0"}
    with RunningNode(tmp_path, parts=[console_part([*FACTORIES, remember])], **flags) as node:
        document = httpx.get(f"http://{node.address('http')}{openapi.PATH}").json()
    described = {(path, method.upper()) for path, method, _ in operations(document)}
    served = {
        (re.sub(r":\w+\}", "}", route.path), method)
        for route in routes
        if isinstance(route, Route) and route.path.startswith(("/api", "/metrics"))
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert described == served | {(openapi.PATH, "GET")}
    assert ("/api/queues/{vhost}/{name}", "GET") in served


def test_every_route_has_a_word_about_it_and_a_name_of_its_own(document: Any) -> None:
    assert [
        path for path, _, operation in operations(document) if not operation["summary"].endswith((".", "?"))
    ] == []
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))


def test_every_part_of_a_path_is_a_parameter(document: Any) -> None:
    for path, _, operation in operations(document):
        told = [parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "path"]
        assert told == re.findall(r"\{(\w+)\}", path)


def test_a_list_can_be_asked_in_pages(document: Any) -> None:
    operation = document["paths"]["/api/queues"]["get"]
    assert {parameter["name"] for parameter in operation["parameters"]} == openapi.LIST_QUERY.keys()


def test_a_right_that_is_needed_is_told(document: Any) -> None:
    assert "monitoring" in document["paths"]["/api/nodes"]["get"]["description"]


def test_it_is_of_the_version_that_it_says(document: Any) -> None:
    assert document["openapi"].startswith("3.1.")
    assert document["info"]["title"] == "Flyball"
    assert {"basic", "session"} == document["components"]["securitySchemes"].keys()


def test_it_is_made_once_and_names_the_cookie_of_the_address_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    make = openapi.document

    def counted(found: Any, cookie: str) -> dict[str, Any]:
        made.append(cookie)
        return make(found, cookie)

    monkeypatch.setattr(openapi, "document", counted)
    with RunningNode(tmp_path, parts=[console_part()], store="memory", http="127.0.0.1:0") as node:
        place = f"http://{node.address('http')}{openapi.PATH}"
        found = [httpx.get(place, headers={"Host": host}).json() for host in ("localhost:1234", "localhost")]
    names = [document["components"]["securitySchemes"]["session"]["name"] for document in found]
    assert (names, len(made)) == (["flyball_session_1234", "flyball_session"], 1)


def test_http_page_lists_all_own_resources_with_their_tags(document: Any) -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "http-api.md").read_text()
    rows = [line for line in page.splitlines() if re.match(r"\| `[A-Z]+ ", line)]
    for path, method, operation in operations(document):
        if path.startswith("/api/flyball/"):
            short = re.sub(r"\{(\w+)\}", lambda part: part[1].upper(), path.removeprefix("/api/flyball/"))
            request = re.compile(rf"`{method.upper()} {re.escape(short)}[`?]")
            [row] = [row for row in rows if request.search(row)]
            assert row.split("|")[2].strip("` ") in operation.get("description", "any user"), path
