"""`flyball control`: the commands and their flags. What they do is in `governor`, which takes long to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flyball.cli.governor.requests import (
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
from flyball.cli.governor.telling import errors_told
from flyball.cli.session import AsJson

app = typer.Typer(
    name="control", help="Identify plants, design control laws, and hold rates with them.", no_args_is_help=True
)

HERE = Path()
DEFAULT_URL = "amqp://guest:guest@127.0.0.1:5672/"
DEFAULT_LIMITS = (1.0, 360.0)

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for what is written.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="File for the figure: .svg or .png; else in DIR.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not show samples as they come.")]
Loop = Annotated[
    str | None,
    typer.Option("--loop", metavar="NAME", help="Which loop, if there are several; of a model also as BROKER/NAME."),
]
Url = Annotated[
    str,
    typer.Option(
        "--url", envvar="FLYBALL_AMQP_URL", metavar="URL", help="The broker: amqp://USER:PASSWORD@HOST/VHOST."
    ),
]
Handler = Annotated[
    str | None,
    typer.Option("--handler", metavar="MODULE:FUNCTION", help="Async function that is called with each message."),
]
HandlerMs = Annotated[
    float | None,
    typer.Option("--handler-ms", min=0.0, help="Do nothing with a message for so long, then throw it away."),
]
Actuator = Annotated[
    ActuatorName | None,
    typer.Option("--actuator", help="How to get more or fewer messages: by a pause, or by the prefetch count."),
]
SampleTime = Annotated[
    float, typer.Option("--sample-time", min=0.01, metavar="SECONDS", help="Time between two samples.")
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", min=1, help="Handlers at once; else as many as there are messages.")
]
Pole = Annotated[
    float | None,
    typer.Option(
        "--pole", help="From 0, fast, to below 1, slow and quiet; 0.8 for most laws, -0.3 for p, 0.5 for self_tuning."
    ),
]
Poles = Annotated[
    str | None, typer.Option("--poles", metavar="P,P...", help="All poles of p, pi or pid, as in 0.5+0.3i,0.5-0.3i.")
]
Settling = Annotated[
    float | None,
    typer.Option(
        "--settling-samples", help="Samples in which pi or pid settle, if no poles are given.  [default: 5]"
    ),
]
Overshoot = Annotated[
    float | None,
    typer.Option("--overshoot", help="How far they may overshoot, as a part of the step.  [default: 0.05]"),
]
Exponent = Annotated[float | None, typer.Option("--exponent", help="Of the multiplicative law: how fast it is; 0.5.")]
Limits = Annotated[
    tuple[float, float], typer.Option("--limits", metavar="LOWEST HIGHEST", help="Between what the action may be.")
]
Seed = Annotated[int, typer.Option("--seed", help="The same seed gives the same chance.")]


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
    queue: Annotated[str | None, typer.Option("--queue", help="Consume this queue to make samples.")] = None,
    signal: Annotated[SignalName, typer.Option("--signal", help="How the action changes.")] = SignalName.RANDOM,
    lowest: Annotated[float, typer.Option("--lowest", help="Lowest action.")] = 1.0,
    highest: Annotated[float, typer.Option("--highest", help="Highest action.")] = 10.0,
    count: Annotated[
        int, typer.Option("--count", min=2, help="How many samples to make, one each --sample-time.")
    ] = 80,
    hold: Annotated[int, typer.Option("--hold", min=1, help="Samples for which an action stays.")] = 1,
    seed: Seed = 1,
    sample_time: SampleTime = 1.0,
    handler: Handler = None,
    handler_ms: HandlerMs = None,
    concurrency: Concurrency = None,
    actuator: Actuator = None,
    delay: Annotated[
        str, typer.Option("--delay", metavar="N|auto", help="Samples until an action has effect.")
    ] = "0",
    order: Annotated[int, typer.Option("--order", min=1, help="Past samples on which the next one depends.")] = 1,
    loop: Loop = None,
    out: Out = HERE,
    plot: Plot = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find the model of a plant: DIR/model.json and DIR/model.svg.

    From samples that a loop has recorded, or, with --queue, from a queue: its
    messages are handled, acknowledged and so gone, while the prefetch count (or
    the pace) changes as --signal says; the samples are kept in DIR.

    A CSV file has the columns measurement and action, and --sample-time says how
    far apart its lines are.

    Example: flyball control identify --queue orders --handler-ms 1 --lowest 1 --highest 10
    """
    with errors_told():
        from flyball.cli.governor import identifying

        identifying.identify(
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
        Path | None, typer.Argument(metavar="MODEL.json", help="From `identify`; some laws need none.")
    ] = None,
    law: Annotated[LawName, typer.Option("--law", help="Which law.")] = LawName.LAMBDA_PI,
    pole: Pole = None,
    poles: Poles = None,
    settling_samples: Settling = None,
    overshoot: Overshoot = None,
    exponent: Exponent = None,
    gains: Annotated[
        str | None,
        typer.Option("--gains", metavar="NAME=NUMBER,...", help="Design nothing, check these: kp=0.002,ki=0.006."),
    ] = None,
    limits: Limits = DEFAULT_LIMITS,
    setpoint: Annotated[float | None, typer.Option("--setpoint", help="What to hold.")] = None,
    sample_time: Annotated[
        float | None,
        typer.Option("--sample-time", min=0.01, metavar="SECONDS", help="Of which plant, or without a model."),
    ] = None,
    loop: Loop = None,
    out: Out = HERE,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Find gains for a model, and prove that they hold it: DIR/design.json and DIR/design.svg.

    The certificate counts for the whole confidence set of the model. Exit code 1
    if it says no: design.json is written all the same, but no loop starts with it.

    Example: flyball control design model.json --law pi --settling-samples 8 --setpoint 400
    """
    with errors_told():
        from flyball.cli.governor import designing

        tuning = Tuning(pole, poles, settling_samples, overshoot, exponent, gains)
        designing.design(model, law, tuning, limits, setpoint, sample_time, loop, Files(out, plot), as_json)


@app.command()
def run(
    queue: Annotated[str, typer.Option("--queue", help="Consume this queue.")],
    url: Url = DEFAULT_URL,
    rate: Annotated[float | None, typer.Option("--rate", help="Hold so many messages a second.")] = None,
    latency_ms: Annotated[
        float | None, typer.Option("--latency-ms", help="Hold this time from arrival to acknowledgement.")
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="As fast as the handler can, with few messages waiting.")
    ] = False,
    design_file: Annotated[
        Path | None, typer.Option("--design", metavar="FILE", help="design.json; else a law that needs no model.")
    ] = None,
    actuator: Actuator = None,
    handler: Handler = None,
    handler_ms: HandlerMs = None,
    concurrency: Concurrency = None,
    shadow: Annotated[bool, typer.Option("--shadow", help="Compute and show actions, but do not act.")] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Stop after so long; else by Ctrl-C.")
    ] = None,
    sample_time: Annotated[
        float | None,
        typer.Option(
            "--sample-time", min=0.01, metavar="SECONDS", help="Between two samples; else the design's, or 1."
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option("--samples", metavar="DIR", help="Folder to keep the samples in.")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            envvar="FLYBALL_REPORT_URL",
            metavar="URL",
            help="Show the loop in a node's console, and let it be switched there: http://USER:PASSWORD@HOST:15672.",
        ),
    ] = None,
    out: Out = HERE,
    plot: Plot = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Consume a queue and hold a rate, a latency, or as little waiting as possible: DIR/run.svg shows how it went.

    Messages are handled, acknowledged and so gone from the queue. Runs until
    Ctrl-C, or for --seconds.

    Example: flyball control run --queue orders --rate 400 --handler shop.orders:handle
    """
    with errors_told():
        from flyball.cli.governor import running

        running.run(
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
    model: Annotated[Path | None, typer.Argument(metavar="MODEL.json", help="From `identify`.")] = None,
    plant: Annotated[
        str | None,
        typer.Option("--plant", metavar="KIND:A,B", help="Instead: little:1250,3.34 or linear:0.26,59.73."),
    ] = None,
    law: Annotated[
        list[LawName] | None, typer.Option("--law", help="Which law; may be repeated.  [default: lambda_pi]")
    ] = None,
    designs: Annotated[
        list[Path] | None, typer.Option("--design", metavar="FILE", help="A design.json; may be repeated.")
    ] = None,
    pole: Pole = None,
    poles: Poles = None,
    settling_samples: Settling = None,
    overshoot: Overshoot = None,
    exponent: Exponent = None,
    limits: Limits = DEFAULT_LIMITS,
    setpoint: Annotated[float | None, typer.Option("--setpoint", help="What to hold; else the design's.")] = None,
    start: Annotated[float | None, typer.Option("--start", help="First action; else the lowest.")] = None,
    steps: Annotated[int, typer.Option("--steps", min=2, help="How many samples.")] = 200,
    noise: Annotated[
        float, typer.Option("--noise", min=0.0, help="Standard deviation of the noise, as a part of the setpoint.")
    ] = 0.05,
    quantise: Annotated[bool, typer.Option("--quantise", help="Whole actions only, as a prefetch count.")] = False,
    seed: Seed = 1,
    loop: Loop = None,
    out: Out = HERE,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Try laws on a model or a curve, side by side: a table, and DIR/simulate.svg.

    Laws that are not given as a design are designed as `flyball control design`
    would. The plant little:MOST,HALF is y = MOST u/(u + HALF), linear:A,B is
    y(k+1) = A y(k) + B u(k).

    Example: flyball control simulate --plant little:1250,3.34 --law pi --law multiplicative --setpoint 400
    """
    with errors_told():
        from flyball.cli.governor import simulating

        simulating.simulate(
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
