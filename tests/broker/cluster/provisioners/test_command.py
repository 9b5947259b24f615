"""Nodes that commands start and stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import uvloop

from flyball.broker.cluster.provisioners import CommandTemplate, Surroundings
from flyball.errors import ClusterError
from tests.broker.cluster.provisioners.clock import leap, run_with_leaps

STORE = "postgresql://flyball:it;is&secret@db.example/flyball"


def commands(tmp_path: Path, **options: Any) -> CommandTemplate:
    """Commands that keep a file for each node that runs."""
    defaults = {
        "start": f"touch {tmp_path}/{{name}}",
        "stop": f"rm {tmp_path}/{{name}}",
        "alive": f"test -e {tmp_path}/{{name}}",
    }
    return CommandTemplate(Surroundings(STORE, tmp_path), **{**defaults, **options})


def test_a_node_is_alive_from_start_to_stop(tmp_path: Path) -> None:
    async def scenario() -> None:
        provisioner = commands(tmp_path)
        handle = await provisioner.start("n2")
        assert await provisioner.alive(handle)
        successor = commands(tmp_path)
        await successor.stop(handle)
        assert not await provisioner.alive(handle)
        # It fails to remove the file: it is for `alive` to say that there is nothing to stop.
        with pytest.raises(ClusterError, match="stopping node n2 failed"):
            await provisioner.stop(handle)

    uvloop.run(scenario())


def test_what_start_prints_last_is_the_handle(tmp_path: Path) -> None:
    async def scenario() -> None:
        provisioner = commands(
            tmp_path,
            start=["printf", "made it\n%s-id 7\n", "{name}"],
            alive=["test", "{name} {handle}", "=", "n2 n2-id 7"],
        )
        assert await provisioner.alive(await provisioner.start("n2"))

    uvloop.run(scenario())


def test_values_are_words_and_never_code(tmp_path: Path) -> None:
    async def scenario(shell: bool) -> None:
        script = "import os, sys; print(sys.argv[1] == os.environ['FLYBALL_STORE'], os.environ['FLYBALL_NAME'])"
        start = f'{sys.executable} -c "{script}" {{store}}'
        assert (await commands(tmp_path, start=start, shell=shell).start("n2")).endswith("True n2")

    uvloop.run(scenario(shell=False))
    uvloop.run(scenario(shell=True))


def test_a_shell_runs_it_only_if_asked_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        assert (await commands(tmp_path, start="echo {name} && echo x").start("n2")).endswith("n2 && echo x")
        assert (await commands(tmp_path, start="echo {name} && echo x", shell=True).start("n2")).endswith("x")

    uvloop.run(scenario())


def test_a_failure_tells_what_the_command_said_but_not_the_password(tmp_path: Path) -> None:
    provisioner = commands(tmp_path, start="ls /no/such/{name} {store}")
    with pytest.raises(ClusterError) as caught:
        uvloop.run(provisioner.start("n2"))
    told = str(caught.value)
    assert told.startswith(
        "starting node n2 failed: `ls /no/such/{name} {store}` ended with 2: ls: cannot access '/no"
    )
    assert "\n" not in told
    assert "flyball:***@db.example" in told


@pytest.mark.parametrize("password", ["it;is&secret", "it%3Bis%26secret"])
@pytest.mark.parametrize("said", ["it;is&secret", "it%3Bis%26secret", "secret" * 400 + "it;is&secret" + "x" * 1995])
def test_no_part_of_the_password_is_told_however_it_is_written(tmp_path: Path, password: str, said: str) -> None:
    (tmp_path / "said").write_text(said)
    start = f"cat {tmp_path}/said >&2; exit 1"
    surroundings = Surroundings(f"postgresql://flyball:{password}@db.example/flyball", tmp_path)
    provisioner = CommandTemplate(surroundings, start=start, stop="true", alive="true", shell=True)
    with pytest.raises(ClusterError, match=r"ended with 1: \S*\*\*") as caught:
        uvloop.run(provisioner.start("n2"))
    assert "secret" not in str(caught.value)


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pipe = tmp_path / "pid"
    os.mkfifo(pipe)
    provisioner = commands(tmp_path, start=f"sleep 60 & echo $! > {pipe}; wait", shell=True, time_limit_s=1000)

    async def scenario() -> int:
        starting = asyncio.ensure_future(provisioner.start("n2"))
        pid = int(await asyncio.to_thread(pipe.read_text))
        # The command may be faster than the code that begins to count.
        while not starting.done():
            leap(1000)
            await asyncio.wait([starting], timeout=0.1)
        with pytest.raises(ClusterError, match="timed out after 1000 s"):
            await starting
        return pid

    pid = run_with_leaps(scenario())
    stat = Path(f"/proc/{pid}/stat")
    # It was killed, and ends when the system gets to it.
    deadline_s = time.monotonic() + 60
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline_s


def test_what_runs_on_in_the_background_does_not_hold_the_command_up(tmp_path: Path) -> None:
    start = "sleep 600 & echo $!"
    handle = uvloop.run(commands(tmp_path, start=start, shell=True, time_limit_s=60).start("n2"))
    os.kill(int(handle.removeprefix("n2 ")), signal.SIGKILL)


def test_a_node_that_does_not_stop_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        provisioner = commands(tmp_path, stop="false")
        handle = await provisioner.start("n2")
        with pytest.raises(ClusterError, match="stopping node n2 failed: `false` ended with 1: no output"):
            await provisioner.stop(handle)

    uvloop.run(scenario())


@pytest.mark.parametrize("code", [126, 127, 255])
def test_a_command_that_reaches_nobody_does_not_make_a_node_dead(tmp_path: Path, code: int) -> None:
    provisioner = commands(tmp_path, alive=f"exit {code}", shell=True)
    with pytest.raises(ClusterError, match=f"checking node n2 failed: .* ended with {code}"):
        uvloop.run(provisioner.alive("n2 n2"))


def test_a_command_that_does_not_exist_does_not_make_a_node_dead(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot run `no-such-program`"):
        uvloop.run(commands(tmp_path, alive="no-such-program").alive("n2 n2"))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "echo {nmae}"}, r"start: unknown placeholder \{nmae\}: use \{name\}, \{store\}, and"),
        ({"start": "echo {handle}"}, r"start: unknown placeholder \{handle\}"),
        ({"start": "echo {name!x}"}, r"start: unknown placeholder \{name!x\}: use \{name\}, "),
        ({"start": "echo {name:>q}"}, r"start: unknown placeholder \{name:>q\}: use \{name\}, "),
        ({"start": "echo {name:{foo}}"}, r"start: unknown placeholder \{name:\{foo\}\}: use \{name\}, "),
        ({"stop": "echo {"}, "stop: .*braces"),
        ({"alive": "echo 'x"}, "alive: No closing quotation: check the quotes"),
        ({"alive": ""}, "alive: the command is empty"),
        ({"start": ["echo", "x"], "shell": True}, "start: with shell = true give one string"),
        ({"time_limit_s": 0}, "time_limit_s must be above 0"),
    ],
)
def test_a_wrong_template_is_refused_at_once(tmp_path: Path, options: dict[str, Any], error: str) -> None:
    with pytest.raises(ClusterError, match=error):
        commands(tmp_path, **options)


def test_doubled_braces_stay_as_braces(tmp_path: Path) -> None:
    assert uvloop.run(commands(tmp_path, start="echo {{name}}").start("n2")).endswith(" {name}")


def test_a_name_cannot_be_a_flag_of_a_command(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="invalid node name"):
        uvloop.run(commands(tmp_path).start("--force"))


def test_a_handle_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is not a handle of a node started by a command"):
        uvloop.run(commands(tmp_path).alive("n2"))
