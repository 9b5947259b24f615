"""Takes that their callers gave up while they waited at the server.

A take cannot be called back: the server may have removed a message for it already. So the next take that asks for
the same thing is given the answer of the one that was given up, and a cancelled take loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from flyball.broker.wire.telesto import Messages, Packet

Answer = asyncio.Future[Packet]


class AbandonedTakes:
    """The answers that nobody waits for, by what was asked for."""

    __slots__ = ("_answers",)

    def __init__(self) -> None:
        self._answers: dict[bytes, deque[Answer]] = {}

    def __len__(self) -> int:
        return sum(len(answers) for answers in self._answers.values())

    def leave(self, key: bytes, answer: Answer) -> None:
        """Keep the answer, which may still be to come, for whoever asks for the same."""
        if answer.done():
            if _is_empty(answer):
                return
        else:
            answer.add_done_callback(partial(self._done, key))
        self._answers.setdefault(key, deque()).append(answer)

    def adopt(self, key: bytes, waits: bool) -> Answer | None:
        """Return an answer that was left: one that is there or, for a caller that `waits`, one that may come."""
        answers = self._answers.get(key)
        if not answers:
            return None
        answer = next((answer for answer in answers if answer.done()), answers[0] if waits else None)
        if answer is not None:
            self._remove(key, answer)
        return answer

    def _done(self, key: bytes, answer: Answer) -> None:
        if _is_empty(answer):
            self._remove(key, answer)

    def _remove(self, key: bytes, answer: Answer) -> None:
        answers = self._answers.get(key)
        if answers and answer in answers:
            answers.remove(answer)
            if not answers:
                del self._answers[key]


def _is_empty(answer: Answer) -> bool:
    if answer.cancelled() or answer.exception() is not None:
        return True
    packet = answer.result()
    return not (isinstance(packet, Messages) and packet.records)
