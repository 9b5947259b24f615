"""The flags of `flyball serve`, and what it says when it cannot."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flyball import __version__
from flyball.broker.node.node import NodePart
from flyball.broker.node.service_manager import ServiceManager
from flyball.broker.settings import Address, ServeSettings, options
from flyball.cli.main import app
from flyball.errors import StoreUnavailable

runner = CliRunner()
Fake = Callable[..., list[ServeSettings]]


@pytest.fixture
def system_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the place of the system's settings file, which is not there."""
    found = tmp_path / "system" / "flyball.toml"
    found.parent.mkdir()
    monkeypatch.setattr("flyball.cli.serve.SYSTEM_FILE", found)
    return found


@pytest.fixture
def fake_node(monkeypatch: pytest.MonkeyPatch, system_file: Path) -> Fake:
    """Return a function that puts a node in place which notes its settings and may fail."""

    def put_in_place(error: Exception | None = None) -> list[ServeSettings]:
        seen: list[ServeSettings] = []

        async def serve(settings: ServeSettings, parts: Sequence[NodePart], manager: ServiceManager) -> None:
            seen.append(settings)
            if error is not None:
                raise error

        monkeypatch.setattr("flyball.broker.cluster.node.serve", serve)
        return seen

    return put_in_place


def test_help_shows_the_meaning_default_and_variable_of_every_setting() -> None:
    result = runner.invoke(app, ["serve", "--help"], env={"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1"})
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for option in options():
        (line,) = [line for line in lines if line.startswith(f"│ {option.flag} ")]
        assert option.meaning in line
        assert option.variable in line
        assert option.form in line
        assert option.default is None or f"default: {option.default}" in line


def test_help_groups_the_settings_under_headings() -> None:
    text = runner.invoke(app, ["serve", "--help"], env={"COLUMNS": "160", "TERM": "dumb"}).stdout
    for heading in dict.fromkeys(option.heading for option in options()):
        assert f" {heading} ─" in text
    assert "<bool>" not in text


def test_help_shows_no_python_types_of_arguments() -> None:
    text = runner.invoke(app, ["queue", "create", "--help"], env={"COLUMNS": "160", "TERM": "dumb"}).stdout
    assert "QUEUE" in text
    assert "<" not in text


def test_flags_reach_the_node_as_settings(fake_node: Fake) -> None:
    seen = fake_node()
    result = runner.invoke(app, ["serve", "--telesto", "[::1]:0", "--trace", "off", "--resident-bytes", "64MiB"])
    assert result.exit_code == 0
    (settings,) = seen
    assert settings.telesto == Address("::1", 0)
    assert settings.trace is False
    assert settings.resident_bytes == 64 * 2**20
    assert settings.thorbang == ServeSettings().thorbang


def test_a_flag_wins_over_the_environment(fake_node: Fake) -> None:
    seen = fake_node()
    environment = {"FLYBALL_TELESTO": "h:1", "FLYBALL_THORBANG": "h:2"}
    assert runner.invoke(app, ["serve", "--telesto", "h:3"], env=environment).exit_code == 0
    assert seen[0].telesto == Address("h", 3)
    assert seen[0].thorbang == Address("h", 2)


def test_a_bad_flag_is_one_line_on_stderr_and_exit_code_2(fake_node: Fake) -> None:
    seen = fake_node()
    result = runner.invoke(app, ["serve", "--telesto", "nowhere"])
    assert result.exit_code == 2
    assert result.stderr == (
        "flyball: --telesto: 'nowhere' is not a valid address: use host:port, [ipv6]:port or off\n"
    )
    assert seen == []


def test_a_bad_environment_variable_is_named(fake_node: Fake) -> None:
    fake_node()
    result = runner.invoke(app, ["serve"], env={"FLYBALL_TELESTO": "nowhere"})
    assert result.exit_code == 2
    assert result.stderr.startswith("flyball: FLYBALL_TELESTO: ")


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (StoreUnavailable("no answer within 10 s"), "Check --store"),
        (OSError(errno.EADDRINUSE, "address already in use"), "use another one"),
        (PermissionError(errno.EACCES, "Permission denied", "/data"), "that this user has permission for"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left"),
    ],
)
def test_what_stops_a_node_is_one_line_on_stderr_and_exit_code_1(
    fake_node: Fake, error: Exception, advice: str
) -> None:
    fake_node(error)
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    text = error.strerror if isinstance(error, OSError) else str(error)
    assert text is not None
    assert text in result.stderr
    assert "errno" not in result.stderr.lower()
    assert advice in result.stderr


def test_an_error_out_of_a_group_of_tasks_is_reported_like_any_other(fake_node: Fake) -> None:
    fake_node(ExceptionGroup("outer", [ExceptionGroup("inner", [OSError(errno.EADDRINUSE, "address in use")])]))
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 1
    assert result.stderr.startswith("flyball: address in use. Stop the program")


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("a mistake"), ExceptionGroup("outer", [OSError(1, "x"), ZeroDivisionError("a mistake")])],
)
def test_a_mistake_of_ours_keeps_its_traceback(fake_node: Fake, error: Exception) -> None:
    fake_node(error)
    assert runner.invoke(app, ["serve"]).exception is error


def test_version_is_shown_and_nothing_else_happens() -> None:
    result = runner.invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"flyball {__version__}\n"


def test_shell_completion_can_be_installed() -> None:
    assert "--install-completion" in runner.invoke(app, ["--help"]).stdout


def test_settings_file_of_the_system_is_read_if_it_exists(fake_node: Fake, system_file: Path) -> None:
    seen = fake_node()
    runner.invoke(app, ["serve"])
    system_file.write_text('name = "north"\n')
    runner.invoke(app, ["serve"])
    runner.invoke(app, ["serve", "--name", "south"])
    assert [settings.name for settings in seen] == [None, "north", "south"]


def test_another_settings_file_replaces_that_of_the_system(
    fake_node: Fake, system_file: Path, tmp_path: Path
) -> None:
    seen = fake_node()
    system_file.write_text('name = "north"\n')
    mine = tmp_path / "mine.toml"
    mine.write_text('lease = "wrong"\n')
    assert "mine.toml: lease" in runner.invoke(app, ["serve", "--config", str(mine)]).stderr
    runner.invoke(app, ["serve", "--config", "/dev/null"])
    runner.invoke(app, ["serve"], env={"FLYBALL_CONFIG": "/dev/null"})
    assert [settings.name for settings in seen] == [None, None]


def test_settings_file_of_the_system_that_cannot_be_read_stops_the_start(fake_node: Fake, system_file: Path) -> None:
    seen = fake_node()
    system_file.mkdir()
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 2
    assert f"--config: cannot read {system_file}: Is a directory" in result.stderr
    system_file.rmdir()
    system_file.write_text("name = ")
    assert f"{system_file}: not a valid TOML file" in runner.invoke(app, ["serve"]).stderr
    assert seen == []
