"""Cases, each sent on one connection: frames or requests, in writes, and how it ends. Kept as JSON lines."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

PROTOCOLS = ("amqp", "http", "telesto", "thorbang", "link")


class Ending(enum.StrEnum):
    """How a connection ends after its last frame."""

    # Close the writing side and read until the node closes.
    FINISH = "finish"
    # Reset the connection while the node is still reading.
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class Case:
    """One connection. Every frame counts as one input."""

    protocol: str
    frames: tuple[bytes, ...]
    ending: Ending = Ending.FINISH
    # On a link: complete the handshake with the domain's secret first.
    is_trusted: bool = False
    # Frames per write; 0 sends all of them in one.
    frames_per_write: int = 0

    @property
    def inputs(self) -> int:
        return len(self.frames)

    def writes(self) -> list[bytes]:
        step = self.frames_per_write or len(self.frames) or 1
        return [b"".join(self.frames[at : at + step]) for at in range(0, len(self.frames), step)]

    def to_line(self) -> str:
        fields = {
            "protocol": self.protocol,
            "ending": str(self.ending),
            "is_trusted": self.is_trusted,
            "frames_per_write": self.frames_per_write,
            "frames": [frame.hex() for frame in self.frames],
        }
        return json.dumps(fields, separators=(",", ":"))

    @staticmethod
    def from_line(line: str) -> Case:
        """Return the case of a line. Raises ValueError or KeyError if it is none."""
        fields = json.loads(line)
        return Case(
            fields["protocol"],
            tuple(bytes.fromhex(frame) for frame in fields["frames"]),
            Ending(fields.get("ending", Ending.FINISH)),
            fields.get("is_trusted", False),
            fields.get("frames_per_write", 0),
        )


def save(path: Path, cases: Iterable[Case], comments: Sequence[str] = ()) -> None:
    """Write a file that `--replay` takes; comments are lines that begin with #."""
    lines = [f"# {line}" for comment in comments for line in comment.splitlines()]
    path.write_text("\n".join([*lines, *(case.to_line() for case in cases)]) + "\n")


def load(path: Path) -> list[Case]:
    """Return the cases of a file."""
    lines = path.read_text().splitlines()
    return [Case.from_line(line) for line in lines if line and not line.startswith("#")]


INTERESTING_BYTES = (0x00, 0x01, 0x7F, 0x80, 0xCE, 0xFE, 0xFF)
INTERESTING_WORDS = (0, 1, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 1 << 63)
LONGEST_FRAME_BYTES = 200_000


class Mutator:
    """Changes a list of frames a little: their bytes, their order, or where they are cut."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance

    def mutate(self, case: Case, others: Sequence[bytes] = ()) -> Case:
        """Return a changed case. Early changes hide what follows, so that most are made late."""
        chance = self._chance
        frames = list(case.frames)
        for _ in range(1 if chance.random() < 0.7 else chance.randrange(2, 6)):
            if not frames:
                break
            at = min(len(frames) - 1, int(len(frames) * chance.random() ** 0.5))
            kind = chance.randrange(10)
            if kind == 0:
                del frames[at]
            elif kind == 1:
                frames.insert(at, frames[at])
            elif kind == 2:
                other = chance.randrange(len(frames))
                frames[at], frames[other] = frames[other], frames[at]
            elif kind == 3 and others:
                frames.insert(at, chance.choice(others))
            elif kind == 4:
                # The connection ends in the middle of a frame.
                frames = [*frames[:at], frames[at][: chance.randrange(len(frames[at]) + 1)]]
            else:
                frames[at] = self.mutate_bytes(frames[at])
        return replace(case, frames=tuple(frames))

    def mutate_bytes(self, data: bytes) -> bytes:
        """Return bytes that differ in one place or several."""
        chance = self._chance
        changed = bytearray(data)
        for _ in range(1 if chance.random() < 0.6 else chance.randrange(2, 8)):
            at = chance.randrange(len(changed) + 1)
            kind = chance.randrange(7)
            if kind == 0 and at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            elif kind == 1 and at < len(changed):
                changed[at] = chance.choice(INTERESTING_BYTES)
            elif kind == 2:
                size = chance.choice((1, 2, 4, 8))
                word = chance.choice(INTERESTING_WORDS) & ((1 << 8 * size) - 1)
                changed[at : at + size] = word.to_bytes(size, "big")
            elif kind == 3:
                del changed[at : at + chance.randrange(1, 9)]
            elif kind == 4:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            elif kind == 5 and len(changed) < LONGEST_FRAME_BYTES // 2:
                piece = changed[at : at + chance.randrange(1, 33)]
                changed[at:at] = piece * chance.randrange(1, 40)
            else:
                changed[at : at + 4] = chance.randbytes(4)
        return bytes(changed)
