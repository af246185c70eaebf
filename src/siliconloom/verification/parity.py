"""What every verification shares: events, bytes and totals of RTL and model held side by side, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from siliconloom.arch.verified import Case, Divergence, Moment, Seen, Verified
from siliconloom.arch.working import working_folder
from siliconloom.rtl.emit import Bundle

CONTEXT = 3
"""Events shown before and after the first one that differs."""
ERRORS = 6
"""Errors of a case that a record keeps: in values, and in cycles."""
STREAMS = 6
"""Streams that are named beside the one of the first difference."""
Event = TypeVar("Event")


def span(event: tuple[int | None, int | None]) -> Seen:
    """An event that begins and ends; a side that has only one of the two says so."""
    begin, end = event
    if begin is None:
        assert end is not None, "an event is somewhere in time"
        return Seen(cycle=end, what="(an end without a begin)")
    return Seen(cycle=begin, end=end, what="(a begin without an end)" if end is None else None)


def instant(event: int) -> Seen:
    """An event of one cycle."""
    return Seen(cycle=event)


class ParityStream(Struct, Generic[Event], frozen=True):
    """Events of one kind in order, on both sides.

    Parameters
    ----------
    name
        What is counted, in the singular.
    model, rtl
        Events that can be compared; those of both sides have the same form.
    seen
        What an event is for people.
    times
        Cycles that an event says.
    instruction
        Text of the instruction of an event, by its number; ``None`` where there is none.
    """

    name: str
    model: Sequence[Event]
    rtl: Sequence[Event]
    seen: Callable[[Event], Seen]
    times: int = 1
    instruction: Callable[[int], str] | None = None

    def first_difference(self) -> int | None:
        """Number of the first event that differs, or that only one side has."""
        both = min(len(self.model), len(self.rtl))
        for number in range(both):
            if self.model[number] != self.rtl[number]:
                return number
        return None if len(self.model) == len(self.rtl) else both

    def moment(self, number: int) -> Moment:
        """An event on both sides."""
        model, rtl = (self.seen(side[number]) if number < len(side) else None for side in (self.model, self.rtl))
        return Moment(number=number, model=model, rtl=rtl)

    def divergence(self, number: int) -> Divergence:
        """Event ``number`` and those around it."""
        end = min(max(len(self.model), len(self.rtl)), number + CONTEXT + 1)
        return Divergence(
            stream=self.name,
            number=number,
            instruction=None if self.instruction is None else self.instruction(number),
            around=tuple(self.moment(n) for n in range(max(number - CONTEXT, 0), end)),
        )


class Parity(Struct):
    """What comparing one case showed; the kinds of machines add to it.

    Parameters
    ----------
    name
        Of the case.
    stalled
        Waits are random, so that cycles are not compared.
    rtl_cycles, model_cycles
        Of the whole case.
    times_compared, bytes_compared
        How many were held against each other.
    value_errors, count_errors
        What differs, in words: values; totals and counters.
    divergence
        The earliest event that differs.
    """

    name: str
    stalled: bool = False
    rtl_cycles: int = 0
    model_cycles: int = 0
    times_compared: int = 0
    bytes_compared: int = 0
    value_errors: list[str] = field(default_factory=list)
    count_errors: list[str] = field(default_factory=list)
    divergence: Divergence | None = None
    _differ: list[tuple[int, str]] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.value_errors and not self.cycle_errors

    @property
    def cycle_errors(self) -> list[str]:
        """What differs in time: totals and counters, other streams, the first difference."""
        return [*self._also(), *(self.divergence.lines() if self.divergence else ())]

    @property
    def errors(self) -> list[str]:
        """All that differs, in words."""
        return [*self.value_errors, *self.cycle_errors]

    def cycles(self, rtl: int, model: int) -> None:
        """Hold the total against the model's; a stalled case only keeps it."""
        self.rtl_cycles, self.model_cycles = rtl, model
        if not self.stalled and rtl != model:
            self.count_errors.append(f"the RTL took {rtl:,} cycles, the model {model:,}")

    def count(self, what: str, rtl: int | None, model: int) -> None:
        """Hold a counter of the RTL against the model's."""
        if rtl != model:
            counted = "no" if rtl is None else f"{rtl:,}"
            self.count_errors.append(f"the RTL counted {counted} {what}, the model {model:,}")

    def hold(self, streams: Sequence[ParityStream[Any]]) -> None:
        """Compare streams event by event; the earliest event that differs is kept, other streams are named."""
        for stream in streams:
            self.times_compared += stream.times * len(stream.model)
            number = stream.first_difference()
            if number is None:
                continue
            moment = stream.moment(number)
            side = moment.model or moment.rtl
            assert side is not None
            if not self._differ or side.cycle < min(self._differ)[0]:
                self.divergence = stream.divergence(number)
            self._differ.append((side.cycle, stream.name))

    def same_bytes(self, what: str, found: NDArray[np.uint8], due: NDArray[np.uint8]) -> None:
        """Compare bytes from the first one on; ``found`` may go on where nothing is due."""
        if len(found) < len(due):
            self.value_errors.append(f"{what}: {len(found):,} of {len(due):,} bytes are there")
            return
        self.bytes_compared += len(due)
        wrong = np.flatnonzero(found[: len(due)] != due)
        if len(wrong):
            self.value_errors.append(f"{len(wrong):,} bytes of {what} differ, the first at {wrong[0]:#x}")

    def _also(self) -> list[str]:
        """Totals, counters, and the streams that differ beside the one of the first difference, earliest first."""
        first = self.divergence.stream if self.divergence else ""
        others = [name for _, name in sorted(self._differ) if name != first]
        more = f" and {len(others) - STREAMS} more" if len(others) > STREAMS else ""
        later = [f"differ later, too: {', '.join(others[:STREAMS])}{more}"] if others else []
        return [*later, *self.count_errors]

    def common(self) -> dict[str, Any]:
        """Keys of a case that every kind has, for its `Case`."""
        return {
            "name": self.name,
            "stalled": self.stalled,
            "rtl_cycles": self.rtl_cycles,
            "model_cycles": None if self.stalled else self.model_cycles,
            "difference": None if self.stalled else self.rtl_cycles - self.model_cycles,
            "times_compared": self.times_compared,
            "cycles_equal": None if self.stalled else not self.cycle_errors,
            "bytes_compared": self.bytes_compared,
            "values_equal": not self.value_errors,
            "passed": self.passed,
            "divergence": self.divergence,
            "value_errors": _first(self.value_errors),
            "cycle_errors": _first(self._also()),
        }


def _first(errors: Sequence[str]) -> tuple[str, ...]:
    """The first few, and how many there are beside them."""
    rest = len(errors) - ERRORS
    return (*errors[:ERRORS], *([f"... and {rest} more"] if rest > 0 else []))


class Findings(Struct):
    """What the verification of a machine of one kind found: its cases, and what its record has beside the common keys.

    Parameters
    ----------
    record
        Class of the record.
    verified, behavioural
        What was RTL, and what was not.
    sections
        Of the record, by name.
    """

    record: type[Verified]
    verified: str
    cases: Sequence[Case]
    behavioural: str | None = None
    notes: Sequence[str] = ()
    sections: dict[str, Any] = field(default_factory=dict)


@contextmanager
def verilog(bundle: Bundle) -> Iterator[tuple[list[Path], Path]]:
    """Verilog of a bundle, and a folder for its bench; both are removed at the end."""
    with working_folder("verify") as folder:
        yield bundle.write(folder / "rtl"), folder / "bench"


__all__ = ["Findings", "Parity", "ParityStream", "instant", "span", "verilog"]
