"""Consumes a queue with an adaptive consumer, records the samples and shows them."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import uvloop

from flyball.cli.control_commands.display import Display
from flyball.cli.control_commands.failures import Interrupted
from flyball.cli.control_commands.handlers import handler_of
from flyball.cli.control_commands.requests import ActuatorName, Source
from flyball.client.adaptive import AdaptiveConsumer, AdaptiveOptions, FractionalWindow, Pacer, Rate, Window
from flyball.client.adaptive.actuators import ConsumerActuator
from flyball.control.laws import Law, Reading
from flyball.control.limits import Limits
from flyball.control.loop import Sample
from flyball.errors import ControlError
from flyball.trace.samples import SampleWriter

# Part of the names of sample files.
WRITER = "control"

Record = Callable[[Sample], None]
NewConsumer = Callable[[Record], AdaptiveConsumer]


@dataclass(slots=True)
class Kept:
    """The result of a recording."""

    samples: list[Sample] = field(default_factory=list)
    is_interrupted: bool = False
    failed_handlers: int = 0


@dataclass(frozen=True, slots=True)
class Played(Law[int]):
    """Applies a sequence of actions, whatever is measured; the last one is kept."""

    kind: ClassVar[str] = "played"

    actions: tuple[float, ...]

    def begin(self, action: float, reading: Reading | None) -> int:
        return 0

    def step(self, state: int, reading: Reading) -> tuple[int, float]:
        return min(state + 1, len(self.actions) - 1), self.actions[state]

    def settle(self, state: int, action: float) -> int:
        return state


def excite(source: Source, actions: Sequence[float], sample_time_s: float, folder: Path, display: Display) -> Kept:
    """Consume the queue with a sequence of actions, one per sample; the samples go to the folder."""
    check_url(source.url)
    handler = handler_of(source.handler, source.handler_ms)
    limits = Limits(min(actions), max(actions))

    def consumer(record: Record) -> AdaptiveConsumer:
        return AdaptiveConsumer(
            source.url,
            source.queue,
            handler,
            # The goal is not used for control: it selects the rate sensor, and the prefetch of a pacer.
            Rate(limits.highest),
            options=AdaptiveOptions(
                actuator=new_actuator(source.actuator or ActuatorName.WINDOW),
                law=Played(tuple(actions)),
                limits=limits,
                start=actions[0],
                sample_time_s=sample_time_s,
                concurrency=source.concurrency,
                record=record,
                allow_uncertified=True,
                is_open=True,
            ),
        )

    return consume(consumer, display, folder, most_samples=len(actions))


def consume(
    consumer: NewConsumer,
    display: Display,
    folder: Path | None,
    *,
    most_samples: int | None = None,
    seconds: float | None = None,
) -> Kept:
    """Run a consumer until the number of samples, the time limit, or Ctrl-C.

    Samples go to files in the folder, if there is one, and to the display. Raises ControlError if it cannot start, or
    fails, and OSError if output fails.
    """
    kept = Kept()
    failures: list[OSError] = []
    with ExitStack() as stack:
        show = stack.enter_context(display)
        stack.enter_context(_logs_shown(display.say))
        writer = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            writer = SampleWriter(folder, WRITER)
            writer.start()
            stack.callback(_close, writer, folder, display)

        def record(sample: Sample, enough: asyncio.Event) -> None:
            if most_samples is not None and len(kept.samples) >= most_samples:
                return
            kept.samples.append(sample)
            if writer is not None:
                writer.record(sample)
            try:
                show.sample(sample)
            except OSError as error:
                # The output was closed. Finish what was started nevertheless.
                failures.append(error)
                enough.set()
            if len(kept.samples) == most_samples:
                enough.set()

        try:
            uvloop.run(_until_enough(consumer, record, seconds, kept))
        except ControlError as error:
            raise ControlError(without_password(str(error))) from error
        except asyncio.CancelledError:
            raise Interrupted("interrupted before it was connected") from None
    if failures:
        raise failures[0]
    return kept


def _close(writer: SampleWriter, folder: Path, display: Display) -> None:
    writer.stop()
    if writer.dropped:
        display.say(f"{writer.dropped} samples were not written to {folder}: check for free disk space")


async def _until_enough(
    new_consumer: NewConsumer,
    record: Callable[[Sample, asyncio.Event], None],
    seconds: float | None,
    kept: Kept,
) -> None:
    loop = asyncio.get_running_loop()
    enough = asyncio.Event()
    consumer = new_consumer(lambda sample: record(sample, enough))
    starting = asyncio.current_task()

    def interrupt() -> None:
        kept.is_interrupted = True
        enough.set()
        if starting is not None:
            starting.cancel()
        # A second Ctrl-C ends it at once.
        loop.remove_signal_handler(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        await _start(consumer)
        starting = None
        if seconds is not None:
            loop.call_later(seconds, enough.set)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_stop_after(enough, consumer))
            await consumer.run()
            waiting.cancel()
    except BaseExceptionGroup as group:
        # The first failure cancels the others: report only that one.
        raise group.exceptions[0] from None
    finally:
        kept.failed_handlers = consumer.state.failed


async def _start(consumer: AdaptiveConsumer) -> None:
    try:
        await consumer.start()
    except ControlError as error:
        raise ControlError(f"{str(error).rstrip('.')}. Check --url and --queue.") from error


async def _stop_after(enough: asyncio.Event, consumer: AdaptiveConsumer) -> None:
    await enough.wait()
    await consumer.stop()


def new_actuator(name: ActuatorName) -> ConsumerActuator:
    """Return a new actuator for one consumer."""
    match name:
        case ActuatorName.PACER:
            return Pacer()
        case ActuatorName.WINDOW:
            return Window()
        case ActuatorName.FRACTIONAL:
            return FractionalWindow()


def check_url(url: str) -> None:
    """Raise ControlError for an invalid broker address."""
    if not url.startswith(("amqp://", "amqps://")):
        raise ControlError(f"invalid --url {shown_url(url)}: must start with amqp:// or amqps://")


def shown_url(url: str) -> str:
    """Return an address without credentials."""
    scheme, slashes, rest = url.rpartition("//")
    return f"{scheme}{slashes}{rest.rpartition('@')[2]}"


def without_password(text: str) -> str:
    """Return a text without the credentials of addresses in it."""
    return re.sub(r"//\S*@", "//", text)


@contextmanager
def _logs_shown(say: Callable[[str], None]) -> Iterator[None]:
    """Show log records, one line each. The library's are omitted: the consumer reports the same failures."""
    ours, theirs = _OneLine(say), logging.NullHandler()
    places = {"flyball.client": ours, "aio_pika": theirs, "aiormq": theirs}
    for name, handler in places.items():
        logging.getLogger(name).addHandler(handler)
    propagated = {name: logging.getLogger(name).propagate for name in ("aio_pika", "aiormq")}
    for name in propagated:
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        for name, handler in places.items():
            logging.getLogger(name).removeHandler(handler)
        for name, was in propagated.items():
            logging.getLogger(name).propagate = was


class _OneLine(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = record.getMessage() + (f": {error!r}" if error is not None else "")
        self._say(without_password(" ".join(text.split())))
