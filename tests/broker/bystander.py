"""A client that behaves well and works on while others do not."""

from __future__ import annotations

import abc
import threading
from types import TracebackType
from typing import Self

from tests.nodes import ANSWER_LIMIT_S


class Bystander(abc.ABC):
    """Works in a thread, round after round, and notices anything that is not as it should be."""

    def __init__(self) -> None:
        self._is_done = threading.Event()
        self._turned = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="bystander")
        self._error: BaseException | None = None
        self.rounds = 0

    @abc.abstractmethod
    def work_once(self) -> None:
        """Do one round; raise if something is wrong."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the connections."""

    def expect_work(self) -> None:
        """Wait until it has begun and done another round."""
        with self._turned:
            # The one in flight may have been almost over.
            enough = self.rounds + 2
            self._turned.wait_for(lambda: self.rounds >= enough or self._error is not None, ANSWER_LIMIT_S)
            assert self.rounds >= enough, self._error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()
        self.close()
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while not self._is_done.is_set():
                self.work_once()
                with self._turned:
                    self.rounds += 1
                    self._turned.notify_all()
        except BaseException as error:
            with self._turned:
                self._error = error
                self._turned.notify_all()
