"""Sends cases over several connections at once, watches node, log, memory and bystander, and keeps what fails."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import secrets
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from random import Random
from typing import Any

import uvloop
from pika.exceptions import AMQPError

from bench.fuzz import decoders
from bench.fuzz.amqp import AmqpSource
from bench.fuzz.bystander import VHOST, Bystander
from bench.fuzz.cases import PROTOCOLS, Case, Ending, Mutator, load, save
from bench.fuzz.corpus import load_corpus
from bench.fuzz.http import HttpSource, operations_of
from bench.fuzz.link import NODE_ID, LinkSource
from bench.fuzz.node import MEMORY_BYTES, RESIDENT_BYTES, FuzzedNode, NodeEnded, short_of, signature_of
from bench.fuzz.telesto import TelestoSource
from bench.fuzz.thorbang import ThorBangSource
from flyball.broker.core.memory import BASE_BYTES
from flyball.broker.wire import link as link_wire

CONNECTIONS = 6
# A connection that is blocked by flow control, or waits for a message, is given up after this.
CASE_LIMIT_S = 2.0
LOOK_S = 0.25
# The class and method of connection.close.
CONNECTION_CLOSE = b"\x00\x0a\x00\x32"
# Cases that are saved with a finding: those that were sent shortly before it.
RECENT_CASES = 150
# How often each protocol has its turn. A request over HTTP costs the node far more than any other.
WEIGHTS = {"amqp": 42, "telesto": 22, "thorbang": 16, "link": 10, "http": 10}
FROM_CORPUS_RATIO = 0.2
NARROW_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
    folder: Path
    seed: int = 1
    seconds: float = 60.0
    inputs: int | None = None
    store: str = "embedded"
    hang_s: float = 10.0
    rss_constant_bytes: int = BASE_BYTES
    with_decoders: bool = True
    narrow_s: float = NARROW_S
    only: tuple[str, ...] = PROTOCOLS


@dataclass(slots=True)
class Finding:
    """Something that must not happen, and the file with what may have caused it."""

    signature: str
    text: str
    path: Path
    count: int = 1

    def __str__(self) -> str:
        return f"{self.signature} ({self.count} times): python -m bench.fuzz --replay {self.path}"


@dataclass(slots=True)
class Result:
    seconds: float = 0.0
    inputs: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    given_up: int = 0
    decoded: int = 0
    restarts: int = 0
    worst_rss_bytes: int = 0
    worst_answer_s: float = 0.0
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return sum(self.inputs.values())

    @property
    def is_good(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        by_protocol = ", ".join(f"{name} {count:,}" for name, count in sorted(self.inputs.items()))
        rate = (self.sent + self.decoded) / max(self.seconds, 0.001)
        return (
            f"{self.sent + self.decoded:,} inputs in {self.seconds:.0f} s ({rate:,.0f}/s): {self.sent:,} to a node"
            f" ({by_protocol}; {self.cases:,} connections, {self.given_up:,} given up), {self.decoded:,} to decoders;"
            f" RSS at most {self.worst_rss_bytes >> 20} MiB, slowest answer to the bystander"
            f" {self.worst_answer_s:.2f} s, {self.restarts} restarts, {len(self.findings)} findings"
        )


class Supply:
    """An endless supply of cases: the same seed gives the same ones in the same order."""

    def __init__(self, seed: int, operations: Sequence[tuple[str, str]], protocols: Sequence[str]) -> None:
        self._chance = Random(seed)
        makers: dict[str, Callable[[], Case]] = {
            "amqp": AmqpSource(self._chance).case,
            "telesto": TelestoSource(self._chance).case,
            "thorbang": ThorBangSource(self._chance).case,
            "link": LinkSource(self._chance).case,
            "http": HttpSource(self._chance, operations).case,
        }
        self._makers = {name: makers[name] for name in protocols}
        self._weights = [WEIGHTS[name] for name in self._makers]
        corpus = [case for case in load_corpus() if case.protocol in self._makers]
        self._corpus = [case for case in corpus if sum(map(len, case.frames)) < 100_000]
        self._first = deque(corpus)
        self._frames = {
            name: [one for case in self._corpus if case.protocol == name for one in case.frames] for name in protocols
        }
        self._mutator = Mutator(self._chance)

    def next(self) -> Case:
        """Return the next case: first the corpus as it is, then generated cases and mutated ones of the corpus."""
        if self._first:
            return self._first.popleft()
        chance = self._chance
        name = chance.choices(list(self._makers), self._weights)[0]
        if chance.random() >= FROM_CORPUS_RATIO:
            return self._makers[name]()
        found = [case for case in self._corpus if case.protocol == name]
        return self._mutator.mutate(chance.choice(found), self._frames[name])


class _Peer(asyncio.Protocol):
    """Discards what the node says, but for the first bytes if a caller waits for them."""

    def __init__(self) -> None:
        self.is_over = asyncio.get_running_loop().create_future()
        self.transport: asyncio.BaseTransport | None = None
        # A node that ends a connection of AMQP waits for the peer's connection.close-ok.
        self.farewell = b""
        self.head = bytearray()
        self.head_bytes = 0
        self.has_head = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.farewell and self.farewell in data and self.transport is not None:
            self.transport.close()
        if len(self.head) < self.head_bytes:
            self.head += data
            if len(self.head) >= self.head_bytes:
                self.has_head.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.has_head.set()
        if not self.is_over.done():
            self.is_over.set_result(None)


class Sender:
    """Plays cases against a node."""

    def __init__(self, node: FuzzedNode) -> None:
        self._node = node
        self._secret = b""
        self._links = 0

    async def prepare(self) -> None:
        self._secret = await self._node.secret()

    async def play(self, case: Case, limit_s: float = CASE_LIMIT_S) -> bool:
        """Send a case and wait until the node has ended the connection; False if that had to be given up."""
        loop = asyncio.get_running_loop()
        try:
            transport, peer = await loop.create_connection(_Peer, *self._node.addresses[case.protocol])
        except OSError:
            # The node has ended, or is about to: the task that watches it will see.
            await asyncio.sleep(0.05)
            return False
        try:
            async with asyncio.timeout(limit_s):
                if case.protocol == "amqp":
                    peer.farewell = CONNECTION_CLOSE
                if case.is_trusted:
                    await self._prove(transport, peer)
                for data in case.writes():
                    if transport.is_closing():
                        break
                    transport.write(data)
                    # Lets what was written go out on its own.
                    await asyncio.sleep(0)
                if case.ending is Ending.RESET:
                    # The node is in the midst of it by then.
                    await asyncio.sleep(0.01)
                    raw = transport.get_extra_info("socket")
                    with contextlib.suppress(OSError, AttributeError):
                        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    transport.abort()
                    return True
                if not transport.is_closing():
                    with contextlib.suppress(OSError, RuntimeError):
                        transport.write_eof()
                await peer.is_over
        except TimeoutError:
            transport.abort()
            return False
        return True

    async def _prove(self, transport: asyncio.Transport, peer: _Peer) -> None:
        """Complete the handshake of a link as a node of the domain would."""
        self._links += 1
        mine = link_wire.Hello(link_wire.VERSION, NODE_ID + self._links % 4, self._links, secrets.token_bytes(32))
        peer.head_bytes = len(link_wire.encode_hello(mine)) + len(link_wire.encode_proof(bytes(32)))
        transport.write(link_wire.encode_hello(mine))
        await peer.has_head.wait()
        decoder = link_wire.LinkDecoder()
        decoder.feed(bytes(peer.head))
        theirs = decoder.next_frame()
        if isinstance(theirs, link_wire.Hello):
            transport.write(link_wire.encode_proof(link_wire.proof_of_caller(self._secret, mine, theirs)))


class Fuzz:
    """One run."""

    def __init__(self, settings: Settings, progress: Callable[[Result], None] = lambda result: None) -> None:
        self.settings = settings
        self.result = Result()
        self._progress = progress
        self._nodes = 0
        self._recent: deque[Case] = deque(maxlen=RECENT_CASES)
        self._rss_reported = 0
        self._is_over = asyncio.Event()
        self.node = self._new_node()

    def _new_node(self) -> FuzzedNode:
        self._nodes += 1
        return FuzzedNode(self.settings.folder / f"node-{self._nodes}", self.settings.store)

    async def run(self) -> Result:
        """Fuzz until the time is up or enough was sent; then stop the node, start it again and look for losses."""
        settings, result = self.settings, self.result
        bystander = await self._begin()
        began_s = time.monotonic()
        with _decoding(settings) as decoding:
            supply = self._supply()
            while not self._is_over.is_set():
                sender = Sender(self.node)
                await sender.prepare()
                try:
                    async with asyncio.timeout(settings.seconds - (time.monotonic() - began_s)):
                        await self._send(supply, sender, bystander, decoding)
                except TimeoutError:
                    break
                if not self._is_over.is_set():
                    bystander.stop(1.0)
                    self.node.kill()
                    self.node = self._new_node()
                    result.restarts += 1
                    bystander = await self._begin()
        result.seconds = time.monotonic() - began_s
        self._collect(decoding)
        result.worst_answer_s = max(result.worst_answer_s, bystander.worst_s)
        await asyncio.to_thread(self._end, bystander)
        if settings.narrow_s:
            for finding in result.findings.values():
                await self._narrow(finding)
        return result

    def _supply(self) -> Supply:
        operations = operations_of(self.node.request("GET", "/api/openapi.json"))
        names = [name for name in WEIGHTS if name in self.node.addresses and name in self.settings.only]
        return Supply(self.settings.seed, operations, names)

    async def _begin(self) -> Bystander:
        await asyncio.to_thread(self.node.start)
        await asyncio.to_thread(self._prepare)
        bystander = Bystander(self.node)
        bystander.start()
        return bystander

    def _prepare(self) -> None:
        self.node.fence()
        self.node.prepare()
        self.node.request("PUT", f"/api/vhosts/{VHOST}", {})
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        self.node.request("PUT", f"/api/permissions/{VHOST}/guest", every)

    async def _send(self, supply: Supply, sender: Sender, bystander: Bystander, decoding: _Decoding) -> None:
        """Play cases until the node has to be replaced or all is over."""
        has_ended = asyncio.Event()

        async def work() -> None:
            while not has_ended.is_set():
                case = supply.next()
                self._recent.append(case)
                if not await sender.play(case):
                    self.result.given_up += 1
                self.result.cases += 1
                self.result.inputs[case.protocol] += case.inputs

        async def watch() -> None:
            while not has_ended.is_set():
                await asyncio.sleep(LOOK_S)
                self._collect(decoding)
                self._progress(self.result)
                if not self._look(bystander):
                    has_ended.set()
                wanted = self.settings.inputs
                if wanted is not None and self.result.sent + self.result.decoded >= wanted:
                    self._is_over.set()
                    has_ended.set()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONNECTIONS):
                tasks.create_task(work())
            tasks.create_task(watch())

    def _look(self, bystander: Bystander) -> bool:
        """Look at the node; return whether it is fit to go on."""
        result, node = self.result, self.node
        for traceback in node.new_tracebacks():
            self._found(signature_of(traceback), traceback)
        rss_bytes = node.rss_bytes
        result.worst_rss_bytes = max(result.worst_rss_bytes, rss_bytes)
        limit_bytes = MEMORY_BYTES + RESIDENT_BYTES + self.settings.rss_constant_bytes
        if rss_bytes > max(limit_bytes, self._rss_reported * 1.25):
            self._rss_reported = rss_bytes
            self._found("RSS", f"RSS {rss_bytes >> 20} MiB, {limit_bytes >> 20} MiB are allowed")
        result.worst_answer_s = max(result.worst_answer_s, bystander.worst_s)
        if (code := node.exit_code) is not None:
            self._found("exit", f"the node ended with code {code}: {node.log_path.read_text()[-3000:]}")
            return False
        if bystander.waits_s > self.settings.hang_s:
            self._found("hang", f"the bystander has waited {bystander.waits_s:.1f} s for an answer")
            return False
        while bystander.errors:
            self._found("bystander", bystander.errors.pop())
        return True

    def _collect(self, decoding: _Decoding) -> None:
        self.result.decoded = decoding.count
        for case, traceback in decoding.findings():
            self._found(f"decoder: {signature_of(traceback)}", traceback, [case])

    def _found(self, signature: str, text: str, cases: Sequence[Case] | None = None) -> None:
        known = self.result.findings.get(signature)
        if known is not None:
            known.count += 1
            return
        path = self.settings.folder / f"finding-{short_of(signature)}.jsonl"
        comments = [signature, f"seed {self.settings.seed}", text]
        save(path, list(self._recent) if cases is None else cases, comments)
        self.result.findings[signature] = Finding(signature, text, path)

    def _end(self, bystander: Bystander) -> None:
        """Stop the node gracefully, start it again on what it has stored, and count the bystander's messages."""
        if not bystander.stop(self.settings.hang_s):
            self._found("hang", "the bystander had no answer at the end")
        node = self.node
        code = node.stop()
        if code != 0:
            self._found("stop", f"exit code {code} when it was stopped: {node.log_path.read_text()[-3000:]}")
        if self.settings.store == "embedded":
            try:
                node.start()
                for problem in bystander.verdict():
                    self._found(problem.split(" ", 1)[1], problem)
            except (NodeEnded, AMQPError, OSError) as error:
                self._found("restart", f"{type(error).__name__}: {error}")
            node.stop()
        for traceback in node.new_tracebacks(is_over=True):
            self._found(signature_of(traceback), traceback)

    async def replay(self, path: Path) -> Result:
        """Play the cases of a file, one after another, and look at the node after each."""
        bystander = await self._begin()
        sender = Sender(self.node)
        await sender.prepare()
        began_s = time.monotonic()
        for case in load(path):
            self._recent.append(case)
            await sender.play(case)
            self.result.cases += 1
            self.result.inputs[case.protocol] += case.inputs
            await asyncio.sleep(0.05)
            if not self._look(bystander):
                break
        # Housekeeping looks at expired messages once a second.
        await asyncio.sleep(1.5)
        self._look(bystander)
        self.result.seconds = time.monotonic() - began_s
        await asyncio.to_thread(self._end, bystander)
        return self.result

    async def _narrow(self, finding: Finding) -> None:
        """Find the one case of those saved that is enough, and the frames of it that are."""
        if finding.signature.startswith(("decoder", "RSS", "bystander", "hang", "stop", "restart")):
            return
        end_s = time.monotonic() + self.settings.narrow_s
        replay = Replay(self._new_node, finding.signature)
        try:
            case = await replay.first_of(load(finding.path), end_s)
            if case is not None:
                case = await replay.shortened(case, end_s)
                save(finding.path, [case], [finding.signature, f"seed {self.settings.seed}", finding.text])
        except NodeEnded as error:
            finding.text += f"\n{error}"
        finally:
            replay.close()


class Replay:
    """Plays cases one after another on a node of its own and returns which one shows a signature."""

    def __init__(self, new_node: Callable[[], FuzzedNode], signature: str) -> None:
        self._new_node = new_node
        self._signature = signature
        self._node: FuzzedNode | None = None
        self._sender: Sender | None = None

    async def shows(self, case: Case) -> bool:
        """Return whether the case alone is enough. The node is a new one if the last has ended."""
        if self._node is None or self._node.exit_code is not None:
            self.close()
            self._node = self._new_node()
            await asyncio.to_thread(self._node.start)
            await asyncio.to_thread(self._node.prepare)
            self._sender = Sender(self._node)
            await self._sender.prepare()
        assert self._sender is not None
        await self._sender.play(replace(case, ending=Ending.FINISH), 3.0)
        for _ in range(10):
            # What the node does about it may come a moment later: expired messages are looked at once a second.
            await asyncio.sleep(0.15)
            if self._signature in [signature_of(one) for one in self._node.new_tracebacks()]:
                return True
            if self._node.exit_code is not None:
                return self._signature == "exit"
        return False

    async def first_of(self, cases: Sequence[Case], end_s: float) -> Case | None:
        """Return the first case that is enough; the latest are the likeliest."""
        for case in reversed(cases):
            if time.monotonic() > end_s:
                break
            if await self.shows(case):
                return case
        return None

    async def shortened(self, case: Case, end_s: float) -> Case:
        """Leave out what is not needed: halves of the frames, then quarters, down to single ones."""
        frames = list(case.frames)
        size = len(frames) // 2
        while size and time.monotonic() < end_s:
            at = 0
            while at < len(frames) and time.monotonic() < end_s:
                fewer = frames[:at] + frames[at + size :]
                if await self.shows(replace(case, frames=tuple(fewer))):
                    frames = fewer
                else:
                    at += size
            size //= 2
        return replace(case, frames=tuple(frames))

    def close(self) -> None:
        if self._node is not None:
            self._node.kill()


class _Decoding:
    """Decoders in a process of their own."""

    def __init__(self, count: Synchronized[int], found: multiprocessing.Queue[Any]) -> None:
        self._count = count
        self._found = found

    @property
    def count(self) -> int:
        return self._count.value

    def findings(self) -> Iterator[tuple[Case, str]]:
        while not self._found.empty():
            line, traceback = self._found.get()
            yield Case.from_line(line), traceback


@contextlib.contextmanager
def _decoding(settings: Settings) -> Iterator[_Decoding]:
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0)
    found: multiprocessing.Queue[Any] = context.Queue()
    decoding = _Decoding(count, found)
    if not settings.with_decoders:
        yield decoding
        return
    process = context.Process(target=_decode, args=(settings.seed, count, found), daemon=True)
    process.start()
    try:
        yield decoding
    finally:
        process.terminate()
        process.join()


def _decode(seed: int, count: Synchronized[int], found: multiprocessing.Queue[Any]) -> None:
    """Feed decoders until the process is ended. It gives way to node and sender, which are what matters."""
    os.nice(5)
    chance = Random(seed)
    supply = Supply(seed + 1_000_000, (), [name for name in WEIGHTS if name in decoders.READERS])
    known: set[str] = set()
    while True:
        case = supply.next()
        problem = decoders.problem_of(case, chance)
        if problem and (signature := signature_of(problem)) not in known:
            known.add(signature)
            found.put((case.to_line(), problem))
        with count.get_lock():
            # Each is fed twice: whole and in pieces.
            count.value += 2 * case.inputs


def main(
    settings: Settings, progress: Callable[[Result], None] = lambda result: None, path: Path | None = None
) -> Result:
    """Run, or replay a file."""
    return uvloop.run(_main(settings, progress, path))


async def _main(settings: Settings, progress: Callable[[Result], None], path: Path | None) -> Result:
    fuzz = Fuzz(settings, progress)
    try:
        return await (fuzz.run() if path is None else fuzz.replay(path))
    finally:
        fuzz.node.kill()
