"""A model on a system of chips whose memory may compute: shards, stages, channels, and who works while.

One chip is simulated; under tensor parallelism the others do the same, and pipeline stages have as many layers. What
the arrays do comes from the chip simulator, run on the chip's share without its attention, with the bandwidth that the
memory's channels deliver to streams (`stream_bandwidth`). What memory does comes from the channels' command sequencers
(`sim.pim.channel`), one channel after the other, in full. Where both work at once, each channel gets both: the macros
of attention, and the arrays' reads as a stream of rows at the pace at which the arrays want them. What they do to each
other is then in the command timing, not in a factor.

The order is NeuPIMs' (Heo et al., ASPLOS 2024, section 6): without interleaving a layer's arrays and its attention take
turns; with it, two halves of the batch swap places in every half layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from siliconloom.arch import Chip, LoomError, NotSupported, load_group, load_system
from siliconloom.arch.description import NpuTile
from siliconloom.arch.system import System
from siliconloom.evaluate.channels import products, row_stream, stream_bandwidth
from siliconloom.evaluate.schedule import SystemStep
from siliconloom.evaluate.windows import Arrays, Channels, SystemSimulation, Window
from siliconloom.sim.dram.memory import effective
from siliconloom.workloads import Attention, Graph, Phase

__all__ = [
    "Arrays",
    "Channels",
    "SystemSimulation",
    "Window",
    "alone",
    "load_machine",
    "products",
    "row_stream",
    "simulate_system",
    "stream_bandwidth",
]


def load_machine(name: str, overrides: list[tuple[str, str]]) -> tuple[System, Chip]:
    """A system and its chip, with overrides: those under ``chip.`` go to the chip."""
    own = [(path, value) for path, value in overrides if not path.startswith("chip.")]
    system = load_system(name, own)
    if len(system.chips) != 1:
        raise NotSupported("systems of different chips")
    inner = [(path.removeprefix("chip."), value) for path, value in overrides if path.startswith("chip.")]
    return system, effective(load_group(system.chips[0], inner))


def alone(chip: Chip) -> System:
    """A system of one chip."""
    return System.model_validate(
        {
            "kind": "system",
            "name": chip.name,
            "chips": [{"chip": chip.name, "count": 1}],
            "topology": {"kind": "fully_connected"},
            "link": {"bandwidth": "1 GB/s", "latency": "1 ns"},
        }
    )


def simulate_system(
    system: System,
    graph: Graph,
    *,
    contexts: Sequence[int] | None = None,
    chip: Chip | None = None,
    exact: bool = False,
) -> SystemSimulation:
    """Lay ``graph`` over ``system`` by its policy and time one step.

    Parameters
    ----------
    system, graph
        Equal chips, and what they do together.
    contexts
        Tokens that each sequence attends to in decode, its own included; the workload's context for all by default.
    chip
        The chip, when it is not to be read from the library.
    exact
        Run every event of the arrays instead of jumping what repeats; memory's commands are all run in any case.

    Raises
    ------
    LoomError
        When weights and cache do not fit, or cannot be shared evenly.
    NotSupported
        For systems of different chips, models whose layers differ, and phases other than decode.
    """
    began = time.perf_counter()
    if len(system.chips) != 1:
        raise NotSupported("systems of different chips")
    chip = effective(chip or load_group(system.chips[0]))
    if not isinstance(chip.tile, NpuTile):
        raise NotSupported(f"systems of chips with a {chip.tile.kind} tile")
    if graph.phase is not Phase.DECODE:
        raise NotSupported(f"{graph.phase.value} on a system; set workload.phase=decode")
    kinds = [o for o in graph.operators() if isinstance(o, Attention)]
    if len(kinds) != 1:
        raise NotSupported(
            f"{graph.name} on a system: its layers must be alike, each with one attention ({len(kinds)} kinds)"
        )
    attention = kinds[0]
    lengths = tuple(contexts) if contexts is not None else (attention.kv_len,) * graph.batch
    if len(lengths) != graph.batch:
        raise LoomError(f"contexts: one for each of the {graph.batch} sequences (got {len(lengths)})")
    if graph.precision not in chip.tile.array.operands and not graph.explicit_precision:
        graph = graph.with_precision(chip.tile.array.operands[0])
    return SystemStep(system, chip, graph, lengths, exact).run(began)
