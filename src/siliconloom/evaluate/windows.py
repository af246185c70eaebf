"""What a row of layers consists of where memory computes beside the arrays, and how long each part takes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from siliconloom.arch.pim import PimTile
from siliconloom.evaluate.chip import Simulation
from siliconloom.sim.pim.channel import ChannelRun


class Arrays(Struct, frozen=True):
    """What the arrays do for one layer of some sequences, in cycles.

    Parameters
    ----------
    before, after
        Until the cache holds the new token, and from attention's result on; with messages.
    unbound
        Both, had the memory no limit.
    weights, traffic
        Bytes of parameters read, and all bytes moved, per chip.
    ends
        Embedding and head, once per step.
    """

    before: int
    after: int
    unbound: int
    weights: int
    traffic: int
    ends: int

    @property
    def layer(self) -> int:
        return self.before + self.after


class Window(Struct, frozen=True):
    """A stretch in which arrays and memory work side by side: what each needs, and how often it comes.

    Parameters
    ----------
    arrays, memory
        Cycles until either is done; 0 when it has nothing to do.
    """

    name: str
    arrays: int
    memory: int
    repeat: int = 1

    @property
    def cycles(self) -> int:
        return max(self.arrays, self.memory)


class Channels(Struct):
    """All channels' outcome for one layer's attention, and for what was read beside it."""

    attention: int
    reads: int
    counts: Any
    busy: list[int] = field(default_factory=list)


class PimRow(Struct, frozen=True):
    """A row of layers on a chip whose memory does their attention: a `mapper.system.contracts.LayerRow`.

    Parameters
    ----------
    layers, clock, pim
        How many follow one another, cycles per second, and the memory that computes.
    windows, ends
        What the row consists of, and what is outside of it once a step: embedding and head.
    channels
        Of one layer.
    simulations
        Of what the arrays do in one layer and outside of them: of all sequences, or of each half of them.
    moved
        One channel's run of one execution of each product with weights that memory computes; the others' are alike.
    times
        Seconds of one execution of each operator by itself.
    cache_bytes
        Memory of a layer's keys and values.
    contexts
        Tokens that each sequence attends to.
    """

    layers: int
    clock: int
    pim: PimTile
    windows: tuple[Window, ...]
    ends: tuple[Window, ...]
    channels: Channels
    simulations: tuple[Simulation, ...]
    moved: dict[str, ChannelRun]
    times: dict[str, float]
    cache_bytes: float
    contexts: tuple[int, ...]

    @property
    def cycles(self) -> int:
        """Of the row."""
        return sum(w.cycles * w.repeat for w in self.windows)

    @property
    def end_cycles(self) -> int:
        """Of what is outside of it."""
        return sum(w.cycles * w.repeat for w in self.ends)

    @property
    def seconds(self) -> float:
        """Of the row."""
        return self.cycles / self.clock

    @property
    def interleaved(self) -> bool:
        """Whether two halves of the sequences swapped places."""
        return len(self.simulations) > 1
