"""Why a command ended without a result, in one line and as an exit status."""

from __future__ import annotations

import sys


def explain(error: Exception) -> int:
    """One line for an error, and its exit status."""
    from siliconloom.arch.errors import MAX_MESSAGE, CheckFailed, LoomError, one_line, shortened

    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, LoomError):
        inner = inner.__cause__  # a limit may be noticed anywhere, also where Python makes an error of its own of it
    if inner is not None:
        print(f"loom: {inner}", file=sys.stderr)
        return 1 if isinstance(inner, CheckFailed) else 2
    if hasattr(error, "format_message"):  # the command line itself is wrong
        wrong = str(error.format_message()).rstrip()
        usage = type(error).__name__ == "NoArgsIsHelpError"
        text = wrong if usage else f"loom: {shortened(one_line(wrong), MAX_MESSAGE - 30)} (see loom --help)"
        print(text, file=sys.stderr)
        return 2
    text = shortened(one_line(str(error)), MAX_MESSAGE)
    if isinstance(error, ImportError | OSError) and (cause := _unloaded(error)):
        hint = "; there is too little memory for it (ulimit -v)" if "map segment" in cause else ""
        text = f"{shortened(one_line(cause), MAX_MESSAGE - 80)}{hint}"
        print(f"loom: a library cannot be loaded: {text}", file=sys.stderr)
        return 2
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


def _unloaded(error: BaseException) -> str:
    """What the system's loader said of a library where that is behind an error: memory, mostly; else nothing."""
    seen: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(seen) < 10:
        if isinstance(cause, ImportError | OSError) and getattr(cause, "errno", None) is None and ".so" in str(cause):
            seen.append(str(cause))
        cause = cause.__cause__ or cause.__context__
    return seen[-1] if seen else ""
