"""The declarative file: what it may say, and how a domain becomes as it says."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flyball.broker.cluster.domain_file import DomainFile, WantedCluster, WantedNode, WantedTopic, read_domain_file
from flyball.broker.cluster.facts import DomainFacts
from flyball.broker.cluster.options import ClusterOptions
from flyball.broker.cluster.plan import Plan, plan_of
from flyball.errors import ClusterError
from tests.broker.cluster.models import ModelAdministration

EXAMPLE = """
[[nodes]]
name = "n1"
provisioner = "none"

[[nodes]]
name = "n2"

[[clusters]]
name = "orders"
members = ["n1", "n2"]
max_members = 4
capacity = 50

[[clusters]]
name = "jobs"
vhost = "shop"
provisioner = "cloud"

[[topics]]
name = "news.sport"
parent = "news"

[[topics]]
name = "news"
"""


def do(domain: ModelAdministration, plan: Plan) -> None:
    """Do what a plan says: each step is done when it says so."""
    for step in plan.steps:
        domain.execute(step.command, step.arguments)
        assert step.is_done(domain.facts())


def words(plan: Plan) -> list[str]:
    return [str(step) for step in plan.steps]


@pytest.fixture
def domain() -> ModelAdministration:
    """A domain of one node, n1."""
    domain = ModelAdministration()
    domain.node("n1")
    return domain


def test_a_plan_is_in_words_and_in_an_order_that_works(domain: ModelAdministration) -> None:
    wanted = read_domain_file(EXAMPLE)
    plan = plan_of(wanted, domain.facts())
    assert words(plan) == [
        "+ node n2, started by local",
        "+ topic news at the top",
        "+ topic news.sport below news",
        "+ clustered queue orders on n1, n2, capacity 50, max_members 4",
        "+ clustered queue jobs in shop on nodes that the manager chooses, provisioner cloud",
    ]
    do(domain, plan)
    assert plan_of(wanted, domain.facts(), prune=True) == Plan()


def test_what_differs_is_changed_and_told_with_old_and_new_values(domain: ModelAdministration) -> None:
    do(domain, plan_of(read_domain_file(EXAMPLE), domain.facts()))
    changed = (
        EXAMPLE.replace("max_members = 4", 'max_members = 5\nprovisioner = "local"')
        .replace('parent = "news"', "")
        .replace('"n1", "n2"', '"n2"')
    )
    wanted = read_domain_file(changed)
    plan = plan_of(wanted, domain.facts())
    assert words(plan) == [
        "~ topic news.sport moves at the top",
        "~ clustered queue orders: max_members 4 → 5, provisioner none → local",
    ]
    assert plan.kept == ("clustered queue orders: the member on n1, after draining",)
    do(domain, plan_of(wanted, domain.facts(), prune=True))
    assert plan_of(wanted, domain.facts(), prune=True) == Plan()


def test_only_pruning_removes_and_what_serves_goes_last(domain: ModelAdministration) -> None:
    do(domain, plan_of(read_domain_file(EXAMPLE), domain.facts()))
    empty = DomainFile(nodes=(WantedNode("n1"),), clusters=(), topics=())
    plan = plan_of(empty, domain.facts())
    assert plan.steps == ()
    assert len(plan.kept) == 5
    plan = plan_of(empty, domain.facts(), prune=True)
    assert words(plan) == [
        "- clustered queue orders with 0 messages",
        "- clustered queue jobs in shop with 0 messages",
        "- topic news.sport with 0 subscriptions",
        "- topic news with 0 subscriptions",
        "- node n2, after draining",
    ]
    do(domain, plan)
    assert plan_of(empty, domain.facts(), prune=True) == Plan()


def test_of_the_nodes_that_are_removed_the_one_that_is_asked_goes_last() -> None:
    domain = ModelAdministration()
    for name in ("n1", "n2", "n3"):
        domain.node(name)
    domain.asked = "n1"
    plan = plan_of(DomainFile(nodes=(WantedNode("n3"),)), domain.facts(), prune=True)
    assert [step.arguments["name"] for step in plan.steps] == ["n2", "n1"]


def test_a_section_that_is_not_there_is_left_alone(domain: ModelAdministration) -> None:
    do(domain, plan_of(read_domain_file(EXAMPLE), domain.facts()))
    assert plan_of(read_domain_file(""), domain.facts(), prune=True) == Plan()


def test_what_the_manager_has_added_is_its_own_business(domain: ModelAdministration) -> None:
    wanted = read_domain_file(EXAMPLE)
    do(domain, plan_of(wanted, domain.facts()))
    domain.node("grown-1", "local", is_managed=True)
    domain.member("/", "orders", "grown-1")
    assert plan_of(wanted, domain.facts(), prune=True) == Plan()


def test_a_member_that_the_manager_could_remove_is_fixed(domain: ModelAdministration) -> None:
    wanted = read_domain_file('[[clusters]]\nname = "orders"\nmembers = ["n1"]')
    domain.execute("domain.cluster.create", {"name": "orders"})
    plan = plan_of(wanted, domain.facts())
    assert words(plan) == ["~ clustered queue orders: its member on n1 becomes fixed"]
    do(domain, plan)
    assert plan_of(wanted, domain.facts()) == Plan()


def test_a_dead_node_is_started_again_or_forgotten(domain: ModelAdministration) -> None:
    domain.node("n2", "local", state="dead")
    with_it = DomainFile(nodes=(WantedNode("n1"), WantedNode("n2")))
    assert words(plan_of(with_it, domain.facts())) == ["+ node n2, started again (dead)"]
    without_it = DomainFile(nodes=(WantedNode("n1"),))
    plan = plan_of(without_it, domain.facts(), prune=True)
    assert words(plan) == ["- node n2 (dead)"]
    do(domain, plan)
    assert plan_of(without_it, domain.facts(), prune=True) == Plan()


def test_nodes_that_come_or_go_already_are_not_told_to_again(domain: ModelAdministration) -> None:
    domain.arrives_later = True
    wanted = DomainFile(nodes=(WantedNode("n1"), WantedNode("n2")))
    (step,) = plan_of(wanted, domain.facts()).steps
    domain.execute(step.command, step.arguments)
    assert not step.is_done(domain.facts())
    assert plan_of(wanted, domain.facts()) == Plan()
    asyncio.run(domain.settle())
    assert step.is_done(domain.facts())

    fewer = DomainFile(nodes=(WantedNode("n1"),))
    (step,) = plan_of(fewer, domain.facts(), prune=True).steps
    domain.execute(step.command, step.arguments)
    assert not step.is_done(domain.facts())
    assert plan_of(fewer, domain.facts(), prune=True) == Plan()
    with pytest.raises(ClusterError, match="node n2 is leaving: apply the file again once it has left"):
        plan_of(wanted, domain.facts())
    asyncio.run(domain.settle())
    assert step.is_done(domain.facts())


def test_topics_can_change_places_with_their_parents(domain: ModelAdministration) -> None:
    do(domain, plan_of(DomainFile(topics=(WantedTopic("a"), WantedTopic("b", parent="a"))), domain.facts()))
    turned = DomainFile(topics=(WantedTopic("a", parent="b"), WantedTopic("b")))
    do(domain, plan_of(turned, domain.facts()))
    assert plan_of(turned, domain.facts()) == Plan()


# Errors


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[[nodes]", r"domain\.toml: Expected .*line 1"),
        ("nodse = 1", r"domain\.toml: unknown section 'nodse', did you mean 'nodes'\?"),
        ("zzz = 1", "unknown section 'zzz'; available: nodes, clusters, topics"),
        ("nodes = 1", r"nodes is not an array of tables: start each entry with \[\[nodes\]\]"),
        ("nodes = [1]", r"nodes is not an array of tables"),
        ("\n[[nodes]]", r"domain\.toml, line 2: \[\[nodes\]\]: name is missing or not a string"),
        ("nodes = [{name = 1}]", r"domain\.toml: nodes\[1\]: name is missing or not a string"),
        (
            '[[nodes]]\nname = "a"\nprovisoner = "x"',
            r"line 1: \[\[nodes\]\] a: unknown key 'provisoner', did",
        ),
        ('[[nodes]]\nname = "a"\n[[nodes]]\nname = "a"', r"line 3: \[\[nodes\]\] a: duplicate of .*line 1"),
        ('[[clusters]]\nname = "a"\nmembers = []', "members must list one or more nodes: remove the key"),
        ('[[clusters]]\nname = "a"\nmembers = "n1"', "members must list one or more nodes"),
        ('[[clusters]]\nname = "a"\nmembers = ["n", "n"]', "members: n is listed twice"),
        ('[[clusters]]\nname = "a"\nmax_members = 0', r"line 1: \[\[clusters\]\] a: invalid max_members 0: use an"),
        ('[[clusters]]\nname = "a"\nmax_member = 1', "unknown option 'max_member', did you mean 'max_members'"),
        ('[[clusters]]\nname = "a"\nmembers = ["x", "y"]\nmax_members = 1', "2 members exceed max_members 1"),
        (
            '[[nodes]]\nname = "n1"\n[[clusters]]\nname = "a"\nmembers = ["n2"]',
            r"members: no \[\[nodes\]\] entry is named 'n2'; available: n1",
        ),
        ('[[topics]]\nname = "a"\nparent = "b"', r"parent: no \[\[topics\]\] entry is named 'b'; available: a"),
        ('[[topics]]\nname = "a"\nparent = "a"', "a: parent creates a cycle: choose another parent"),
        ('[[topics]]\nname = "a"\nparent = ""', "parent is missing or not a string"),
    ],
)
def test_an_error_in_the_file_names_its_place_and_what_to_do(text: str, error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        read_domain_file(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            '[[nodes]]\nname = "n9"\nprovisioner = "none"',
            "node n9 is not running and has no provisioner: start it with `flyball serve --name n9 --store URL`",
        ),
        ('[[nodes]]\nname = "n9"\nprovisioner = "clod"', "unknown provisioner 'clod', did you mean 'cloud'"),
        (
            '[[clusters]]\nname = "a"\nmembers = ["n9"]',
            "members: unknown node 'n9'; available: n1; see `flyball domain show`",
        ),
        ('[[clusters]]\nname = "a"\nprovisioner = "x"', "unknown provisioner 'x'; available: cloud, local"),
    ],
)
def test_a_file_that_the_domain_cannot_follow_is_refused(domain: ModelAdministration, text: str, error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        plan_of(read_domain_file(text), domain.facts())


# Every file, every domain

NODES = ("n1", "n2", "n3", "n4")
VHOSTS = st.sampled_from(["/", "shop"])
NAMES = st.sampled_from(["a", "b", "c"])


@st.composite
def domain_files(draw: st.DrawFn) -> DomainFile:
    """Any file whose nodes include n1: something must be there to obey."""
    nodes = ["n1", *draw(st.lists(st.sampled_from(NODES[1:]), unique=True))]
    wanted = []
    for vhost, name in draw(st.sets(st.tuples(VHOSTS, NAMES), max_size=4)):
        members = draw(st.none() | st.lists(st.sampled_from(nodes), unique=True, min_size=1).map(tuple))
        options = ClusterOptions(
            max_members=draw(st.integers(4, 5)), provisioner=draw(st.sampled_from(["", "cloud"]))
        )
        wanted.append(WantedCluster(name, vhost, options, members))
    topics: list[WantedTopic] = []
    for vhost, name in draw(st.permutations([(vhost, name) for vhost in ("/", "shop") for name in "abc"])):
        if draw(st.booleans()):
            above = [topic.name for topic in topics if topic.vhost == vhost]
            topics.append(WantedTopic(name, vhost, draw(st.sampled_from([None, *above]))))
    return DomainFile(
        tuple(WantedNode(name) for name in nodes),
        tuple(wanted),
        tuple(draw(st.permutations(topics))),
    )


def check_is_there(wanted: DomainFile, facts: DomainFacts) -> None:
    up = {node["name"] for node in facts["nodes"] if node["state"] == "up"}
    assert {node.name for node in wanted.nodes or ()} <= up
    clusters = {(cluster["vhost"], cluster["name"]): cluster for cluster in facts["clusters"]}
    for cluster in wanted.clusters or ():
        found = clusters[cluster.key]
        assert ClusterOptions.from_dict(found["options"]) == cluster.options
        assert {*(cluster.members or ())} <= {member["node"] for member in found["members"] if member["fixed"]}
        assert found["members"]
    topics = {(topic["vhost"], topic["name"]): topic["parent"] for topic in facts["topics"]}
    assert {topic.key: topic.parent for topic in wanted.topics or ()}.items() <= topics.items()


def check_nothing_else_is_there(wanted: DomainFile, facts: DomainFacts) -> None:
    assert {node["name"] for node in facts["nodes"] if not node["managed"]} == {
        node.name for node in wanted.nodes or ()
    }
    assert len(facts["clusters"]) == len(wanted.clusters or ())
    assert len(facts["topics"]) == len(wanted.topics or ())
    members = {cluster.key: cluster.members for cluster in wanted.clusters or ()}
    for found in facts["clusters"]:
        named = members[found["vhost"], found["name"]]
        fixed = {member["node"] for member in found["members"] if member["fixed"]}
        assert named is None or fixed == {*named}


@settings(deadline=None)
@given(domain_files(), domain_files(), st.booleans())
def test_plan_reaches_the_file_and_the_second_plan_is_empty(
    before: DomainFile, after: DomainFile, prune: bool
) -> None:
    domain = ModelAdministration()
    domain.node("n1")
    do(domain, plan_of(before, domain.facts()))
    domain.node("grown", "cloud", is_managed=True)
    for cluster in before.clusters or ():
        if len(domain.clusters[cluster.key].members) < 4:
            domain.member(cluster.vhost, cluster.name, "grown")

    do(domain, plan_of(after, domain.facts(), prune=prune))
    facts = domain.facts()
    check_is_there(after, facts)
    if prune:
        check_nothing_else_is_there(after, facts)
    assert plan_of(after, facts, prune=prune).steps == ()
