"""The model of a domain, and how its options are read."""

from __future__ import annotations

import json

import pytest

from flyball.cluster.domain import (
    ClusteredConnectionFactory,
    ClusteredQueue,
    ClusteredTopic,
    ClusterOptions,
    ConnectionFactory,
    Domain,
    Node,
    Queue,
    Topic,
    User,
    cluster_key,
    split_key,
    title,
)
from flyball.errors import ClusterError

ORDERS = cluster_key("/", "orders")


def domain() -> Domain:
    made = Domain()
    made.registry.address = "postgresql:///broker"
    for number, name in ((1, "a"), (2, "b")):
        made.add_node(Node(number, name, addresses={"amqp": f"127.0.0.1:{5670 + number}"}))
        made.factories[name] = ConnectionFactory(name, number)
    made.clusters[ORDERS] = ClusteredQueue("orders", fixed_nodes=frozenset({1}))
    made.add_queue(Queue(10, "orders", 1, cluster=ORDERS))
    made.add_queue(Queue(11, "orders", 2, cluster=ORDERS))
    made.add_queue(Queue(12, "plain", 2))
    made.users["guest"] = User("guest", ("administrator",))
    made.add_topic(Topic("news"))
    made.add_topic(Topic("sport", parent="news", subscriptions=("fan",)))
    made.add_topic(Topic("chess", parent="sport", nodes=frozenset({2}), cluster=cluster_key("/", "games")))
    made.clustered_topics[cluster_key("/", "games")] = ClusteredTopic("games")
    made.clustered_factories["all"] = ClusteredConnectionFactory("all", ("a", "b", "gone"))
    return made


def test_a_key_gives_its_names_back_whatever_is_in_them() -> None:
    assert split_key(cluster_key('a|"b', "c/d")) == ('a|"b', "c/d")
    assert title(ORDERS) == "orders"
    assert title(cluster_key("shop", "orders")) == "orders in shop"


def test_a_member_is_shared_by_its_node_and_its_cluster_and_not_copied() -> None:
    made = domain()
    (of_node,) = [queue for queue in made.queues_of(1) if queue.cluster]
    (of_cluster,) = [queue for queue in made.members_of(ORDERS) if queue.node == 1]
    assert of_node is of_cluster


def test_what_has_moved_is_found_at_its_new_node_at_once() -> None:
    made = domain()
    made.queues[12].node = 1
    assert [queue.id for queue in made.queues_of(1)] == [10, 12]
    assert [queue.id for queue in made.queues_of(2)] == [11]


def test_the_tree_is_what_json_can_say_and_shows_everything() -> None:
    tree = json.loads(json.dumps(domain().tree()))
    assert [node["name"] for node in tree["nodes"]] == ["a", "b"]
    assert [queue["id"] for queue in tree["nodes"][1]["queues"]] == [11, 12]
    assert [topic["name"] for topic in tree["nodes"][0]["topics"]] == ["news", "sport"]
    assert tree["nodes"][0]["users"] == ["guest"]
    (cluster,) = tree["clusters"]
    assert [(member["id"], member["node_name"], member["is_fixed"]) for member in cluster["members"]] == [
        (10, "a", True),
        (11, "b", False),
    ]
    assert cluster["options"]["theta_down"] == 0.75
    (news,) = tree["topics"]
    assert news["children"][0]["children"][0]["name"] == "chess"
    assert tree["clustered_topics"] == [{"vhost": "/", "name": "games", "members": [{"name": "chess", "nodes": [2]}]}]
    assert tree["registry"]["address"] == "postgresql:///broker"
    assert [factory["node"] for factory in tree["clustered_factories"][0]["factories"]] == ["a", "b"]


def test_a_factory_of_a_node_that_is_gone_leads_nowhere() -> None:
    made = domain()
    del made.nodes[2]
    del made.queues[11]
    assert made.tree()["factories"][1] == {"name": "b", "node": None, "addresses": {}}


def test_a_message_reaches_the_ancestors_of_its_topic_nearest_first() -> None:
    made = domain()
    chess = made.topics[cluster_key("/", "chess")]
    assert [topic.name for topic in made.ancestors_of(chess)] == ["sport", "news"]


def test_a_topic_whose_parent_is_gone_stands_for_itself() -> None:
    made = domain()
    del made.topics[cluster_key("/", "news")]
    assert [topic["name"] for topic in made.tree()["topics"]] == ["sport"]


@pytest.mark.parametrize(
    ("topic", "problem"),
    [
        (Topic("news", parent="chess"), "its own ancestor"),
        (Topic("self", parent="self"), "its own ancestor"),
        (Topic("lost", parent="nowhere"), "there is no topic 'nowhere'"),
    ],
)
def test_a_topic_has_a_parent_that_is_there_and_does_not_descend_from_it(topic: Topic, problem: str) -> None:
    with pytest.raises(ClusterError, match=problem):
        domain().add_topic(topic)


def test_a_node_has_one_member_of_a_cluster_at_most() -> None:
    with pytest.raises(ClusterError, match="'a' has a member of 'orders' already"):
        domain().add_queue(Queue(20, "orders", 1, cluster=ORDERS))


def test_what_refers_to_nothing_is_refused() -> None:
    made = domain()
    with pytest.raises(ClusterError, match="no node 7"):
        made.add_queue(Queue(20, "x", 7))
    with pytest.raises(ClusterError, match="no clustered queue 'others'"):
        made.add_queue(Queue(20, "x", 1, cluster=cluster_key("/", "others")))
    with pytest.raises(ClusterError, match="choose another name"):
        made.add_node(Node(3, "a"))


def test_a_node_is_found_by_its_name_and_one_that_is_written_alike_is_suggested() -> None:
    made = domain()
    made.add_node(Node(3, "paris"))
    assert made.node_named("paris").id == 3
    with pytest.raises(ClusterError, match="did you mean 'paris'"):
        made.node_named("pariss")


def test_a_node_is_forgotten_only_when_it_serves_nothing() -> None:
    made = domain()
    with pytest.raises(ClusterError, match="still serves 2 queue"):
        made.remove_node(2)
    del made.queues[11], made.queues[12]
    made.remove_node(2)
    assert list(made.nodes) == [1]


# Options


def test_options_are_the_same_after_they_were_written_and_read() -> None:
    options = ClusterOptions(policy="plain", capacity=7.5, min_members=2, provisioner="local", loads="measured")
    assert ClusterOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_only_what_differs_from_the_usual_is_written_if_so_wished() -> None:
    assert ClusterOptions(capacity=5.0).to_dict(only_changed=True) == {"capacity": 5.0}


def test_a_whole_number_is_a_number() -> None:
    assert ClusterOptions.from_dict({"capacity": 10}).capacity == 10.0


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"capacitiy": 5}, "orders: there is no option 'capacitiy', did you mean 'capacity'?"),
        ({"policy": "random"}, "orders: policy is 'random': choose potential or plain"),
        ({"loads": 3}, "orders: loads is 3: choose weights or measured"),
        ({"capacity": 0}, "orders: capacity is 0.0: give a number above 0"),
        ({"capacity": "10"}, "orders: capacity is '10': give a number above 0"),
        ({"capacity": True}, "orders: capacity is True"),
        ({"epsilon": float("nan")}, "orders: epsilon is nan: give a number not below 0"),
        ({"min_members": 0}, "orders: min_members is 0: give a whole number of at least 1"),
        ({"max_members": 2.5}, "orders: max_members is 2.5: give a whole number"),
        ({"min_members": 5, "max_members": 4}, "orders: min_members 5 exceeds max_members 4"),
        ({"theta_down": 1}, "orders: theta_down must be below theta_up"),
        ({"theta_hold": 0.9}, "orders: theta_hold must not be below theta_up"),
        ({"provisioner": 3}, "orders: provisioner is 3: give the name of a provisioner"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_line_that_says_why(
    values: dict[str, object], problem: str
) -> None:
    with pytest.raises(ClusterError) as refused:
        ClusterOptions.from_dict(values, "orders")
    assert str(refused.value).startswith(problem)
