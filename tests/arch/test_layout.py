"""How stationary operands lie in memory: the whole operand at once against fold by fold."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.layout import fold_tile, packed, unpacked


@given(
    rows=st.sampled_from([4, 8, 12]),
    cols=st.integers(1, 9),
    load_rows=st.sampled_from([1, 2, 4]),
    k=st.integers(1, 40),
    outer=st.integers(1, 30),
)
def test_an_operand_lies_fold_by_fold(rows, cols, load_rows, k, outer):
    sets = {"tile.array.rows": rows, "tile.array.cols": cols, "tile.array.load_rows": load_rows}
    array = load_chip("npu-edge", [(key, str(value)) for key, value in sets.items()]).tile.array
    operand = np.random.default_rng(0).integers(-128, 128, (k, outer)).astype(np.int8)
    folds = [
        fold_tile(array, operand[fold : fold + rows, panel : panel + cols]).reshape(-1)
        for panel in range(0, outer, cols)
        for fold in range(0, k, rows)
    ]
    held = packed(array, operand)
    np.testing.assert_array_equal(held, np.concatenate(folds))
    np.testing.assert_array_equal(unpacked(array, held, k)[:, :outer], operand)
