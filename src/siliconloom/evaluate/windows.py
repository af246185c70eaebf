"""What a step on a system consists of, and how long each part takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from siliconloom.arch import Chip
from siliconloom.arch.system import System
from siliconloom.evaluate.chip import Simulation
from siliconloom.sim.pim.channel import ChannelRun
from siliconloom.workloads import Graph


@dataclass(frozen=True)
class Arrays:
    """What the arrays do for one layer of some sequences, in cycles.

    Parameters
    ----------
    before, after
        Until the cache holds the new token, and from attention's result on; with all-reduces.
    unbound
        Both, had the memory no limit.
    weights, traffic
        Bytes of parameters read, and all bytes moved, per chip.
    ends
        Embedding and head, once per step.
    busy
        Of which the arrays stream operands.
    macs
        Multiply-accumulates of a layer, per chip.
    """

    before: int
    after: int
    unbound: int
    weights: int
    traffic: int
    ends: int
    busy: int
    macs: int
    vector_busy: int

    @property
    def layer(self) -> int:
        return self.before + self.after


@dataclass(frozen=True)
class Window:
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


@dataclass
class Channels:
    """All channels' outcome for one layer's attention, and for what was read beside it."""

    attention: int
    reads: int
    counts: Any
    busy: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class SystemSimulation:
    """A finished step on a system."""

    system: System
    chip: Chip
    graph: Graph
    tensor: int
    pipeline: int
    passes: int
    interleaved: bool
    offloaded: bool
    windows: tuple[Window, ...]
    arrays: Arrays
    channels: Channels | None
    layers: int
    all_layers: int
    memory_bytes: int
    contexts: tuple[int, ...]
    chips: tuple[Simulation, ...]
    wall_s: float
    notes: tuple[str, ...] = ()
    products: dict[str, ChannelRun] = field(default_factory=dict)
    """One channel's run of one execution of each product with weights that memory computes; the others' are alike."""

    @cached_property
    def cycles(self) -> int:
        """Of one step: one token of every sequence in decode."""
        return self.pipeline * self.stage_cycles

    @property
    def stage_cycles(self) -> int:
        """Of one part of the batch at one stage; a sequence goes through all stages before its next token."""
        return sum(w.cycles * w.repeat for w in self.windows)

    @property
    def seconds(self) -> float:
        return self.cycles / self.chip.clock
