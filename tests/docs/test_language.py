"""Texts, names and the help of every command keep to the words of the field: see `language.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from flyball.cli.main import app
from tests.docs.language import DEFINITION, PHRASES, ROOT, Finding, Source, findings, phrases_in, sources

# Folders and files that are still to be swept. Shrink this list, never extend it: it ends empty.
NOT_YET_SWEPT: tuple[str, ...] = ()

# Lines that stand for themselves: other programs' texts, byte for byte, and names that are kept for compatibility.
ALLOWED: frozenset[tuple[str, str]] = frozenset(
    {
        # Old names that still work.
        (
            "CHANGELOG.md",
            "`thorbangmq`, `telesto` or `prefetch`; `seed-000` to `seed-004` work as well. `flyball lab list` cites "
            "them. Those of",
        ),
        ("src/flyball/lab/papers.py", '"seed-000",'),
        ("src/flyball/lab/papers.py", '"seed-001",'),
        ("src/flyball/lab/papers.py", '"seed-002",'),
        ("src/flyball/lab/papers.py", '"seed-003",'),
        ("src/flyball/lab/papers.py", '"seed-004",'),
        # The system's user of this name.
        ("src/flyball/broker/store/postgres/launcher.py", 'UNPRIVILEGED_USER = "nobody"'),
        (
            "docs/how-it-works/design.md",
            "the user `nobody`, provided that this user can reach the folder.",
        ),
    }
)


def test_swept_files_keep_to_the_language() -> None:
    found = [str(finding) for source in sources(NOT_YET_SWEPT) for finding in findings(source, ALLOWED)]
    assert not found, f"{len(found)} phrases to replace:\n" + "\n".join(found)


def test_folders_that_are_not_swept_exist() -> None:
    assert [name for name in NOT_YET_SWEPT if not (ROOT / name).exists()] == []


def test_allowed_lines_exist() -> None:
    lines = {path: (ROOT / path).read_text(encoding="utf-8").splitlines() for path, _ in ALLOWED}
    missing = [(path, line) for path, line in ALLOWED if line not in {each.strip() for each in lines[path]}]
    assert missing == []


def test_help_of_every_command_keeps_to_the_language() -> None:
    found = [
        f"{place}: {phrase!r}; say: {instead}" for place, text in helps() for _, phrase, instead in phrases_in(text)
    ]
    assert not found, "\n".join(found)


def test_help_of_commands_and_options_is_read() -> None:
    texts = dict(helps())
    assert "Run a gateway" in texts["flyball gateway --help"]
    assert texts["flyball serve --help, --data"].startswith("FOLDER\n")


def helps() -> Iterator[tuple[str, str]]:
    """Yield the texts of the help of every command, its options and arguments, each with its place."""
    root = typer.main.get_command(app)
    commands: list[tuple[str, Any]] = [("flyball", root)]
    while commands:
        path, command = commands.pop()
        context = command.context_class(command, info_name=path)
        commands += [(f"{path} {name}", each) for name, each in getattr(command, "commands", {}).items()]
        yield f"{path} --help", "\n".join(filter(None, (command.help, command.short_help, command.epilog)))
        for parameter in command.get_params(context):
            shown = parameter.metavar if parameter.metavar is not None else parameter.display_type(context)
            yield f"{path} --help, {parameter.opts[-1]}", f"{shown}\n{getattr(parameter, 'help', None) or ''}"


@pytest.mark.parametrize(
    ("path", "text", "phrase"),
    [
        ("docs/index.md", "The node is told by the others.", "told"),
        ("docs/index.md", "It waits so long for an answer.", "so long"),
        ("docs/index.md", "That is no number.", "is no "),
        ("docs/index.md", "The client who reads it", "who"),
        ("src/flyball/a.py", "# Nobody waits any more.\n", "any more"),
        ("src/flyball/a.py", 'fail("it is no text")\n', "is no "),
        ("src/flyball/a.py", '"""What a node is."""\n', '"""What '),
        ("src/flyball/a.py", "told_at = 1\n", "told_at"),
        ("src/flyball/telling.py", "a = 1\n", "module telling"),
        ("src/flyball/a.py", 'LIMIT = 1\n"""How many there are."""\n', "a string below an assignment"),
        ("tests/test_a.py", f"def test_{'a' * 71}() -> None: ...\n", f"test_{'a' * 71}"),
        ("src/flyball/a.js", "// Nobody is there.\n", "Nobody"),
    ],
)
def test_phrase_is_found(path: str, text: str, phrase: str) -> None:
    assert phrase in [finding.phrase for finding in findings(Source(path, text))]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("docs/index.md", "There is no limit; it is no longer held. Users who may log in. Tell nodes apart."),
        ("src/flyball/a.py", "position = file.tell()\nwhole = 1\n"),
        (
            "src/flyball/a.py",
            'def limit() -> None:\n    """Set it."""\n    a = 1\n    b = (\n        "text"\n    )\n',
        ),
        ("tests/test_a.py", f'assert "told" in answer\n\n\ndef test_{"a" * 70}() -> None: ...\n'),
    ],
)
def test_plain_text_is_not_found(path: str, text: str) -> None:
    assert list(findings(Source(path, text))) == []


def test_finding_gives_the_place_and_the_words_to_use() -> None:
    (found,) = findings(Source("docs/index.md", "A line.\nThe store is afar."))
    assert found == Finding("docs/index.md", 2, "afar", "remote")
    assert str(found) == "docs/index.md:2: 'afar'; say: remote"


def test_every_cue_is_lower_case() -> None:
    assert [cue for rule in (*PHRASES, DEFINITION) for cue in rule.cues if cue != cue.lower()] == []
