"""How options look in the help: a switch has no type, a value has one in capitals."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup, TyperOption

# Names of values by Typer's names of their types; choices keep theirs, as in newest|oldest.
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
    """The `flyball` command. It names the values of its own options and of those of all subcommands."""

    def get_params(self, ctx: Any) -> list[Any]:
        for command in _below(self):
            for option in [*command.params, command.get_help_option(ctx)]:
                if isinstance(option, TyperOption) and option.metavar is None:
                    kind = option.display_type(ctx).strip("<>").removeprefix("list[").removesuffix("]")
                    option.metavar = _VALUES.get(kind, kind)
        return super().get_params(ctx)


def _below(command: TyperCommand | TyperGroup) -> list[TyperCommand | TyperGroup]:
    """Return a command and all its subcommands."""
    found = [command]
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            assert isinstance(each, TyperCommand | TyperGroup), "Typer makes no other commands"
            found += _below(each)
    return found
