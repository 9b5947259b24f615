"""Definitions: everything that is declared, as one document in RabbitMQ's format for export and import."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

import flyball
from flyball.broker.core.topics import Topic
from flyball.broker.management.api import exchanges, limits, policies, users
from flyball.broker.management.api.answers import HEADERS, answer, done, in_slices, json_text, whole
from flyball.broker.management.api.bindings import declared as declared_binding
from flyball.broker.management.api.context import Call, Right, Routes
from flyball.broker.management.api.definitions_import import BINDINGS, CLUSTERS, TOPICS, Import
from flyball.broker.node.node import Node
from flyball.broker.protocols.amqp import RABBITMQ_VERSION
from flyball.model import Binding, Destination, Queue

# Size limit of definitions.
MAX_BYTES = 32 * 1024 * 1024

# Name of a list, its items, and their document function.
Section = tuple[str, Sequence[Any], Callable[[Any], Mapping[str, Any]]]


_QUERY = {"download": "file name for the download"}

routes = Routes()


# Export


@routes.get("/definitions", Right.ADMINISTRATOR, is_long=True, query=_QUERY)
async def export_all(call: Call) -> Response:
    """Export all definitions, with password hashes."""
    hub = call.node.hub
    vhosts = call.access.vhosts
    sections: list[Section] = [
        ("users", call.access.users, users.documents_of(hub.authority)),
        ("vhosts", vhosts, lambda vhost: {"name": vhost}),
        ("permissions", call.access.permissions, asdict),
        ("topic_permissions", (), dict),
        ("parameters", hub.authority.vhost_limits.all(), limits.parameter_of),
        ("global_parameters", (), dict),
        ("policies", hub.authority.policies.all(), policies.document_of),
        *_declared(call.node, vhosts),
    ]
    return await _exported(call, sections)


@routes.get("/definitions/{vhost}", Right.ADMINISTRATOR, is_long=True, query=_QUERY)
async def export_vhost(call: Call) -> Response:
    """Export the definitions of a vhost."""
    vhost, authority = call.vhost, call.node.hub.authority
    sections: list[Section] = [
        # RabbitMQ includes the vhost of parameters and policies even here.
        ("parameters", [each for each in authority.vhost_limits.all() if each[0] == vhost], limits.parameter_of),
        ("policies", authority.policies.of_vhost(vhost), policies.document_of),
        *((name, items, _without_vhost(document)) for name, items, document in _declared(call.node, [vhost])),
    ]
    return await _exported(call, sections)


def _declared(node: Node, vhosts: Sequence[str]) -> list[Section]:
    """Return the queues, exchanges and bindings that can be declared again: neither exclusive nor built-in ones.

    Objects that RabbitMQ does not have are in separate sections, so that RabbitMQ does not import them as plain
    queues.
    """
    known = [state.queue for state in node.topology.engine.queues] + node.topology.directory.queues
    wanted = frozenset(vhosts)
    queues = {
        (queue.vhost, queue.name): queue
        for queue in known
        if queue.vhost in wanted and not queue.exclusive and not queue.member
    }
    clusters = {
        (value["vhost"], value["name"]): value
        for _, value in sorted(node.definitions.of("cluster").items())
        if value["vhost"] in wanted and not value.get("deleted")
    }
    routers = [node.topology.router(vhost) for vhost in vhosts]
    bindings = [binding for router in routers for binding in router.bindings()]
    others: list[Section] = [
        (CLUSTERS, list(clusters.values()), _of_cluster),
        (TOPICS, [topic for topic in node.hub.topics.all() if topic.vhost in wanted], _of_topic),
        (
            BINDINGS,
            [found for found in bindings if found.kind is Destination.QUEUE and _destination(found) in clusters],
            declared_binding,
        ),
    ]
    return [
        ("queues", list(queues.values()), _of_queue),
        (
            "exchanges",
            [found for router in routers for found in router.exchanges if not _is_built_in(found.name)],
            exchanges.declared,
        ),
        (
            "bindings",
            [found for found in bindings if found.kind is Destination.EXCHANGE or _destination(found) in queues],
            declared_binding,
        ),
        *[section for section in others if section[1]],
    ]


def _destination(binding: Binding) -> tuple[str, str]:
    return binding.vhost, binding.destination


async def _exported(call: Call, sections: Sequence[Section]) -> Response:
    head = {
        "rabbit_version": RABBITMQ_VERSION,
        "rabbitmq_version": RABBITMQ_VERSION,
        "product_name": "Flyball",
        "product_version": flyball.__version__,
    }

    async def texts() -> AsyncIterator[str]:
        yield json_text(head)[:-1]
        for name, items, document in sections:
            before = f',"{name}":['
            async for some in in_slices(items):
                yield before + ",".join(json_text(document(item)) for item in some)
                before = ","
            yield "]" if items else before + "]"
        yield "}"

    headers = dict(HEADERS)
    file_name = re.sub(r"[^\w.-]", "_", call.request.query_params.get("download", ""), flags=re.ASCII)
    if file_name:
        headers["content-disposition"] = f"attachment; filename={file_name}"
    # Complete or an error: a truncated backup must not look like a complete one.
    response = await whole(texts(), headers)
    call.context.bodies.hold(response, len(response.body))
    return response


def _is_built_in(exchange_name: str) -> bool:
    return not exchange_name or exchange_name.startswith("amq.")


def _without_vhost(document: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
    return lambda item: {name: value for name, value in document(item).items() if name != "vhost"}


def _of_queue(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "vhost": queue.vhost,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "arguments": dict(queue.arguments),
    }


def _of_cluster(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a clustered queue: changed options, and nodes with fixed members."""
    reported = {"name": value["name"], "vhost": value["vhost"], **value["options"]}
    return {**reported, "members": list(value["fixed"])} if value.get("fixed") else reported


def _of_topic(topic: Topic) -> dict[str, Any]:
    reported = {"name": topic.name, "vhost": topic.vhost}
    return reported if topic.parent is None else {**reported, "parent": topic.parent}


# Import


@routes.post("/definitions", Right.ADMINISTRATOR)
async def import_all(call: Call) -> Response:
    """Import definitions. Those that Flyball does not support are left out and listed in the response."""
    return await _imported(call, Import(call.node))


@routes.post("/definitions/{vhost}", Right.ADMINISTRATOR)
async def import_vhost(call: Call) -> Response:
    """Import the policies, queues, exchanges and bindings of a vhost; see the import of all definitions."""
    return await _imported(call, Import(call.node, call.vhost))


async def _imported(call: Call, wanted: Import) -> Response:
    await wanted.read(await call.document(MAX_BYTES, is_rich=True))
    await wanted.apply(call)
    return answer({"left_out": wanted.left_out}) if wanted.left_out else done()
