"""Access control: users, virtual hosts and permissions, with RabbitMQ's semantics.

Used by every protocol. In memory only: other modules hash passwords and store changes.
"""

from __future__ import annotations

import enum

from flyball.broker.engine.patterns import NamePattern, check_name, compile_pattern, never_fits
from flyball.broker.engine.version import Version
from flyball.errors import (
    InvalidArgument,
    InvalidPattern,
    ReservedName,
    UserNameTaken,
    UserNotFound,
    VhostNameTaken,
    VhostNotFound,
)
from flyball.model import DEFAULT_VHOST, OWNER, Permission, User

# The tag of users with all management rights.
ADMINISTRATOR = "administrator"

# The name of the default exchange in permissions; its actual name is empty.
DEFAULT_EXCHANGE = "amq.default"

MAX_TAGS = 32

# The user of logins with the node's token: an administrator with all permissions, neither stored nor changeable.
OWNER_USER = User(OWNER, None, (ADMINISTRATOR,))


class Action(enum.IntEnum):
    """An operation on a queue or exchange that needs a permission."""

    # Declare or delete it.
    CONFIGURE = 0
    # Publish to it, or bind it as a destination.
    WRITE = 1
    # Consume from it, or bind it as a source.
    READ = 2


class Access:
    """Users, virtual hosts and permissions. `version` advances with every change, so that results can be cached."""

    __slots__ = ("_patterns", "_permissions", "_users", "_vhosts", "version")

    def __init__(self) -> None:
        self.version = Version()
        self._users: dict[str, User] = {}
        # In the order of creation.
        self._vhosts: dict[str, bool] = {DEFAULT_VHOST: True}
        # By user and virtual host.
        self._permissions: dict[tuple[str, str], Permission] = {}
        self._patterns: dict[tuple[str, str], tuple[NamePattern, NamePattern, NamePattern]] = {}

    # Checks

    def may_enter(self, user: str, vhost: str) -> bool:
        """Whether the user has a permission in the virtual host, even an empty one."""
        return (user, vhost) in self._permissions or (user == OWNER and vhost in self._vhosts)

    def may(self, user: str, vhost: str, action: Action, name: str) -> bool:
        """Whether the user may perform the action on the queue or exchange.

        Patterns are not anchored: use `^` and `$`. An empty pattern matches only the empty name, which no queue has;
        the default exchange is checked as `amq.default`.
        """
        patterns = self._patterns.get((user, vhost))
        if patterns is None:
            return user == OWNER and vhost in self._vhosts
        return patterns[action].fits(name or DEFAULT_EXCHANGE)

    def permissions_of(self, user: str) -> list[Permission]:
        """Return the user's permissions, sorted by virtual host."""
        if user == OWNER:
            return [Permission(OWNER, vhost, ".*", ".*", ".*") for vhost in sorted(self._vhosts)]
        return [permission for permission in self.permissions if permission.user == user]

    def is_administrator(self, user: str) -> bool:
        known = self._users.get(user)
        return known is not None and ADMINISTRATOR in known.tags

    # Users

    @property
    def users(self) -> list[User]:
        return [self._users[name] for name in sorted(self._users)]

    def find_user(self, name: str) -> User | None:
        return self._users.get(name)

    def current(self, user: User) -> User | None:
        """Return the current definition of a logged-in user, or None if it was deleted."""
        return user if user is OWNER_USER else self._users.get(user.name)

    def user(self, name: str) -> User:
        """Raises UserNotFound."""
        found = self._users.get(name)
        if found is None:
            raise UserNotFound(name)
        return found

    def add_user(self, user: User) -> None:
        """Raises UserNameTaken, InvalidName, InvalidArgument."""
        if user.name in self._users:
            raise UserNameTaken(user.name)
        self.put_user(user)

    def put_user(self, user: User) -> None:
        """Add the user, or replace the user of the same name. Raises InvalidName, InvalidArgument."""
        check_user_name(user.name)
        check_tags(user.tags)
        self._users[user.name] = user
        self.version.advance()

    def delete_user(self, name: str) -> list[Permission]:
        """Remove the user and its permissions; return the permissions. Raises UserNotFound."""
        self.user(name)
        del self._users[name]
        return self._drop([key for key in self._permissions if key[0] == name])

    # Virtual hosts

    @property
    def vhosts(self) -> list[str]:
        return list(self._vhosts)

    def has_vhost(self, vhost: str) -> bool:
        return vhost in self._vhosts

    def check_vhost(self, vhost: str) -> None:
        """Raises VhostNotFound."""
        if vhost not in self._vhosts:
            raise VhostNotFound(vhost)

    def add_vhost(self, vhost: str) -> None:
        """Raises VhostNameTaken, InvalidName."""
        check_name("vhost", vhost)
        if vhost in self._vhosts:
            raise VhostNameTaken(vhost)
        self._vhosts[vhost] = True
        self.version.advance()

    def delete_vhost(self, vhost: str) -> list[Permission]:
        """Remove the virtual host and its permissions; return the permissions. Raises VhostNotFound, ReservedName."""
        self.check_vhost(vhost)
        if vhost == DEFAULT_VHOST:
            raise ReservedName(f"vhost '{vhost}' cannot be deleted: protocols without virtual hosts use it")
        del self._vhosts[vhost]
        return self._drop([key for key in self._permissions if key[1] == vhost])

    # Permissions

    @property
    def permissions(self) -> list[Permission]:
        return [self._permissions[key] for key in sorted(self._permissions)]

    def find_permission(self, user: str, vhost: str) -> Permission | None:
        return self._permissions.get((user, vhost))

    def set_permission(self, permission: Permission) -> None:
        """Set the user's permission in the virtual host. Raises UserNotFound, VhostNotFound, InvalidPattern."""
        self._check_place(permission)
        self._set(
            permission,
            (
                compile_pattern(permission.configure or "^$"),
                compile_pattern(permission.write or "^$"),
                compile_pattern(permission.read or "^$"),
            ),
        )

    def restore_permission(self, permission: Permission) -> list[InvalidPattern]:
        """Set a stored permission; return the errors of invalid patterns, which match nothing.

        Patterns were once compiled by Python's `re`, so a store may contain some that RE2 rejects.
        Raises UserNotFound, VhostNotFound.
        """
        self._check_place(permission)
        problems: list[InvalidPattern] = []
        patterns: list[NamePattern] = []
        for pattern in (permission.configure, permission.write, permission.read):
            try:
                patterns.append(compile_pattern(pattern or "^$"))
            except InvalidPattern as error:
                problems.append(error)
                patterns.append(never_fits())
        self._set(permission, (patterns[0], patterns[1], patterns[2]))
        return problems

    def _check_place(self, permission: Permission) -> None:
        self.user(permission.user)
        self.check_vhost(permission.vhost)

    def _set(self, permission: Permission, patterns: tuple[NamePattern, NamePattern, NamePattern]) -> None:
        key = (permission.user, permission.vhost)
        self._permissions[key] = permission
        self._patterns[key] = patterns
        self.version.advance()

    def clear_permission(self, user: str, vhost: str) -> Permission | None:
        """Remove the user's permission in the virtual host and return it. Raises UserNotFound, VhostNotFound."""
        self.user(user)
        self.check_vhost(vhost)
        dropped = self._drop([(user, vhost)]) if (user, vhost) in self._permissions else []
        return dropped[0] if dropped else None

    def _drop(self, keys: list[tuple[str, str]]) -> list[Permission]:
        self.version.advance()
        for key in keys:
            del self._patterns[key]
        return [self._permissions.pop(key) for key in keys]


def check_user_name(name: str) -> None:
    """Raise InvalidName or ReservedName unless the name is valid for a user."""
    check_name("user", name)
    if name == OWNER:
        raise ReservedName(f"the user name {name!r} is reserved for logins with the node's token")


def check_tags(tags: tuple[str, ...]) -> None:
    """Raise InvalidArgument or InvalidName unless the tags are valid for a user."""
    if len(tags) > MAX_TAGS:
        raise InvalidArgument(f"{len(tags)} tags exceed the maximum of {MAX_TAGS} per user")
    for tag in tags:
        check_name("tag", tag)
        if "," in tag or not tag.isprintable() or " " in tag:
            raise InvalidArgument(f"tag {tag!r} contains a comma, space or control character")
