"""`flyball control`: the commands and their flags. `control_commands` does the work and is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.control_commands.failures import reporting_errors
from flyball.cli.control_commands.requests import (
    ActuatorName,
    Excitation,
    Files,
    Fit,
    LawName,
    SignalName,
    Source,
    Trial,
    Tuning,
    WantedGoal,
)
from flyball.cli.session import AsJson

app = typer.Typer(name="control", help="Identify plants, design controllers and run them.", no_args_is_help=True)

HERE = Path()
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"
DEFAULT_LIMITS = (1.0, 360.0)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Output folder.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="File for the figure, .svg or .png; default: in DIR.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not print samples.")]
Loop = Annotated[
    str | None,
    typer.Option(
        "--loop", metavar="NAME", help="Name of the loop, if there are several; BROKER/NAME for loops of a model."
    ),
]
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="FLYBALL_AMQP_URL", metavar="URL", help="Broker, as amqp://USER:PASSWORD@HOST/VHOST."
    ),
]
Handler = Annotated[
    str | None,
    typer.Option("--handler", metavar="MODULE:FUNCTION", help="Async function that is called with each message."),
]
HandlerMs = Annotated[
    float | None,
    typer.Option("--handler-ms", min=0.0, help="Simulate a handler that takes this long, then ack."),
]
Actuator = Annotated[
    ActuatorName | None,
    typer.Option("--actuator", help="Actuator: a pause before each ack, or the prefetch count."),
]
SampleTime = Annotated[float, typer.Option("--sample-time", min=0.01, metavar="SECONDS", help="Sample time.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", min=1, help="Maximum number of concurrent handlers; default: no limit.")
]
Pole = Annotated[
    float | None,
    typer.Option(
        "--pole",
        help="Closed-loop pole: 0 is fast, close to 1 is slow and smooth; default: 0.8; p: -0.3; self_tuning: 0.5.",
    ),
]
Poles = Annotated[
    str | None,
    typer.Option("--poles", metavar="P,P...", help="All closed-loop poles of p, pi or pid, as in 0.5+0.3i,0.5-0.3i."),
]
Settling = Annotated[
    float | None,
    typer.Option(
        "--settling-samples", help="Settling time of pi and pid in samples, if no poles are given.  [default: 5]"
    ),
]
Overshoot = Annotated[
    float | None,
    typer.Option("--overshoot", help="Maximum overshoot of pi and pid, as a fraction of the step.  [default: 0.05]"),
]
Exponent = Annotated[
    float | None,
    typer.Option("--exponent", help="Exponent of the multiplicative law, which sets its speed; default: 0.5."),
]
Limits = Annotated[
    tuple[float, float],
    typer.Option("--limits", metavar="LOWEST HIGHEST", help="Lower and upper bound of the control action."),
]
Seed = Annotated[int, typer.Option("--seed", help="Random seed, for reproducible runs.")]


@app.command()
def identify(
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR|FILE", help="More samples, as for --samples.")
    ] = None,
    samples: Annotated[
        list[Path] | None,
        typer.Option(
            "--samples", metavar="DIR|FILE", help="Folder with samples-*.parquet, or a Parquet or CSV file."
        ),
    ] = None,
    url: Url = DEFAULT_URL,
    queue: Annotated[str | None, typer.Option("--queue", help="Queue to consume while samples are taken.")] = None,
    signal: Annotated[
        SignalName, typer.Option("--signal", help="Test signal of the control action.")
    ] = SignalName.RANDOM,
    lowest: Annotated[float, typer.Option("--lowest", help="Lower bound of the control action.")] = 1.0,
    highest: Annotated[float, typer.Option("--highest", help="Upper bound of the control action.")] = 10.0,
    count: Annotated[
        int, typer.Option("--count", min=2, help="Number of samples to take, one per --sample-time.")
    ] = 80,
    hold: Annotated[int, typer.Option("--hold", min=1, help="Samples for which each action is held.")] = 1,
    seed: Seed = 1,
    sample_time: SampleTime = 1.0,
    handler: Handler = None,
    handler_ms: HandlerMs = None,
    concurrency: Concurrency = None,
    actuator: Actuator = None,
    delay: Annotated[
        str, typer.Option("--delay", metavar="N|auto", help="Dead time of the plant, in samples; auto finds 0 to 5.")
    ] = "auto",
    order: Annotated[
        str,
        typer.Option(
            "--order", metavar="N|auto", help="Order of the model: number of past samples it uses; auto finds 1 to 3."
        ),
    ] = "auto",
    loop: Loop = None,
    out: Out = HERE,
    plot: Plot = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Identify a plant: DIR/model.json and DIR/model.svg.

    Uses the recorded samples of a loop or, with --queue, consumes a queue while the prefetch count (or rate) follows
    the test signal; the samples are kept in DIR. Consumed messages are acked, so they are removed from the queue.

    A CSV file has the columns measurement and action, and one line per --sample-time.

    Example: flyball control identify --queue orders --handler-ms 1 --lowest 1 --highest 10
    """
    with reporting_errors():
        from flyball.cli.control_commands import identification

        identification.identify(
            [*(samples or []), *(more or [])],
            None if queue is None else Source(url, queue, handler, handler_ms, concurrency, actuator),
            Excitation(signal, lowest, highest, count, hold, seed),
            sample_time,
            Fit(delay, order, loop),
            Files(out, plot, quiet),
            as_json,
        )


@app.command()
def design(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL.json", help="Model from `identify`; some control laws need none.")
    ] = None,
    law: Annotated[LawName, typer.Option("--law", help="Control law.")] = LawName.LAMBDA_PI,
    pole: Pole = None,
    poles: Poles = None,
    settling_samples: Settling = None,
    overshoot: Overshoot = None,
    exponent: Exponent = None,
    gains: Annotated[
        str | None,
        typer.Option(
            "--gains",
            metavar="NAME=NUMBER,...",
            help="Gains to certify instead of designing them, as in kp=0.002,ki=0.006.",
        ),
    ] = None,
    limits: Limits = DEFAULT_LIMITS,
    setpoint: Annotated[float | None, typer.Option("--setpoint", help="Setpoint.")] = None,
    sample_time: Annotated[
        float | None,
        typer.Option(
            "--sample-time",
            min=0.01,
            metavar="SECONDS",
            help="Sample time of the plant, or of a design without a model.",
        ),
    ] = None,
    loop: Loop = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Let loops start although the certificate is not sound; every view shows it."),
    ] = False,
    out: Out = HERE,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Design a controller for a model and certify its stability: DIR/design.json and DIR/design.svg.

    The certificate holds for the whole confidence set of the model, and only if the
    model has passed its tests. If it is not sound the exit code is 1: design.json is
    written nevertheless, but no loop starts with it, unless it is made with --force.

    Example: flyball control design model.json --law pi --settling-samples 8 --setpoint 400
    """
    with reporting_errors():
        from flyball.cli.control_commands import controller_design

        tuning = Tuning(pole, poles, settling_samples, overshoot, exponent, gains)
        controller_design.design(
            model, law, tuning, limits, setpoint, sample_time, loop, force, Files(out, plot), as_json
        )


@app.command()
def run(
    queue: Annotated[str, typer.Option("--queue", help="Queue to consume.")],
    url: Url = DEFAULT_URL,
    rate: Annotated[float | None, typer.Option("--rate", help="Setpoint: messages per second.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Setpoint: milliseconds from arrival to ack.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="No setpoint: as fast as the handler can, with few messages buffered.")
    ] = False,
    design_file: Annotated[
        Path | None,
        typer.Option(
            "--design", metavar="FILE", help="Design file (design.json); default: a control law that needs no model."
        ),
    ] = None,
    actuator: Actuator = None,
    handler: Handler = None,
    handler_ms: HandlerMs = None,
    concurrency: Concurrency = None,
    shadow: Annotated[
        bool, typer.Option("--shadow", help="Shadow mode: compute and show actions without applying them.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Duration in seconds; default: until Ctrl-C.")
    ] = None,
    sample_time: Annotated[
        float | None,
        typer.Option("--sample-time", min=0.01, metavar="SECONDS", help="Sample time; default: the design's, or 1."),
    ] = None,
    samples: Annotated[Path | None, typer.Option("--samples", metavar="DIR", help="Folder for the samples.")] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            envvar="FLYBALL_REPORT_URL",
            metavar="URL",
            help="Report the loop to a node's console, as http://USER:PASSWORD@HOST:15672; it can be switched there.",
        ),
    ] = None,
    out: Out = HERE,
    plot: Plot = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Consume a queue with a controlled rate or latency, or as fast as the handler can; plots DIR/run.svg.

    Messages are handled and acked, so they are removed from the queue. Runs until Ctrl-C, or for --seconds.

    Example: flyball control run --queue orders --rate 400 --handler shop.orders:handle
    """
    with reporting_errors():
        from flyball.cli.control_commands import closed_loop

        closed_loop.run(
            Source(url, queue, handler, handler_ms, concurrency, actuator),
            WantedGoal(rate, latency_ms, fast),
            design_file,
            shadow,
            seconds,
            sample_time,
            samples,
            report,
            Files(out, plot, quiet),
            as_json,
        )


@app.command()
def simulate(
    model: Annotated[Path | None, typer.Argument(metavar="MODEL.json", help="Model from `identify`.")] = None,
    plant: Annotated[
        str | None,
        typer.Option(
            "--plant", metavar="KIND:A,B", help="Plant instead of a model: little:1250,3.34 or linear:0.26,59.73."
        ),
    ] = None,
    law: Annotated[
        list[LawName] | None, typer.Option("--law", help="Control law; may be repeated.  [default: lambda_pi]")
    ] = None,
    designs: Annotated[
        list[Path] | None,
        typer.Option("--design", metavar="FILE", help="Design file (design.json); may be repeated."),
    ] = None,
    pole: Pole = None,
    poles: Poles = None,
    settling_samples: Settling = None,
    overshoot: Overshoot = None,
    exponent: Exponent = None,
    limits: Limits = DEFAULT_LIMITS,
    setpoint: Annotated[float | None, typer.Option("--setpoint", help="Setpoint; default: the design's.")] = None,
    start: Annotated[float | None, typer.Option("--start", help="Initial action; default: the lower bound.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="Number of samples.")] = 200,
    noise: Annotated[
        float,
        typer.Option("--noise", min=0.0, help="Standard deviation of the noise, as a fraction of the setpoint."),
    ] = 0.05,
    quantise: Annotated[
        bool, typer.Option("--quantise", help="Round actions to integers, as a prefetch count.")
    ] = False,
    seed: Seed = 1,
    loop: Loop = None,
    out: Out = HERE,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Simulate and compare control laws on a model or a curve: a table, and DIR/simulate.svg.

    Laws that are not given as a design are designed as `flyball control design`
    would. The plant little:MOST,HALF is y = MOST u/(u + HALF), linear:A,B is
    y(k+1) = A y(k) + B u(k).

    Example: flyball control simulate --plant little:1250,3.34 --law pi --law multiplicative --setpoint 400
    """
    with reporting_errors():
        from flyball.cli.control_commands import comparison

        comparison.simulate(
            model,
            plant,
            law or [],
            designs or [],
            Tuning(pole, poles, settling_samples, overshoot, exponent),
            Trial(setpoint, limits, steps, noise, quantise, seed, start),
            loop,
            Files(out, plot),
            as_json,
        )
