"""The commands that talk to a node, against a real one; and docs/reference/cli.md, line by line."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.nodes import RunningNode, with_api
from typer.testing import CliRunner, Result

from flyball.broker.core.authority import Authority
from flyball.cli import queues
from flyball.cli.main import app
from flyball.cli.output import Output
from flyball.cli.session import amqp_url
from flyball.client.sync import Client

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent
QUIET = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}

Flyball = Callable[..., Result]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    with RunningNode(tmp_path / "data", **with_api(store="memory", thorbang="off")) as node:
        yield node


@pytest.fixture
def address(node: RunningNode) -> str:
    return str(node.address("amqp"))


@pytest.fixture
def flyball(node: RunningNode, address: str) -> Flyball:
    """Run a command in this process."""
    environment = {"FLYBALL_URL": node.url, **QUIET}

    def run(*arguments: str, stdin: bytes | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def documents(result: Result) -> list[object]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_bodies_go_in_and_out_byte_by_byte(flyball: Flyball, tmp_path: Path) -> None:
    body = bytes(range(256)) + b"\n"
    (tmp_path / "body").write_bytes(body)
    flyball("queue", "create", "q")
    assert flyball("put", "q", "--file", str(tmp_path / "body")).exit_code == 0
    assert flyball("put", "q", "-", stdin=body).exit_code == 0
    assert flyball("get", "q", "--raw").stdout_bytes == body
    assert flyball("get", "q").stdout_bytes == body + b"\n"


def test_json_shows_text_as_text_and_other_bodies_as_base64(flyball: Flyball) -> None:
    flyball("queue", "create", "q")
    flyball("put", "q", "é")
    flyball("put", "q", "-", stdin=b"\xff")
    text, other = documents(flyball("get", "q", "--count", "5", "--json"))
    assert isinstance(text, dict)
    assert isinstance(other, dict)
    assert text["text"] == "é"
    assert base64.b64decode(other["base64"]) == b"\xff"
    assert "text" not in other


def test_options_of_put_reach_the_message(flyball: Flyball) -> None:
    flyball("queue", "create", "q")
    options = ("--to", "42", "--from", "5", "--context", "7", "--priority", "3", "--ttl", "60", "--transient")
    result = flyball("put", "q", "x", *options, "--json")
    assert documents(result) == [{"queue": "q", "count": 1}]
    (message,) = documents(flyball("queue", "peek", "q", "--json"))
    assert isinstance(message, dict)
    assert (message["receiver"], message["context"], message["priority"]) == (42, 7, 3)
    assert (message["persistent"], message["sender"]) == (False, 5)


def test_get_follows_order_count_and_sender(flyball: Flyball) -> None:
    flyball("queue", "create", "q")
    for text, who, priority in (("a", "1", "1"), ("b", "2", "9"), ("c", "1", "1"), ("d", "2", "1")):
        flyball("put", "q", text, "--from", who, "--priority", priority)
    assert flyball("get", "q", "--from", "1").stdout == "a\n"
    assert flyball("get", "q", "--order", "priority").stdout == "b\n"
    assert flyball("get", "q", "--order", "newest").stdout == "d\n"
    result = flyball("get", "q", "--count", "5", "--wait", "0.01")
    assert (result.stdout, result.exit_code) == ("c\n", 0)


def test_no_message_is_exit_code_3_and_no_output(flyball: Flyball) -> None:
    flyball("queue", "create", "q")
    for command in (("get", "q"), ("get", "q", "--wait", "0.01"), ("queue", "peek", "q")):
        result = flyball(*command)
        assert (result.exit_code, result.output) == (3, "")


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["put", "no", "x"], 1, "no queue 'no'. Create it with `flyball queue create no`, or use --create."),
        (
            ["get", "no"],
            1,
            "no queue 'no' in vhost '/'. See `flyball queue list`, or create it with `flyball queue create`.",
        ),
        (["queue", "delete", "no"], 1, "no queue 'no' in vhost '/'. See `flyball queue list`"),
        (["queue", "purge", "no"], 1, "no queue 'no' in vhost '/'. See `flyball queue list`"),
        (["queue", "create", "q"], 1, "there is already a queue named 'q'. Use --exist-ok to accept that."),
        (["client", "register", "reader"], 1, "there is already a client named 'reader'. Choose another name"),
        (["client", "delete", "no"], 1, "no client 'no'. See `flyball client list`."),
        (["put", "q", "x", "--to", "0"], 1, "invalid receiver 0: use a value from 1 to 2147483647"),
        (["put", "q", "x", "--priority", "256"], 1, "invalid priority 256: use a value from 0 to 255"),
        (["user", "delete", "no"], 1, "no user 'no'"),
        (["user", "add", "guest", "--no-password"], 1, "there is already a user named 'guest'"),
        (["user", "add", "a"], 2, "no terminal to prompt for the password: use --password-file (-"),
        (
            ["user", "add", "a", "--password", "x", "--no-password"],
            2,
            "use only one of --password-file, --password and",
        ),
        (["user", "add", "a", "--password-file", "/no/such/file"], 1, "cannot read /no/such/file: No such file"),
        (["user", "password", "no", "--password", "x"], 1, "no user 'no'"),
        (["user", "tags", "guest", "a,b"], 1, "contains a comma"),
        (["vhost", "add", "/"], 1, "there is already a vhost named '/'"),
        (["vhost", "delete", "no", "--yes"], 1, "no vhost 'no'"),
        (["vhost", "delete", "no"], 1, "all queues and messages of no are deleted with it. Use --yes"),
        (["permission", "set", "no"], 1, "no user 'no'"),
        (["permission", "set", "guest", "--read", "("], 1, "'(' is not a regular expression"),
        (["permission", "clear", "guest", "--vhost", "no"], 1, "no vhost 'no'"),
        (["policy", "set", "p", ".*", "{"], 2, "DEFINITION is not valid JSON: "),
        (["policy", "set", "p", ".*", "[]"], 2, "DEFINITION is not a JSON object, such as"),
        (["policy", "set", "p", ".*", '{"expires": 0}'], 1, "expires must be milliseconds, 1 to"),
        (["policy", "clear", "p"], 1, "no policy 'p' in vhost '/'"),
        (["put", "q"], 2, "no message given: use TEXT, - for standard input, or --file."),
        (["put", "q", "x", "--file", "y"], 2, "no message given: use TEXT"),
        (["put", "q", "--file", "/no/such/file"], 1, "cannot read /no/such/file: No such file or directory."),
        (
            ["status", "--url", "http://guest:secret@127.0.0.1:1"],
            1,
            "no answer from http://127.0.0.1:1: connection refused. Start a node with `flyball serve`",
        ),
        (["status", "--url", "nowhere"], 2, "--url: invalid address: use http://user:password@host:15672"),
        (
            ["status", "--url", "http://u:secret@host:port"],
            2,
            "--url: invalid port in the address: use http://user:password@host:15672",
        ),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    flyball: Flyball, arguments: list[str], code: int, error: str
) -> None:
    flyball("queue", "create", "q")
    flyball("put", "q", "x")
    flyball("client", "register", "reader", "--mode", "read-only")
    result = flyball(*arguments)
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("flyball: ")
    assert result.stderr.count("\n") == 1
    assert error in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize(
    ("user", "error"),
    [
        ("guest:guessed", "wrong name or password. Set user and password in --url, or the node's token"),
        ("ann:secret", "user 'ann' lacks the tag administrator. Use a user with that permission in --url."),
    ],
)
def test_who_may_not_is_told_whom_to_be(node: RunningNode, flyball: Flyball, user: str, error: str) -> None:
    flyball("user", "add", "ann", "--password", "secret", "--tag", "monitoring")
    url = node.url.replace("//", f"//{user}@")
    result = flyball("user", "list", "--url", url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert error in result.stderr
    assert user.partition(":")[2] not in result.stderr


def test_without_the_token_it_is_guest(flyball: Flyball, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flyball("vhost", "add", "owners")
    monkeypatch.setenv("FLYBALL_TOKEN_FILE", str(tmp_path / "nothing"))
    flyball("vhost", "add", "guests")
    permissions = [(found["user"], found["vhost"]) for found in documents(flyball("permission", "list", "--json"))]  # type: ignore[index]
    assert permissions == [("guest", "/"), ("guest", "guests")]


def test_amqp_url_is_the_nodes_with_the_same_user(node: RunningNode) -> None:
    with node.api() as api:
        url = amqp_url(api, "a/b")
        token = api.place.password.decode()
    assert url == f"amqp://%40owner:{token}@127.0.0.1:{node.address('amqp').port}/a%2Fb"


def test_put_creates_the_queue_if_told_so(flyball: Flyball) -> None:
    assert flyball("put", "new", "x", "--create").exit_code == 0
    assert flyball("put", "new", "y", "--create").exit_code == 0
    assert flyball("get", "new", "--count", "9").stdout == "x\ny\n"


def test_an_empty_queue_is_deleted_without_asking(flyball: Flyball) -> None:
    flyball("queue", "create", "q")
    assert documents(flyball("queue", "delete", "q", "--json")) == [{"name": "q", "deleted": True}]


@pytest.mark.parametrize(("answer", "is_deleted"), [(b"y\n", True), (b"n\n", False)])
def test_deleting_messages_asks_at_a_terminal(
    node: RunningNode, address: str, answer: bytes, is_deleted: bool
) -> None:
    with Client.connect(address) as client:
        client.create_queue("q")
        client.put("q", "x")
        main, side = os.openpty()
        with subprocess.Popen(
            [BIN / "flyball", "queue", "delete", "q", "--url", node.url], stdin=side, stderr=side, stdout=side
        ) as process:
            os.close(side)
            asked = b""
            while not asked.endswith(b"[y/N]: "):
                asked += os.read(main, 1000)
            assert b"q holds 1 messages. Delete them with it?" in asked
            os.write(main, answer)
            with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error.
                while os.read(main, 1000):
                    pass
        os.close(main)
        assert process.returncode == (0 if is_deleted else 1)
        assert (client.get_queues() == []) == is_deleted


@pytest.mark.parametrize("repeated", [b"secret", b"other"])
def test_a_password_is_asked_for_twice_and_not_shown(node: RunningNode, repeated: bytes) -> None:
    main, side = os.openpty()
    with subprocess.Popen(
        [BIN / "flyball", "user", "add", "alice", "--url", node.url],
        stdin=side,
        stderr=side,
        stdout=side,
        # Without a terminal of its own it cannot ask at the one where the tests run.
        start_new_session=True,
    ) as process:
        os.close(side)
        shown = b""
        for answer in (b"secret", repeated):
            while not shown.endswith(b": "):
                shown += os.read(main, 1000)
            os.write(main, answer + b"\n")
            shown += os.read(main, 1000)
        while repeated == b"secret" and b"added user alice" not in shown:
            shown += os.read(main, 1000)
        while repeated == b"other" and not shown.endswith(b"Password: "):
            shown += os.read(main, 1000)
        if repeated == b"other":
            process.kill()
    os.close(main)
    assert b"secret" not in shown
    with node.api() as api:
        users = [user["name"] for user in api.get("users")]
    assert ("alice" in users) == (repeated == b"secret")


@pytest.mark.parametrize("line_end", ["", "\n", "\r\n"])
def test_a_password_comes_from_a_file_or_standard_input_without_its_line_end(
    flyball: Flyball, tmp_path: Path, line_end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    async def note(authority: Authority, name: str, *arguments: object, **secrets: object) -> None:
        sent.append((name, *arguments, *secrets.values()))

    monkeypatch.setattr(Authority, "put_user", note)
    monkeypatch.setattr(Authority, "change_password", note)
    (tmp_path / "password").write_bytes(f" sécret {line_end}".encode())
    assert flyball("user", "add", "a", "--password-file", str(tmp_path / "password")).exit_code == 0
    assert (
        flyball("user", "password", "a", "--password-file", "-", stdin=f" sécret {line_end}".encode()).exit_code == 0
    )
    assert flyball("user", "password", "a", "--no-password").exit_code == 0
    assert sent == [("a", [], " sécret "), ("a", " sécret "), ("a", None)]


def test_json_tells_what_was_managed(flyball: Flyball) -> None:
    definition = {"max-length": 5}
    policy = {
        "name": "p",
        "vhost": "/",
        "pattern": "^a",
        "apply_to": "queues",
        "priority": 3,
        "definition": definition,
    }
    permission = {"user": "a", "vhost": "v", "configure": "", "write": "^w", "read": ""}
    for arguments, facts in (
        (["user", "add", "a", "--no-password", "--tag", "x", "--tag", "y"], {"name": "a", "tags": ["x", "y"]}),
        (["user", "password", "a", "--password", "secret"], {"name": "a", "has_password": True}),
        (["user", "tags", "a"], {"name": "a", "tags": []}),
        (["vhost", "add", "v"], {"name": "v"}),
        (["permission", "set", "a", "--vhost", "v", "--write", "^w"], permission),
        (["permission", "list", "--user", "a"], permission),
        (["permission", "list", "--vhost", "v"], permission),
        (
            ["policy", "set", "p", "^a", json.dumps(definition), "--apply-to", "queues", "--priority", "3"],
            policy,
        ),
        (["policy", "list", "--vhost", "/"], policy),
        (["policy", "clear", "p"], {"name": "p", "vhost": "/", "cleared": True}),
        (["permission", "clear", "a", "--vhost", "v"], {"user": "a", "vhost": "v", "cleared": True}),
        (["vhost", "delete", "v", "--yes"], {"name": "v", "deleted": True}),
        (["vhost", "list"], {"name": "/"}),
        (["user", "delete", "guest"], {"name": "guest", "deleted": True}),
        (["user", "list"], {"name": "a", "tags": [], "has_password": True}),
    ):
        assert documents(flyball(*arguments, "--json")) == [facts]
    assert flyball("policy", "list").stdout == ""
    assert flyball("permission", "list").stdout == ""


def test_lists_are_one_json_object_for_each_line(flyball: Flyball) -> None:
    assert flyball("queue", "list", "--json").stdout == ""
    assert flyball("queue", "list").stdout == ""
    flyball("queue", "create", "a")
    flyball("queue", "create", "b")
    names = [entry["name"] for entry in documents(flyball("queue", "list", "--json")) if isinstance(entry, dict)]
    assert names == ["a", "b"]
    assert documents(flyball("client", "register", "c", "--json")) == [{"id": 1, "name": "c", "mode": "full"}]
    assert documents(flyball("client", "list", "--json")) == [{"id": 1, "name": "c", "mode": "full"}]
    (status,) = documents(flyball("status", "--json"))
    assert isinstance(status, dict)
    assert [queue["name"] for queue in status["queues"]] == ["a", "b"]


def test_names_cannot_confuse_the_terminal(flyball: Flyball) -> None:
    name = "\x1b[31mred [bold]x"
    assert flyball("queue", "create", name).stdout == f"created {name!r} with id 1\n"
    assert repr(name) in flyball("queue", "list").stdout


def test_functions_write_to_the_stream_they_are_given(node: RunningNode) -> None:
    stream = io.BytesIO()
    with node.api() as api:
        assert queues.create_queue(api, "q", Output(stream), exist_ok=False) == 0
        assert queues.purge_queue(api, "q", Output(stream, is_json=True)) == 0
    assert stream.getvalue() == b'created q with id 1\n{"name": "q", "purged": 0}\n'


# As processes


def test_ctrl_c_ends_a_waiting_get_and_loses_no_message(node: RunningNode, address: str) -> None:
    with Client.connect(address) as client:
        client.create_queue("q")
        with subprocess.Popen(
            [BIN / "flyball", "get", "q", "--wait", "60", "--count", "2", "--url", node.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            client.put("q", "first")
            assert process.stdout.readline() == b"first\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"", b"")
        client.put("q", "second")
        assert client.take("q", wait_s=60) is not None


def test_a_reader_that_has_enough_ends_get_quietly(node: RunningNode, address: str) -> None:
    with Client.connect(address) as client:
        client.create_queue("q")
        client.put_many("q", ["x" * 1000] * 1000)
        done = subprocess.run(
            f"{BIN / 'flyball'} get q --count 1000 --url {node.url} | head -n 1",
            shell=True,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.stdout, done.stderr) == (b"x" * 1000 + b"\n", b"")


# The page


def dialogue() -> list[tuple[str, str]]:
    """Return the commands of the page, each with the output that it shows."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip("\n")))
    return found


def matches(shown: str, printed: str) -> bool:
    """Compare; `...` on the page stands for anything within a line."""
    pattern = re.escape(shown).replace(re.escape("..."), "[^\n]*")
    return re.fullmatch(pattern, printed.rstrip("\n")) is not None


@pytest.mark.timeout(900)  # each command is a process that has to start
def test_the_page_shows_what_happens(node: RunningNode, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **QUIET,
        "FLYBALL_URL": node.url,
        "FLYBALL_AMQP_URL": f"amqp://guest:guest@{node.address('amqp')}/",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    for command, shown in dialogue():
        done = subprocess.run(
            command,
            shell=True,
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert matches(shown, done.stdout), f"$ {command}\n{done.stdout}\ninstead of\n{shown}"


def all_commands(above: str = "flyball", group: Any = None) -> Iterator[str]:
    root: Any = typer.main.get_command(app)
    for name, command in (group or root).commands.items():
        if hasattr(command, "commands"):
            yield from all_commands(f"{above} {name}", command)
        else:
            yield f"{above} {name}"


def test_every_command_is_on_the_page_and_every_command_on_the_page_exists() -> None:
    commands = list(all_commands())
    assert [command for command in commands if command not in PAGE] == []
    for command, _ in dialogue():
        called = command.rpartition("| ")[2]
        if called.startswith("echo "):  # writes a file for the next command
            continue
        assert any(called.startswith(known) for known in commands), command


def test_every_help_has_an_example_except_that_of_serve() -> None:
    for command in all_commands():
        result = CliRunner().invoke(app, [*command.split()[1:], "--help"], env=QUIET)
        assert result.exit_code == 0
        assert f"Example: {command}" in result.stdout or command == "flyball serve", command
