"""The ``loom`` command.

A command's file is imported when the command is asked for, and imports what it needs when it runs, so that
``loom --help`` answers at once. Bad input ends in one line on standard error and exit status 2, a failed check in exit
status 1; ``--debug`` shows the traceback instead.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

COMMANDS = (
    "sim", "workload", "map", "rtl", "synth", "verify", "gpu", "compare", "collective", "plan", "schema", "list",
    "dram", "reproduce", "measure", "warmup",
)  # fmt: skip
"""Files of `siliconloom.commands`."""
PLANNED = {
    "serve": "request-level simulation",
    "sweep": "design-space exploration",
}
"""Commands whose names are taken and which are not built yet."""
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
                one.command(name=name, hidden=True, context_settings=free)(_planned(name))
            else:
                one.command(name=name)(import_module(f"siliconloom.commands.{name}").command)
            self.made[name] = typer.main.get_command(one)
        return self.made[name]

    def __iter__(self) -> Iterator[str]:
        yield from COMMANDS
        yield from PLANNED

    def __len__(self) -> int:
        return len(COMMANDS) + len(PLANNED)


def _planned(name: str) -> Callable[[], None]:
    def command() -> None:
        from siliconloom.arch import NotSupported

        raise NotSupported(f"loom {name} ({PLANNED[name]}) is not built yet")

    return command


class Group(TyperGroup):
    """The group of all commands."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = Commands()  # type: ignore[assignment]


app = typer.Typer(
    name="loom",
    cls=Group,
    no_args_is_help=True,
    help="One description of an AI accelerator: Verilog, a cycle simulator, and the proof that the two agree.",
    **PLAIN,
)


def version(show: bool) -> None:
    """Print the version and stop."""
    if show:
        from siliconloom import __version__

        typer.echo(f"siliconloom {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback instead of one line on errors.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE",
            help="Memory that tables may bring a command to (2GiB); half of what is free by default.",
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""
    del debug, show_version
    if memory is not None or "siliconloom.arch.budget" in sys.modules:
        from siliconloom.arch.budget import set_memory

        set_memory(memory)


INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    from siliconloom import streams

    streams.prepare()
    debug = "--debug" in arguments
    if debug:  # accepted anywhere on the line
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    arguments = _memory_first(arguments)
    try:
        status = app(arguments, prog_name="loom", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        status = streams.BROKEN_PIPE
    except SystemExit as end:  # typer's own answer to it
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        status = streams.BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        status = _explain(error)
    if status == INTERRUPTED:  # newer versions of typer return it, older ones raise
        print("loom: interrupted; nothing was left half written", file=sys.stderr)
    try:
        unwritten = streams.finish()
    except BrokenPipeError:
        return streams.BROKEN_PIPE
    if unwritten is not None and status == 0:
        print(f"loom: standard output: {unwritten}", file=sys.stderr)
        return 2
    return int(status)


def _memory_first(arguments: list[str]) -> list[str]:
    """``--memory SIZE`` is accepted anywhere on the line, too."""
    for place, word in enumerate(arguments):
        if word == "--":
            break
        if word == "--memory" and place + 1 < len(arguments):
            return [*arguments[place : place + 2], *arguments[:place], *arguments[place + 2 :]]
        if word.startswith("--memory="):
            return [word, *arguments[:place], *arguments[place + 1 :]]
    return arguments


def _explain(error: Exception) -> int:
    """One line for an error, and its exit status."""
    from siliconloom.arch.errors import MAX_MESSAGE, CheckFailed, LoomError, one_line, shortened

    if isinstance(error, LoomError):
        print(f"loom: {error}", file=sys.stderr)
        return 1 if isinstance(error, CheckFailed) else 2
    if hasattr(error, "format_message"):  # the command line itself is wrong
        wrong = str(error.format_message()).rstrip()
        usage = type(error).__name__ == "NoArgsIsHelpError"
        text = wrong if usage else f"loom: {shortened(one_line(wrong), MAX_MESSAGE - 30)} (see loom --help)"
        print(text, file=sys.stderr)
        return 2
    text = shortened(one_line(str(error)), MAX_MESSAGE)
    if isinstance(error, OSError):  # the machine, not the command
        named = shortened(one_line(str(error.filename)), 200)
        where = named if error.filename else "standard output or a temporary file"
        print(f"loom: {where}: {error.strerror or text}", file=sys.stderr)
        return 2
    if isinstance(error, MemoryError):
        print("loom: there is not enough memory for this", file=sys.stderr)
        return 2
    print(f"loom: internal error: {type(error).__name__}: {text} (--debug shows where)", file=sys.stderr)
    return 70


def entry() -> None:
    """Console script."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no product here is worth threads; starting them takes time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them reads every installed package
    gc.set_threshold(200_000)  # a process that lives for seconds: collecting more often costs a sixth of its time
    status = main()
    gc.freeze()  # nor at its end
    sys.exit(status)
