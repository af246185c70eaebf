"""The group of all commands: each is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = (
    "sim",
    "workload",
    "cascade",
    "map",
    "rtl",
    "synth",
    "verify",
    "run",
    "models",
    "gpu",
    "compare",
    "figure",
    "collective",
    "plan",
    "serve",
    "sweep",
    "show",
    "schema",
    "list",
    "dram",
    "reproduce",
    "measure",
    "warmup",
    "doctor",
    "new",
)
"""Files of `siliconloom.commands`."""


PLANNED: dict[str, str] = {}
"""Commands whose names are taken and which are not built yet."""


TOLD = "Examples are below the help of each command: loom sim --help. What is installed, and what is not: loom doctor."
"""Below the help of all commands."""


PLAIN: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}


class Commands(Mapping[str, Any]):
    """Commands by name, each made when it is looked up."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.made:
            if name not in (*COMMANDS, *PLANNED):
                raise KeyError(name)
            one = typer.Typer(**PLAIN)
            if name in PLANNED:
                free = {"allow_extra_args": True, "ignore_unknown_options": True}
                told = f"Not built yet: {PLANNED[name]}."
                one.command(name=name, hidden=True, context_settings=free, help=told)(_planned(name))
            else:
                module = import_module(f"siliconloom.commands.{name}")
                one.command(name=name, epilog=examples_text(module.EXAMPLES))(module.command)
            self.made[name] = typer.main.get_command(one)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        yield from COMMANDS
        yield from PLANNED

    def __len__(self) -> int:
        return len(COMMANDS) + len(PLANNED)


def examples_text(examples: Iterable[str]) -> str:
    """Command lines as they stand below a command's help, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in examples)


def _planned(name: str) -> Callable[[], None]:
    def command() -> None:
        from siliconloom.arch import NotSupported

        raise NotSupported(f"loom {name} ({PLANNED[name]}) is not built yet")

    return command


class CommandGroup(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = Commands()  # type: ignore[assignment]
