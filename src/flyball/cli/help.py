"""Formatting of parameters in help: switches and arguments have no type, values a name in capitals."""

from __future__ import annotations

from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

# Metavars by Typer's type names; choices keep theirs, as in newest|oldest.
_VALUES = {
    "bool": "",
    "str": "TEXT",
    "int": "NUMBER",
    "float": "NUMBER",
    "int range": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
    "file": "FILE",
    "directory": "FOLDER",
}


class Commands(TyperGroup):
    """The `flyball` command. It sets the metavars of all options, including those of subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        for command in _below(self):
            for option in [*command.params, command.get_help_option(ctx)]:
                if isinstance(option, TyperOption) and option.metavar is None:
                    kind = option.display_type(ctx).strip("<>").removeprefix("list[").removesuffix("]")
                    option.metavar = _VALUES.get(kind, kind)
                elif isinstance(option, TyperArgument):
                    # Typer prints <str> after the name of an argument, and has no option against it.
                    vars(option)["display_type_rich"] = _no_type
        return super().get_params(ctx)


def _no_type(ctx: Any) -> None:
    """Print no type for a parameter."""


def _below(command: TyperCommand | TyperGroup) -> list[TyperCommand | TyperGroup]:
    """Return a command and all its subcommands."""
    found = [command]
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            assert isinstance(each, TyperCommand | TyperGroup), "Typer makes no other commands"
            found += _below(each)
    return found
