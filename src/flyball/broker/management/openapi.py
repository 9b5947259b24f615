"""Generates the OpenAPI document from the routes.

Descriptions are at the handlers: the docstring's first line, and in RabbitMQ's API the arguments of the declaration.
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

# Placeholder for the session cookie's name, which depends on the requested address.
ANY_COOKIE = "cookie-of-this-address"

LIST_QUERY = {
    "sort": "Field to sort by; a dot separates nested fields.",
    "sort_reverse": "true to sort in descending order.",
    "columns": "Comma-separated fields to return.",
    "page": "Page number from 1; without it the whole list is returned.",
    "page_size": "Items per page, at most 500.",
    "name": "Substring of names to return; requires `page`.",
    "use_regex": "true if `name` is a regular expression.",
}

PROBLEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("error", "reason", "advice", "kind")},
}


def routes(others: Sequence[BaseRoute]) -> list[Route]:
    """Return the route of the document, which describes all routes including itself. It needs no login."""

    @functools.cache
    def text() -> str:
        return json.dumps(document([*others, own], ANY_COOKIE), separators=(",", ":"))

    async def show(request: Request) -> Response:
        """Return the OpenAPI document."""
        # Made once: it is large, and unauthenticated clients can request it.
        return Response(text().replace(ANY_COOKIE, cookie_of(request)), media_type="application/json")

    own = Route(PATH, show, methods=["GET"])
    return [own]


def document(found: Iterable[BaseRoute], cookie: str) -> dict[str, Any]:
    """Return the description of the routes below /api, and of /metrics. `cookie` is the session cookie's name."""
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
            "description": "RabbitMQ's management API as far as it applies, and Flyball's own API below"
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
    """Return a path without parameter converters."""
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
    if about.right is not Right.ANY_USER:
        operation["description"] = f"Requires the tag {about.right}, or one that includes it."
    if about.body is not None:
        schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in about.body.fields.items()}}
        if about.body.needed:
            schema["required"] = list(about.body.needed)
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation


def _about(endpoint: Callable[..., Any]) -> About:
    """Return the documentation of an endpoint that has no declaration."""
    text = (endpoint.__doc__ or "").strip()
    return About(Right.ANY_USER, text.partition("\n")[0])


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
        "4XX": {"description": "The request is invalid or not allowed.", **problem},
        "5XX": {"description": "The node failed or is unavailable.", **problem},
    }
