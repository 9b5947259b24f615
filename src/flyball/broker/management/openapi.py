"""The OpenAPI document of all that can be asked over HTTP, made from the routes themselves.

What there is to say of a route stands beside its handler: the first line of its docstring, and in RabbitMQ's API what
it was declared with.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import flyball
from flyball.broker.management.api.context import About, ApiRoute, Right
from flyball.broker.management.login import cookie_of

PATH = "/api/openapi.json"

# What stands for the name of a session's cookie, which depends on the address that is asked.
ANY_COOKIE = "cookie-of-this-address"

LIST_QUERY = {
    "sort": "The field to sort by; parts of fields after a dot.",
    "sort_reverse": "true for the other direction.",
    "columns": "The fields wanted, with commas between them.",
    "page": "The page, from 1; without it everything comes as one list.",
    "page_size": "How many are on a page, 500 at most.",
    "name": "A part of the names wanted; with pages only.",
    "use_regex": "true if `name` is a regular expression.",
}

PROBLEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("error", "reason", "advice", "kind")},
}


def routes(others: Sequence[BaseRoute]) -> list[Route]:
    """Return the route of the document, which describes the others and itself. Everybody may read it."""

    @functools.cache
    def text() -> str:
        return json.dumps(document([*others, own], ANY_COOKIE), separators=(",", ":"))

    async def show(request: Request) -> Response:
        """What can be asked here, as an OpenAPI document."""
        # Made once, for all: it is long, and whoever asks need not have logged in.
        return Response(text().replace(ANY_COOKIE, cookie_of(request)), media_type="application/json")

    own = Route(PATH, show, methods=["GET"])
    return [own]


def document(found: Iterable[BaseRoute], cookie: str) -> dict[str, Any]:
    """Return the description of the routes below /api, and of /metrics. `cookie` is the name of a session's."""
    paths: dict[str, dict[str, Any]] = {}
    for route in found:
        if isinstance(route, Route) and route.path.startswith(("/api", "/metrics")):
            for method in sorted((route.methods or set()) - {"HEAD"}):
                paths.setdefault(_plain_path(route.path), {})[method.lower()] = _operation(route, method)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Flyball",
            "version": flyball.__version__,
            "description": "RabbitMQ's management API as far as it means something here, and Flyball's own below"
            " /api/flyball. Names in paths are percent-encoded: the virtual host / is %2F.",
        },
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
        },
        "security": [{"basic": []}, {"session": []}],
    }


def _plain_path(path: str) -> str:
    """Return a path without the converters of its parts."""
    return re.sub(r"\{(\w+):\w+\}", r"{\1}", path)


def _operation(route: Route, method: str) -> dict[str, Any]:
    about = route.about if isinstance(route, ApiRoute) else _about(route.endpoint)
    path = _plain_path(route.path)
    operation: dict[str, Any] = {
        "operationId": _operation_id(method, path),
        "summary": about.summary,
        "tags": [path.split("/")[2] if path.count("/") > 1 else path.strip("/")],
        "parameters": [*_path_parameters(path), *_query_parameters(about)],
        "responses": _responses(method, about),
    }
    if about.right is not Right.ANYBODY:
        operation["description"] = f"Needs the tag {about.right}, or one that includes it."
    if about.body is not None:
        schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in about.body.fields.items()}}
        if about.body.needed:
            schema["required"] = list(about.body.needed)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _about(endpoint: Callable[..., Any]) -> About:
    """Return what can be said of a route that says nothing itself."""
    text = (endpoint.__doc__ or "").strip()
    return About(Right.ANYBODY, text.partition("\n")[0])


def _operation_id(method: str, path: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", path.removeprefix("/api"))
    return "_".join([method.lower(), *words])


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]


def _query_parameters(about: About) -> list[dict[str, Any]]:
    known = {**(LIST_QUERY if about.is_list else {}), **about.query}
    return [
        {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
        for name, text in known.items()
    ]


def _responses(method: str, about: About) -> dict[str, Any]:
    problem = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    schema: dict[str, Any] = {"type": "object" if about.media_type == "application/json" else "string"}
    if about.is_list:
        schema = {"oneOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}]}
    fine = {"description": "As asked.", "content": {about.media_type: {"schema": schema}}}
    return {
        "2XX": fine if method in ("GET", "POST") else {"description": "Done."},
        "4XX": {"description": "What is wrong with the request, or not allowed.", **problem},
        "5XX": {"description": "What is wrong with the node, or not well.", **problem},
    }
