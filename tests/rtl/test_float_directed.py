"""Programs for tiles in floating point that a bench runs beside the random ones: what they read is there."""

import numpy as np
import pytest

from siliconloom.arch import load_chip
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.float_directed import FLOAT


@pytest.mark.parametrize("sides", [(4, 4, 2), (4, 4, 4), (8, 4, 2), (16, 8, 4), (8, 6, 2)], ids=str)
@pytest.mark.parametrize("name", FLOAT)
def test_nothing_is_read_that_nobody_wrote(name, sides):
    """Rows of angles were as long as lanes are many, and were read as rows of operands are: a bench failed for it."""
    rows, cols, lanes = sides
    sets = {"tile.array.rows": rows, "tile.array.cols": cols, "tile.vector.lanes": lanes, "tile.array.load_rows": 1}
    chip, images = load_chip("npu-edge", [(key, str(value)) for key, value in sets.items()]), []
    made = FLOAT[name](chip)
    for fill in (0, 0x3F):
        machine = GoldenMachine(chip, made.memory.copy())
        machine.scratchpad[:] = fill
        machine.sums[:] = fill
        machine.run(made.program)
        images.append(machine.memory)
    assert np.array_equal(*images)
