"""Implementation of `flyball domain`: send a command, and wait until it has taken effect.

Nodes take time to join and leave, and members to drain: a command only starts this; the domain's state shows when it
is complete.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer
from rich.console import Console

from flyball.broker.cluster.names import titled, valued
from flyball.cli.domain.views import counted, show_cluster, show_moves, tree_of
from flyball.cli.output import Output, shown
from flyball.cli.session import DONE, fail
from flyball.client.api import Api, NoAnswer
from flyball.errors import ClusterError

if TYPE_CHECKING:
    from flyball.broker.cluster.facts import ClusterFacts, DomainFacts, MoveFacts
    from flyball.broker.cluster.plan import Plan, Step

# Poll interval while waiting.
POLL_S = 0.2

# Silence after which a node counts as down while another one is being removed.
ANSWER_S = 30.0

# Silence after which a stopping node counts as stopped.
LAST_ANSWER_S = 3.0

# Time limit of commands that start nodes or ask several of them.
LONG_S = 180.0


def command(api: Api, command_name: str, /, *, time_limit_s: float | None = None, **arguments: object) -> Any:
    """Run a command of the domain and return its result."""
    answer = api.post("flyball", "domain", "commands", command_name, document=arguments, time_limit_s=time_limit_s)
    return answer["result"]


def facts_from(api: Api, time_limit_s: float | None = None) -> DomainFacts:
    return cast("DomainFacts", command(api, "show", time_limit_s=time_limit_s))


def show(api: Api, out: Output) -> int:
    facts = facts_from(api)
    if out.is_json:
        out.json(facts)
    else:
        out.tree(tree_of(facts))
    return DONE


# Nodes


def add_node(api: Api, name: str, provisioner: str, wait_s: float, out: Output) -> int:
    command(api, "node.add", name=name, provisioner=provisioner, time_limit_s=LONG_S)
    _wait(api, lambda facts: _state_of(facts, name) == "up", f"node {name} joins", wait_s)
    state = _state_of(facts_from(api), name) or "starting"
    out.show(f"node {shown(name)} is {state}", {"name": name, "state": state})
    return DONE


def remove_node(api: Api, name: str, force: bool, wait_s: float, out: Output) -> int:
    state = _remove_node(api, name, force, wait_s)
    out.show(f"node {shown(name)} is {state}", {"name": name, "state": state})
    return DONE


def _remove_node(api: Api, name: str, force: bool, wait_s: float) -> str:
    """Remove a node, which may be the one that is asked, and wait for that; return its state."""
    is_asked = facts_from(api)["asked"] == name
    command(api, "node.remove", name=name, force=force)
    try:
        # A stopping node answers at once or not at all.
        answer_s = LAST_ANSWER_S if is_asked else ANSWER_S
        _wait(api, lambda facts: _state_of(facts, name) is None, f"node {name} drains", wait_s, answer_s)
        return _state_of(facts_from(api, answer_s), name) or "gone"
    except NoAnswer:
        if not is_asked:
            raise
        return "gone"


def _state_of(facts: DomainFacts, name: str) -> str | None:
    return next((node["state"] for node in facts["nodes"] if node["name"] == name), None)


# Clustered queues


def fitted_options(reference: str) -> dict[str, object]:
    """Read capacity and weights from FILE or FILE#EXPERIMENT."""
    from flyball.broker.models.capacity import options_of_model, split_reference

    file, experiment = split_reference(reference)
    return options_of_model(_read(file), file, experiment)


def create_cluster(
    api: Api,
    vhost: str,
    name: str,
    options: Mapping[str, object],
    members: list[str],
    model: str | None,
    out: Output,
) -> int:
    fitted = {} if model is None else fitted_options(model)
    options = {**fitted, **options}
    command(api, "cluster.create", name=name, vhost=vhost, options=options, members=members, time_limit_s=LONG_S)
    where = f" on {', '.join(members)}" if members else ""
    out.show(
        f"created clustered queue {shown(titled(vhost, name))}{shown(where)}",
        {"name": name, "vhost": vhost, "options": options, "members": members},
    )
    return DONE


def change_cluster(api: Api, vhost: str, name: str, options: Mapping[str, object], out: Output) -> int:
    result = command(api, "cluster.change", name=name, vhost=vhost, options=options)
    said = ", ".join(f"{key} {valued(result[key])}" for key in options)
    out.show(f"clustered queue {shown(titled(vhost, name))} has {shown(said)}", {"name": name, "options": result})
    return DONE


def delete_cluster(api: Api, vhost: str, name: str, yes: bool, out: Output) -> int:
    cluster = cluster_from(api, vhost, name)
    title = shown(titled(vhost, name))
    count = sum(member["ready"] + member["unacked"] for member in cluster["members"])
    if count and not yes:
        if not sys.stdin.isatty():
            fail(f"{title} holds {count} messages. Use --yes to delete them with it.")
        typer.confirm(f"{title} holds {count} messages. Delete them with it?", abort=True, err=True)
    command(api, "cluster.delete", name=name, vhost=vhost, time_limit_s=LONG_S)
    out.show(f"deleted clustered queue {title}", {"name": name, "vhost": vhost, "deleted": True})
    return DONE


def add_member(api: Api, vhost: str, name: str, node: str, wait_s: float, out: Output) -> int:
    command(api, "cluster.add", name=name, vhost=vhost, node=node)
    _wait(api, lambda facts: _has_member(facts, vhost, name, node), f"a member on {node} is made", wait_s)
    facts = {"name": name, "vhost": vhost, "node": node, "member": True}
    out.show(f"clustered queue {shown(titled(vhost, name))} has a member on {shown(node)}", facts)
    return DONE


def remove_member(api: Api, vhost: str, name: str, node: str, wait_s: float, out: Output) -> int:
    command(api, "cluster.remove", name=name, vhost=vhost, node=node)
    _wait(api, lambda facts: not _has_member(facts, vhost, name, node), f"the member on {node} drains", wait_s)
    is_there = _has_member(facts_from(api), vhost, name, node)
    title = shown(titled(vhost, name))
    text = f"the member of {title} on {shown(node)} drains" if is_there else f"{title} has no member on {shown(node)}"
    out.show(text, {"name": name, "vhost": vhost, "node": node, "member": is_there})
    return DONE


def show_one_cluster(api: Api, vhost: str, name: str, out: Output) -> int:
    cluster = cluster_from(api, vhost, name)
    if out.is_json:
        out.json(cluster)
    else:
        show_cluster(cluster, out)
    return DONE


def cluster_from(api: Api, vhost: str, name: str) -> ClusterFacts:
    """Return a clustered queue. Raises ClusterError if it does not exist."""
    for cluster in facts_from(api)["clusters"]:
        if (cluster["vhost"], cluster["name"]) == (vhost, name):
            return cluster
    raise ClusterError(
        f"no clustered queue {titled(vhost, name)!r}. See `flyball domain show`, or create it with "
        "`flyball domain cluster create`."
    )


def _has_member(facts: DomainFacts, vhost: str, name: str, node: str) -> bool:
    return any(
        member["node"] == node
        for cluster in facts["clusters"]
        if (cluster["vhost"], cluster["name"]) == (vhost, name)
        for member in cluster["members"]
    )


# Topics


def create_topic(api: Api, vhost: str, name: str, parent: str | None, out: Output) -> int:
    api.put("flyball", "topics", vhost, name, document={"parent": parent})
    below = "" if parent is None else f" below {parent}"
    out.show(
        f"created topic {shown(titled(vhost, name))}{shown(below)}", {"name": name, "vhost": vhost, "parent": parent}
    )
    return DONE


def move_topic(api: Api, vhost: str, name: str, parent: str | None, out: Output) -> int:
    api.put("flyball", "topics", vhost, name, "parent", document={"parent": parent})
    where = "at the top" if parent is None else f"below {shown(parent)}"
    facts = {"name": name, "vhost": vhost, "parent": parent}
    out.show(f"topic {shown(titled(vhost, name))} is {where}", facts)
    return DONE


def delete_topic(api: Api, vhost: str, name: str, out: Output) -> int:
    api.delete("flyball", "topics", vhost, name)
    out.show(f"deleted topic {shown(titled(vhost, name))}", {"name": name, "vhost": vhost, "deleted": True})
    return DONE


def list_topics(api: Api, vhost: str | None, out: Output) -> int:
    topics: list[dict[str, Any]] = api.get("flyball", "topics", *([] if vhost is None else [vhost]))
    if out.is_json:
        for topic in topics:
            out.json(topic)
    elif topics:
        rows = [(topic["name"], topic["vhost"], topic["parent"] or "") for topic in topics]
        out.table(("name", "vhost", "parent"), rows)
    return DONE


# Domain file


def apply(api: Api, file: str, yes: bool, prune: bool, dry_run: bool, wait_s: float, out: Output) -> int:
    """Show the plan, ask, and carry it out step by step. Each step is awaited: later ones may depend on it."""
    # Imported here: slow, and other commands do not need it.
    from flyball.broker.cluster.domain_file import read_domain_file
    from flyball.broker.cluster.plan import plan_of

    # A capacity model is found relative to the domain file.
    folder = Path() if file == "-" else Path(file).parent
    wanted = read_domain_file(_read(file), file, lambda name: _read(str(folder / name)))
    plan = plan_of(wanted, facts_from(api), prune=prune)
    _show_plan(plan, out)
    if not plan.steps or dry_run:
        return DONE
    if not yes:
        if not sys.stdin.isatty():
            fail("not confirmed, nothing was changed. Use --yes to apply the plan, or --dry-run to only show it.")
        typer.confirm(
            f"Apply {counted(len(plan.steps), 'step')}?",
            abort=True,
            err=True,
        )
    for number, step in enumerate(plan.steps, 1):
        _do(api, step, wait_s)
        if out.is_json:
            out.json({"done": str(step), "number": number, "of": len(plan.steps)})
        else:
            out.show(f"[{number}/{len(plan.steps)}] {shown(str(step))}", None)
    return DONE


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ClusterError(f"cannot read {file}: {error.strerror}") from None
    except ValueError:
        raise ClusterError(f"{file} is not UTF-8 text") from None


def _show_plan(plan: Plan, out: Output) -> None:
    if out.is_json:
        steps = [
            {"sign": str(step.sign), "words": step.words, "command": step.command, "arguments": dict(step.arguments)}
            for step in plan.steps
        ]
        out.json({"steps": steps, "kept": list(plan.kept)})
        return
    for step in plan.steps:
        out.show(shown(str(step)), None)
    if not plan.steps:
        out.show("nothing to do: the domain matches the file", None)
    for words in plan.kept:
        out.show(f"  not in the file, kept without --prune: {shown(words)}", None)


def _carry_out(api: Api, name: str, /, **arguments: Any) -> None:
    """Run a command of a plan."""
    match name:
        case "topic.create":
            topic = [arguments["vhost"], arguments["name"]]
            api.put("flyball", "topics", *topic, document={"parent": arguments["parent"]})
        case "topic.parent":
            topic = [arguments["vhost"], arguments["name"], "parent"]
            api.put("flyball", "topics", *topic, document={"parent": arguments["parent"]})
        case "topic.delete":
            api.delete("flyball", "topics", arguments["vhost"], arguments["name"])
        case _:
            command(api, name.removeprefix("domain."), time_limit_s=LONG_S, **arguments)


def _do(api: Api, step: Step, wait_s: float) -> None:
    if step.command == "domain.node.remove":
        _remove_node(api, wait_s=wait_s, **step.arguments)
        return
    _carry_out(api, step.command, **step.arguments)
    _wait(api, step.is_done, step.words, wait_s)


def rebalance(api: Api, dry_run: bool, wait_s: float, out: Output) -> int:
    moves: list[MoveFacts] = command(api, "rebalance", dry_run=dry_run)
    if moves and not dry_run:
        what = f"{counted(len(moves), 'queue')} {'move' if len(moves) > 1 else 'moves'}"
        _wait(api, lambda facts: not any(_is_at_source(facts, move) for move in moves), what, wait_s)
    if out.is_json:
        for move in moves:
            out.json(move)
    elif moves:
        show_moves(moves, out)
    else:
        out.show("nothing to move: the nodes are balanced", None)
    return DONE


def _is_at_source(facts: DomainFacts, move: MoveFacts) -> bool:
    return any(
        (queue["vhost"], queue["name"]) == (move["vhost"], move["name"])
        for node in facts["nodes"]
        if node["name"] == move["source"]
        for queue in node["queues"]
    )


def place(api: Api, vhost: str, name: str, role: str, protocol: str, out: Output) -> int:
    chosen = command(api, "place", name=name, vhost=vhost, role=role)
    address = chosen["addresses"].get(protocol)
    if address is None:
        known = ", ".join(chosen["addresses"]) or "nothing"
        raise ClusterError(f"node {chosen['node']} does not listen for {protocol}, only for {known}. Use --protocol.")
    out.show(shown(address), {"node": chosen["node"], "protocol": protocol, "address": address})
    return DONE


def _wait(
    api: Api,
    is_done: Callable[[DomainFacts], bool],
    what: str,
    wait_s: float,
    answer_s: float | None = None,
) -> None:
    """Wait until the condition holds; return at once for 0. Raises ClusterError at the time limit."""
    if wait_s <= 0:
        return
    deadline_s = time.monotonic() + wait_s
    with Console(stderr=True).status(shown(what)):
        while not is_done(facts_from(api, answer_s)):
            if time.monotonic() > deadline_s:
                raise ClusterError(f"timed out after {wait_s:g} s: {what}. It continues; see `flyball domain show`.")
            time.sleep(POLL_S)
