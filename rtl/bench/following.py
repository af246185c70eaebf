"""How far a bench is: the simulator writes its cycles to a file as it runs, and a thread outside reads them there."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "LOOM_PROGRESS"
"""Names the file to the simulator's process."""
STEP = 200
"""Cycles after which a bench looks at the clock on the wall."""
EVERY_S = 0.25
"""Seconds from one report to the next, and from one look at it to the next."""
BAR = 24
"""Characters of a whole bar."""


async def report(clock_ns: int) -> None:
    """Write, in the simulator, how many cycles have passed: a cocotb task that ends with its test.

    Without the file's name in the environment it does nothing.
    """
    from cocotb.triggers import Timer
    from cocotb.utils import get_sim_time

    name = os.environ.get(VARIABLE)
    if not name:
        return
    due = 0.0  # the first report comes at once: a short bench has one, too
    with open(name, "w", encoding="ascii") as file:
        while True:
            await Timer(STEP * clock_ns, "ns")
            if time.monotonic() >= due:
                due = time.monotonic() + EVERY_S
                file.seek(0)  # numbers only grow, so none is left behind a shorter one
                file.write(f"{int(get_sim_time('ns')) // clock_ns}\n")
                file.flush()


def cycles_in(path: Path) -> int | None:
    """The cycles that a bench has reported; ``None`` before the first report."""
    try:
        text = path.read_text(encoding="ascii")
        return int(text) if text.endswith("\n") else None
    except (OSError, ValueError):
        return None


@contextmanager
def followed(path: Path, told: Callable[[int, float], None]) -> Iterator[None]:
    """Have ``told`` hear of every new report in the file: cycles, and seconds since this began.

    The file is looked at once more when this ends.
    """
    path.unlink(missing_ok=True)
    ended, began = threading.Event(), time.monotonic()

    def look() -> None:
        last, over = None, False
        while not over:
            over = ended.wait(EVERY_S)
            cycles = cycles_in(path)
            if cycles is not None and cycles != last:
                told(cycles, time.monotonic() - began)
                last = cycles

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def progress_text(name: str, cycles: int, predicted: int, seconds: float) -> str:
    """A bar, the cycles done of those that the model predicts, and how many pass in a second.

    The host's accesses to registers take cycles, too, so the last ones may be beyond what is ``predicted``; where
    nothing is (0), there is no bar.
    """
    pace = f"{round(cycles / max(seconds, 1e-9)):,} a second"
    if not predicted:
        return f"running {name}: {cycles:,} cycles, {pace}"
    share = min(cycles / predicted, 1.0)
    done = round(BAR * share)
    bar = "#" * done + "-" * (BAR - done)
    return f"running {name}: [{bar}] {100 * share:.0f} %, {cycles:,} of {predicted:,} cycles, {pace}"


__all__ = ["VARIABLE", "cycles_in", "followed", "progress_text", "report"]
