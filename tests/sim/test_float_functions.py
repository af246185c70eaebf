"""The vector unit's functions in floating point against float64, and at the ends of their range."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import DataType
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program
from siliconloom.arch.vector import VectorFunction
from siliconloom.sim.golden import float_functions as functions

TABLES = 2.0**-14.8
"""Relative error of a power, and bound of those of reciprocals and roots."""
LANES = 8


def words(*values):
    return np.array(values, np.float32).view(np.uint32)


def real(patterns):
    return patterns.view(np.float32).astype(np.float64)


def drawn(shape, spread=1.0, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def test_reciprocals_roots_and_powers():
    x = np.abs(drawn(100_000)) * np.float32(2) ** np.random.default_rng(1).integers(-60, 60, 100_000)
    x = x.astype(np.float32)
    for got, wanted in (
        (functions.reciprocal(x.view(np.uint32)), 1 / x.astype(np.float64)),
        (functions.reciprocal_root(x.view(np.uint32)), 1 / np.sqrt(x.astype(np.float64))),
    ):
        assert np.abs(real(got) / wanted - 1).max() < 2.0**-15.3
    t = -np.abs(drawn(100_000, 20))
    got = functions.power(functions.fixed(t.view(np.uint32)), np.zeros(1, np.int64))
    assert np.abs(real(got) / 2.0 ** t.astype(np.float64) - 1).max() < TABLES


def test_powers_of_two_have_exact_reciprocals_and_roots():
    x = 2.0 ** np.arange(-120, 121, 2)
    assert (real(functions.reciprocal(words(*x))) == 1 / x).all()
    assert (real(functions.reciprocal_root(words(*x))) == 1 / np.sqrt(x)).all()


def test_what_has_no_reciprocal_and_no_root():
    assert functions.reciprocal(words(0, -0.0, np.inf)).tolist() == [0, 0, 0]
    assert functions.reciprocal_root(words(0, -1)).tolist() == [0, 0]
    for name in ("reciprocal", "reciprocal_root"):
        assert np.isnan(real(getattr(functions, name)(words(np.nan)))).all()
    assert np.isnan(real(functions.reciprocal_root(words(np.inf, -np.inf)))).all()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("epsilon", [0, 0.25])
def test_norms(centred, epsilon):
    x = drawn((50, 300)) + np.float32(0.5)
    one, none = words(*[1] * 300)[None, :], words(*[0] * 300)[None, :]
    got = real(functions.normalize(x.view(np.uint32), one, none, words(epsilon), LANES, centred=centred))
    moved = x - x.mean(1, keepdims=True, dtype=np.float64) * centred
    wanted = moved / np.sqrt((moved**2).mean(1, keepdims=True) + epsilon)
    assert np.abs(got - wanted).max() < 4e-5 * np.abs(wanted).max()


def test_rows_without_a_deviation_give_their_bias_and_those_without_numbers_none():
    rows = words(2, 2, 2, 2, 1, np.inf, 1, 1, 1, np.nan, 1, 1).reshape(3, 4)
    one, bias = words(1, 1, 1, 1)[None, :], words(1, 2, 3, 4)[None, :]
    got = real(functions.normalize(rows, one, bias, words(0), 2, centred=True))
    assert got[0].tolist() == [1, 2, 3, 4]
    assert np.isnan(got[1:]).all()


@pytest.mark.parametrize("keys", [1, 7, 300])
def test_softmax(keys):
    t, seen = drawn((40, keys), 6), np.ones((40, keys), bool)
    seen[0, keys // 2 + 1 :] = False
    got = real(functions.softmax(t.view(np.uint32), seen, LANES))
    powers = np.where(seen, 2.0 ** t.astype(np.float64), 0)
    wanted = powers / powers.sum(1, keepdims=True)
    assert (got[~seen] == 0).all()
    assert (np.abs(got - wanted) <= 3 * TABLES * wanted).all()


def test_tiles_of_a_row_have_the_total_of_the_row():
    t, seen = drawn((20, 96), 8), np.ones((20, 32), bool)
    carried = None
    for start in (0, 32, 64):
        carried = functions.reduced(
            np.ascontiguousarray(t[:, start : start + 32]).view(np.uint32), seen, LANES, carried
        )
    peak, total = functions.reduced(t.view(np.uint32), np.ones((20, 96), bool), LANES)
    assert (carried[0] == peak).all()
    assert (carried[1] == total).all()


def test_rows_of_a_softmax_that_no_number_is_in():
    """A NaN that is seen makes its row NaN, one that is not counts for nothing; infinities are far away."""
    t = words(1, np.nan, 3, 1, 2, np.inf, -np.inf, 2, -np.inf).reshape(3, 3)
    seen = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1]], bool)
    got = real(functions.softmax(t, seen, 2))
    assert np.isnan(got[0]).all()
    assert got[1].tolist() == pytest.approx([0, 0, 1], abs=2 * TABLES)
    assert got[2].tolist() == pytest.approx([0, 1, 0], abs=2 * TABLES)
    assert real(functions.softmax(t[:1], np.array([[1, 0, 1]], bool), 2))[0].tolist() == pytest.approx(
        [0.2, 0, 0.8], rel=1e-4
    )
    assert functions.softmax(t, np.zeros((3, 3), bool), 2).any() == 0


def sigmoid(u):
    return 1 / (1 + np.exp(-np.clip(u, -700, 700)))


@pytest.mark.parametrize("cubic", [True, False])
def test_activations(cubic):
    x = np.concatenate([drawn(20_000, 4), np.linspace(-14, 14, 20_001).astype(np.float32)])
    got = real(functions.activation(x.view(np.uint32), cubic=cubic))
    wide = x.astype(np.float64)
    wanted = wide * sigmoid(wide * (2 * np.sqrt(2 / np.pi) * (1 + 0.044715 * wide**2)) if cubic else wide)
    near = np.abs(wide) < 5
    assert (np.abs(got - wanted)[near] <= 6 * TABLES * np.abs(wanted[near])).all()
    assert np.abs(got - wanted).max() < 2e-4


@pytest.mark.parametrize("cubic", [True, False])
def test_activations_at_the_ends(cubic):
    x = words(np.inf, -np.inf, 3e38, -3e38, 1e30, -1e30, 0, -0.0, 1e-38, np.nan)
    got = functions.activation(x, cubic=cubic)
    assert got[:8].tolist() == words(np.inf, -0.0, 3e38, -0.0, 1e30, -0.0, 0, -0.0).tolist()
    assert real(got[8:9]) == 0
    assert np.isnan(real(got[9:]))


def test_tanh():
    x = np.concatenate([drawn(20_000, 4), np.linspace(-14, 14, 20_001).astype(np.float32)])
    got = real(functions.tanh(x.view(np.uint32)))
    wanted = np.tanh(x.astype(np.float64))
    assert np.abs(got - wanted).max() < 4 * TABLES
    assert (np.abs(got - wanted) <= 1e-3 * np.abs(wanted)).all()
    assert np.abs(got).max() <= 1
    ends = functions.tanh(words(np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, np.nan))
    assert ends[:6].tolist() == words(1, -1, 1, -1, 0, -0.0).tolist()
    assert np.isnan(real(ends[6:]))


def test_the_order_of_elements():
    x = words(-np.inf, -2, -1e-40, -0.0, 0.0, 1e-40, 1, np.inf, np.nan, -np.nan)
    order = functions.order_of(x)
    assert (np.diff(order[[0, 1, 2, 6, 7, 8]]) > 0).all()
    assert len(set(order[2:6].tolist())) == 1
    assert order[8] == order[9]


def checked(sets, **fields):
    far = Address(base=1 << 16)
    norm = Instruction(opcode=Opcode.VECTOR, m=1, n=4, b=far, d=far, **fields)
    check_program(Program((norm, Instruction(opcode=Opcode.END))), load_chip("npu-edge-int8", sets))


def test_an_epsilon_is_a_positive_number_in_bf16_and_integers_have_none():
    bf16 = [("tile.array.operands", "bf16")]
    fields = {"function": VectorFunction.RMS_NORM, "dtype": DataType.BF16}
    for k in (0, 1, 0x3727, 0x7F7F):
        checked(bf16, **fields, k=k)
    for k in (0x7F80, 0xBF80, 0x10000):
        with pytest.raises(IllegalProgram, match=f"k is its pattern in bf16, below 0x7f80 .got {k:#x}"):
            checked(bf16, **fields, k=k)
    with pytest.raises(IllegalProgram, match="rms_norm takes 2 operands at most"):
        checked([], function=VectorFunction.RMS_NORM, k=0x3727)
    with pytest.raises(IllegalProgram, match="add takes 2 operands at most"):
        checked(bf16, function=VectorFunction.ADD, dtype=DataType.BF16, k=0x3727)


def test_a_listing_shows_the_epsilon():
    norm = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.RMS_NORM, m=2, n=8, k=0x3727, dtype=DataType.BF16)
    assert "rms_norm 2x8 (epsilon 9.95" in " ".join(norm.opcode.spec.operands(norm))
    plain = Instruction(opcode=Opcode.VECTOR, function=VectorFunction.RMS_NORM, m=2, n=8, k=1)
    assert "rms_norm 2x8 (1 in)" in " ".join(plain.opcode.spec.operands(plain))


@st.composite
def rows_of_blocks(draw):
    """Sums of blocks, peaks that do not fall, and what the first block goes on from."""
    rows, blocks = draw(st.integers(1, 3)), draw(st.integers(1, 13))
    numbers = np.random.default_rng(draw(st.integers(0, 1 << 20)))
    parts = (numbers.standard_normal((rows, blocks)) * 2.0 ** numbers.integers(-6, 7, (rows, blocks))).astype("f4")
    rises = numbers.integers(0, draw(st.sampled_from([1, 3, 90])), (rows, blocks + 1))
    peaks = np.cumsum(rises, axis=1)
    before = (peaks[:, 0], numbers.standard_normal(rows).astype("f4").view(np.uint32)) if draw(st.booleans()) else None
    return parts, peaks[:, 1:], before


def in_turn(parts, peaks, before, stages):
    """Partial sums in numbers of Python's own, each lowered when it is touched, and in the end."""
    held, since, one = [np.float32(0)] * stages, [int(peaks[0])] * stages, np.float32(1)
    if before is not None:
        since[0], held[0] = int(before[0]), before[1]
    for block, part in enumerate(parts):
        place, peak = block % stages, int(peaks[block])
        rise = min(peak - since[place], 63) if held[place] else 0
        held[place] = np.float32(held[place] * one * np.float32(2.0**-rise)) + part
        since[place] = peak
    ends = [np.float32(h * np.float32(2.0 ** -min(int(peaks[-1]) - s, 63))) for h, s in zip(held, since, strict=True)]
    while len(ends) > 1:
        half = len(ends) // 2
        ends = [a + b for a, b in zip(ends[:half], ends[half:], strict=True)]
    return ends[0]


@given(rows_of_blocks(), st.sampled_from([1, 2, 4]))
def test_a_row_is_summed_in_as_many_partial_sums_as_an_addition_has_stages(made, stages):
    parts, peaks, before = made
    got = functions.row_sums(parts.view(np.uint32), stages, peaks, before).view(np.float32)
    for row, found in enumerate(got):
        carried = None if before is None else (before[0][row], before[1].view(np.float32)[row])
        assert found == in_turn(parts[row], peaks[row], carried, stages)


@given(rows_of_blocks(), st.sampled_from([1, 2, 4]), st.integers(1, 5))
def test_blocks_of_nothing_behind_a_row_change_nothing(made, stages, more):
    parts, peaks, before = made
    longer = np.pad(parts, ((0, 0), (0, more))).view(np.uint32)
    last = np.concatenate([peaks, np.repeat(peaks[:, -1:], more, axis=1)], axis=1)
    wanted = functions.row_sums(parts.view(np.uint32), stages, peaks, before)
    assert (functions.row_sums(longer, stages, last, before) == wanted).all()


def test_partial_sums_are_another_order_than_one_block_after_the_other():
    parts = np.array([[1, 2**24, 1, -(2**24)]], np.float32).view(np.uint32)
    assert [functions.row_sums(parts, stages).view(np.float32)[0] for stages in (1, 2)] == [0, 2]
