"""`flyball control`: the chain from samples to a loop that runs, with files in between, on a real node."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from tests.broker.protocols.amqp.compatibility.brokers import Broker
from tests.nodes import RunningNode
from tests.pipeline.traces import write_samples
from typer.testing import CliRunner, Result

from flyball.cli.control_commands.handlers import handler_of
from flyball.cli.control_commands.live import shown_url, without_password
from flyball.cli.control_commands.series import read_series
from flyball.cli.main import app
from flyball.client.adaptive.sensors import LEAST_S
from flyball.client.sync import Client
from flyball.control.documents import read_design
from flyball.control.laws import Multiplicative, SelfTuning, law_to_json
from flyball.control.model_file import read_model
from flyball.trace.files import TraceFiles

QUIET = {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"}
QUEUE = "orders"
MESSAGES = 6_000
# How the line of a sample begins.
SAMPLE = r"[\d.]+ s: "

Row = dict[str, Any]


def control(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["control", *map(str, arguments)], env=QUIET)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def documents(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_one_line(result: Result, told: str, code: int = 1) -> None:
    assert told in result.stderr
    assert (result.stderr.count("\n"), result.exit_code) == (1, code)


def plant_samples(
    a: float = 0.26, b: float = 59.73, count: int = 200, seed: int = 1
) -> Iterator[tuple[float, float]]:
    """Measurements and actions of the plant of the prefetch paper, with little noise."""
    chance = random.Random(seed)
    measurement = 0.0
    for _ in range(count):
        action = chance.uniform(1, 10)
        yield measurement, action
        measurement = a * measurement + b * action + chance.gauss(0, 20)


def sample_rows(loop: str, first: int = 0, **plant: Any) -> list[Row]:
    return [
        {
            "loop": loop,
            "at_us": (first + number) * 1_000_000,
            "sample_time_s": 1.0,
            "setpoint": 400.0,
            "measurement": measurement,
            "action": action,
            "sequence": first + number,
        }
        for number, (measurement, action) in enumerate(plant_samples(**plant))
    ]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of samples."""
    path = tmp_path_factory.mktemp("table") / "samples.csv"
    lines = [f"{measurement},{action}" for measurement, action in plant_samples()]
    path.write_text("\n".join(["measurement,action", *lines]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(table: Path) -> Path:
    assert control("identify", "--samples", table, "--out", table.parent).exit_code == 0
    return table.parent / "model.json"


@pytest.fixture
def url(start_memory_node: Callable[..., RunningNode]) -> str:
    """The address of a node whose queue holds enough for a short run."""
    node = start_memory_node()
    with Client.connect(str(node.address("amqp"))) as client:
        client.create_queue(QUEUE)
        client.put_many(QUEUE, ["x"] * MESSAGES)
    return f"amqp://guest:guest@{node.address('amqp')}/"


def live(command: str, url: str, *arguments: object) -> Result:
    return control(command, "--url", url, "--queue", QUEUE, *arguments)


# Identifying from files


def test_identify_finds_the_plant_of_a_table_and_leaves_a_model_and_a_figure(table: Path, tmp_path: Path) -> None:
    result = control("identify", "--samples", table, "--sample-time", "10", "--out", tmp_path / "out")
    plant = read_model((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
    assert plant.a == pytest.approx(0.26, abs=0.03)
    assert plant.b == pytest.approx(59.73, abs=2)
    assert plant.sample_time_s == 10.0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "loop samples, a sample every 10 s"
    assert f"gain {plant.gain:.4g}" in lines
    assert any(re.fullmatch(r"a 0\.2\d+ \(90%: 0\.\d+ to 0\.\d+\)", line) for line in lines)
    assert any(re.fullmatch(r"test R² 0\.9\d+, RMSE [\d.]+, \d+ held-out samples", line) for line in lines)
    assert (tmp_path / "out" / "model.svg").read_text(encoding="utf-8").count("one-step prediction") == 1


def test_identify_reads_the_files_of_loops_and_knows_where_one_run_ends(tmp_path: Path) -> None:
    write_samples(tmp_path / "runs" / "one" / "samples-a-2.parquet", sample_rows("prefetch", 50, count=50))
    write_samples(tmp_path / "runs" / "one" / "samples-a-1.parquet", sample_rows("prefetch", 0, count=50))
    write_samples(tmp_path / "runs" / "two" / "samples-a-1.parquet", sample_rows("prefetch", 100, count=40))
    (series,) = read_series([tmp_path / "runs"], 1.0)
    # The second file goes on from the first; the other folder, whatever its numbers say, is another run.
    assert (len(series.measurements), series.breaks) == (140, [100])
    (told,) = documents(control("identify", tmp_path / "runs", "--out", tmp_path, "--json"))
    assert [plant["loop"] for plant in told["plants"]] == ["prefetch"]
    assert told["plots"] == [str(tmp_path / "model.svg")]


def test_a_gap_in_the_samples_is_not_bridged(tmp_path: Path) -> None:
    rows = sample_rows("prefetch", count=60)
    path = write_samples(tmp_path / "samples-a-1.parquet", rows[:20] + rows[25:])
    (series,) = read_series([path], 1.0)
    assert series.breaks == [20]


def test_identify_makes_a_model_of_each_loop_and_says_which_gave_none(tmp_path: Path) -> None:
    write_samples(tmp_path / "runs" / "samples-a-1.parquet", sample_rows("one"))
    write_samples(tmp_path / "runs" / "samples-b-1.parquet", sample_rows("two", a=0.5))
    write_samples(tmp_path / "runs" / "samples-c-1.parquet", sample_rows("three", count=5))
    result = control("identify", "--samples", tmp_path / "runs", "--out", tmp_path, "--plot", tmp_path / "a.png")
    assert "no model: 4 pairs of samples are too few" in result.stdout
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a-2.png").exists()
    chosen = control("design", tmp_path / "model.json", "--loop", "two", "--out", tmp_path, "--json")
    assert documents(chosen)[0]["plant"]["a"] == pytest.approx(0.5, abs=0.05)
    assert_one_line(control("design", tmp_path / "model.json", "--out", tmp_path), "say which by its loop")
    (told,) = documents(control("identify", tmp_path / "runs", "--loop", "two", "--out", tmp_path, "--json"))
    assert [plant["loop"] for plant in told["plants"]] == ["two"]


def test_identify_finds_a_delay_and_a_higher_order_when_asked(tmp_path: Path) -> None:
    actions = [action for _, action in plant_samples(count=300)]
    late = [0.0, 0.0, 0.0, *(10 * action + 5 for action in actions)]
    lines = [f"{measurement},{action}" for measurement, action in zip(late, actions, strict=False)]
    (tmp_path / "late.csv").write_text("\n".join(["measurement, action", *lines]), encoding="utf-8")
    (told,) = documents(control("identify", tmp_path / "late.csv", "--delay", "auto", "--out", tmp_path, "--json"))
    assert (told["plants"][0]["delay"], told["plants"][0]["gain"]) == (2, pytest.approx(10, rel=0.01))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("action\n1\n", "has no column 'measurement': the first line must name measurement and action"),
        ("measurement,action\n1,2\n1,x\n", "line 3: invalid number 'x'"),
        ("measurement,action\n1\n", "line 2: invalid number ''"),
        ("measurement,action\n1,inf\n", "line 2: invalid number 'inf'"),
        ("measurement,action\n", "no samples in the files"),
        ("measurement,action\n1,2\n2,3\n", "1 pairs of samples are too few, 30 are needed"),
        ("measurement,action\n" + "5,2\n" * 50, "the measurement never changed"),
    ],
)
def test_a_table_that_says_nothing_is_one_line(tmp_path: Path, content: str, told: str) -> None:
    (tmp_path / "bad.csv").write_text(content, encoding="utf-8")
    assert_one_line(control("identify", tmp_path / "bad.csv", "--out", tmp_path), told)
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "no samples given: use --samples for recorded ones, or --queue to record some"),
        (["--samples", "no", "--queue", "orders"], 2, "use --samples or --queue, not both"),
        (["--samples", "no"], 1, "no such file or folder: no"),
        (["--samples", "TABLE", "--delay", "some"], 2, "invalid --delay some: use a number of samples, or auto"),
        (["--samples", "TABLE", "--loop", "x"], 1, "no samples of loop 'x'; available: samples"),
        (["--samples", "TABLE", "--plot", "a.gif"], 1, "unsupported figure format a.gif: use .svg or .png"),
        (["--samples", "EMPTY"], 1, "no samples-*.parquet in "),
        (["--samples", "TEXT"], 1, "cannot read Parquet file"),
        (["--samples", "CALLS"], 1, "has no samples of a loop: missing column loop, at_us"),
        (["--samples", "TABLE", "--out", "TABLE"], 1, "samples.csv: File exists"),
        (
            ["--queue", "orders", "--handler-ms", "1", "--count", "20"],
            2,
            "--count 20 is too low: this model needs at least 36",
        ),
        (["--queue", "orders"], 2, "use --handler MODULE:FUNCTION, or --handler-ms 1"),
        (
            ["--queue", "orders", "--handler-ms", "1", "--lowest", "3", "--highest", "2"],
            1,
            "the lowest must be below",
        ),
    ],
)
def test_a_mistake_in_identify_is_one_line(
    table: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    places = {"TABLE": table, "EMPTY": tmp_path / "empty", "TEXT": tmp_path / "text.parquet"}
    places["EMPTY"].mkdir()
    places["TEXT"].write_text("no", encoding="utf-8")
    places["CALLS"] = write_samples(tmp_path / "calls.parquet", [{"action": 1.0}]).rename(tmp_path / "c.parquet")
    if "CALLS" in arguments:
        _drop_columns(places["CALLS"])
    result = control("identify", "--out", tmp_path, *[places.get(argument, argument) for argument in arguments])
    assert_one_line(result, told, code)


def _drop_columns(path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pq.read_table(path).select(["action", "measurement"]), path)


# Designing


@pytest.mark.parametrize(
    ("arguments", "law"),
    [
        ([], {"kind": "pi", "kp": 0.00087, "ki": 0.00248}),
        (["--pole", "0.5"], {"kind": "pi", "kp": 0.00218, "ki": 0.00619}),
        (["--law", "pi"], {"kind": "pi", "kp": 0.00097, "ki": 0.01017}),
        (["--law", "pi", "--settling-samples", "8"], {"kind": "pi", "kp": -0.00181, "ki": 0.00532}),
        (["--law", "pi", "--settling-samples", "6"], {"kind": "pi", "kp": -0.00006, "ki": 0.008}),
        (["--law", "pi", "--poles", "0.5+0.332i,0.5-0.332i"], {"kind": "pi", "kp": -0.00167, "ki": 0.00603}),
        (["--law", "pi", "--pole", "0.6"], {"kind": "pi", "kp": -0.00167, "ki": 0.00268}),
        (
            ["--law", "pid", "--poles", "0.501+0.338i,0.501-0.338i,-0.301"],
            {"kind": "pid", "kp": -0.000385, "ki": 0.007919, "kd": 0.0018417},
        ),
        (["--law", "p"], {"kind": "p", "kp": 0.00938}),
        (["--law", "p", "--pole", "0.5"], {"kind": "p", "kp": -0.00402}),
        (["--law", "i"], {"kind": "i", "ki": 0.00226}),
        (["--law", "pi", "--gains", "kp=-0.0016, ki=0.006"], {"kind": "pi", "kp": -0.0016, "ki": 0.006}),
        (["--law", "scheduled", "--pole", "0.7"], {"kind": "scheduled", "pole": 0.7}),
        (["--law", "multiplicative", "--exponent", "0.3"], {"kind": "multiplicative", "exponent": 0.3}),
        (["--law", "multiplicative"], law_to_json(Multiplicative())),
        (["--law", "self_tuning"], law_to_json(SelfTuning())),
        (["--law", "self_tuning", "--pole", "0.8"], {"kind": "self_tuning", "pole": 0.8}),
    ],
)
def test_design_finds_the_gains_of_the_law_that_is_asked_for(
    model: Path, tmp_path: Path, arguments: list[str], law: Row
) -> None:
    result = control("design", model, "--out", tmp_path, "--setpoint", "400", *arguments)
    assert result.exit_code == 0
    found = json.loads((tmp_path / "design.json").read_text(encoding="utf-8"))
    assert (found["setpoint"], found["limits"]) == (400.0, {"lowest": 1.0, "highest": 360.0})
    assert found["certificate"]["is_sound"]
    for name, value in law.items():
        # The model differs a little from the plant.
        assert found["law"][name] == (value if name == "kind" else pytest.approx(value, abs=4e-4, rel=0.05)), name
    assert "certificate   sound\n" in result.stdout
    assert "poles</text>" in re.sub(r">\s*poles", ">poles", (tmp_path / "design.svg").read_text(encoding="utf-8"))


def test_a_forced_design_says_so_and_exits_with_0(model: Path, tmp_path: Path) -> None:
    result = control("design", model, "--law", "p", "--gains", "kp=0.0205", "--out", tmp_path, "--force")
    assert result.exit_code == 0
    assert "certificate   NOT SOUND, forced\n" in result.stdout
    assert "forced: loops start although the certificate is not sound: it is unstable" in result.stderr
    certificate = read_design((tmp_path / "design.json").read_text(encoding="utf-8")).certificate
    assert certificate is not None
    assert certificate.is_forced
    assert certificate.may_start


def test_a_design_repeats_what_speaks_against_its_model(model: Path, tmp_path: Path) -> None:
    document = json.loads(model.read_text(encoding="utf-8"))
    for plant in document["plants"]:
        del plant["diagnostics"]
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(document), encoding="utf-8")
    result = control("design", earlier, "--out", tmp_path)
    assert "certificate   NOT SOUND\n" in result.stdout
    assert "  model: diagnostics missing" in result.stdout
    assert_one_line(result, "the certificate refuses this pi law, so no loop starts with it: diagnostics missing")


def test_a_law_without_model_is_designed_without_one(tmp_path: Path) -> None:
    result = control("design", "--law", "multiplicative", "--out", tmp_path, "--limits", "2", "50")
    assert "plant         every concave curve through the origin\n" in result.stdout
    design = read_design((tmp_path / "design.json").read_text(encoding="utf-8"))
    assert (design.plant, design.limits.highest, design.sample_time_s) == (None, 50.0, 1.0)


def test_uncertified_design_is_written_with_exit_code_1(model: Path, tmp_path: Path) -> None:
    result = control("design", model, "--law", "p", "--gains", "kp=0.0205", "--out", tmp_path)
    assert "certificate   NOT SOUND\n" in result.stdout
    assert_one_line(result, "the certificate refuses this p law, so no loop starts with it: ")
    assert (tmp_path / "design.svg").exists()
    (told,) = documents(control("design", model, "--law", "p", "--gains", "kp=0.0205", "--out", tmp_path, "--json"))
    assert not told["certificate"]["is_sound"]
    goal = ["--rate", "400", "--handler-ms", "1"]
    refused = control("run", "--queue", QUEUE, "--design", tmp_path / "design.json", *goal)
    assert_one_line(refused, "the loop does not start with the p law: ")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["no.json"], 1, "no.json: No such file or directory"),
        (["TABLE"], 1, "samples.csv: the model is not JSON"),
        ([], 2, "a lambda_pi law needs a model: use MODEL.json, or --law multiplicative or self_tuning"),
        (["MODEL", "--law", "pi", "--poles", "a,b"], 2, "invalid --poles a,b: use numbers such as 0.5+0.3i,0.5-0.3i"),
        (["MODEL", "--law", "pi", "--poles", "0.5"], 2, "--poles 0.5: this law has 2 poles, not 1"),
        (["MODEL", "--law", "pi", "--poles", "0.5,1.5"], 1, "inside the unit circle; 1.5 is not"),
        (["MODEL", "--pole", "1.5"], 1, "from 0 to below 1, not 1.5"),
        (["MODEL", "--gains", "kp"], 2, "invalid --gains kp: use NAME=VALUE pairs, as in kp=0.002,ki=0.006"),
        (["MODEL", "--gains", "kp=1"], 1, "pi: ki is missing"),
        (["MODEL", "--limits", "5", "1"], 1, "limits must be two numbers in order"),
        (["MODEL", "--limits", "-5", "1"], 2, "invalid --limits -5 1: the lower bound must be at least 0"),
        (["MODEL", "--setpoint", "-400"], 2, "invalid --setpoint -400: use a value above 0"),
        (["MODEL", "--setpoint", "nan"], 2, "invalid --setpoint nan: use a value above 0"),
        (
            ["MODEL", "--exponent", "1", "--poles", "0.5"],
            2,
            "--exponent, --poles does not apply to",
        ),
        (["MODEL", "--law", "multiplicative", "--pole", "0.9"], 2, "--pole does not apply"),
        (["MODEL", "--gains", "kp=1,ki=1", "--pole", "0.9"], 2, "--gains excludes --pole"),
        (
            ["MODEL", "--law", "pi", "--pole", "0.5", "--overshoot", "0.1"],
            2,
            "pi: use only one of --pole, --poles, or --settl",
        ),
        (["TEXT"], 1, 'this is not a model of a plant: it must have "kind": "plant"; make one with'),
        (["MODEL", "--loop", "x"], 1, "the model has no such plant; it has 'samples' at 1.0 s"),
        (["MODEL", "--sample-time", "5"], 1, "the model has no such plant"),
        (["MODEL", "--plot", "x.pdf"], 1, "unsupported figure format x.pdf: use .svg or .png"),
    ],
)
def test_a_mistake_in_design_is_one_line(
    model: Path, table: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    places = {"MODEL": model, "TABLE": table, "TEXT": tmp_path / "text.json"}
    places["TEXT"].write_text("[]", encoding="utf-8")
    result = control("design", "--out", tmp_path, *[places.get(argument, argument) for argument in arguments])
    assert_one_line(result, told, code)


def test_a_goal_where_the_plant_was_not_seen_is_told(model: Path, tmp_path: Path) -> None:
    result = control("design", model, "--setpoint", "4000", "--out", tmp_path)
    assert_one_line(result, "the setpoint 4000 is outside the range that the model was identified from", code=0)
    assert "certificate   sound\n" in result.stdout


# Simulating


def test_simulate_puts_laws_and_designs_side_by_side(model: Path, tmp_path: Path) -> None:
    control("design", model, "--law", "pi", "--settling-samples", "8", "--out", tmp_path)
    laws = [
        "--law",
        "lambda_pi",
        "--law",
        "multiplicative",
        "--law",
        "scheduled",
        "--design",
        tmp_path / "design.json",
    ]
    result = control(
        "simulate", "--plant", "little:1250,3.34", *laws, "--setpoint", 400, "--steps", 400, "--out", tmp_path
    )
    heading, *rows, plot = result.stdout.splitlines()
    assert heading.split()[:3] == ["law", "mean", "std"]
    assert [row.split()[0] for row in rows] == ["lambda_pi", "multiplicative", "scheduled", "design:"]
    for row in rows:
        mean, std = map(float, row.removeprefix("design:").split()[1:3])
        # Fractions of a window leave little but the noise of 5 %.
        assert mean == pytest.approx(400, rel=0.02), row
        assert std == pytest.approx(22, abs=7), row
    assert plot == f"plot: {tmp_path / 'simulate.svg'}"
    drawn = (tmp_path / "simulate.svg").read_text(encoding="utf-8")
    assert [name in drawn for name in ("lambda_pi", "scheduled", "design: pi")] == [True] * 3


def test_designs_of_the_same_name_are_told_apart_by_their_folders(model: Path, tmp_path: Path) -> None:
    designs = []
    for law in ("multiplicative", "self_tuning"):
        assert control("design", "--law", law, "--out", tmp_path / law).exit_code == 0
        designs += ["--design", tmp_path / law / "design.json"]
    (told,) = documents(control("simulate", model, *designs, "--out", tmp_path, "--json"))
    assert [loop["law"] for loop in told["loops"]] == [
        f"{tmp_path / law / 'design.json'}: {law}" for law in ("multiplicative", "self_tuning")
    ]


def test_a_choice_goes_to_the_laws_that_have_it(model: Path, tmp_path: Path) -> None:
    laws = ["--law", "lambda_pi", "--law", "multiplicative", "--pole", "0.5", "--exponent", "0.3"]
    result = control("simulate", model, *laws, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "exponent 0.3" in result.stdout
    # 2 % settling in ln 0.02 / ln 0.5 samples.
    assert int(result.stdout.splitlines()[1].split()[3]) <= 5


def test_whole_actions_hop_around_the_setpoint(tmp_path: Path) -> None:
    arguments = ["--plant", "little:1250,3.34", "--setpoint", 400, "--steps", 2000, "--out", tmp_path, "--json"]
    (told,) = documents(control("simulate", *arguments, "--quantise"))
    assert told["loops"][0]["std"] == pytest.approx(90, abs=5)
    (again,) = documents(control("simulate", *arguments, "--quantise"))
    assert again == told
    (other,) = documents(control("simulate", *arguments, "--quantise", "--seed", "2"))
    assert other["loops"] != told["loops"]


def test_simulate_takes_the_setpoint_from_the_model_or_the_design(model: Path, tmp_path: Path) -> None:
    plant = read_model(model.read_text(encoding="utf-8"))
    assert plant.operating_point is not None
    (told,) = documents(control("simulate", model, "--out", tmp_path, "--json"))
    assert told["setpoint"] == plant.operating_point.measurement
    assert told["loops"][0]["mean"] == pytest.approx(told["setpoint"], rel=0.03)
    control("design", model, "--setpoint", "300", "--out", tmp_path)
    design = ["--design", tmp_path / "design.json"]
    (told,) = documents(control("simulate", "--plant", "linear:0.26,59.73", *design, "--out", tmp_path, "--json"))
    assert (told["setpoint"], told["loops"][0]["law"]) == (300.0, "design: pi")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "use either a model.json or --plant"),
        (["MODEL", "--plant", "linear:1,2"], 2, "use either a model.json or --plant"),
        (["--plant", "linear:0.26,59.73"], 2, "missing --setpoint"),
        (["--plant", "cubic:1,2", "--setpoint", "1"], 2, "use little:A,B or linear:A,B"),
        (["--plant", "little:1250", "--setpoint", "1"], 2, "use two numbers, as in little:1250,3.34"),
        (["--plant", "little:1250,3", "--setpoint", "1300"], 1, "less than 1250"),
        (["--plant", "linear:1.5,2", "--setpoint", "1"], 1, "lambda_pi: lambda tuning cancels a stable pole"),
        (["MODEL", "--design", "no.json"], 1, "no.json: No such file or directory"),
        (["MODEL", "--design", "MODEL"], 1, "model.json: this is not a design"),
        (["MODEL", "--setpoint", "-1"], 1, "a setpoint above 0, not -1"),
        (["MODEL", "--noise", "inf"], 2, "--noise and --start must be finite"),
        (["MODEL", "--start", "nan"], 2, "--noise and --start must be finite"),
        (["MODEL", "--law", "pi", "--exponent", "0.5"], 2, "--exponent does not apply to pi"),
    ],
)
def test_a_mistake_in_simulate_is_one_line(
    model: Path, tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    result = control("simulate", "--out", tmp_path, *[model if word == "MODEL" else word for word in arguments])
    assert_one_line(result, told, code)


# On a node


def test_the_chain_from_a_queue_to_a_loop_that_holds_its_rate(url: str, tmp_path: Path) -> None:
    signal_flags = ["--lowest", 1, "--highest", 6, "--count", 45, "--sample-time", 0.125]
    made = live("identify", url, *signal_flags, "--handler-ms", 25, "--out", tmp_path, "--quiet")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith(f"samples: {tmp_path / 'samples'}\nloop {QUEUE}, a sample every 0.125 s\n")
    plant = read_model((tmp_path / "model.json").read_text(encoding="utf-8"))
    # By Little's law a window of one is a message every 25 ms, and a bit.
    assert plant.gain == pytest.approx(37, rel=0.5)
    designed = control("design", tmp_path / "model.json", "--setpoint", 120, "--limits", 1, 20, "--out", tmp_path)
    assert designed.exit_code == 0, designed.stderr
    flags = ["--design", tmp_path / "design.json", "--handler-ms", 25, "--seconds", 4, "--json"]
    *samples, told = documents(live("run", url, *flags, "--samples", tmp_path / "run", "--out", tmp_path))
    assert len(samples) == told["samples"] >= 10
    assert {sample["setpoint"] for sample in samples} == {120.0}
    assert all(1 <= sample["action"] <= 20 for sample in samples)
    assert told["mean"] == pytest.approx(120, rel=0.4)
    assert "messages/s" in (tmp_path / "run.svg").read_text(encoding="utf-8")
    # What the loop has recorded can be identified from, too: it is read, whatever it says.
    (series,) = read_series([tmp_path / "run"], 1.0)
    assert series.actions == [sample["action"] for sample in samples]


def test_a_rate_needs_no_model(url: str, tmp_path: Path) -> None:
    flags = ["--rate", 50, "--handler-ms", 1, "--sample-time", 0.2, "--seconds", 2]
    result = live("run", url, *flags, "--out", tmp_path)
    lines = result.stdout.splitlines()
    assert re.fullmatch(SAMPLE + r"[\d.]+ messages/s, setpoint 50, action [\d.]+", lines[0])
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith(("goal", "mean")))
    assert shown["goal"] == "50 messages/s"
    assert float(shown["mean"].split()[0]) == pytest.approx(50, rel=0.3)
    assert lines[-1] == f"plot: {tmp_path / 'run.svg'}"


def test_rabbitmq_is_a_broker_like_any_other(rabbitmq_node: Broker, tmp_path: Path) -> None:
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(rabbitmq_node.url()))) as connection:
        channel = connection.channel()
        channel.queue_declare("control")
        for _ in range(2_000):
            channel.basic_publish("", "control", b"x")
        flags = ["--rate", 60, "--handler-ms", 30, "--actuator", "fractional", "--sample-time", 0.2, "--seconds", 3]
        result = control(
            "run", "--url", rabbitmq_node.url(), "--queue", "control", *flags, "--out", tmp_path, "--json"
        )
        *samples, told = documents(result)
        channel.queue_delete("control")
    # A window of about two: 30 ms and a bit for each message.
    assert 1.5 < samples[-1]["action"] < 6
    assert told["mean"] == pytest.approx(60, rel=0.3)


@pytest.mark.parametrize(
    ("goal", "unit"), [(["--latency-ms", "20"], "ms"), (["--fast"], "messages waiting")], ids=["latency", "fast"]
)
def test_other_goals_are_shown_in_their_units(url: str, tmp_path: Path, goal: list[str], unit: str) -> None:
    flags = ["--handler-ms", 2, "--concurrency", 2, "--sample-time", 0.1, "--seconds", 1.5, "--quiet"]
    result = live("run", url, *goal, *flags, "--out", tmp_path, "--plot", tmp_path / "run.png")
    goal_line = next(line for line in result.stdout.splitlines() if line.startswith("goal"))
    assert goal_line.endswith(f" {unit}")
    assert (tmp_path / "run.png").exists()


def test_a_shadow_shows_what_it_would_do_and_does_nothing(url: str, tmp_path: Path) -> None:
    flags = ["--rate", 5000, "--actuator", "window", "--handler-ms", 10, "--sample-time", 0.1, "--seconds", 1]
    *samples, _ = documents(live("run", url, *flags, "--shadow", "--out", tmp_path, "--json"))
    assert samples[-1]["action"] > 2
    # With a window of one there is never more than one message every 10 ms, and one more between two samples, even if
    # these are as near to each other as they may be.
    assert max(sample["measurement"] for sample in samples) <= 100 + 1 / LEAST_S


def test_a_handler_of_ones_own_gets_each_message(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_handlers.py").write_text(
        "seen = []\nasync def handle(message):\n    seen.append(message.body)\n"
        "async def fail(message):\n    raise ValueError('no\\ngood')\n"
        "def plain(message):\n    pass\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    flags = ["--rate", 50, "--sample-time", 0.1, "--seconds", 1, "--out", tmp_path]
    assert live("run", url, *flags, "--handler", "own_handlers:handle").exit_code == 0
    # Unless the rate is held it is thousands.
    assert 10 < len(sys.modules["own_handlers"].seen) < 500
    assert set(sys.modules["own_handlers"].seen) == {b"x"}
    failing = live("run", url, *flags, "--handler", "own_handlers:fail")
    assert "warning: the handler failed" in failing.stdout
    assert_one_line(failing, "message requeued", 0)
    for name, told in (
        ("own_handlers:plain", "must be an `async def` that takes a message"),
        ("own_handlers:no", "own_handlers has no function no"),
        ("no_such_module:x", "cannot import 'no_such_module' (No module named 'no_such_module'): check PYTHONPATH"),
    ):
        assert_one_line(live("run", url, *flags, "--handler", name), told)
    assert_one_line(live("run", url, *flags, "--handler", "x"), "invalid --handler x: use MODULE:FUNCTION", 2)
    assert_one_line(
        live("run", url, *flags, "--handler", "x:y", "--handler-ms", 1), "no handler given: use --handler", 2
    )


def test_an_object_that_can_be_awaited_is_a_handler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = "".join(f"    async def {name}(self, message): ...\n" for name in ("__call__", "take"))
    (tmp_path / "own_shop.py").write_text(f"class Shop:\n{methods}shop = Shop()\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert callable(handler_of("own_shop:shop", None))
    assert callable(handler_of("own_shop:shop.take", None))


def test_an_empty_queue_is_told_since_it_teaches_nothing(
    start_memory_node: Callable[..., RunningNode], tmp_path: Path
) -> None:
    node = start_memory_node()
    with Client.connect(str(node.address("amqp"))) as client:
        client.create_queue(QUEUE)
    flags = ["--handler-ms", 1, "--sample-time", 0.02, "--count", 40, "--signal", "prbs", "--out", tmp_path]
    result = live("identify", f"amqp://guest:guest@{node.address('amqp')}/", *flags, "--quiet")
    first, second = result.stderr.splitlines()
    assert first.startswith("flyball: the queue ran empty: ")
    assert (
        second == "flyball: the measurement never changed: let the action change at random around the operating point"
    )
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 2, "no goal given: use --rate, --latency-ms or --fast, or a --design with a setpoint"),
        (["--rate", "4", "--fast"], 2, "use only one of --rate, --latency-ms and --fast"),
        (["--fast"], 2, "--fast needs --concurrency"),
        (["--rate", "0"], 1, "invalid rate 0.0: use a number of messages per second above 0"),
        (["--rate", "4", "--url", "http://u:secret@h/"], 1, "invalid --url http://h/: must start with amqp://"),
        (["--rate", "4", "--url", "amqp://u:secret@127.0.0.1:1/"], 1, "no connection to 127.0.0.1:1/: Connect"),
        (["--rate", "4", "--design", "no.json"], 1, "no.json: No such file or directory"),
        (["--rate", "4", "--plot", "run.txt"], 1, "unsupported figure format run.txt: use .svg or .png"),
        (["--latency-ms", "5", "--actuator", "pacer"], 1, "a pacer needs a Rate goal"),
        (["--design", "DESIGN", "--rate", "4", "--sample-time", "2"], 2, "--sample-time 2: the design needs 1 s"),
    ],
)
def test_a_mistake_in_run_is_one_line_and_shows_no_password(
    tmp_path: Path, arguments: list[str], code: int, told: str
) -> None:
    control("design", "--law", "multiplicative", "--out", tmp_path)
    arguments = [str(tmp_path / "design.json") if word == "DESIGN" else word for word in arguments]
    result = control("run", "--queue", QUEUE, "--handler-ms", 1, "--out", tmp_path, *arguments)
    assert_one_line(result, told, code)
    assert "secret" not in result.output


def test_what_a_broker_refuses_is_one_line_without_the_password(url: str, tmp_path: Path) -> None:
    flags = ["--rate", 4, "--handler-ms", 1, "--out", tmp_path]
    assert_one_line(control("run", "--url", url, "--queue", "no", *flags), "queue 'no' of 127.0.0.1:")
    refused = live("run", url.replace("guest:guest", "guest:secret"), *flags)
    assert_one_line(refused, "ACCESS_REFUSED")
    assert "secret" not in refused.output
    assert refused.stderr.endswith("Check --url and --queue.\n")


@pytest.mark.parametrize("command", [["run", "--rate", 4, "--seconds", 2], ["identify"]])
def test_a_figure_that_cannot_be_written_is_told_before_messages_are_consumed(
    table: Path, tmp_path: Path, command: list[object]
) -> None:
    # Nothing listens there: a command that tried to connect would complain of that.
    flags = [*command, "--url", "amqp://127.0.0.1:1/", "--queue", QUEUE, "--handler-ms", 1]
    (tmp_path / "folder.svg").mkdir()
    result = control(*flags, "--plot", tmp_path / "folder.svg", "--out", tmp_path)
    assert_one_line(result, "folder.svg is a folder, not a file")
    assert_one_line(control(*flags, "--out", table), f"{table.name}: File exists")
    assert_one_line(control(*flags, "--plot", "/proc/run.svg"), "cannot write to /proc: ")


def test_too_short_a_run_has_no_figures(tmp_path: Path) -> None:
    flags = ["--queue", QUEUE, "--rate", 4, "--handler-ms", 1, "--sample-time", 0.2, "--out", tmp_path]
    result = control("run", *flags, "--seconds", 0.3)
    assert_one_line(result, "--seconds 0.3 is too short: figures need 2 samples, one every 0.2 s", code=2)


def test_a_reader_that_has_enough_is_no_error(url: str, tmp_path: Path) -> None:
    flags = ["run", "--url", url, "--queue", QUEUE, "--rate", "100", "--handler-ms", "1", "--sample-time", "0.05"]
    with subprocess.Popen(
        [sys.executable, "-m", "flyball", "control", *flags, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUIET},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(timeout=60)) == ("", 1)


def test_addresses_are_shown_without_user_and_password() -> None:
    assert shown_url("amqp://user:pass@host:5672/shop") == "amqp://host:5672/shop"
    assert shown_url("amqp://host/") == "amqp://host/"
    assert without_password("cannot reach amqp://user:p@ss@host/ now") == "cannot reach amqp://host/ now"


# Ctrl-C, packages, speed


def interrupted(arguments: list[object], after: int = 3) -> tuple[int, str, str]:
    """Run a command, press Ctrl-C after this number of samples, and return how it ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flyball", "control", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **QUIET},
    )
    with process:
        assert process.stdout is not None
        printed = []
        for text in process.stdout:
            printed.append(text)
            if sum(re.match(SAMPLE, one) is not None for one in printed) == after:
                process.send_signal(signal.SIGINT)
                break
        out, complaints = process.communicate(timeout=60)
    return process.returncode, "".join(printed) + out, complaints


def test_ctrl_c_is_how_a_run_ends(url: str, tmp_path: Path) -> None:
    flags = ["run", "--url", url, "--queue", QUEUE, "--rate", 100, "--handler-ms", 1, "--sample-time", 0.05]
    code, out, complaints = interrupted([*flags, "--out", tmp_path, "--samples", tmp_path / "kept"])
    assert (code, complaints) == (0, "")
    assert "mean " in out
    assert (tmp_path / "run.svg").exists()
    assert len(read_series([tmp_path / "kept"], 1.0)[0].measurements) >= 2
    code, out, complaints = interrupted([*flags, "--out", tmp_path, "--seconds", 60])
    assert (code, complaints) == (130, "flyball: interrupted: the figures cover the time until then\n")
    assert "mean " in out


def test_ctrl_c_keeps_the_samples_that_were_made(url: str, tmp_path: Path) -> None:
    flags = ["identify", "--url", url, "--queue", QUEUE, "--handler-ms", 1, "--sample-time", 0.05]
    code, _, complaints = interrupted([*flags, "--out", tmp_path])
    place = tmp_path / "samples"
    said = re.fullmatch(
        r"flyball: interrupted: (\d+) samples are kept in (\S+); use them with `flyball .*`\n", complaints
    )
    assert said is not None, complaints
    assert (code, said[2]) == (130, str(place))
    assert len(read_series([place], 1.0)[0].measurements) == int(said[1])


def test_ctrl_c_does_not_wait_for_a_broker_that_says_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"amqp://guest:guest@127.0.0.1:{mute.getsockname()[1]}/"
        flags = ["--queue", QUEUE, "--rate", "1", "--handler-ms", "1", "--out", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, "-m", "flyball", "control", "run", "--url", url, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with process:
            connection, _ = mute.accept()
            with connection:
                # It has sent its greeting, so it is waiting for ours.
                connection.recv(8)
                process.send_signal(signal.SIGINT)
                out, complaints = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert complaints == "flyball: interrupted before it was connected\n"


def test_on_a_terminal_one_line_changes_and_the_figures_stand_alone(url: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    flags = ["--queue", QUEUE, "--rate", "100", "--handler-ms", "1", "--sample-time", "0.1", "--seconds", "1.5"]
    done = subprocess.run(
        [sys.executable, "-m", "flyball", "control", "run", "--url", url, *flags, "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        timeout=60,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "messages/s, setpoint 100, action" in shown
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "goal",
        "mean",
        "standard",
        "settled",
        "overshoot",
        "plot:",
    ]


def test_samples_that_a_disk_does_not_take_are_told(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(files: TraceFiles, batch: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TraceFiles, "write", no_room)
    flags = ["--rate", 100, "--handler-ms", 1, "--sample-time", 0.1, "--seconds", 1, "--quiet", "--out", tmp_path]
    result = live("run", url, *flags, "--samples", tmp_path / "kept")
    assert_one_line(result, f" samples were not written to {tmp_path / 'kept'}", 0)


@pytest.mark.parametrize("package", ["matplotlib", "control", "scipy"])
def test_without_its_packages_control_says_what_to_install(table: Path, package: str) -> None:
    lacking = f"import sys; sys.modules[{package!r}] = None; from flyball.cli.main import app; app()"
    command = ["design", "--law", "multiplicative"] if package == "control" else ["identify", "--samples", str(table)]
    done = subprocess.run(
        [sys.executable, "-c", lacking, "control", *command], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "flyball: `flyball control` needs additional packages: pip install 'flyball[control]'\n"


def test_help_imports_nothing_that_takes_long() -> None:
    heavy = {"numpy", "scipy", "matplotlib", "control", "aio_pika", "pyarrow"}
    script = f"import sys, flyball.cli.main; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
