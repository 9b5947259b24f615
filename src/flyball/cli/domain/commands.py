"""Commands and options of `flyball domain`. `actions` implements them."""

from __future__ import annotations

import enum
import tomllib
from typing import Annotated

import typer

from flyball.cli.domain import actions
from flyball.cli.session import WRONG_USE, AsJson, Url, fail, run
from flyball.client.api import DEFAULT_URL
from flyball.model import DEFAULT_VHOST

app = typer.Typer(name="domain", help="Show and change the domain of a node.", no_args_is_help=True)
node_app = typer.Typer(name="node", help="Add nodes to the domain and remove them.", no_args_is_help=True)
cluster_app = typer.Typer(
    name="cluster", help="Create, show, change and delete clustered queues.", no_args_is_help=True
)
topic_app = typer.Typer(name="topic", help="Create, list, move and delete topics.", no_args_is_help=True)
for part in (node_app, cluster_app, topic_app):
    app.add_typer(part)

NodeName = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.")]
ClusterName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the clustered queue.")]
TopicName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the topic.")]
Vhost = Annotated[str, typer.Option("--vhost", metavar="NAME", help="The virtual host.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
Wait = Annotated[
    float,
    typer.Option("--wait", min=0.0, metavar="SECONDS", help="Time to wait for completion; 0 returns immediately."),
]
DEFAULT_WAIT_S = 120.0
Option = Annotated[
    list[str] | None,
    typer.Option(
        "--option", metavar="KEY=VALUE", help="Option of the clustered queue, as in domain.toml; may be repeated."
    ),
]


class RoleName(enum.StrEnum):
    """Role of a client."""

    PRODUCER = "producer"
    CONSUMER = "consumer"


class ProtocolName(enum.StrEnum):
    """Protocol of a client."""

    AMQP = "amqp"
    AMQPS = "amqps"
    TELESTO = "telesto"
    THORBANG = "thorbang"
    HTTP = "http"


@app.command()
def show(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show the domain as a tree: nodes, queues, clustered queues, topics.

    Example: flyball domain show
    """
    run(url, as_json, actions.show)


@app.command()
def apply(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Domain file (TOML); - is standard input.")],
    yes: Yes = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove nodes, clustered queues and topics that are not in the file.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    wait_s: Wait = DEFAULT_WAIT_S,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Apply a domain file: show the plan, ask for confirmation, carry it out.

    Applying a file twice changes nothing. Sections missing in the file, and members that the manager added, are left
    alone.

    Example: flyball domain apply domain.toml --yes
    """
    run(url, as_json, lambda api, out: actions.apply(api, file, yes, prune, dry_run, wait_s, out))


@app.command()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the moves.")] = False,
    wait_s: Wait = DEFAULT_WAIT_S,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Move queues to balance the load of the nodes, and show the moves.

    Example: flyball domain rebalance --dry-run
    """
    run(url, as_json, lambda api, out: actions.rebalance(api, dry_run, wait_s, out))


@app.command()
def place(
    name: ClusterName,
    role: Annotated[RoleName, typer.Option("--role", help="Role of the client.")] = RoleName.CONSUMER,
    protocol: Annotated[ProtocolName, typer.Option("--protocol", help="Protocol of the client.")] = ProtocolName.AMQP,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Print the address of the best node for a new client of a clustered queue.

    Example: flyball domain place orders --role producer
    """
    run(url, as_json, lambda api, out: actions.place(api, vhost, name, role.value, protocol.value, out))


# Nodes


@node_app.command("add")
def add_node(
    name: NodeName,
    provisioner: Annotated[
        str,
        typer.Option(
            "--provisioner", metavar="NAME", help="Provisioner that starts it; see `flyball serve --provisioners`."
        ),
    ] = "local",
    wait_s: Wait = DEFAULT_WAIT_S,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Start a node that joins the domain.

    Nodes can also be started by hand: flyball serve --name NODE --store URL

    Example: flyball domain node add n4
    """
    run(url, as_json, lambda api, out: actions.add_node(api, name, provisioner, wait_s, out))


@node_app.command("remove")
def remove_node(
    name: NodeName,
    force: Annotated[bool, typer.Option("--force", help="Remove a dead node without draining it.")] = False,
    wait_s: Wait = DEFAULT_WAIT_S,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Drain a node and stop it: its clients, queues and members move to other nodes first.

    Example: flyball domain node remove n4
    """
    run(url, as_json, lambda api, out: actions.remove_node(api, name, force, wait_s, out))


# Clustered queues


@cluster_app.command("create")
def create_cluster(
    name: ClusterName,
    member: Annotated[
        list[str] | None,
        typer.Option("--member", metavar="NODE", help="Node with a permanent member; may be repeated."),
    ] = None,
    min_members: Annotated[int | None, typer.Option("--min-members", help="Minimum number of members.")] = None,
    max_members: Annotated[int | None, typer.Option("--max-members", help="Maximum number of members.")] = None,
    capacity: Annotated[float | None, typer.Option("--capacity", help="Capacity of a member.")] = None,
    capacity_model: Annotated[
        str | None,
        typer.Option(
            "--capacity-model",
            metavar="FILE[#EXPERIMENT]",
            help="Capacity model from `flyball pipeline capacity`: capacity of members and weights of clients.",
        ),
    ] = None,
    provisioner: Annotated[
        str | None,
        typer.Option("--provisioner", metavar="NAME", help="Provisioner that starts nodes for it; default: none."),
    ] = None,
    option: Option = None,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a clustered queue. Without --member the manager places its first member.

    Example: flyball domain cluster create orders --member n1 --member n2 --max-members 4
    """
    flags = {
        "min_members": min_members,
        "max_members": max_members,
        "capacity": capacity,
        "provisioner": provisioner,
    }
    options = {key: value for key, value in flags.items() if value is not None} | _options(option)
    run(
        url,
        as_json,
        lambda api, out: actions.create_cluster(api, vhost, name, options, member or [], capacity_model, out),
    )


@cluster_app.command("change")
def change_cluster(
    name: ClusterName,
    option: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Options to change, as in domain.toml.")
    ],
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Change options of a clustered queue; other options are kept.

    Example: flyball domain cluster change orders max_members=8 dwell_s=60
    """
    options = _options(option)
    run(url, as_json, lambda api, out: actions.change_cluster(api, vhost, name, options, out))


def _options(pairs: list[str] | None) -> dict[str, object]:
    return dict(_option(pair) for pair in pairs or ())


def _option(pair: str) -> tuple[str, object]:
    """Parse KEY=VALUE: a TOML value, or an unquoted string."""
    key, equals, value = pair.partition("=")
    if not equals or not key:
        fail(f"invalid option {pair!r}: use KEY=VALUE.", WRONG_USE)
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        return key, value


@cluster_app.command("delete")
def delete_cluster(
    name: ClusterName,
    yes: Yes = False,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Delete a clustered queue with its members. Asks for confirmation if it holds messages.

    Example: flyball domain cluster delete orders
    """
    run(url, as_json, lambda api, out: actions.delete_cluster(api, vhost, name, yes, out))


@cluster_app.command("add")
def add_member(
    name: ClusterName,
    node: NodeName,
    wait_s: Wait = DEFAULT_WAIT_S,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Add a permanent member on a node.

    Example: flyball domain cluster add orders n3
    """
    run(url, as_json, lambda api, out: actions.add_member(api, vhost, name, node, wait_s, out))


@cluster_app.command("remove")
def remove_member(
    name: ClusterName,
    node: NodeName,
    wait_s: Wait = DEFAULT_WAIT_S,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Drain the member on a node, and remove it when it has no clients and no messages.

    Example: flyball domain cluster remove orders n3
    """
    run(url, as_json, lambda api, out: actions.remove_member(api, vhost, name, node, wait_s, out))


@cluster_app.command("show")
def show_cluster(
    name: ClusterName, vhost: Vhost = DEFAULT_VHOST, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show a clustered queue: members, options and the latest decisions with their reasons.

    Example: flyball domain cluster show orders
    """
    run(url, as_json, lambda api, out: actions.show_one_cluster(api, vhost, name, out))


# Topics


@topic_app.command("create")
def create_topic(
    name: TopicName,
    parent: Annotated[
        str | None,
        typer.Option("--parent", metavar="NAME", help="Parent topic, whose subscribers also get its messages."),
    ] = None,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Create a topic, on all nodes.

    Example: flyball domain topic create news.sport --parent news
    """
    run(url, as_json, lambda api, out: actions.create_topic(api, vhost, name, parent, out))


@topic_app.command("move")
def move_topic(
    name: TopicName,
    parent: Annotated[
        str | None,
        typer.Option("--parent", metavar="NAME", help="New parent; without it the topic becomes a root."),
    ] = None,
    vhost: Vhost = DEFAULT_VHOST,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a topic another parent, or none.

    Example: flyball domain topic move news.sport --parent leisure
    """
    run(url, as_json, lambda api, out: actions.move_topic(api, vhost, name, parent, out))


@topic_app.command("delete")
def delete_topic(
    name: TopicName, vhost: Vhost = DEFAULT_VHOST, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Delete a topic.

    Example: flyball domain topic delete news.sport
    """
    run(url, as_json, lambda api, out: actions.delete_topic(api, vhost, name, out))


@topic_app.command("list")
def list_topics(
    vhost: Annotated[
        str | None, typer.Option("--vhost", metavar="NAME", help="Only topics of this virtual host.")
    ] = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List all topics with their parents.

    Example: flyball domain topic list
    """
    run(url, as_json, lambda api, out: actions.list_topics(api, vhost, out))
