"""Users, virtual hosts and permissions decide as those of RabbitMQ do."""

from __future__ import annotations

import pytest

from flyball.broker.engine.access import Access, Action
from flyball.errors import (
    InvalidArgument,
    InvalidName,
    InvalidPattern,
    ReservedName,
    UserNameTaken,
    UserNotFound,
    VhostNameTaken,
    VhostNotFound,
)
from flyball.model import OWNER, Permission, User


def access_of(configure: str = "", write: str = "", read: str = "") -> Access:
    """Return access with a user alice and these permissions in /."""
    access = Access()
    access.add_user(User("alice"))
    access.set_permission(Permission("alice", "/", configure, write, read))
    return access


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        (".*", "orders", True),
        (".*", "", True),
        ("ord", "my-orders", True),
        ("^ord", "my-orders", False),
        ("^orders$", "orders", True),
        ("^orders$", "orders2", False),
        ("a|b", "cab", True),
        ("", "orders", False),
        ("", "", False),
        ("^$", "orders", False),
        ("^amq\\.default$", "", True),
        ("^[^s]", "secret", False),
        ("^[^s]", "public", True),
        ("é", "café", True),
    ],
)
def test_a_pattern_fits_anywhere_in_a_name_and_the_empty_one_nowhere(pattern: str, name: str, fits: bool) -> None:
    assert access_of(write=pattern).may("alice", "/", Action.WRITE, name) is fits


def test_pattern_of_a_permission_takes_linear_time() -> None:
    assert not access_of(write="^(a+)+$").may("alice", "/", Action.WRITE, "a" * 200 + "!")


def test_each_action_has_its_own_pattern() -> None:
    access = access_of(configure="^c", write="^w", read="^r")
    for action, name in ((Action.CONFIGURE, "c"), (Action.WRITE, "w"), (Action.READ, "r")):
        assert [access.may("alice", "/", action, other) for other in "cwr"] == [other == name for other in "cwr"]


def test_without_a_permission_nobody_may_enter_or_do_anything() -> None:
    access = access_of(".*", ".*", ".*")
    access.add_vhost("shop")
    access.add_user(User("bob", tags=("administrator",)))
    assert access.may_enter("alice", "/")
    assert not access.may_enter("alice", "shop")
    assert not access.may("alice", "shop", Action.READ, "orders")
    assert not access.may_enter("bob", "/")
    assert not access.may("nobody", "/", Action.READ, "orders")


def test_empty_patterns_let_a_user_in_but_do_nothing() -> None:
    access = access_of()
    assert access.may_enter("alice", "/")
    assert not any(access.may("alice", "/", action, name) for action in Action for name in ("", "orders"))


def test_a_permission_replaces_the_one_before() -> None:
    access = access_of(read=".*")
    access.set_permission(Permission("alice", "/", write=".*"))
    assert not access.may("alice", "/", Action.READ, "orders")
    assert access.may("alice", "/", Action.WRITE, "orders")
    assert access.permissions == [Permission("alice", "/", write=".*")]


def test_a_bad_pattern_is_refused_and_leaves_the_permission_as_it_was() -> None:
    access = access_of(read=".*")
    for pattern in ("(", "*", "a(?=b)", r"(a)\1", "a\0", "half \ud83d", "x" * 2000):
        with pytest.raises(InvalidPattern):
            access.set_permission(Permission("alice", "/", read=pattern))
    assert access.may("alice", "/", Action.READ, "orders")


def test_permissions_are_of_users_and_virtual_hosts_that_exist() -> None:
    access = access_of()
    with pytest.raises(UserNotFound):
        access.set_permission(Permission("bob", "/"))
    with pytest.raises(VhostNotFound):
        access.set_permission(Permission("alice", "shop"))
    with pytest.raises(UserNotFound):
        access.clear_permission("bob", "/")
    with pytest.raises(VhostNotFound):
        access.clear_permission("alice", "shop")


def test_a_cleared_permission_shuts_the_user_out() -> None:
    access = access_of(".*", ".*", ".*")
    assert access.clear_permission("alice", "/") == Permission("alice", "/", ".*", ".*", ".*")
    assert not access.may_enter("alice", "/")
    assert not access.may("alice", "/", Action.READ, "orders")
    assert access.clear_permission("alice", "/") is None


def test_a_deleted_user_leaves_no_permission_to_a_later_one_of_that_name() -> None:
    access = access_of(".*", ".*", ".*")
    assert access.delete_user("alice") == [Permission("alice", "/", ".*", ".*", ".*")]
    access.add_user(User("alice"))
    assert not access.may_enter("alice", "/")
    with pytest.raises(UserNotFound):
        access.delete_user("bob")


def test_recreated_virtual_host_has_no_old_permissions() -> None:
    access = access_of()
    access.add_vhost("shop")
    access.set_permission(Permission("alice", "shop", read=".*"))
    assert access.delete_vhost("shop") == [Permission("alice", "shop", read=".*")]
    assert access.vhosts == ["/"]
    access.add_vhost("shop")
    assert not access.may_enter("alice", "shop")
    assert access.may_enter("alice", "/")


def test_the_default_virtual_host_is_there_and_stays() -> None:
    access = Access()
    assert access.vhosts == ["/"]
    with pytest.raises(ReservedName):
        access.delete_vhost("/")
    with pytest.raises(VhostNotFound):
        access.delete_vhost("shop")


def test_names_are_taken_once_and_can_be_kept() -> None:
    access = access_of()
    with pytest.raises(UserNameTaken):
        access.add_user(User("alice"))
    with pytest.raises(VhostNameTaken):
        access.add_vhost("/")
    for name in ("", "x" * 256, "zero \0", "half \ud83d"):
        with pytest.raises(InvalidName):
            access.add_user(User(name))
        with pytest.raises(InvalidName):
            access.add_vhost(name)


def test_the_tag_makes_the_administrator() -> None:
    access = Access()
    access.add_user(User("root", tags=("monitoring", "administrator")))
    access.add_user(User("alice", tags=("monitoring",)))
    assert access.is_administrator("root")
    assert not access.is_administrator("alice")
    assert not access.is_administrator("nobody")
    access.put_user(User("root"))
    assert not access.is_administrator("root")


@pytest.mark.parametrize("tags", [("a,b",), ("a b",), ("a\nb",), ("",), ("x" * 256,), tuple(map(str, range(33)))])
def test_a_tag_is_one_word(tags: tuple[str, ...]) -> None:
    with pytest.raises((InvalidArgument, InvalidName)):
        Access().add_user(User("alice", tags=tags))


def test_every_change_has_a_new_version() -> None:
    access = Access()
    versions = [access.version.number]

    def note() -> None:
        versions.append(access.version.number)

    access.add_user(User("alice"))
    note()
    access.put_user(User("alice", tags=("management",)))
    note()
    access.add_vhost("shop")
    note()
    access.set_permission(Permission("alice", "shop"))
    note()
    access.clear_permission("alice", "shop")
    note()
    access.delete_vhost("shop")
    note()
    access.delete_user("alice")
    note()
    assert versions == sorted(set(versions))


def test_a_hash_does_not_show() -> None:
    assert "secret" not in repr(User("alice", "secret hash"))


def test_stored_pattern_that_cannot_be_matched_allows_nothing() -> None:
    access = access_of()
    problems = access.restore_permission(Permission("alice", "/", "^(?!x)", ".*", r"(a)\1"))
    assert [problem.pattern for problem in problems] == ["^(?!x)", r"(a)\1"]
    assert access.may_enter("alice", "/")
    assert not access.may("alice", "/", Action.CONFIGURE, "a")
    assert access.may("alice", "/", Action.WRITE, "a")
    assert not access.may("alice", "/", Action.READ, "aa")


def test_owner_of_the_node_may_do_everything_in_every_vhost_and_nowhere_else() -> None:
    access = access_of()
    access.add_vhost("shop")
    assert access.permissions_of(OWNER) == [Permission(OWNER, vhost, ".*", ".*", ".*") for vhost in ("/", "shop")]
    assert access.permissions_of("alice") == [Permission("alice", "/", "", "", "")]
    for action in Action:
        assert access.may(OWNER, "shop", action, "orders")
        assert not access.may(OWNER, "elsewhere", action, "orders")
    assert access.may_enter(OWNER, "shop")
    assert not access.may_enter(OWNER, "elsewhere")


def test_name_of_the_owner_is_reserved() -> None:
    with pytest.raises(ReservedName, match="reserved for logins with the node's token"):
        access_of().add_user(User(OWNER))
