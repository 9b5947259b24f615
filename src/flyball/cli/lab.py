"""Commands and options of `flyball lab`. `experiment_commands` implements them, and is slow to import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="lab", help="Run experiments on brokers.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME|FILE", help="Name of an experiment, or a TOML file.")]
Quick = Annotated[bool, typer.Option("--quick", help="Scale the experiment down to about a minute.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Delete earlier results of the experiment.")]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Continue with the other runs after a failure.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value, as in workload.clients=5; may be repeated."),
]


@app.command("list")
def list_experiments(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder with experiments; default: the built-in ones.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List experiments, and the papers that they reproduce.

    Example: flyball lab list
    """
    from flyball.cli import experiment_commands

    experiment_commands.list_experiments(folder, as_json)


@app.command()
def show(name: Name, quick: Quick = False, values: Set = None) -> None:
    """Show what an experiment does: target, workload, cells and duration.

    Example: flyball lab show thorbangmq/clients
    """
    from flyball.cli import experiment_commands

    experiment_commands.show(name, quick, values or [])


@app.command()
def run(
    name: Name,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("results"),
    quick: Quick = False,
    fresh: Fresh = False,
    keep_going: KeepGoing = False,
    values: Set = None,
) -> None:
    """Run an experiment. Completed runs in the folder are not repeated.

    Example: flyball lab run thorbangmq/clients --quick
    """
    from flyball.cli import experiment_commands

    experiment_commands.run(name, out, quick, fresh, keep_going, values or [])


@app.command()
def compare(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR DIR...", help="Folders of results.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("comparison"),
) -> None:
    """Compare the results of two or more folders in one report.

    Example: flyball lab compare results-before results-after
    """
    from flyball.cli import experiment_commands

    experiment_commands.compare(folders, out)


@app.command()
def auction(
    policy: Annotated[
        str,
        typer.Option(
            help="Admission policy: none, integral, classes, round_robin, static, strict, dps, memoryless, "
            "semaphore, uvicorn or gradient."
        ),
    ] = "dps",
    size: Annotated[
        str, typer.Option(help="Size of the database: small, or rubis, which takes minutes to fill.")
    ] = "small",
    users: Annotated[int | None, typer.Option(help="Number of users; default: set by --size.")] = None,
    items: Annotated[int | None, typer.Option(help="Number of items for sale.")] = None,
    old_items: Annotated[int | None, typer.Option(help="Number of closed auctions.")] = None,
    pool_size: Annotated[int, typer.Option(help="Maximum number of database connections.")] = 20,
    reference: Annotated[
        float | None,
        typer.Option(help="Load setpoint, in busy milliseconds per second; default: found automatically."),
    ] = None,
    limit: Annotated[int, typer.Option(help="Concurrency limit, for semaphore, uvicorn and gradient.")] = 20,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8000,
) -> None:
    """Serve the auction site of the admission experiments, until Ctrl-C.

    Example: flyball lab auction --policy dps
    """
    from flyball.cli import experiment_commands

    options: dict[str, object] = {"policy": policy, "size": size}
    options |= {"users": users, "items": items, "old_items": old_items}
    options |= {"pool_size": pool_size, "reference": reference, "limit": limit}
    experiment_commands.auction(host, port, options)


@app.command()
def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            metavar="PAPER",
            help="Paper to reproduce: selfware, admission, thorbangmq, telesto or prefetch; see flyball lab list.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for results, tables and the report.")],
    quick: Quick = False,
    fresh: Fresh = False,
    keep_going: KeepGoing = False,
) -> None:
    """Run all experiments of a paper and write a report that compares its figures with ours.

    Example: flyball lab reproduce thorbangmq --out out --quick
    """
    from flyball.cli import experiment_commands

    experiment_commands.reproduce(paper, out, quick, fresh, keep_going)
