"""Programs that make text on one chip: one for the prompt, then one for every token, over one main memory.

Parameters and cache lie at the same addresses in all of them, in the same tiles and with the same room, so the memory
is filled once. Either the prompt's program or a token's is the best one for itself, and the others take its tiles:
whichever makes the whole text faster.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch import Chip, load_chip
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.overrides import split_overrides
from siliconloom.arch.tile import NpuTile
from siliconloom.evaluate.chip import Simulation, check_floors, check_length
from siliconloom.mapper.chip.banked import array_alone
from siliconloom.mapper.chip.kept import kept_of
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.memory import Kept
from siliconloom.sim.chip.engine import Stopwatch, run
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import load_workload

OWN = {
    "phase": "the prompt's program is prefill, a token's is decode",
    "sequence": "the prompt is as long as its tokens",
    "context": "a token's context is what came before it",
    "batch": "there is one prompt",
    "training_batch": "nothing is trained",
}
"""Keys of a workload that a text decides."""


class StepFigures(Struct, frozen=True):
    """What one program takes on the described chip.

    ``array`` is the share of the array's multiply-accumulates that the model needs, ``bandwidth`` the share of the time
    in which the memory is busy at its full rate with what has to be moved once.
    """

    tokens: int
    context: int
    cycles: int
    seconds: float
    energy_j: float
    array: float
    bandwidth: float
    instructions: int


@dataclass(frozen=True)
class GenerationPlan:
    """Programs of a text.

    Parameters
    ----------
    chip, model
        As `arch.load_chip` gives it, and the model's file or library name.
    sets
        Overrides of the workload.
    prompt, most
        Tokens of the prompt, and of the text that follows it at most.
    """

    chip: Chip
    model: str
    sets: tuple[tuple[str, str], ...]
    prompt: int
    most: int
    _made: dict[tuple[str, int], Simulation] = field(default_factory=dict, compare=False)

    @cached_property
    def room(self) -> int:
        """Positions that the cache has room for."""
        given = [value for path, value in self.sets if path == "cache_length"]
        if not given:
            return self.prompt + self.most - 1
        if not given[-1].isdecimal() or not 1 <= int(given[-1][:12]) < 2**32 or len(given[-1]) > 12:
            raise LoomError(f"--set workload.cache_length: must be a whole number from 1 on (got '{given[-1][:40]}')")
        room = int(given[-1])
        if room < self.prompt + self.most - 1:
            text = f"{self.prompt} tokens of the prompt and {self.most} that follow"
            raise LoomError(f"workload.cache_length: {text} need {self.prompt + self.most - 1} positions (got {room})")
        return room

    def step(self, phase: str, length: int) -> Simulation:
        """The program of a prompt (``prefill``) or of a token (``decode``) of so many tokens, and its run in time."""
        key = phase, length
        if key not in self._made:
            self._made[key] = self._simulated(phase, length, self.kept)
        return self._made[key]

    @cached_property
    def kept(self) -> Kept:
        """Where parameters and cache lie."""
        longest = max(self.prompt + self.most - 1, 1)
        firsts = [("prefill", self.prompt), ("decode", longest)]
        alone = {first: self._simulated(*first, None) for first in firsts}
        found = []
        for first, other in (firsts, firsts[::-1]):
            kept = kept_of(alone[first].plan)
            both = {first: alone[first].run.cycles, other: self._simulated(*other, kept).run.cycles}
            found.append((both[firsts[0]] + (self.most - 1) * both[firsts[1]], first, kept))
        return min(found, key=lambda each: each[0])[2]

    def _simulated(self, phase: str, length: int, kept: Kept | None) -> Simulation:
        machine = effective(self.chip)
        key = "sequence" if phase == "prefill" else "context"
        own = [("phase", phase), (key, str(length)), ("cache_length", str(self.room))]
        graph = load_workload(self.model, [*self.sets, *own])
        alone = array_alone(machine, fit_precision(machine, graph)[0], "text of a model")
        began = time.perf_counter()
        plan = map_workload(machine, graph, Stopwatch(machine), search=False, kept=kept, channel=False)
        plan = replace(plan, notes=(*plan.notes, *alone))
        check_length(machine, plan.program)
        mapped = time.perf_counter() - began
        done = Simulation(machine, plan.graph, plan, run(plan.program, machine), mapped, self.chip, self.sets)
        check_floors(done)
        return done


def plan_generation(
    chip: str, model: str, overrides: list[tuple[str, str]], *, prompt: int, most: int
) -> GenerationPlan:
    """Plan a text of at most ``most`` tokens behind a prompt of ``prompt`` tokens.

    Raises
    ------
    LoomError
        For keys that the text decides itself, a cache without room, a model that is larger than the memory.
    NotSupported
        For chips whose programs share no memory: several tiles or memory levels.
    """
    chip_sets, workload_sets = split_overrides(overrides)
    for path, _ in workload_sets:
        if path in OWN:
            raise LoomError(f"--set workload.{path}: {OWN[path]} (--prompt)")
    machine = load_chip(chip, chip_sets)
    if not isinstance(machine.tile, NpuTile) or machine.tile_count > 1 or len(machine.memory) != 1:
        raise NotSupported(f"text on {machine.name}: its programs run on one npu tile with one memory level")
    return GenerationPlan(machine, model, tuple(workload_sets), prompt, most)


def figures(simulation: Simulation, *, context: int) -> StepFigures:
    """What a program takes; ``context`` are the tokens that its last one sees, itself included."""
    result: dict[str, Any] = simulation.result()
    cycles = result["cycles"]
    return StepFigures(
        result["tokens"],
        context,
        cycles,
        result["seconds"],
        result["energy_j"],
        result["utilization"],
        result["bound"]["memory_cycles"] / cycles if cycles else 0.0,
        len(simulation.plan.program.instructions),
    )


__all__ = ["GenerationPlan", "StepFigures", "figures", "plan_generation"]
