"""The targets that ``loom rtl --flow`` knows, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import LoomError, NotSupported, nearest_name
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.integration.librelane import librelane_files
from siliconloom.rtl.integration.litex import litex_files, refuse_litex
from siliconloom.rtl.integration.vivado import refuse_vivado, vivado_files


class Emission(NamedTuple):
    """What a target may need to know of what is written.

    Parameters
    ----------
    chip
        The description, with its memory as it delivers (`siliconloom.sim.dram.memory.effective`).
    design
        Its circuit, and what is said about it.
    verilog
        Files of the design, in file-list order.
    memories
        The sidecar's entries of what an SRAM macro may replace.
    predicted_cycles
        Of the example's product in the simulator; ``None`` for a tile without example.
    """

    chip: Chip
    design: Design
    verilog: Sequence[str]
    memories: Sequence[dict[str, Any]]
    predicted_cycles: int | None


FLOWS: dict[str, Callable[[Emission], dict[str, str]]] = {
    "litex": lambda made: litex_files(made.chip, made.design, made.predicted_cycles),
    "vivado": lambda made: vivado_files(made.chip, made.design, made.verilog),
    "librelane": lambda made: librelane_files(made.chip, made.design, made.verilog, made.memories),
}
REFUSALS: dict[str, Callable[[Chip, Design], None]] = {"litex": refuse_litex, "vivado": refuse_vivado}
"""What raises `NotSupported` for a design that a target has no use for."""


def check_flows(names: Sequence[str]) -> tuple[str, ...]:
    """The targets of these names, which may be joined by commas, each once; raises `LoomError` for an unknown one."""
    wanted = dict.fromkeys(part.strip() for name in names for part in name.split(","))
    for name in wanted:
        if name not in FLOWS:
            near = nearest_name(name, tuple(FLOWS))
            hint = f"; did you mean '{near}'?" if near else ""
            raise LoomError(f"--flow: must be one of {', '.join(FLOWS)} (got '{name}'){hint}")
    return tuple(wanted)


def refuse_flows(flows: Sequence[str], chip: Chip, design: Design) -> None:
    """Refuse a design that one of some targets has no use for, before it is elaborated."""
    for name in flows:
        if getattr(chip.tile, "pim", None) is not None:
            raise NotSupported(
                f"--flow {name} for {chip.name}: nothing stands behind the pins of its channel of memory that computes "
                "(tile.pim)"
            )
        if name in REFUSALS:
            REFUSALS[name](chip, design)


def flow_files(flows: Sequence[str], made: Emission) -> dict[str, str]:
    """The files of some targets, text by name; raises `NotSupported` where one makes no sense for a design."""
    files: dict[str, str] = {}
    for name in flows:
        files |= FLOWS[name](made)
    return files


__all__ = ["FLOWS", "Emission", "check_flows", "flow_files", "refuse_flows"]
