"""What ``loom warmup`` does: small runs that between them call every kernel in every way that commands do.

A command that is found to compile something after this needs a run here (``tests/arch/test_kernel_cache.py`` finds it).
"""

from __future__ import annotations

import compileall
import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from siliconloom.arch import PimTile, load_chip
from siliconloom.arch.datatype import DataType
from siliconloom.arch.dram import load_dram
from siliconloom.arch.floats import float_product, float_sum, flushed, narrowed, rounded, widened
from siliconloom.arch.network import load_network, wire
from siliconloom.arch.pim import Macro, MacroKind
from siliconloom.arch.processes import given_to_helper, helped, start_beside, yield_to_others
from siliconloom.arch.working import working_folder
from siliconloom.evaluate.chip import simulate
from siliconloom.evaluate.collective import collective_result
from siliconloom.evaluate.communication import communication_result
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.experts import loads_of, place_evenly, place_experts, routing_of
from siliconloom.mapper.network.collectives import pattern
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.sim.dram.memory import effective
from siliconloom.sim.dram.replay import replay
from siliconloom.sim.golden.float_functions import activation, fixed, power, softmax
from siliconloom.sim.golden.products import folded_product, folds_of, panels_product
from siliconloom.sim.network.patterns import run_pattern
from siliconloom.sim.pim.channel import run_channel
from siliconloom.sim.system.streams import Tasks, run_tasks
from siliconloom.sim.timing.changes import read_changes
from siliconloom.workloads import load_workload

PROGRAM = """\
kind: communication
name: warm
program:
  - do:
      - compute: {time: 1 us}
      - all_reduce: {bytes: 64 KiB}
"""
EVENTS = """\
events:
  - {at: 100 ns, chip: 1, factor: 2}
  - {at: 1 us, between: [0, 1], failed: true}
  - {at: 2 us, between: [0, 1], failed: false}
timeout: 20 us
"""


def _programs_of_tiles() -> None:
    sets = [("layers", "1"), ("sequence", "16")]
    simulate("npu-edge-int8", "gpt2", [(f"workload.{key}", value) for key, value in sets], trace_limit=100)
    chip = effective(load_chip("npu-edge-int8"))
    # that mapping may be one that was remembered
    map_workload(chip, load_workload("gpt2", sets), Stopwatch(chip))


def _commands_of_memories() -> None:
    request = np.zeros((3, 1), np.int64)
    for exact in (False, True):
        replay(load_dram("hbm2"), *request, exact=exact)


def _commands_in_memory() -> None:
    tile = load_chip("pim-hbm").tile
    assert isinstance(tile, PimTile)
    run_channel(tile, [Macro(kind=MacroKind.GWRITE)])


def _gpus() -> None:
    for phase in ("prefill", "decode"):
        graph = load_workload("gpt2", [("precision", "bf16"), ("phase", phase)])
        evaluate(read_machine("dgx-h100", [("policy.tensor", "2")]), graph)
    experts = load_workload("mixtral-8x7b", [("layers", "1"), ("phase", "decode"), ("batch", "16")])
    evaluate(read_machine("h100", []), experts)


def _collectives() -> None:
    network = load_network("torus-2d")
    for exact, flows in ((False, False), (True, False), (False, True)):
        collective_result(network, "all_reduce", 65536.0, 8, exact=exact, flows=flows)
    wiring = wire(network.topology, network.link, 16)
    found = pattern("all_reduce", "ring", wiring, 65536.0)
    for few in (0, len(found)):
        run_pattern(wiring, found, network.endpoint, few=few)


def _communication() -> None:
    with working_folder("warmup") as folder:
        file = folder / "program.yaml"
        for events in ("", EVENTS):
            file.write_text(PROGRAM + events, encoding="utf-8")
            communication_result(load_network("torus-2d"), str(file), 8)


def _pipelines() -> None:
    run_tasks(Tasks(), read_changes(1, []))


def _experts() -> None:
    trace = np.random.default_rng(0).integers(0, 8, (64, 3, 2))
    for exhaustive in (False, True):
        place_experts(routing_of(trace, 8), 2, exhaustive=exhaustive)
    place_evenly(loads_of(trace, 16), 4)


def _numbers() -> None:
    words = np.ones(2, np.uint32)
    float_product(float_sum(words, words), flushed(words))
    widened(narrowed(words, DataType.BF16), DataType.BF16)
    rounded(words, DataType.BF16)
    softmax(activation(words[None], cubic=False), np.ones((1, 2), np.bool_), 2)
    power(fixed(words), np.zeros(2, np.int64))
    operand, folds = words.reshape(1, 2), folds_of(2, 2, (0, 1))
    folded_product(operand, operand.T, folds)
    panels_product(operand, np.ones(2, np.uint16), (2, 1, 1), folds, np.zeros((1, 1, 1), np.int64), False)


def _bytecode() -> None:
    """Python's own, which an installation in place makes at the first import, and never where it is told not to."""
    for folder, _, names in os.walk(Path(__file__).parents[1], followlinks=True):
        for name in names:
            if name.endswith(".py"):
                compileall.compile_file(Path(folder, name), quiet=2)


Runs = tuple[Callable[[], None], ...]
RUNS: dict[str, tuple[Runs, Runs]] = {
    "chips": ((_programs_of_tiles, _bytecode), (_numbers,)),
    "memories": ((_commands_in_memory,), (_commands_of_memories,)),
    "gpus": ((_gpus,), ()),
    "networks": ((_communication, _pipelines, _experts), (_collectives,)),
}
"""For what is asked most of each: runs here, and runs in the process beside whose kernels take about as long."""


def warm_up(parts: Sequence[str] | None = None) -> None:
    """Compile the kernels of these parts, or load them where that was done before; with two cores in two processes.

    In the end every kernel of them was called in this one. All parts are meant where none are named.
    """
    parts = tuple(RUNS) if parts is None else parts
    code = f"from siliconloom.commands.warming import compile_beside; compile_beside({tuple(parts)!r})"
    beside = [run for part in parts for run in RUNS[part][1]]
    with helped(code) if beside else nullcontext():
        for part in parts:
            for run in RUNS[part][0]:
                run()
    for run in beside:
        run()


def warm_up_behind(parts: Sequence[str] | None = None) -> None:
    """Start a process that does `warm_up` when the machine has nothing else to do, and leave it alone."""
    start_beside(f"from siliconloom.commands import warming; warming.warm_up_in_idle_time({parts!r})", quiet=True)


def warm_up_in_idle_time(parts: Sequence[str] | None) -> None:
    """What the process of `warm_up_behind` does."""
    yield_to_others(19)
    warm_up(parts)


def compile_beside(parts: Sequence[str]) -> None:
    """What the process beside does, as long as there is the one that started it, which tells what fails."""
    given_to_helper()
    for part in parts:
        for run in RUNS[part][1]:
            with contextlib.suppress(Exception):
                run()
