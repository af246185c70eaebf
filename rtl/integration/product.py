"""The product that software for other systems computes: that of ``example/matmul.c``, from the same template."""

from __future__ import annotations

from typing import Any

from siliconloom.arch.description import Chip
from siliconloom.arch.tile import NpuTile
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.npu.example import example_values
from siliconloom.rtl.npu.example_tiling import ExampleTile, counts_of, default_shapes, memory_of, why_none
from siliconloom.rtl.npu.geometry import PAGE, geometry_of


def product_values(chip: Chip, design: Design) -> dict[str, Any]:
    """What ``product.c.j2`` needs to know of a whole tile; nothing for a tile without example (`why_none`).

    ``memory_bytes`` is what the product takes, the program included; ``page`` what its memory begins at a multiple of.
    """
    tile = chip.tile
    assert isinstance(tile, NpuTile)
    if why_none(tile):
        return {}
    geometry, example = geometry_of(chip), ExampleTile(tile)
    whole, limits = default_shapes(example)
    shape = example.choose(whole, limits)
    assert shape is not None, "tiles without room have no example"
    size = memory_of(example, geometry.bus, shape, counts_of(whole, shape)).end
    return example_values(design.top, tile, geometry, size) | {
        "whole": whole,
        "limits": limits,
        "page": max(PAGE, geometry.bus),
        "memory_note": "bytes that the product takes, the program included",
    }
