"""The ``loom`` command.

A command's file is imported when the command is asked for, and imports what it needs when it runs, so that
``loom --help`` answers at once. Bad input ends in one line on standard error and exit status 2, a failed check in exit
status 1; ``--debug`` shows the traceback instead.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from siliconloom.commands.explaining import explain
from siliconloom.commands.group import PLAIN, TOLD, CommandGroup

app = typer.Typer(
    name="loom",
    cls=CommandGroup,
    no_args_is_help=True,
    help="One description of an AI accelerator: Verilog, a cycle simulator, and the proof that the two agree.",
    epilog=TOLD,
    **{**PLAIN, "add_completion": True},
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
            help="Memory that the command's own process may hold, tables and libraries together (2GiB). Without it "
            "tables may bring it to half of what is free.",
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
    from siliconloom.commands import streams

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
        status = explain(error)
    finally:
        if "siliconloom.arch.budget" in sys.modules:
            sys.modules["siliconloom.arch.budget"].end_watch()
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
    """``--memory SIZE`` is accepted anywhere on the line, too; of several the last one holds."""
    first, others = list[str](), list[str]()
    words = iter(arguments)
    for word in words:
        if word == "--":
            others += [word, *words]
        elif word == "--memory":
            first.append(f"{word}={next(words, '')}")  # without a size it is none, which is told
        else:
            (first if word.startswith("--memory=") else others).append(word)
    return [*first, *others]


def entry() -> None:
    """Console script."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no product here is worth threads; starting them takes time
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them reads every installed package
    gc.set_threshold(1_000_000)  # a process that lives for seconds: collecting more often costs a sixth of its time
    status = main()
    gc.freeze()  # nor at its end
    sys.exit(status)
