"""From real factors to the integers of a lane."""

import pytest

from siliconloom.arch import LoomError
from siliconloom.execution.quantize import scaled


@pytest.mark.parametrize("factors", [(0.5,), (1.0,), (0.99999,), (1e-7, 3e-3), (100.0, -1.0), (0.0,)])
def test_factors_become_multipliers_of_fifteen_bits(factors):
    *multipliers, shift = scaled(*factors)
    for multiplier, factor in zip(multipliers, (*factors, 0.0), strict=False):
        assert abs(multiplier) < 1 << 15
        assert abs(multiplier / 2**shift - factor) <= max(map(abs, factors)) / 2**14


def test_a_factor_beyond_every_multiplier_is_refused():
    with pytest.raises(LoomError, match="beyond what a multiplier of 15 bits holds"):
        scaled(1e6)
