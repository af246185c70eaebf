"""What ``loom rtl`` does: generate, write, say what was written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import cast, get_args

from siliconloom.arch import Chip, System
from siliconloom.arch.chip_ring import ring_parts
from siliconloom.arch.errors import require_name
from siliconloom.arch.tile import NpuTile
from siliconloom.rtl.emit import Bundle, build_rtl, modules_of, package
from siliconloom.rtl.library import Library, ResetStyle
from siliconloom.rtl.link.design import ring_design
from siliconloom.rtl.names import module_prefix
from siliconloom.rtl.npu.example import example_run
from siliconloom.rtl.npu.example_tiling import ExampleTile, default_shapes, memory_bytes, why_none
from siliconloom.rtl.npu.geometry import geometry_of, has_npu_rtl
from siliconloom.sim.chip.engine import run
from siliconloom.sim.dram.memory import effective
from siliconloom.verification.vectors import bench_vectors, chosen_beside

RESETS: tuple[ResetStyle, ...] = get_args(ResetStyle)


def check_reset(name: str) -> ResetStyle:
    """The reset style of that name; raises `LoomError` for an unknown one."""
    return cast(ResetStyle, require_name("--reset", name, RESETS))


def complete_rtl(
    chip: Chip | System,
    *,
    reset: ResetStyle = "sync",
    flows: Sequence[str] = (),
    told: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """All that ``loom rtl`` writes: as `build_rtl`, with runs of programs for the bench of a whole npu tile.

    ``flows`` names other people's tools for which files are written (`siliconloom.rtl.integration.flows`).
    Of a ring of chips it is one of them, with its engine and its ends of two links; ``ring_rank`` tells them apart.
    ``told`` is called with the number of circuits that are converted, as it grows.
    """
    if isinstance(chip, System):
        inner, engine, protocol, chips = ring_parts(chip)
        inner = effective(inner)
        design = ring_design(Library(module_prefix(chip.name), reset), inner, engine, protocol, chips)
        return package(inner.model_copy(update={"name": chip.name}), design, flows, told=told)
    chip = effective(chip)
    whole = isinstance(chip.tile, NpuTile) and has_npu_rtl(chip)
    written = None
    with chosen_beside(chip) if whole else nullcontext(False) as beside:
        if beside:
            written = modules_of(chip, reset, told)
    return build_rtl(
        chip,
        reset=reset,
        vectors=bench_vectors(chip) if whole else (),
        flows=flows,
        predicted_cycles=example_cycles(chip) if whole and flows else None,
        remembered=True,
        written=written,
        told=told,
    )


def example_cycles(chip: Chip) -> int | None:
    """Cycles of the example's product on the npu tile of ``chip`` in the simulator; ``None`` without an example."""
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if why_none(tile):
        return None
    example, bus = ExampleTile(tile), geometry_of(chip).bus
    whole, limits = default_shapes(example)
    product = example_run(chip, bus, whole, limits, memory_bytes(example, bus))
    assert product is not None, "the memory is sized for this shape"
    return int(run(product.program, chip, exact=True).cycles)
