"""Import of definitions: checked as a whole, then applied like operations of clients and operators.

Unsupported definitions are left out and reported. Any invalid one refuses the whole import. Importing again changes
nothing.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from flyball.broker.cluster.domain_file import DomainFile, WantedCluster, read_sections
from flyball.broker.cluster.facts import DomainFacts, domain_facts
from flyball.broker.cluster.plan import Step, plan_of
from flyball.broker.core.passwords import check_hash
from flyball.broker.engine.access import check_tags, check_user_name
from flyball.broker.engine.limits import MAX_QUEUES
from flyball.broker.engine.patterns import check_name, compile_pattern
from flyball.broker.engine.policies import KEYS, check_policy
from flyball.broker.engine.routing import Router
from flyball.broker.engine.traits import MAX_SHORTSTR_BYTES, check_alike, check_declaration
from flyball.broker.management.api import fields
from flyball.broker.management.api.answers import in_slices
from flyball.broker.management.api.bindings import bind
from flyball.broker.management.api.context import Call
from flyball.broker.management.api.direct_client import DirectChannel, channel, find_queue
from flyball.broker.management.api.exchanges import declaration as exchange_declaration
from flyball.broker.management.api.limits import COMPONENT
from flyball.broker.management.api.policies import settings_of
from flyball.broker.management.api.queues import declaration as queue_declaration
from flyball.broker.management.api.users import HASHING_ALGORITHM, secret_of
from flyball.broker.management.commands import manage
from flyball.broker.node.node import Node
from flyball.broker.wire import amqp
from flyball.errors import ClusterError, InvalidArgument, QueueNotFound, RequestError
from flyball.model import Binding, Destination, Exchange, Permission, Policy, Queue

# Sections for objects that RabbitMQ does not have, in the format of domain.toml: imported like `flyball domain
# apply`, with the same checks, plan and commands. The bindings are those of clustered queues.
CLUSTERS, TOPICS, BINDINGS = "flyball_clusters", "flyball_topics", "flyball_bindings"

# Concurrent declarations: they share the commits of the store.
AT_ONCE = 32

# Maximum number of problems in an error.
MAX_REPORTED = 10

EXCHANGE_TYPES = frozenset({"direct", "fanout", "topic", "headers"})
QUEUE_TYPES = frozenset({"classic", "quorum"})
APPLY_TO = frozenset({"all", "queues", "exchanges"})
# Parameters of RabbitMQ's own cluster, which it always exports.
IGNORED_PARAMETERS = frozenset({"cluster_name", "internal_cluster_id", "cluster_tags"})

Declare = Callable[[DirectChannel], Awaitable[object]]


class Import:
    """An import: `read` checks it, `apply` does it."""

    def __init__(self, node: Node, vhost: str | None = None) -> None:
        """With a vhost, import only what belongs to a vhost, into that one."""
        self._node = node
        self._vhost = vhost
        self._access = node.hub.authority.access
        # Definitions that are left out, with reasons.
        self.left_out: list[dict[str, str]] = []
        self._vhosts: list[str] = []
        self._users: dict[str, dict[str, Any]] = {}
        self._permissions: list[dict[str, str]] = []
        self._vhost_limits: dict[str, dict[str, int]] = {}
        self._user_limits: dict[str, dict[str, int]] = {}
        self._policies: list[Policy] = []
        self._exchanges: list[tuple[str, Declare]] = []
        self._queues: dict[tuple[str, str], Declare] = {}
        self._clusters: dict[tuple[str, str], dict[str, Any]] = {}
        self._topics: list[dict[str, Any]] = []
        # Steps for clustered queues and topics.
        self._steps: Sequence[Step] = ()
        self._bindings: list[tuple[str, Declare]] = []
        # Exchanges and bindings after the import, by vhost.
        self._routers: dict[str, Router] = {}
        # Queues and exchanges that are left out, by kind, vhost and name.
        self._missing: set[tuple[str, str, str]] = set()

    # Check

    async def read(self, document: fields.Document) -> None:
        """Check the document and collect the changes. Raises InvalidArgument that lists the problems."""
        problems: list[str] = []
        for section, kind, read in (
            ("vhosts", "vhost", self._read_vhost),
            ("users", "user", self._read_user),
            ("permissions", "permission", self._read_permission),
            ("topic_permissions", "topic permission", self._leave_out_topic_permission),
            ("parameters", "parameter", self._read_parameter),
            ("global_parameters", "global parameter", self._leave_out_parameter),
            ("policies", "policy", self._read_policy),
            ("exchanges", "exchange", self._read_exchange),
            ("queues", "queue", self._read_queue),
            (CLUSTERS, "clustered queue", self._read_cluster),
            (TOPICS, "topic", self._read_topic),
            ("bindings", "binding", self._read_binding),
            (BINDINGS, "binding", self._read_binding),
        ):
            async for some in in_slices(_items(document, section)):
                for item in some:
                    try:
                        read(item)
                    except RequestError as error:
                        problems.append(f"{kind} {_named(item)}: {error}")
        try:
            await self._plan_own()
        except ClusterError as error:
            problems.append(str(error))
        problems += self._check_queue_limits()
        if problems:
            more = f"; and {len(problems) - MAX_REPORTED} more" if len(problems) > MAX_REPORTED else ""
            raise InvalidArgument(f"nothing was imported. {'; '.join(problems[:MAX_REPORTED])}{more}")

    def _leave_out(self, kind: str, item: fields.Document, reason: str) -> None:
        self.left_out.append({"kind": kind, "name": _named(item), "reason": reason})

    def _is_for_all(self, kind: str, item: fields.Document) -> bool:
        """Return whether definitions outside vhosts are imported."""
        if self._vhost is not None:
            self._leave_out(kind, item, "only objects of a vhost are imported into a vhost")
        return self._vhost is None

    def _read_vhost(self, item: fields.Document) -> None:
        if self._is_for_all("vhost", item):
            name = fields.text(item, "name")
            check_name("vhost", name)
            self._vhosts.append(name)

    def _read_user(self, item: fields.Document) -> None:
        if not self._is_for_all("user", item):
            return
        name, tags = fields.text(item, "name"), fields.names(item, "tags")
        check_user_name(name)
        check_tags(tuple(tags))
        is_foreign = bool(item.get("password_hash")) and item.get("hashing_algorithm") != HASHING_ALGORITHM
        if item.get("password") is None and is_foreign:
            self._read_foreign_user(item, name, tags)
            return
        secret = secret_of(item)
        if secret.get("password_hash") is not None:
            check_hash(str(secret["password_hash"]))
        self._users[name] = {"name": name, "tags": tags, **secret}
        if item.get("limits") is not None:
            limits = fields.table(item, "limits")
            self._user_limits[name] = dict(self._node.hub.authority.user_limits.check(limits))

    def _read_foreign_user(self, item: fields.Document, name: str, tags: list[str]) -> None:
        """Import a user whose password hash only RabbitMQ can verify."""
        algorithm = item.get("hashing_algorithm") or "RabbitMQ"
        reason = f"Flyball cannot verify a password_hash of {algorithm}; "
        if self._access.find_user(name) is None:
            self._users[name] = {"name": name, "tags": tags, "password": None}
            reason += f"set a password with `flyball user password {name}`"
        else:
            reason += "the existing user is unchanged"
        self._leave_out("password of user", item, reason)

    def _read_permission(self, item: fields.Document) -> None:
        if not self._is_for_all("permission", item):
            return
        found = {name: fields.text(item, name) for name in ("user", "vhost", "configure", "write", "read")}
        for name in ("configure", "write", "read"):
            compile_pattern(found[name])
        self._check_vhost(found["vhost"])
        if found["user"] not in self._users:
            self._access.user(found["user"])
        self._permissions.append(found)

    def _leave_out_topic_permission(self, item: fields.Document) -> None:
        self._leave_out("topic permission", item, "Flyball has no topic permissions")

    def _read_parameter(self, item: fields.Document) -> None:
        if fields.text(item, "component", "") != COMPONENT:
            self._leave_out_parameter(item)
            return
        vhost, limits = self._vhost_of(item), fields.table(item, "value")
        self._vhost_limits[vhost] = dict(self._node.hub.authority.vhost_limits.check(limits))

    def _check_queue_limits(self) -> list[str]:
        """Return violations of queue limits after the import, in RabbitMQ's words."""
        problems: list[str] = []
        new = Counter(vhost for vhost, name in self._queues if find_queue(self._node, vhost, name) is None)
        for vhost, count in new.items():
            limits = self._vhost_limits.get(vhost, self._node.hub.authority.vhost_limits.of(vhost))
            limit = limits.get(MAX_QUEUES, -1)
            present = self._node.topology.queue_count(vhost)
            if 0 <= limit < present + count:
                problems.append(
                    f'adding {count} queue(s) to virtual host "{vhost}" would exceed the limit of {limit} queue(s):'
                    f" it has {present}"
                )
        return problems

    def _leave_out_parameter(self, item: fields.Document) -> None:
        if fields.text(item, "name", "") not in IGNORED_PARAMETERS:
            self._leave_out("parameter", item, "Flyball does not support this parameter")

    def _read_policy(self, item: fields.Document) -> None:
        settings = settings_of(item)
        if settings["apply_to"] not in APPLY_TO:
            self._leave_out("policy", item, f"Flyball has no policies for {settings['apply_to']}")
            return
        unknown = sorted(settings["definition"].keys() - KEYS.keys())
        settings["definition"] = {name: value for name, value in settings["definition"].items() if name in KEYS}
        if unknown:
            what = "policy" if not settings["definition"] else "settings of policy"
            self._leave_out(what, item, f"not supported by Flyball: {', '.join(unknown)}")
        if not settings["definition"]:
            return
        compile_pattern(settings["pattern"])
        policy = Policy(fields.text(item, "name"), vhost=self._vhost_of(item), **settings)
        check_policy(policy)
        self._policies.append(policy)

    def _read_exchange(self, item: fields.Document) -> None:
        vhost, name = self._vhost_of(item), fields.text(item, "name")
        declaration = exchange_declaration(name, item)
        if declaration.type not in EXCHANGE_TYPES:
            self._missing.add((Destination.EXCHANGE, vhost, name))
            self._leave_out("exchange", item, f"Flyball has no exchanges of type {declaration.type}")
            return
        exchange = Exchange(
            name,
            declaration.type,
            vhost,
            declaration.durable,
            declaration.auto_delete,
            declaration.internal,
            declaration.arguments,
        )
        self._router(vhost).declare(exchange)
        self._exchanges.append((vhost, lambda inside: inside.call(declaration, amqp.ExchangeDeclareOk)))

    def _read_queue(self, item: fields.Document) -> None:
        vhost, name = self._vhost_of(item), fields.text(item, "name")
        if not 0 < len(name.encode("utf-8", "surrogateescape")) <= MAX_SHORTSTR_BYTES:
            # Telesto and ThorBangMQ allow such names: a node's own export must not fail to import as a whole.
            self._missing.add((Destination.QUEUE, vhost, name))
            self._leave_out("queue", item, f"AMQP names have 1 to {MAX_SHORTSTR_BYTES} bytes")
            return
        declaration = queue_declaration(name, item)
        kind = fields.text(declaration.arguments, "x-queue-type", "classic")
        if kind not in QUEUE_TYPES or name.startswith("amq."):
            is_known = kind in QUEUE_TYPES
            reason = "reserved name" if is_known else f"Flyball has no queues of type {kind}"
            self._missing.add((Destination.QUEUE, vhost, name))
            self._leave_out("queue", item, reason)
            return
        queue = Queue(0, name, vhost, declaration.durable, False, declaration.auto_delete, declaration.arguments)
        check_declaration(queue)
        existing = find_queue(self._node, vhost, name)
        if existing is not None:
            check_alike(existing, queue)
        self._queues[vhost, name] = lambda inside: inside.call(declaration, amqp.QueueDeclareOk)

    def _read_cluster(self, item: fields.Document) -> None:
        vhost, name = self._vhost_of(item), fields.text(item, "name")
        if "domain.show" not in self._node.hub.commands:
            self._missing.add((Destination.QUEUE, vhost, name))
            self._leave_out("clustered queue", item, "this node does not belong to a domain")
            return
        existing = find_queue(self._node, vhost, name)
        if (vhost, name) in self._queues or (existing is not None and not existing.member):
            raise InvalidArgument("a queue of that name exists and is not clustered")
        self._clusters[vhost, name] = {**item, "vhost": vhost}

    def _read_topic(self, item: fields.Document) -> None:
        vhost, name = self._vhost_of(item), fields.text(item, "name")
        # A topic is an exchange bound to its parent's.
        self._router(vhost).declare(Exchange(name, "topic", vhost))
        self._topics.append({**item, "vhost": vhost})

    async def _plan_own(self) -> None:
        """Plan the changes of clustered queues and topics. Raises ClusterError."""
        if self._clusters or self._topics:
            sections = {"clusters": list(self._clusters.values()), "topics": self._topics}
            present = await _domain_of(self._node)
            wanted = self._possible(read_sections(sections, "definitions"), present)
            self._steps = plan_of(wanted, present).steps

    def _possible(self, wanted: DomainFile, facts: DomainFacts) -> DomainFile:
        """Return the part that this domain can satisfy: another domain has other nodes and provisioners."""
        nodes = {node["name"] for node in facts["nodes"] if node["state"] in ("up", "joining")}
        clusters: list[WantedCluster] = []
        for cluster in wanted.clusters or ():
            item = {"name": cluster.name, "vhost": cluster.vhost}
            for name in cluster.members or ():
                if name not in nodes:
                    reason = f"this domain has no node '{name}'"
                    self._leave_out("member of clustered queue", item, reason)
            options = cluster.options
            if options.provisioner and options.provisioner not in facts["provisioners"]:
                reason = f"this domain has no provisioner '{options.provisioner}'"
                self._leave_out("provisioner of clustered queue", item, reason)
                options = dataclasses.replace(options, provisioner="")
            members = tuple(name for name in cluster.members or () if name in nodes)
            clusters.append(dataclasses.replace(cluster, options=options, members=members or None))
        return dataclasses.replace(wanted, clusters=tuple(clusters))

    def _read_binding(self, item: fields.Document) -> None:
        vhost, destination = self._vhost_of(item), fields.text(item, "destination")
        kinds = {str(kind): kind for kind in Destination}
        kind = kinds.get(fields.text(item, "destination_type", "queue"))
        if kind is None:
            raise InvalidArgument(f"field 'destination_type' must be {' or '.join(kinds)}")
        source = fields.text(item, "source")
        if not source and kind is Destination.QUEUE:
            # The default exchange's binding to every queue is implicit.
            return
        if {(kind, vhost, destination), (Destination.EXCHANGE, vhost, source)} & self._missing:
            self._leave_out("binding", item, "its source or destination is left out")
            return
        if kind is Destination.QUEUE and not self._will_have_queue(vhost, destination):
            raise QueueNotFound(destination, vhost)
        key, arguments = fields.text(item, "routing_key", ""), fields.table(item, "arguments")
        binding = Binding(source, destination, kind, key, arguments, vhost)
        self._router(vhost).bind(binding)
        self._bindings.append((vhost, lambda inside: bind(inside, binding)))

    def _vhost_of(self, item: fields.Document) -> str:
        if self._vhost is not None:
            return self._vhost
        vhost = fields.text(item, "vhost")
        self._check_vhost(vhost)
        return vhost

    def _check_vhost(self, vhost: str) -> None:
        if vhost not in self._vhosts:
            self._access.check_vhost(vhost)

    def _will_have_queue(self, vhost: str, name: str) -> bool:
        is_new = (vhost, name) in self._queues or (vhost, name) in self._clusters
        return is_new or find_queue(self._node, vhost, name) is not None

    def _router(self, vhost: str) -> Router:
        """Return a working copy of a vhost's exchanges, to check further declarations against."""
        router = self._routers.get(vhost)
        if router is None:
            router = self._routers[vhost] = Router(vhost)
            if self._access.has_vhost(vhost):
                for exchange in self._node.topology.router(vhost).exchanges:
                    if router.find(exchange.name) is None:
                        router.declare(exchange)
        return router

    # Apply

    async def apply(self, call: Call) -> None:
        """Apply the import. Raises StoreError or ClusterError, after which it may be partly done: import again."""
        hub, authority = self._node.hub, call.authority
        for vhost in self._vhosts:
            if not self._access.has_vhost(vhost):
                await authority.add_vhost(vhost)
        for user in self._users.values():
            await authority.put_user(**user)
        for user_name, limits in self._user_limits.items():
            await authority.set_user_limits(user_name, limits)
        for vhost, limits in self._vhost_limits.items():
            await authority.set_vhost_limits(vhost, limits)
        for permission in self._permissions:
            await authority.set_permission(Permission(**permission))
        for policy in self._policies:
            await authority.set_policy(policy)
        # Later steps may run on other nodes, which need these definitions.
        await hub.peering.followed()
        await self._declare(call, self._exchanges)
        await self._declare(call, [(vhost, declare) for (vhost, _), declare in self._queues.items()])
        for step in self._steps:
            await manage(hub, step.command, step.arguments)
        if self._clusters:
            # Other nodes may have created their members.
            await hub.peering.catch_up()
        await self._declare(call, self._bindings)
        await hub.peering.followed()

    async def _declare(self, call: Call, declarations: Sequence[tuple[str, Declare]]) -> None:
        by_vhost: dict[str, list[Declare]] = {}
        for vhost, declare in declarations:
            by_vhost.setdefault(vhost, []).append(declare)
        for vhost, some in by_vhost.items():
            waiting = iter(some)

            async def work(vhost: str = vhost, waiting: Iterable[Declare] = waiting) -> None:
                # A user with the right to import may declare anything, as in RabbitMQ.
                async with channel(call, vhost, is_trusted=True) as inside:
                    for declare in waiting:
                        await declare(inside)

            await _all(work, min(AT_ONCE, len(some)))


async def _all(work: Callable[[], Awaitable[None]], count: int) -> None:
    """Run several workers concurrently. Raises the first error."""
    outcomes = await asyncio.gather(*[work() for _ in range(count)], return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _domain_of(node: Node) -> DomainFacts:
    """Return the state of the domain; without a domain, only the node's topics."""
    if "domain.show" in node.hub.commands:
        facts: DomainFacts = await node.hub.commands["domain.show"]()
        return facts
    return domain_facts(
        topics=[
            {"vhost": topic.vhost, "name": topic.name, "parent": topic.parent, "subscriptions": []}
            for topic in node.hub.topics.all()
        ]
    )


def _items(document: fields.Document, section: str) -> list[Mapping[str, Any]]:
    found = document.get(section, [])
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise InvalidArgument(f"{section!r} must be a list of objects")
    return found


def _named(item: fields.Document) -> str:
    """Return the name of an item for error messages."""
    if "source" in item:
        return f"from '{item.get('source')}' to '{item.get('destination')}'"
    name = item.get("name", item.get("user", "(unnamed)"))
    return f"'{name}' in vhost '{item['vhost']}'" if item.get("vhost") else f"'{name}'"
