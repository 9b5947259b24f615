"""What is wrong is told with a status, a word, a reason and advice."""

from __future__ import annotations

import json

import pytest

from flyball import errors
from flyball.console.api.answers import Refused, problem
from flyball.server.http import STATUS_OF


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (errors.QueueNotFound("orders", "/"), 404, "Object Not Found"),
        (errors.LoopNotFound("orders"), 404, "Object Not Found"),
        (errors.NotSwitchable("orders", "it protects the node"), 409, "conflict"),
        (errors.TooManyLoops(5), 429, "too_many_requests"),
        (errors.NotAdmitted("too many wait", 1.0), 503, "unavailable"),
        (errors.ClusterError("no member has room"), 503, "unavailable"),
        (errors.ControlError("no model"), 500, "internal_error"),
        (Refused(400, "page 7 is none", word="page_out_of_range"), 400, "page_out_of_range"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_has_its_status_and_word(error: errors.FlyballError, status: int, word: str) -> None:
    answer = problem(error)
    told = json.loads(bytes(answer.body))
    assert (answer.status_code, told["error"], told["reason"]) == (status, word, str(error))
    assert told["advice"]


def test_a_missing_right_is_401_as_with_rabbitmq_but_403_for_the_console_which_would_log_in_again() -> None:
    error = errors.NotPermitted("you may not")
    assert [problem(error, is_console=is_console).status_code for is_console in (False, True)] == [401, 403]
    assert STATUS_OF[errors.NotPermitted] == 403
