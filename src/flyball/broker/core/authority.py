"""Users, virtual hosts, permissions, policies and limits, held in memory and made durable by the journal.

Used by every protocol and by management. Independent of protocols; secrets never leave it.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from flyball.broker.core.attempts import Attempts, place_of
from flyball.broker.core.passwords import Passwords, check_hash
from flyball.broker.core.pending import PendingChange, change_for_good, outcome
from flyball.broker.engine.access import ADMINISTRATOR, OWNER_USER, Access, check_tags, check_user_name
from flyball.broker.engine.limits import USER_LIMITS, VHOST_LIMITS, Limits
from flyball.broker.engine.policies import Policies
from flyball.broker.store.changes import Change, DefinitionDeleted, DefinitionPut
from flyball.broker.store.group_commit import GroupCommit
from flyball.errors import RequestError, UserNameTaken
from flyball.events import Event
from flyball.model import DEFAULT_VHOST, OWNER, Definition, Permission, Policy, User

log = logging.getLogger(__name__)

# The user created at the first start, whose password is its name.
FIRST_USER = "guest"

_USER, _VHOST, _PERMISSION, _POLICY = "user", "vhost", "permission", "policy"
_VHOST_LIMITS, _USER_LIMITS = "vhost_limits", "user_limits"


class Authority:
    """Authenticates and authorizes users, and holds the policies. A change is durable when its method returns.

    A change takes effect at once, before it is durable. If the store fails, it is undone; a deletion is retried
    instead. Every change raises the errors of `Access` and `Policies`, and StoreError.
    """

    def __init__(
        self,
        journal: GroupCommit,
        definitions: Iterable[Definition],
        *,
        loopback_users: Collection[str] = (FIRST_USER,),
        passwords: Passwords | None = None,
        attempts: Attempts | None = None,
        owner_token: bytes = b"",
    ) -> None:
        """`owner_token` is the password of the user @owner; if it is empty, that user cannot log in."""
        self.access = Access()
        self.policies = Policies()
        self.vhost_limits = Limits(VHOST_LIMITS)
        self.user_limits = Limits(USER_LIMITS)
        # Users who may log in only from the node's own machine.
        self.loopback_users = frozenset(loopback_users)
        # All of these events fire when the change takes effect, before it is durable.
        # A user was deleted: its connections must be closed.
        self.user_deleted = Event[[str]]()
        # A virtual host was deleted, its contents not yet: its connections must be closed.
        self.vhost_closed = Event[[str]]()
        # A virtual host was deleted: its contents must be deleted as well. The second argument is true if another
        # node deleted it, together with all contents known there.
        self.vhost_deleted = Event[[str, bool]]()
        # The policies of a virtual host have changed.
        self.policies_changed = Event[[str]]()
        self._journal = journal
        self._passwords = Passwords() if passwords is None else passwords
        self._attempts = Attempts() if attempts is None else attempts
        self._owner_token = owner_token
        self._is_first_start = True
        self._load(definitions)

    async def start(self) -> None:
        """At the first start of a domain, create the default virtual host and an administrator."""
        if not self._is_first_start:
            return
        user = User(FIRST_USER, await self._passwords.hash_password(FIRST_USER), (ADMINISTRATOR,))
        permission = Permission(FIRST_USER, DEFAULT_VHOST, ".*", ".*", ".*")
        self.access.put_user(user)
        self.access.set_permission(permission)
        self._journal.change(DefinitionPut(_of_user(user)), None)
        self._journal.change(DefinitionPut(_of_permission(permission)), None)
        await self._put(_of_vhost(DEFAULT_VHOST), lambda: None)
        self._is_first_start = False

    # Logging in

    async def log_in(
        self, name: str, password: str | bytes, address: str, peer_is_loopback: bool, *, can_wait: bool = False
    ) -> User | None:
        """Authenticate a client with a rate limit of attempts by name and address. All protocols use it.

        With `can_wait` a few clients that failed often are delayed instead of refused. Raises TooManyAttempts, and
        NotAdmitted if too many logins are waiting.
        """
        if name == OWNER and not peer_is_loopback:
            # Always refused, and must not use up the attempts of the owner on this machine.
            name = ""
        user = self._attempts.glance(name, address, lambda: self.recognise(name, password, peer_is_loopback))
        if user is not None:
            return user
        async with self._attempts.attempt(name, address, can_wait=can_wait) as attempt:
            user = await self.authenticate(name, password, peer_is_loopback, place_of(address))
            if user is not None:
                attempt.succeed()
        return user

    async def authenticate(
        self, name: str, password: str | bytes, peer_is_loopback: bool, place: str = ""
    ) -> User | None:
        """Return the user if the password is correct and the user may log in from there.

        The duration does not reveal whether name or password is wrong. Checks for different places take turns.
        Raises NotAdmitted.
        """
        if name == OWNER:
            return self._recognise_owner(password, peer_is_loopback)
        user = self.access.find_user(name)
        is_right = await self._passwords.verify(None if user is None else user.password_hash, password, place)
        if user is None or not is_right:
            return None
        # The user may have been deleted, or its password changed, during the check.
        now = self.access.find_user(name)
        if now is None or now.password_hash != user.password_hash:
            return None
        return now if self._may_come_from(name, peer_is_loopback) else None

    def recognise(self, name: str, password: str | bytes, peer_is_loopback: bool) -> User | None:
        """Return the user if `authenticate` verified the password recently, without hashing it again."""
        if name == OWNER:
            return self._recognise_owner(password, peer_is_loopback)
        user = self.access.find_user(name)
        if user is None or user.password_hash is None or not self._may_come_from(name, peer_is_loopback):
            return None
        return user if self._passwords.remembers(user.password_hash, password) else None

    def _recognise_owner(self, password: str | bytes, peer_is_loopback: bool) -> User | None:
        said = password.encode("utf-8", "surrogatepass") if isinstance(password, str) else password
        is_right = bool(self._owner_token) and hmac.compare_digest(said, self._owner_token)
        return OWNER_USER if is_right and peer_is_loopback else None

    def authenticate_certificate(self, common_name: str, peer_is_loopback: bool = False) -> User | None:
        """Return the user named by a verified certificate, if it exists and may log in from there."""
        return self.access.find_user(common_name) if self._may_come_from(common_name, peer_is_loopback) else None

    def _may_come_from(self, name: str, peer_is_loopback: bool) -> bool:
        return peer_is_loopback or name not in self.loopback_users

    # Users

    async def add_user(self, name: str, password: str | None, tags: Collection[str] = ()) -> None:
        """Add a user; without a password it can log in only with a certificate."""
        check_user_name(name)
        check_tags(tuple(tags))
        if self.access.find_user(name) is not None:
            raise UserNameTaken(name)
        user = User(name, await self._hash(password), tuple(tags))
        self.access.add_user(user)
        log.info("user %r added with tags %s", name, list(tags))
        await self._put_user(user, None)

    async def put_user(
        self, name: str, tags: Collection[str], *, password: str | None = None, password_hash: str | None = None
    ) -> None:
        """Create or replace a user, with a password, a password hash, or neither."""
        check_user_name(name)
        check_tags(tuple(tags))
        if password is None and password_hash is not None:
            check_hash(password_hash)
        else:
            password_hash = await self._hash(password)
        before = self.access.find_user(name)
        user = User(name, password_hash, tuple(tags))
        self.access.put_user(user)
        log.info("user %r put with tags %s", name, list(tags))
        await self._put_user(user, before)

    async def change_password(self, name: str, password: str | None) -> None:
        """Change or remove the user's password. Open connections stay open."""
        self.access.user(name)
        password_hash = await self._hash(password)
        before = self.access.user(name)
        user = replace(before, password_hash=password_hash)
        self.access.put_user(user)
        log.info("password of user %r changed", name)
        await self._put_user(user, before)

    async def set_tags(self, name: str, tags: Collection[str]) -> None:
        """Replace the user's tags."""
        before = self.access.user(name)
        user = replace(before, tags=tuple(tags))
        self.access.put_user(user)
        log.info("tags of user %r are %s", name, list(tags))
        await self._put_user(user, before)

    async def delete_user(self, name: str) -> None:
        """Delete the user and its permissions, even the last administrator."""
        permissions = self.access.delete_user(name)
        log.info("user %r deleted", name)
        self.user_deleted(name)
        gone = [*map(_of_permission, permissions), *self._limits_of_user(name)]
        await self._delete(gone, _USER, name)

    async def _hash(self, password: str | None) -> str | None:
        return None if password is None else await self._passwords.hash_password(password)

    async def _put_user(self, user: User, before: User | None) -> None:
        def undo() -> None:
            if self.access.find_user(user.name) is user:
                if before is None:
                    self.access.delete_user(user.name)
                    self.user_deleted(user.name)
                else:
                    self.access.put_user(before)

        await self._put(_of_user(user), undo)

    # Virtual hosts

    async def add_vhost(self, vhost: str) -> None:
        self.access.add_vhost(vhost)
        log.info("vhost %r added", vhost)

        def undo() -> None:
            if self.access.has_vhost(vhost):
                self.access.delete_vhost(vhost)
                self.policies.delete_vhost(vhost)
                self.vhost_closed(vhost)
                self.vhost_deleted(vhost, False)

        await self._put(_of_vhost(vhost), undo)

    async def delete_vhost(self, vhost: str) -> None:
        """Delete the virtual host with its permissions and policies; `vhost_deleted` triggers the other deletions."""
        permissions = self.access.delete_vhost(vhost)
        policies = self.policies.delete_vhost(vhost)
        log.info("vhost %r deleted", vhost)
        self.vhost_closed(vhost)
        self.vhost_deleted(vhost, False)
        gone = [*map(_of_permission, permissions), *map(_of_policy, policies)]
        if self.vhost_limits.delete(vhost):
            gone.append(_of_vhost_limits(vhost, {}))
        await self._delete(gone, _VHOST, vhost)

    # Permissions

    async def set_permission(self, permission: Permission) -> None:
        """Set a user's permission in a virtual host."""
        before = self.access.find_permission(permission.user, permission.vhost)
        self.access.set_permission(permission)
        log.info("%r set", permission)

        def undo() -> None:
            if self.access.find_permission(permission.user, permission.vhost) is permission:
                if before is None:
                    self.access.clear_permission(permission.user, permission.vhost)
                else:
                    self.access.restore_permission(before)

        await self._put(_of_permission(permission), undo)

    async def clear_permission(self, user: str, vhost: str) -> None:
        """Remove the user's permission in the virtual host, if it has one."""
        if self.access.clear_permission(user, vhost) is not None:
            log.info("permission of user %r in vhost %r cleared", user, vhost)
        await self._delete([], _PERMISSION, _key(vhost, user))

    # Policies

    async def set_policy(self, policy: Policy) -> None:
        """Add the policy, or replace the policy of the same name. Also raises VhostNotFound."""
        self.access.check_vhost(policy.vhost)
        before = self.policies.find(policy.vhost, policy.name)
        self.policies.set(policy)
        log.info("%r set", policy)
        self.policies_changed(policy.vhost)

        def undo() -> None:
            if self.policies.find(policy.vhost, policy.name) is policy:
                if before is None:
                    self.policies.clear(policy.vhost, policy.name)
                else:
                    self.policies.restore(before)
                self.policies_changed(policy.vhost)

        await self._put(_of_policy(policy), undo)

    async def clear_policy(self, vhost: str, name: str) -> None:
        self.access.check_vhost(vhost)
        self.policies.clear(vhost, name)
        log.info("policy %r of vhost %r cleared", name, vhost)
        self.policies_changed(vhost)
        await self._delete([], _POLICY, _key(vhost, name))

    # Limits

    async def set_vhost_limits(self, vhost: str, limits: Mapping[str, object]) -> None:
        """Replace the limits of a virtual host. Raises VhostNotFound, InvalidArgument."""
        self.access.check_vhost(vhost)
        before = self.vhost_limits.of(vhost)
        self.vhost_limits.set(vhost, limits)
        log.info("limits of vhost %r are %s", vhost, dict(limits))

        def undo() -> None:
            if self.access.has_vhost(vhost) and self.vhost_limits.of(vhost) == limits:
                self.vhost_limits.set(vhost, before)

        await self._put(_of_vhost_limits(vhost, limits), undo)

    async def set_user_limits(self, name: str, limits: Mapping[str, object]) -> None:
        """Replace the limits of a user. Raises UserNotFound, InvalidArgument."""
        self.access.user(name)
        before = self.user_limits.of(name)
        self.user_limits.set(name, limits)
        log.info("limits of user %r are %s", name, dict(limits))

        def undo() -> None:
            if self.access.find_user(name) is not None and self.user_limits.of(name) == limits:
                self.user_limits.set(name, before)

        await self._put(_of_user_limits(name, limits), undo)

    def _limits_of_user(self, name: str) -> list[Definition]:
        """Drop the limits of a deleted user; return their stored definitions."""
        return [_of_user_limits(name, {})] if self.user_limits.delete(name) else []

    # Other nodes

    def knows(self, kind: str) -> bool:
        """Whether definitions of this kind belong to the authority."""
        return kind in _READERS

    def apply(self, change: DefinitionPut | DefinitionDeleted) -> None:
        """Apply a durable change made by another node."""
        try:
            if isinstance(change, DefinitionPut):
                self._apply_put(change.definition)
            else:
                self._apply_deletion(change.kind, change.key)
        except RequestError as error:
            # Two nodes may make conflicting changes at the same time, such as a permission of a user that the other
            # deletes.
            log.warning("change of another node ignored: %s", error)

    def _apply_put(self, definition: Definition) -> None:
        value = definition.value
        if definition.kind == _USER:
            self.access.put_user(_user(value))
        elif definition.kind != _VHOST or not self.access.has_vhost(value["name"]):
            _READERS[definition.kind](self, value)
        if definition.kind == _POLICY:
            self.policies_changed(value["vhost"])

    def _apply_deletion(self, kind: str, key: str) -> None:
        if kind == _USER:
            self.access.delete_user(key)
            self.user_limits.delete(key)
            self.user_deleted(key)
        elif kind == _VHOST:
            self.access.delete_vhost(key)
            self.policies.delete_vhost(key)
            self.vhost_limits.delete(key)
            self.vhost_closed(key)
            self.vhost_deleted(key, True)
        elif kind in (_VHOST_LIMITS, _USER_LIMITS):
            (self.vhost_limits if kind == _VHOST_LIMITS else self.user_limits).delete(key)
        elif kind == _PERMISSION:
            vhost, user = json.loads(key)
            if self.access.has_vhost(vhost) and self.access.find_user(user) is not None:
                self.access.clear_permission(user, vhost)
        else:
            vhost, name = json.loads(key)
            if self.policies.find(vhost, name) is not None:
                self.policies.clear(vhost, name)
                self.policies_changed(vhost)

    # The journal

    def _load(self, definitions: Iterable[Definition]) -> None:
        by_kind: dict[str, list[Definition]] = {kind: [] for kind in _READERS}
        for definition in definitions:
            if definition.kind in by_kind:
                by_kind[definition.kind].append(definition)
        for kind, read in _READERS.items():
            for definition in by_kind[kind]:
                try:
                    read(self, definition.value)
                except RequestError as error:
                    # A crash during a deletion may leave orphans. Ignoring them never grants access.
                    log.error("stored %s %s ignored: %s", kind, definition.key, error)

    def _load_vhost(self, value: Mapping[str, Any]) -> None:
        if value["name"] == DEFAULT_VHOST:
            # It is created at the first start and cannot be deleted.
            self._is_first_start = False
        else:
            self.access.add_vhost(value["name"])

    def _load_user(self, value: Mapping[str, Any]) -> None:
        self.access.add_user(_user(value))

    def _load_permission(self, value: Mapping[str, Any]) -> None:
        permission = Permission(value["user"], value["vhost"], value["configure"], value["write"], value["read"])
        for problem in self.access.restore_permission(permission):
            log.error(
                "pattern in the permission of user %r in vhost %r is invalid and matches nothing; set it again: %s",
                permission.user,
                permission.vhost,
                problem,
            )

    def _load_policy(self, value: Mapping[str, Any]) -> None:
        self.access.check_vhost(value["vhost"])
        policy = Policy(
            value["name"],
            value["pattern"],
            dict(value["definition"]),
            value["vhost"],
            value["apply_to"],
            value["priority"],
        )
        problem = self.policies.restore(policy)
        if problem is not None:
            log.error(
                "pattern of policy %r in vhost %r is invalid and matches nothing; set it again: %s",
                policy.name,
                policy.vhost,
                problem,
            )

    def _load_vhost_limits(self, value: Mapping[str, Any]) -> None:
        self.access.check_vhost(value["vhost"])
        self.vhost_limits.set(value["vhost"], value["limits"])

    def _load_user_limits(self, value: Mapping[str, Any]) -> None:
        self.access.user(value["user"])
        self.user_limits.set(value["user"], value["limits"])

    async def _put(self, definition: Definition, undo: Callable[[], None]) -> None:
        """Make the definition durable, or undo the change and raise StoreError."""
        await outcome(lambda done: self._journal.change(DefinitionPut(definition), PendingChange(done, undo)))

    async def _delete(self, before: Collection[Definition], kind: str, key: str) -> None:
        """Make the deletion of a definition and its dependents durable. Raises StoreUnavailable after the timeout."""
        changes: list[Change] = [DefinitionDeleted(definition.kind, definition.key) for definition in before]
        changes.append(DefinitionDeleted(kind, key))
        await outcome(lambda done: change_for_good(self._journal, changes, done))


# In order of dependence: permissions, policies and limits refer to users and virtual hosts.
_READERS: dict[str, Callable[[Authority, Mapping[str, Any]], None]] = {
    _VHOST: Authority._load_vhost,
    _USER: Authority._load_user,
    _PERMISSION: Authority._load_permission,
    _POLICY: Authority._load_policy,
    _VHOST_LIMITS: Authority._load_vhost_limits,
    _USER_LIMITS: Authority._load_user_limits,
}


def _key(vhost: str, name: str) -> str:
    """Return an unambiguous key for a pair of arbitrary names."""
    return json.dumps([vhost, name], ensure_ascii=False)


def _user(value: Mapping[str, Any]) -> User:
    return User(value["name"], value["password_hash"], tuple(value["tags"]))


def _of_user(user: User) -> Definition:
    value = {"name": user.name, "password_hash": user.password_hash, "tags": list(user.tags)}
    return Definition(_USER, user.name, value)


def _of_vhost(vhost: str) -> Definition:
    return Definition(_VHOST, vhost, {"name": vhost})


def _of_permission(permission: Permission) -> Definition:
    return Definition(_PERMISSION, _key(permission.vhost, permission.user), asdict(permission))


def _of_policy(policy: Policy) -> Definition:
    return Definition(_POLICY, _key(policy.vhost, policy.name), asdict(policy))


def _of_vhost_limits(vhost: str, limits: Mapping[str, object]) -> Definition:
    return Definition(_VHOST_LIMITS, vhost, {"vhost": vhost, "limits": dict(limits)})


def _of_user_limits(name: str, limits: Mapping[str, object]) -> Definition:
    return Definition(_USER_LIMITS, name, {"user": name, "limits": dict(limits)})
