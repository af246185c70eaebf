"""Directed programs of transposes: of more rows than lanes, of parts of those that are taken together, in every format.

Programs of layers transpose as many rows as the array has columns, and random ones few; lanes beyond those, and what
follows the first group of rows, are met here on any tile.
"""

from __future__ import annotations

import numpy as np

from siliconloom.arch import Chip
from siliconloom.arch.isa import Address, Opcode
from siliconloom.arch.layout import padded, row_values
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.chain import Places
from siliconloom.verification.images import RESULTS, random_image


def transposed_rows(chip: Chip) -> LoadedProgram:
    """Rows that are transposed into lines that have other values already, which stay where no row ends.

    More rows than lanes, as many as are taken together and one more, one fewer, and one; columns in two blocks, where
    there is room for them.
    """
    assert isinstance(chip.tile, NpuTile)
    tile, places = chip.tile, Places(chip.tile)
    lanes, together, element = tile.vector.lanes, tile.vector.together, tile.element_bytes
    chain, memory = places.chain(), random_image(np.random.default_rng(57))
    room = min(places.bank, RESULTS // 4)
    source, target = 0, RESULTS
    first, out = Address(base=0), Address(base=places.bank * 3)
    for rows, cols in (
        (2 * lanes + 1, lanes + 1),
        (lanes + 1, 3),
        (together + 1, lanes),
        (max(together - 1, 1), lanes + 1),
        (1, 2),
    ):
        pitch, result = (element * row_values(tile, values) for values in (cols, rows))
        taken = places.aligned(max(rows * pitch, cols * result))
        if taken > room or source + taken > RESULTS or target + taken > RESULTS + RESULTS // 2:
            continue
        chain.add(Opcode.LOAD, m=1, n=taken, memory=Address(base=source), a=first)
        whole = result // element
        chain.add(Opcode.VECTOR, function=VectorFunction.COPY, m=cols, n=whole, k=1, a=first, c=out)
        chain.add(Opcode.VECTOR, function=VectorFunction.TRANSPOSE, m=rows, n=cols, k=1, a=first, c=out)
        # what lies behind has never been written
        chain.add(Opcode.STORE, m=1, n=cols * result, memory=Address(base=target), a=out)
        source, target = source + taken, target + padded(places.aligned(cols * result), places.unit)
    return chain.program(memory)


__all__ = ["transposed_rows"]
