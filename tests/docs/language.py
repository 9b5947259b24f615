"""The words that Flyball's texts and names avoid, and how they are found. Each rule gives the words to use instead.

Checked are Markdown and HTML as a whole, comments and strings of Python and JavaScript, in tests only comments and
docstrings, and the names of Python code in src.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What is checked. A folder stands for all files below it.
CHECKED = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
    "mkdocs.yml",
    "run",
    "demo",
    "test",
    "docs",
    "src",
    "tests",
    "bench",
    "scripts",
    "examples",
)
TEXT_SUFFIXES = {".py", ".md", ".js", ".html", ".css", ".toml", ".yml", ".sql", ".sh", ".txt", ""}

# Generated from sources that are checked, or by other projects.
SKIPPED_FOLDERS = {"_generated", "__pycache__", "node_modules", "vectors", "corpus"}

# The rules themselves.
SKIPPED_FILES = {"tests/docs/language.py", "tests/docs/test_language.py"}

MAX_TEST_NAME = 75

# Words after which "who" stands for a person.
_PERSONS = (
    *("user", "users", "operator", "operators", "administrator", "administrators", "developer", "developers"),
    *("reader", "readers", "author", "authors", "engineer", "engineers", "visitor", "visitors", "seller", "bidder"),
    *("person", "people", "those", "anyone", "everyone", "someone", "one"),
)
_AFTER_PERSON = "".join(rf"(?<!\b{person} )" for person in _PERSONS)


@dataclass(frozen=True)
class Rule:
    """A phrase to avoid. `cues` are lower-case texts one of which is in every match: they make the search fast."""

    cues: tuple[str, ...]
    pattern: re.Pattern[str]
    instead: str


def _rule(cues: str, pattern: str, instead: str, flags: int = re.IGNORECASE) -> Rule:
    return Rule(tuple(cues.split("|")), re.compile(pattern, flags), instead)


PHRASES = (
    _rule(
        "so many|so much|so long|so few|so often",
        r"\bso (?:many|much|long|few|often)\b(?! that\b)",
        "the quantity by its name: maximum, limit, timeout, interval, number of ...",
    ),
    _rule(
        "told|tell",
        r"(?<![.\w])(?:told|tells?|telling)\b(?!\()(?!(?: \w+){0,3} apart)",
        "report, return, notify, send, log, show",
    ),
    _rule(
        "whoever|whomever|whom|nobody|somebody|everybody|anybody",
        r"\b(?:who(?:so)?ever|whom(?:ever)?|nobody|somebody|everybody|anybody)\b",
        "the program: a client, the caller, another node, no consumer",
    ),
    _rule("who", rf"{_AFTER_PERSON}\bwho\b(?= )", "the program: the client that, the node that, the caller"),
    _rule(
        " no ",
        r"(?<!there )\b(?:is|are|was|were) no "
        r"(?!longer\b|more than\b|less\b|fewer\b|better\b|worse\b|different\b|slower\b|faster\b|larger\b|need\b)",
        "is not a ..., is not an ...",
    ),
    _rule("any more", r"\bany more\b(?! than\b)", "no longer"),
    _rule("anew", r"\banew\b", "again"),
    _rule("in good order", r"\bin good order\b", "gracefully"),
    _rule("afar", r"\bafar\b", "remote"),
    _rule("bury|burie|burial", r"\b(?:bury|buries|buried|burying|burial)", "dead-letter"),
    _rule("chok|breath", r"\b(?:chok(?:e[sd]?|ing)|breath(?:e[sd]?|ing))\b", "pause, resume"),
    _rule("deaf", r"\bdeaf(?:ness)?\b", "backpressure, paused, ignores"),
    _rule("company", r"\bcompany\b", "peers, clustered"),
    _rule("chronicle", r"\bchronicles?\b", "decision log"),
    _rule("books", r"\bbooks\b", "decision log, accounts, counts", flags=0),
    _rule("roster", r"\brosters?\b", "membership, list of nodes"),
    _rule("errand", r"\berrands?\b", "request, task"),
    _rule("lying", r"\blying\b", "waiting, ready, stored"),
    _rule("patien", r"\b(?:im)?patien(?:ce|t|tly)\b", "timeout, backoff, retry"),
    _rule(" away", r"\b(?:is|are|was|were|be|been|stays?|stayed) away\b", "unavailable, disconnected"),
    _rule(" back", r"\b(?:g[ia]ve[sn]?|giving|br[io]ngs?|brought) (?:\w+ )?back\b", "requeue, return, release"),
    _rule("for good", r"\bfor good\b", "permanently"),
    _rule("hear", r"\b(?:hears?|heard|hearing)\b", "receive, be notified, learn"),
    _rule("beside", r"(?<![-\w])beside(?![-\w])", "in addition to, next to, compared with, alongside"),
    _rule("away", r"\bthr[oe]wn?s? (?:\w+ )?away\b|\bthrowing (?:\w+ )?away\b", "discard, drop, delete"),
    _rule("cure", r"\bcur(?:es?|ed|ing)\b", "fix, remedy"),
    _rule("knows n", r"\bknows? (?:no|none|nothing)\b", "does not know, is independent of"),
    _rule("onlook", r"\bonlook", "viewer, observer"),
    _rule(
        "lest|hence|whence|thereof|hitherto|forthwith",
        r"\b(?:lest|hence(?:forth)?|whence|thereof|hitherto|forthwith)\b",
        "so, therefore, otherwise, at once",
    ),
    _rule("in vain", r"\bin vain\b", "without success"),
    _rule("believe", r"\bbeliev(?:e[sd]?|ing)\b", "trust, assume, expect"),
    _rule("at the ", r"\bat the (?:most|least)\b", "at most, at least"),
    _rule("shall", r"\bshall\b", "must, should"),
    _rule("as large as", r"\bas large as\b", "equal to, up to, the size of"),
    _rule("one's own", r"\bone's own\b", "its own, your own"),
    _rule("what is behind", r"\bwhat is behind\b", "the backend"),
    _rule("at home", r"\bat home\b", "speaks, supports"),
    _rule("drown", r"\bdrown", "overload"),
    _rule("keeps none", r"\bkeeps none\b", "no_ack, auto-ack"),
    _rule(
        "seed 00|seed-00|seed00|seed_00",
        r"\bseed[-_ ]?00\d\b",
        "the paper's name: selfware, admission, thorbangmq, telesto, prefetch",
    ),
    _rule("<bool>", r"<bool>", "nothing: a switch has no value"),
    _rule("as it comes", r"\bas it comes\b", "with its default settings, unmodified"),
    _rule("looking on", r"\blook(?:s|ed|ing)? on\b(?! it)", "view, watch, viewers"),
    _rule("keeps? up with never|never reaches what", r"\bwhat \w+ keeps? up with\b", "messages acked in time"),
    _rule(
        "by itself", r"\b(?:finds?|found|does|do|made|brings?) (?:\w+ )?by (?:itself|themselves)\b", "automatically"
    ),
    _rule("under way", r"\bunder way\b", "in flight, running, in progress"),
    _rule("are meant", r"\ball are meant\b", "all are affected"),
    _rule("passed over", r"\bpass(?:es|ed)? over\b", "ignored"),
    _rule("what is left behind", r"\bwhat is left behind\b", "files, results"),
    _rule("at the entrance", r"\bis checked at the entrance\b", "is validated on input"),
    _rule("so and so|such like", r"\bso and so\b|\bsuch like\b", "the thing by its name"),
    _rule("taught", r"\b(?:profiles?|measurements?|figures?) taught\b", "findings from ..."),
    _rule("is alone|be alone", r"\bnodes? that (?:is|are) alone\b", "single node"),
    _rule("for ever", r"\bfor ever\b", "endlessly, permanently"),
    _rule("dealt with|deals with|deal with", r"\bdeal(?:s|t)? with in time\b", "acked in time"),
)

# A definition that begins so says neither what the thing is nor what the function does.
DEFINITION = Rule(
    ('"""what ', '"""who '), re.compile(r'"""(?:What|Who) '), "a noun for a thing, an imperative for a function"
)

# Parts of names in src, as in `told_at` or `NobodyIsThere`.
NAME_WORDS = {
    **dict.fromkeys(("told", "tell", "tells", "telling", "teller"), "report, notify, send"),
    **dict.fromkeys(("nobody", "somebody", "whoever", "everybody"), "client, peer, user, owner"),
    **dict.fromkeys(("hear", "hears", "heard", "hearing"), "receive, on_..."),
    **dict.fromkeys(("bury", "buried", "burial"), "dead_letter"),
    **dict.fromkeys(("choke", "choked", "breathe"), "pause, resume"),
    **dict.fromkeys(("onlooker", "onlookers", "onlooking"), "viewer"),
    **dict.fromkeys(("errand", "errands"), "request, task"),
    "deaf": "paused",
    "afar": "remote",
    "books": "decision_log, counts",
    "chronicle": "decision_log",
    "roster": "membership",
    "crew": "workers, members",
    "portal": "event_loop_thread",
    "patience": "timeout_s",
    "laboratory": "lab",
    "occupancy": "connection_limits",
    "warden": "agent",
    "remembered": "cache",
}

# Modules are nouns.
MODULE_WORDS = {
    **dict.fromkeys(("remembered", "rewound", "occupancy", "warden", "shadows"), "the field's word"),
    **dict.fromkeys(("flushing", "consuming", "publishing", "connecting"), "a noun of the field"),
    **dict.fromkeys(("doing", "showing", "viewing", "placing", "asking", "executing"), "a noun of the field"),
    **dict.fromkeys(("cutting", "onlooking", "everywhere", "own", "wording", "sparks"), "a noun of the field"),
    **dict.fromkeys(("held", "parts", "placed", "takes", "listings", "unseen", "usage"), "a noun of the field"),
    **NAME_WORDS,
    "demonstration": "demo",
}


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}; say: {self.instead}"


@dataclass(frozen=True)
class Source:
    """A file and the parts of it that are prose."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py") or self.text.startswith("#!/usr/bin/env python")

    @property
    def is_test(self) -> bool:
        return self.path.startswith("tests/")

    def line_of(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def line_at(self, position: int) -> str:
        start = self.text.rfind("\n", 0, position) + 1
        end = self.text.find("\n", position)
        return self.text[start : end if end >= 0 else None].strip()


# The alternatives are tried from left to right: a comment sign in a string begins no comment, and the reverse.
_PYTHON_STRING = r'"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
_PYTHON_TOKENS = re.compile(rf"(?P<comment>#[^\n]*)|(?P<string>{_PYTHON_STRING})", re.DOTALL)
_SCRIPT_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<string>`(?:\\.|[^`\\])*`|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')",
    re.DOTALL,
)
_IDENTIFIER_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_TEST_NAME = re.compile(rf"\bdef (test_\w{{{MAX_TEST_NAME - 4},}})")
_LITERAL_LINE = re.compile(r"^[ \t]*[rR]?(?:\"|')", re.MULTILINE)


def sources(not_yet_swept: tuple[str, ...] = ()) -> Iterator[Source]:
    """Yield the files to check, without those below the folders that are not yet swept."""
    for name in CHECKED:
        root = ROOT / name
        for file in sorted(root.rglob("*")) if root.is_dir() else [root]:
            path = str(file.relative_to(ROOT))
            if file.suffix not in TEXT_SUFFIXES or path in SKIPPED_FILES or SKIPPED_FOLDERS & set(file.parts):
                continue
            if any(path == each or path.startswith(f"{each}/") for each in not_yet_swept) or not file.is_file():
                continue
            yield Source(path, file.read_text(encoding="utf-8", errors="ignore"))


def phrases_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield position, phrase and what to say instead."""
    lowered = text.lower()
    for rule in (*PHRASES, DEFINITION):
        for start, end in sorted({line for cue in rule.cues for line in _lines_with(cue, lowered)}):
            for found in rule.pattern.finditer(text, start, end):
                yield found.start(), found[0], rule.instead


def _lines_with(cue: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield where the lines that hold this text begin and end."""
    at = text.find(cue)
    while at >= 0:
        end = text.find("\n", at)
        end = end if end >= 0 else len(text)
        yield text.rfind("\n", 0, at) + 1, end
        at = text.find(cue, end)


def findings(source: Source, allowed: frozenset[tuple[str, str]] = frozenset()) -> Iterator[Finding]:
    """Yield all that a file has against the rules, but for lines that are allowed as they stand there."""
    prose: list[tuple[int, int]] | None = None
    for position, phrase, instead in phrases_in(source.text):
        if prose is None:
            prose = _prose(source)
        if not any(start <= position < end for start, end in prose):
            continue
        if (source.path, source.line_at(position)) not in allowed:
            yield Finding(source.path, source.line_of(position), phrase, instead)
    if source.is_python:
        yield from _names(source, allowed)
        yield from _literals_below_assignments(source)
    if source.is_test:
        for found in _TEST_NAME.finditer(source.text):
            yield Finding(
                source.path,
                source.line_of(found.start()),
                found[1],
                f"at most {MAX_TEST_NAME} characters",
            )


def _prose(source: Source) -> list[tuple[int, int]]:
    """Return where the prose of a file begins and ends: comments and strings, in tests comments and docstrings."""
    if not source.is_python and not source.path.endswith(".js"):
        return [(0, len(source.text))]
    tokens = _PYTHON_TOKENS if source.is_python else _SCRIPT_TOKENS
    return [
        found.span()
        for found in tokens.finditer(source.text)
        if not source.is_test or found["comment"] or found["string"].startswith('"""')
    ]


def _names(source: Source, allowed: frozenset[tuple[str, str]]) -> Iterator[Finding]:
    """Yield the module and the identifiers of code in src that hold a banned word."""
    if not source.path.startswith("src/"):
        return
    module = Path(source.path).stem
    for part in {module, *module.split("_")} & MODULE_WORDS.keys():
        yield Finding(source.path, 1, f"module {module}", MODULE_WORDS[part])
    lowered = source.text.lower()
    words = [word for word in NAME_WORDS if word in lowered]
    if not words:
        return
    code = _PYTHON_TOKENS.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source.text)
    for found in re.finditer(rf"\w*(?:{'|'.join(words)})\w*", code, re.IGNORECASE):
        parts = {part.lower() for part in _IDENTIFIER_PARTS.findall(found[0])}
        # The position in a file is Python's `tell()`.
        if code[found.start() - 1] == "." and found[0] == "tell":
            continue
        for part in sorted(parts & NAME_WORDS.keys()):
            if (source.path, source.line_at(found.start())) not in allowed:
                yield Finding(source.path, source.line_of(found.start()), found[0], NAME_WORDS[part])


def _literals_below_assignments(source: Source) -> Iterator[Finding]:
    """Yield string literals that describe the constant or attribute above them."""
    if not any(_may_follow_assignment(source.text, found.start()) for found in _LITERAL_LINE.finditer(source.text)):
        return
    for node in ast.walk(ast.parse(source.text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for above, statement in pairwise(body):
            if (
                isinstance(above, ast.Assign | ast.AnnAssign)
                and isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield Finding(source.path, statement.lineno, "a string below an assignment", "a comment above it")


def _may_follow_assignment(text: str, start: int) -> bool:
    """Whether the line before may end an assignment: it is not empty, and opens neither a block nor a bracket."""
    above = text[text.rfind("\n", 0, max(start - 1, 0)) + 1 : max(start - 1, 0)].split("  #")[0].rstrip()
    if text[start:].lstrip()[:4].rstrip() == '"""':
        # The end of a docstring.
        return False
    return bool(above) and not above.endswith((":", "(", "[", "{", ",", '"', "'", "|", "="))
