"""Sessions of the console end when they are not used, and when their user is not the one who logged in."""

from __future__ import annotations

import pytest

from flyball.broker.engine.access import Access
from flyball.broker.management import sessions as module
from flyball.broker.management.sessions import IDLE_S, Sessions
from flyball.model import User

ANN = User("ann", "hash", ("monitoring",))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def access() -> Access:
    access = Access()
    access.add_user(ANN)
    return access


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(access: Access, clock: Clock) -> Sessions:
    return Sessions(access, now=clock)


def test_a_token_stands_for_the_user_who_logged_in(sessions: Sessions) -> None:
    token = sessions.begin(ANN)
    assert sessions.user_of(token) is ANN
    assert sessions.user_of(token + "x") is None
    assert sessions.user_of("") is None


def test_a_session_that_has_ended_is_nobodys(sessions: Sessions) -> None:
    token, other = sessions.begin(ANN), sessions.begin(ANN)
    sessions.end(token)
    sessions.end("nonsense")
    assert sessions.user_of(token) is None
    assert sessions.user_of(other) is ANN


def test_a_session_ends_when_it_is_not_used(sessions: Sessions, clock: Clock) -> None:
    token = sessions.begin(ANN)
    for _ in range(3):
        clock.now_s += IDLE_S - 1
        assert sessions.user_of(token) is ANN
    clock.now_s += IDLE_S + 1
    assert sessions.user_of(token) is None
    assert len(sessions) == 0


def test_a_session_ends_with_its_user(sessions: Sessions, access: Access) -> None:
    token = sessions.begin(ANN)
    access.delete_user("ann")
    assert sessions.user_of(token) is None
    access.add_user(ANN)
    assert sessions.user_of(token) is None


def test_a_session_ends_with_the_password(sessions: Sessions, access: Access) -> None:
    token = sessions.begin(ANN)
    access.put_user(User("ann", "another hash", ANN.tags))
    assert sessions.user_of(token) is None


def test_other_tags_count_at_once(sessions: Sessions, access: Access) -> None:
    token = sessions.begin(ANN)
    access.put_user(User("ann", "hash", ()))
    user = sessions.user_of(token)
    assert user is not None
    assert user.tags == ()


def test_of_too_many_sessions_those_end_that_were_not_used(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 2)
    first, second = sessions.begin(ANN), sessions.begin(ANN)
    sessions.user_of(first)
    third = sessions.begin(ANN)
    assert [sessions.user_of(token) for token in (first, second, third)] == [ANN, None, ANN]


def test_a_session_as_a_text_shows_no_secret(sessions: Sessions) -> None:
    token = sessions.begin(ANN)
    assert token not in repr(vars(sessions))
    assert "hash'" not in repr(vars(sessions))
