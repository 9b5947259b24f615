"""`flyball serve`: run a node until it is interrupted.

The options are generated from the declarations of the settings.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop

from flyball.broker.settings import Option, load_settings, options
from flyball.cli.os_errors import explained
from flyball.errors import SettingsError, StoreError, StoreInUse, StoreMismatch

# The file of packages and service managers. Nodes that Flyball starts itself get `--config /dev/null`.
SYSTEM_FILE = Path("/etc/flyball/flyball.toml")

Serve = Callable[[Mapping[str, object]], None]

WRONG_USE = 2
FAILED = 1
# Exit code for RestartPreventExitStatus: a restart does not help until an operator has acted.
OPERATOR_NEEDED = 4


def takes_settings(run: Serve) -> Callable[..., None]:
    """Convert a function of the given flags to a command with an option for each setting."""

    def command(context: typer.Context, **flags: object) -> None:
        # Typer gets defaults and environment only for help: the settings read both, and can name the source of an
        # error.
        run({name: value for name, value in flags.items() if _is_from_command_line(context, name)})

    parameters = [_parameter("context", typer.Context)]
    parameters += [_parameter(option.name, _flag(option), default=option.default) for option in options()]
    command.__name__ = run.__name__
    command.__doc__ = run.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # Typer reads the signature, which Python allows to set but mypy does not know.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(option: Option) -> Any:
    flag = typer.Option(
        option.flag,
        help=option.meaning,
        envvar=option.variable,
        metavar=option.form,
        rich_help_panel=option.heading,
        autocompletion=lambda incomplete: [choice for choice in option.choices if choice.startswith(incomplete)],
    )
    return Annotated[str | None, flag]


def _is_from_command_line(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@takes_settings
def serve(flags: Mapping[str, object]) -> None:
    """Run a node until it is interrupted.

    Flags win over environment variables, variables over the TOML file, which is /etc/flyball/flyball.toml if that
    exists and --config names no other. Sizes may have a unit: 64MiB.
    Clients of RabbitMQ connect to port 5672; the console is on http://127.0.0.1:15672.

    Example: flyball serve --data /var/lib/flyball --amqp 0.0.0.0:5672
    """
    try:
        # Imported here: slow, and other commands do not need it.
        from flyball.broker.cluster import node
        from flyball.broker.management.part import console_part
        from flyball.broker.node.service_manager import ServiceManager

        settings = load_settings(flags, os.environ, SYSTEM_FILE)
        manager = ServiceManager.from_environment(os.environ, os.getpid())
        uvloop.run(node.serve(settings, [console_part()], manager))
    except Exception as error:
        causes = list(_causes(error))
        if not all(isinstance(cause, SettingsError | StoreError | OSError) for cause in causes):
            raise
        _fail(_advice(causes[0]), _exit_code(causes[0]))


def _causes(error: Exception) -> Iterator[Exception]:
    """Yield the underlying errors. A node runs its tasks in groups, which wrap errors of their members."""
    if isinstance(error, ExceptionGroup):
        for member in error.exceptions:
            yield from _causes(member)
    else:
        yield error


def _exit_code(error: Exception) -> int:
    match error:
        case SettingsError():
            return WRONG_USE
        case StoreMismatch() | StoreInUse():
            return OPERATOR_NEEDED
        case _:
            return FAILED


def _advice(error: Exception) -> str:
    match error:
        case StoreMismatch() | StoreInUse():
            return f"{error}."
        case StoreError():
            return f"the store failed: {error}. Check --store and --data."
        case OSError():
            return explained(error)
        case _:
            return str(error)


def _fail(problem: str, code: int) -> None:
    typer.echo(f"flyball: {problem}", err=True)
    raise typer.Exit(code)
