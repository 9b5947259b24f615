"""A client that behaves well and works on while others do not."""

from __future__ import annotations

import abc
import threading
from types import TracebackType
from typing import Self


class Bystander(abc.ABC):
    """Works in a thread, round after round, and notices anything that is not as it should be."""

    def __init__(self) -> None:
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="bystander")
        self._error: BaseException | None = None
        self.rounds = 0

    @abc.abstractmethod
    def work_once(self) -> None:
        """Do one round; raise if something is wrong."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the connections."""

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
                self.rounds += 1
        except BaseException as error:
            self._error = error
