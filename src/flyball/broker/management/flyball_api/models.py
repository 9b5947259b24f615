"""The model registry: versions of models, listed, published, compared, pinned, rolled back, exported."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from flyball.broker.management.api.answers import HEADERS, MEDIA_TYPE, answer, done, not_found, stream
from flyball.broker.management.api.context import Body, Call, Right, Routes
from flyball.broker.models.differences import differences
from flyball.broker.models.history import History, State, Version
from flyball.broker.models.kinds import check_kind
from flyball.broker.models.scopes import Scope
from flyball.errors import InvalidArgument

# A document, its evidence and its certificate at their limits, and what JSON adds to them.
MAX_PUBLISHED_BYTES = 512 * 1024

_MODEL = "/flyball/models/{kind}/{scope}"
_VERSION = _MODEL + "/versions/{version}"
_PUBLISHED = Body(
    {
        "document": "object",
        "evidence": "object",
        "certificate": "object",
        "state": "string",
        "reason": "string",
        "force": "boolean",
    },
    ("document",),
)
_STATE = Body(
    {
        "state": "string",
        "reason": "string",
        "force": "boolean",
        "expected": "string",
        "outcome": "object",
    },
    ("state",),
)
_PIN = Body({"version": "integer", "reason": "string", "force": "boolean"})
_ROLLBACK = Body({"to": "integer", "reason": "string", "expected": "integer", "outcome": "object"})
_FILTERS = {
    "kind": "Only models of this kind",
    "scope": "Only the model for this scope",
    "state": "Only versions in this state",
}

routes = Routes()


@routes.get("/flyball/models", Right.MONITORING, is_list=True, query=_FILTERS)
async def list_models(call: Call) -> Response:
    """List the versions of all models, without their documents."""
    query = call.request.query_params
    kind, state = query.get("kind"), query.get("state")
    scope = None if query.get("scope") is None else str(Scope.parse(query["scope"]))
    if kind is not None:
        check_kind(kind)
    if state is not None and state not in list(State):
        raise InvalidArgument(f"invalid state {state!r}: use {', '.join(State)}")
    found = [
        (history, version)
        for history in call.node.models.all()
        if kind in (None, history.kind) and scope in (None, history.scope)
        for version in reversed(history.versions)
        if state in (None, version.state)
    ]
    keys = {"name": lambda row: f"{row[0].kind} {row[0].scope}", "version": lambda row: row[1].number}
    return await call.many(found, lambda row: brief(*row), keys)


@routes.get(_MODEL, Right.MONITORING)
async def show_model(call: Call) -> Response:
    """Return a model: the versions in force and in shadow with their documents, and the log of changes."""
    history = _history(call)
    tag = f'"{history.revision}"'
    if call.request.headers.get("if-none-match") == tag:
        return done(304)
    found = {
        "kind": history.kind,
        "scope": history.scope,
        "revision": history.revision,
        "pinned": history.pinned,
        "in_force": _whole_or_none(history, history.in_force),
        "shadow": _whole_or_none(history, history.in_shadow),
        "log": [
            {name: getattr(entry, name) for name in ("at", "by", "version", "before", "after", "reason")}
            for entry in reversed(history.entries)
        ],
    }
    response = answer(found)
    response.headers["etag"] = tag
    return response


@routes.get(_MODEL + "/versions", Right.MONITORING)
async def list_versions(call: Call) -> Response:
    """List the versions of a model, newest first, without their documents."""
    history = _history(call)
    return stream(list(reversed(history.versions)), lambda version: brief(history, version))


@routes.get(_VERSION, Right.MONITORING)
async def show_version(call: Call) -> Response:
    """Return a version with its document, evidence and certificate."""
    return answer(_whole(*_version(call)))


@routes.get(_VERSION + "/document", Right.MONITORING)
async def export_document(call: Call) -> Response:
    """Return the document of a version, as the file that it was published from."""
    _, version = _version(call)
    return Response(version.document, 200, HEADERS, MEDIA_TYPE)


@routes.get(
    _MODEL + "/diff",
    Right.MONITORING,
    query={"from": "The earlier version", "to": "The later one; default: in force"},
)
async def compare_versions(call: Call) -> Response:
    """Compare the documents of two versions, by default of the one in force and of the one before it."""
    history = _history(call)
    later = _chosen(call, history, "to", history.in_force)
    earlier = _chosen(call, history, "from", history.previous)
    documents = json.loads(earlier.document), json.loads(later.document)
    # In a thread: two documents may have thousands of parameters.
    found = await asyncio.to_thread(differences, *documents)
    return answer({"from": brief(history, earlier), "to": brief(history, later), "differences": found})


@routes.post(_MODEL + "/versions", Right.ADMINISTRATOR, _PUBLISHED)
async def publish_version(call: Call) -> Response:
    """Publish a version; one with the same document and evidence exists already and is returned as it is."""
    return await _change(call, "publish", _PUBLISHED)


@routes.put(_VERSION + "/state", Right.ADMINISTRATOR, _STATE)
async def change_state(call: Call) -> Response:
    """Put a version in force or in shadow, reject it or quarantine it."""
    return await _change(call, "state", _STATE, version=_number(call))


@routes.put(_MODEL + "/pin", Right.ADMINISTRATOR, _PIN)
async def pin_version(call: Call) -> Response:
    """Put a version in force and keep it there, by default the present one."""
    return await _change(call, "pin", _PIN, version=None)


@routes.delete(_MODEL + "/pin", Right.ADMINISTRATOR)
async def unpin_version(call: Call) -> Response:
    """Let other versions take over again."""
    return await _change(call, "unpin", Body({"reason": "string"}))


@routes.post(_MODEL + "/rollback", Right.ADMINISTRATOR, _ROLLBACK)
async def roll_back(call: Call) -> Response:
    """Quarantine the version in force and put the one before it in force."""
    return await _change(call, "rollback", _ROLLBACK)


@routes.delete(_MODEL, Right.ADMINISTRATOR)
async def delete_model(call: Call) -> Response:
    """Delete a model with all of its versions."""
    return await _change(call, "delete", Body({"reason": "string"}))


def brief(history: History, version: Version) -> dict[str, Any]:
    """Return a version without document, evidence and certificate."""
    return {
        "kind": history.kind,
        "scope": history.scope,
        "version": version.number,
        "state": str(version.state),
        "since": version.since,
        "reason": version.reason,
        "is_pinned": history.pinned == version.number,
        "is_sound": version.is_sound,
        "is_forced": version.is_forced,
        "objections": list(version.objections),
        "summary": version.summary,
        "valid_from": version.valid_from,
        "valid_until": version.valid_until,
        "published_at": version.published_at,
        "published_by": version.published_by,
        "digest": version.digest,
        "document_bytes": len(version.document.encode()),
        "evidence_brief": _evidence_brief(version),
    }


def _evidence_brief(version: Version) -> dict[str, Any]:
    """Return the source and the extent of the evidence."""
    evidence = json.loads(version.evidence)
    tests = evidence.get("tests")
    known = [one for one in tests if isinstance(one, Mapping)] if isinstance(tests, list) else []
    failed = sum(one.get("reason") is not None or one.get("is_passed") is False for one in known)
    traces = evidence.get("traces")
    return {
        "traces": [str(one) for one in traces][:10] if isinstance(traces, list) else [],
        "source": evidence.get("source") if isinstance(evidence.get("source"), str) else None,
        "samples": evidence.get("samples") if isinstance(evidence.get("samples"), int) else None,
        "tests": len(known),
        "tests_passed": len(known) - failed,
    }


def _whole(history: History, version: Version) -> dict[str, Any]:
    texts = {"evidence": version.evidence, "certificate": version.certificate, "outcome": version.outcome}
    return {
        **brief(history, version),
        **{name: None if text is None else json.loads(text) for name, text in texts.items()},
        "document": json.loads(version.document),
    }


def _whole_or_none(history: History, version: Version | None) -> dict[str, Any] | None:
    return None if version is None else _whole(history, version)


def _history(call: Call) -> History:
    return call.node.models.get(call.part("kind"), Scope.parse(call.part("scope")))


def _version(call: Call) -> tuple[History, Version]:
    history = _history(call)
    return history, history.get(_number(call))


def _number(call: Call, text: str | None = None) -> int:
    found = call.part("version") if text is None else text
    if not found.isdecimal() or not found.isascii() or len(found) > 9 or int(found) < 1:
        raise InvalidArgument(f"invalid version {found[:20]!r}: use its number")
    return int(found)


def _chosen(call: Call, history: History, parameter: str, default: Version | None) -> Version:
    text = call.request.query_params.get(parameter)
    if text is not None:
        return history.get(_number(call, text))
    if default is None:
        raise not_found(f"no such version of {history.title}: name the versions to compare")
    return default


async def _change(call: Call, command: str, body: Body, **fixed: Any) -> Response:
    """Run a command of the registry on the leader, and return the version that it concerns."""
    given = await call.document(MAX_PUBLISHED_BYTES)
    for name in given:
        if name not in body.fields:
            raise InvalidArgument(f"unknown field {name!r}: use {', '.join(body.fields)}")
    kind, scope = call.part("kind"), str(Scope.parse(call.part("scope")))
    check_kind(kind)
    arguments = {"kind": kind, "scope": scope, **fixed, **given}
    run = call.node.hub.commands.get("model")
    if run is None:
        # The node does not belong to a domain.
        result = await call.node.models.run(command, call.user.name, arguments)
    else:
        result = await run(command, call.user.name, arguments)
    # Respond when the change is visible on this node and the others.
    await call.node.hub.peering.catch_up()
    await call.node.hub.peering.followed()
    history = call.node.models.find(kind, Scope.parse(scope))
    version = None if history is None or result["version"] is None else history.find(result["version"])
    shown = None if history is None or version is None else brief(history, version)
    return answer({**result, "model": shown}, 201 if result["is_new"] else 200)
