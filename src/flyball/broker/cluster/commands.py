"""Administrative commands of a domain, for `management.commands`, on top of the Administration interface.

Validates arguments from the wire. Commands other than reads run on the leader and are checked against its state.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypedDict

from pydantic import ConfigDict, SkipValidation, ValidationError, validate_call

from flyball.broker.cluster.facts import DomainFacts, MoveFacts, cluster_named, node_named
from flyball.broker.cluster.options import ClusterOptions, Role
from flyball.broker.cluster.provisioners.interface import check_node_name
from flyball.broker.core.arguments import invalid_argument
from flyball.broker.transport.connection import Hub
from flyball.errors import ClusterError
from flyball.model import DEFAULT_VHOST

_checked = validate_call(config=ConfigDict(arbitrary_types_allowed=True, strict=True))


class PlaceFacts(TypedDict):
    """Where a client should connect."""

    node: str
    addresses: dict[str, str]


class Administration(Protocol):
    """The operations of a domain that the leader provides. All raise FlyballError."""

    async def read(self) -> DomainFacts:
        """Return the current state of the domain."""
        ...

    async def add_node(self, name: str, provisioner: str) -> None:
        """Start a node. Returns once it runs; `read` shows when it has joined."""
        ...

    async def remove_node(self, name: str, *, force: bool) -> None:
        """Drain a node and stop it; with `force` remove a dead one at once."""
        ...

    async def create_cluster(self, vhost: str, name: str, options: ClusterOptions, nodes: Sequence[str]) -> None:
        """Create a clustered queue with fixed members on these nodes, or on nodes that the manager chooses."""
        ...

    async def change_cluster(self, vhost: str, name: str, changes: Mapping[str, Any]) -> None:
        """Change options of a clustered queue. Options that are not in `changes` are kept."""
        ...

    async def delete_cluster(self, vhost: str, name: str) -> None:
        """Delete a clustered queue with its members and all their messages."""
        ...

    async def add_member(self, vhost: str, name: str, node: str) -> None:
        """Add a fixed member. May exceed max_members, which limits only what the manager adds.

        An existing member becomes fixed and is unmarked.
        """
        ...

    async def remove_member(self, vhost: str, name: str, node: str) -> None:
        """Drain a member and remove it. Refuses the last one."""
        ...

    async def rebalance(self, *, dry_run: bool) -> Sequence[MoveFacts]:
        """Spread ordinary queues evenly over the nodes; return the moves, with `dry_run` without making them."""
        ...

    async def place(self, vhost: str, name: str, role: Role) -> PlaceFacts:
        """Choose a node for a new client of a clustered queue."""
        ...

    async def decided(self, since: int, term: str) -> Mapping[str, Any]:
        """Return the leader and its decisions, with reasons, since this number of this term."""
        ...


# Created here, not parsed from the wire.
_Administration = Annotated[Administration, SkipValidation]


@_checked
async def show(administration: _Administration) -> DomainFacts:
    return await administration.read()


@_checked
async def add_node(administration: _Administration, name: str, provisioner: str = "local") -> None:
    check_node_name(name)
    facts = await administration.read()
    _check_provisioner(facts, provisioner)
    if any(node["name"] == name and node["state"] != "dead" for node in facts["nodes"]):
        raise ClusterError(f"node {name!r} already exists: choose another name")
    await administration.add_node(name, provisioner)


@_checked
async def remove_node(administration: _Administration, name: str, force: bool = False) -> None:
    facts = await administration.read()
    is_dead = node_named(facts, name)["state"] == "dead"
    if is_dead and not force:
        raise ClusterError(f"node {name!r} is dead and cannot be drained: remove it with --force")
    if not is_dead and not any(other["state"] == "up" and other["name"] != name for other in facts["nodes"]):
        raise ClusterError(f"node {name!r} is the only node, so no other can take over its queues: stop it instead")
    await administration.remove_node(name, force=force)


@_checked
async def create_cluster(
    administration: _Administration,
    name: str,
    vhost: str = DEFAULT_VHOST,
    options: dict[str, Any] | None = None,
    members: list[str] | None = None,
) -> None:
    if not name:
        raise ClusterError("a clustered queue needs a name")
    facts = await administration.read()
    if any((cluster["vhost"], cluster["name"]) == (vhost, name) for cluster in facts["clusters"]):
        raise ClusterError(f"clustered queue {name!r} already exists: see `flyball domain cluster show {name}`")
    checked = ClusterOptions.from_dict(options or {}, f"clustered queue {name}")
    _check_provisioner(facts, checked.provisioner)
    for node in members or ():
        node_named(facts, node)
    if len(members or ()) > checked.max_members:
        raise ClusterError(f"{len(members or ())} members exceed max_members {checked.max_members}")
    await administration.create_cluster(vhost, name, checked, members or ())


@_checked
async def change_cluster(
    administration: _Administration, name: str, options: dict[str, Any], vhost: str = DEFAULT_VHOST
) -> dict[str, object]:
    """Change these options, keep the others; return all."""
    facts = await administration.read()
    present = cluster_named(facts, vhost, name)["options"]
    changed = ClusterOptions.from_dict({**present, **options}, f"clustered queue {name}")
    _check_provisioner(facts, changed.provisioner)
    await administration.change_cluster(vhost, name, options)
    return changed.to_dict()


def _check_provisioner(facts: DomainFacts, name: str) -> None:
    if name and name not in facts["provisioners"]:
        known = ", ".join(facts["provisioners"]) or "none"
        raise ClusterError(f"unknown provisioner {name!r}; available: {known} (see `flyball serve --provisioners`)")


@_checked
async def delete_cluster(administration: _Administration, name: str, vhost: str = DEFAULT_VHOST) -> None:
    cluster_named(await administration.read(), vhost, name)
    await administration.delete_cluster(vhost, name)


@_checked
async def add_member(administration: _Administration, name: str, node: str, vhost: str = DEFAULT_VHOST) -> None:
    facts = await administration.read()
    cluster_named(facts, vhost, name)
    state = node_named(facts, node)["state"]
    if state != "up":
        raise ClusterError(f"node {node!r} is {state}: a member needs a node that is up")
    await administration.add_member(vhost, name, node)


@_checked
async def remove_member(administration: _Administration, name: str, node: str, vhost: str = DEFAULT_VHOST) -> None:
    facts = await administration.read()
    members = cluster_named(facts, vhost, name)["members"]
    node_named(facts, node)
    if not any(member["node"] == node for member in members):
        raise ClusterError(f"node {node!r} has no member of clustered queue {name!r}")
    if not any(member["node"] != node and not member["marked"] for member in members):
        raise ClusterError(
            f"the member on {node!r} is the last of {name!r}: add another first, or delete the clustered queue"
        )
    await administration.remove_member(vhost, name, node)


@_checked
async def rebalance(administration: _Administration, dry_run: bool = False) -> list[MoveFacts]:
    return list(await administration.rebalance(dry_run=dry_run))


@_checked
async def place(
    administration: _Administration, name: str, role: Literal["producer", "consumer"], vhost: str = DEFAULT_VHOST
) -> PlaceFacts:
    cluster_named(await administration.read(), vhost, name)
    return await administration.place(vhost, name, Role(role))


@_checked
async def decisions(administration: _Administration, since: int = 0, term: str = "") -> Mapping[str, Any]:
    return await administration.decided(since, term)


# Each takes the administration and keyword arguments and returns JSON values. Topics have commands of their own.
COMMANDS: Mapping[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "domain.show": show,
    "domain.node.add": add_node,
    "domain.node.remove": remove_node,
    "domain.cluster.create": create_cluster,
    "domain.cluster.change": change_cluster,
    "domain.cluster.delete": delete_cluster,
    "domain.cluster.add": add_member,
    "domain.cluster.remove": remove_member,
    "domain.rebalance": rebalance,
    "domain.place": place,
    "domain.decisions": decisions,
}


async def carry_out(administration: Administration, name: str, arguments: Mapping[str, Any]) -> Any:
    """Run a command of the table. Raises FlyballError; InvalidArgument for invalid arguments."""
    try:
        return await COMMANDS[name](administration, **arguments)
    except ValidationError as error:
        raise invalid_argument(name, error) from None


# Runs a command with these arguments.
Run = Callable[[str, Mapping[str, Any]], Coroutine[Any, Any, Any]]


def install(hub: Hub, run: Run) -> None:
    """Register the commands for administrators of the node."""

    def running(name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        return lambda **arguments: run(name, arguments)

    hub.commands.update({name: running(name) for name in COMMANDS})
