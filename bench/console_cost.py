"""Measure the cost of viewers: a node's throughput with the console open and metrics scraped each second, and alone.

    python -m bench.console_cost                                # about 5 minutes
    python -m bench.console_cost --loads telesto --queues 10000 # with many unused queues

Two runs of a node differ by more than the console costs. So here one node serves all the time under a load that
never pauses, and those who look on come and go: one reads the stream of the overview, of the busiest queue and of the
loops, another asks for the page of queues every five seconds, those first that most is published to, and a third
scrapes /metrics once a second, as browsers, `flyball top` and Prometheus do. Each pair of intervals, with them and
without, gives a ratio; machines are noisy, so their median and quartiles are shown. What a node counts each second
for itself is in both.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import psutil
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.amqpload import Broker, LoadFailed, build, generate
from bench.load import Dialect, Plan, Telesto, ThorBang, generate_elsewhere
from bench.nodes import node
from bench.send_and_pop import preload
from bench.versus_rabbitmq import DURABLE, SOURCE
from flyball.broker.management.node_sampler import SAMPLE_S

USER = "guest"
HEADERS = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{USER}".encode()).decode()}
COUNTED = "rabbitmq_global_messages_received_total"
SCRAPE_S = 1.0
QUEUES = "/api/queues?page=1&page_size=50&sort=message_stats.publish_details.rate&sort_reverse=true"
QUEUES_S = 5.0
# A viewer that polled less often than this part of the plan does not count.
FEWEST_RATIO = 0.5
WARM_UP_S = 4.0
# Extra duration of the load after an interval: viewers that come and go take time, too.
SPARE_S = 1.0
ANSWER_S = 60.0

AMQP_LOAD = (*DURABLE, "--producers", "4", "--consumers", "4")
CLIENTS = 50


@dataclass(slots=True, frozen=True)
class Interval:
    """Work of a node in some seconds."""

    messages_per_s: float
    # The node's CPU time for a message.
    cpu_us: float
    cores: float


@dataclass(slots=True, frozen=True)
class Ratio:
    """How intervals with those who look on compare to those without: the median of the pairs, and the quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: list[float]) -> Ratio:
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(slots=True, frozen=True)
class Cost:
    """The cost with one kind of load."""

    load: str
    without_per_s: float
    with_per_s: float
    throughput: Ratio
    cpu_per_message: Ratio
    samples: int
    scrapes: int
    lists: int


class Page:
    """The HTTP side of a node, over one connection as browsers and Prometheus have it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=ANSWER_S)

    def get(self, path: str) -> str:
        answer = self.open(path)
        return answer.read().decode()

    def open(self, path: str) -> http.client.HTTPResponse:
        """Ask, and return the answer before it is read."""
        self._connection.request("GET", path, headers=HEADERS)
        answer = self._connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status} {answer.read().decode()}")
        return answer

    def get_anew(self, path: str) -> str:
        """Ask over a new connection: a node does not keep an idle one for long."""
        self._connection.close()
        return self.get(path)

    def close(self) -> None:
        # A reader in another thread is woken by this, but not by closing.
        with suppress(OSError, AttributeError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Viewers:
    """Viewers: two with the console open, and one that scrapes metrics."""

    def __init__(self, address: tuple[str, int], queue: tuple[str, str]) -> None:
        self._address = address
        vhost, name = (quote(part, safe="") for part in queue)
        self._topics = quote(f"overview,queue:{vhost}/{name},loops", safe="")
        self.samples = 0
        self.scrapes = 0
        self.lists = 0
        self._watched_s = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have them look on; they have seen something when this yields."""
        page = Page(self._address)
        stream = page.open(f"/api/flyball/stream?topics={self._topics}")
        stop = threading.Event()
        threads = [
            threading.Thread(target=self._read, args=(stream,)),
            threading.Thread(target=self._scrape, args=(stop,)),
            threading.Thread(target=self._list, args=(stop,)),
        ]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            page.close()
            for thread in threads:
                thread.join()
            self._watched_s += time.monotonic() - began

    def check(self) -> None:
        """Raise SystemExit if one of them has not looked on: then nothing was measured."""
        for what, times, pause_s in (
            ("samples", self.samples, SAMPLE_S),
            ("scrapes", self.scrapes, SCRAPE_S),
            ("lists of queues", self.lists, QUEUES_S),
        ):
            if times * pause_s < FEWEST_RATIO * self._watched_s:
                raise SystemExit(
                    f"only {times} {what} in {self._watched_s:.0f} s: the node did not answer, see above"
                )

    def _read(self, stream: http.client.HTTPResponse) -> None:
        with suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
            while line := stream.readline():
                self.samples += line.startswith(b"data:")

    def _scrape(self, stop: threading.Event) -> None:
        for _ in self._asking("/metrics", SCRAPE_S, stop):
            self.scrapes += 1

    def _list(self, stop: threading.Event) -> None:
        for _ in self._asking(QUEUES, QUEUES_S, stop):
            self.lists += 1

    def _asking(self, path: str, pause_s: float, stop: threading.Event) -> Iterator[None]:
        page = Page(self._address)
        is_over = False
        while not is_over:
            began = time.monotonic()
            page.get(path)
            yield
            is_over = stop.wait(max(0.0, began + pause_s - time.monotonic()))
        page.close()


class Watched:
    """A node under load, looked at from outside at the ends of intervals."""

    def __init__(self, process: psutil.Process, page: Page) -> None:
        self._process = process
        self._page = page

    def read(self) -> tuple[float, float, float]:
        """Return the time, the messages published until then and the CPU time of the node."""
        for line in self._page.get_anew("/metrics").splitlines():
            if line.startswith(COUNTED):
                return time.monotonic(), float(line.rpartition(" ")[2]), sum(self._process.cpu_times()[:2])
        raise SystemExit(f"the node does not report {COUNTED}")

    def interval(self, seconds: float) -> Interval:
        """Wait, and return what the node did meanwhile."""
        began, before, cpu_before_s = self.read()
        time.sleep(seconds)
        ended, after, cpu_after_s = self.read()
        passed_s, messages, cpu_s = ended - began, after - before, cpu_after_s - cpu_before_s
        if messages <= 0:
            raise SystemExit("the load has stopped: see above")
        return Interval(messages / passed_s, cpu_s / messages * 1e6, cpu_s / passed_s)


# Keeps a node busy for this number of seconds.
Load = Callable[[float], object]


def load_of(name: str, process: psutil.Process, addresses: dict[str, tuple[str, int]], program: Path | None) -> Load:
    if name == "amqp":
        host, port = addresses["amqp"]
        broker = Broker(f"amqp://{USER}:{USER}@{host}:{port}", process)
        assert program is not None, "it was built for this load"
        generator = program
        return lambda seconds: generate(generator, broker, AMQP_LOAD, 0.0, seconds)
    of: dict[str, type[Telesto] | type[ThorBang]] = {"telesto": Telesto, "thorbang": ThorBang}
    dialect: Dialect = of[name](5, keeps_messages=True)
    queue_id = asyncio.run(preload(addresses, 1))
    return lambda seconds: generate_elsewhere(Plan(dialect, addresses[name], CLIENTS, queue_id, 0.0, seconds))


@contextmanager
def loaded(load: Load, seconds: float) -> Iterator[None]:
    """Keep a node busy meanwhile."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            load(seconds)
        except (LoadFailed, RuntimeError) as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()
    if failures:
        raise SystemExit(str(failures[0]))


def declare(address: tuple[str, int], count: int) -> None:
    """Have this number of unused queues."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(*address, heartbeat=0))
    channel = connection.channel()
    for number in range(count):
        channel.queue_declare(f"idle-{number}", durable=True)
    connection.close()


def busiest(page: Page) -> tuple[str, str]:
    """Return the virtual host and name of the queue that most was published to."""
    columns = "vhost,name,message_stats.publish"
    queues: list[dict[str, Any]] = json.loads(page.get_anew(f"/api/queues?columns={columns}"))
    found = max(queues, key=lambda queue: queue.get("message_stats", {}).get("publish", 0))
    return found["vhost"], found["name"]


def measure(name: str, options: argparse.Namespace, program: Path | None, advance: Callable[[], None]) -> Cost:
    with ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory(prefix="flyball-bench-"))
        process, addresses = running.enter_context(
            node(options.store, Path(folder) / "data", ["--http", "127.0.0.1:0"])
        )
        declare(addresses["amqp"], options.queues)
        load = load_of(name, process, addresses, program)
        page = Page(addresses["http"])
        total_s = WARM_UP_S + options.pairs * 2 * (options.seconds + SPARE_S)
        pairs: list[dict[bool, Interval]] = []
        with loaded(load, total_s):
            time.sleep(WARM_UP_S)
            watched = Watched(process, page)
            viewers = Viewers(addresses["http"], busiest(page))
            for number in range(options.pairs):
                found: dict[bool, Interval] = {}
                # The first of a pair takes turns: what drifts does not count for one of them.
                for is_watched in (number % 2 == 0, number % 2 == 1):
                    with ExitStack() as watching:
                        if is_watched:
                            watching.enter_context(viewers.watching())
                        found[is_watched] = watched.interval(options.seconds)
                pairs.append(found)
                advance()
        page.close()
    viewers.check()
    return Cost(
        name,
        statistics.median(pair[False].messages_per_s for pair in pairs),
        statistics.median(pair[True].messages_per_s for pair in pairs),
        Ratio.of([pair[True].messages_per_s / pair[False].messages_per_s for pair in pairs]),
        Ratio.of([pair[True].cpu_us / pair[False].cpu_us for pair in pairs]),
        viewers.samples,
        viewers.scrapes,
        viewers.lists,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="amqp,telesto", help="some of amqp, telesto, thorbang")
    parser.add_argument("--store", default="embedded")
    parser.add_argument("--queues", type=int, default=0, help="number of unused queues")
    parser.add_argument("--pairs", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each interval")
    parser.add_argument(
        "--amqpload",
        type=Path,
        default=Path(os.environ.get("FLYBALL_BENCH_AMQPLOAD", SOURCE)),
        metavar="FOLDER",
        help="source of the load generator for AMQP [env var: FLYBALL_BENCH_AMQPLOAD]",
    )
    parser.add_argument("--json", action="store_true", help="print lines of JSON instead of a table")
    options = parser.parse_args()
    names = options.loads.split(",")
    with (
        tempfile.TemporaryDirectory(prefix="flyball-bench-") as folder,
        Progress(console=Console(stderr=True)) as bar,
    ):
        try:
            program = build(options.amqpload.resolve(), Path(folder)) if "amqp" in names else None
        except LoadFailed as error:
            raise SystemExit(str(error)) from error
        task = bar.add_task("", total=len(names) * options.pairs)
        costs = []
        for name in names:
            bar.update(task, description=name)
            costs.append(measure(name, options, program, lambda: bar.advance(task)))
    if options.json:
        for cost in costs:
            print(json.dumps(asdict(cost)))
    else:
        show(costs, options)


def show(costs: list[Cost], options: argparse.Namespace) -> None:
    where = f"{options.queues:,} idle queues, {os.cpu_count()} cores"
    table = Table(title=f"With the console open twice and metrics scraped each second, {where}", box=None)
    for heading in (
        "load",
        "messages/s without",
        "with",
        "ratio",
        "CPU time of a message, ratio",
        "samples",
        "scrapes",
        "lists",
    ):
        table.add_column(heading, justify="left" if heading == "load" else "right")
    for cost in costs:
        table.add_row(
            cost.load,
            f"{cost.without_per_s:,.0f}",
            f"{cost.with_per_s:,.0f}",
            str(cost.throughput),
            str(cost.cpu_per_message),
            str(cost.samples),
            str(cost.scrapes),
            str(cost.lists),
        )
    console = Console(width=140)
    console.print(table)
    console.print(
        f"Medians of {options.pairs} pairs of {options.seconds:g} s; in brackets the quartiles of the pairs."
    )


if __name__ == "__main__":
    main()
