"""`flyball demo`: the whole idea in three minutes. `demo_story` implements it, and is slow to import."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flyball.cli.os_errors import explained
from flyball.cli.session import INTERRUPTED, fail
from flyball.errors import FlyballError

# The packages of the extras. Java may have another source.
PACKAGES = ("aio_pika", "control", "matplotlib", "pandas", "plotly", "py4j", "pyspark", "scipy")


def demo(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder for the report, the model and the design.")
    ] = Path("flyball-demo"),
    stay: Annotated[bool, typer.Option("--stay", help="Keep node and loop running until Ctrl-C.")] = False,
    short: Annotated[bool, typer.Option("--short", help="Shorten every phase, for a quick check.")] = False,
) -> None:
    """See the whole idea in three minutes: flood a node, learn from its traces, and let a controller hold it.

    Starts a node with its console, lets clients flood it, records traces, finds
    the model of the plant on Spark, designs a controller with its certificate,
    closes the loop, and shows before and after. Nothing is left but DIR.

    Example: flyball demo --stay
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"the demo needs additional packages ({', '.join(missing)}): pip install 'flyball[control,pipeline]'")
    try:
        # Imported here: slow, and other commands do not need it.
        from flyball.cli.demo_story.story import DemoOptions, run_demo

        run_demo(DemoOptions(out, stay, short), Console())
    except FlyballError as error:
        fail(str(error))
    except OSError as error:
        # A full disk, or a folder without permission.
        fail(explained(error))
    except KeyboardInterrupt:
        fail(f"interrupted: the node is stopped; what there was lies in {out}", INTERRUPTED)
