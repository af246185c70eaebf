"""Elements without an adder, and deep ones: values and cycles of their Verilog, and what they count of digits."""

import random
import re

import numpy as np
import pytest
from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator
from msgspec.structs import replace

from siliconloom.arch import SystolicArray, load_chip
from siliconloom.arch.digits import beat_steps
from siliconloom.rtl.array.elements import arithmetic_of
from siliconloom.rtl.array.folds import ArrayProduct, FoldCase, operands
from siliconloom.rtl.formal import Monitor, check, prove
from siliconloom.rtl.library import Library
from siliconloom.verification.array import random_cases, scheduled
from tests.arch.test_digits import PUBLISHED
from tests.in_turn import in_turn
from tests.rtl.test_parity import failures, need, run
from tests.tools import need_yosys

ELEMENTS = ["multiply_add", "carry_save", "compressor", "digit_serial"]


def element_chip(element, seed):
    """A small array of such elements with random parameters."""
    chance = random.Random(f"{element} {seed}")
    stays = element != "carry_save" or chance.random() < 0.5
    load_rows = 1 if stays else chance.choice([1, 2])
    sets = {
        "element": element,
        "load_rows": load_rows,
        "rows": load_rows * chance.randint(1, 3),
        "cols": chance.randint(1, 4),
        "multiply_stages": chance.randint(0, 3),
        "operands": chance.choice(["int8", "int8", "int4", "int16"]),
        "depth": chance.choice([1, 2, 3, 5]) if stays and element != "multiply_add" else 1 + 2 * stays,
    }
    name = "systolic-os-8" if stays else chance.choice(["systolic-ws-8", "systolic-is-8"])
    return load_chip(name, [(f"tile.array.{key}", str(value)) for key, value in sets.items()])


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("element", ELEMENTS)
def test_random_arrays_of_each_element(element, seed, tmp_path):
    need("icarus")
    chip = element_chip(element, seed)
    parities = run(chip, random_cases(chip.tile.array, seed, 6), "icarus", tmp_path)
    assert failures(parities) == []
    assert all(p.bytes_compared for p in parities)
    assert all(p.stalled or p.times_compared == 2 * len(p.result.folds) for p in parities)


MUTATIONS = [
    ("carry_save", 1, "element_inner_chained", r"(sum_0_0_sum.*) \^ ", r"\1 | "),
    ("compressor", 3, "weights_.*", r"(weights_1_0_sum.*) \^ ", r"\1 & "),
    ("digit_serial", 1, "digit_edge.*", r"assign done = ~", "assign done = "),
    ("digit_serial", 2, "digits_8", r"(take \? )minus( : kept_minus)", r"\1twos\2"),
]


@pytest.mark.parametrize(("element", "depth", "module", "old", "new"), in_turn(MUTATIONS, 4))
def test_a_planted_bug_is_found(element, depth, module, old, new, tmp_path):
    need("icarus")
    sets = {"rows": 2, "cols": 2, "element": element, "depth": depth}
    chip = load_chip("systolic-os-8", [(f"tile.array.{key}", str(value)) for key, value in sets.items()])

    def mutate(folder, top):
        (path,) = (each for each in folder.glob("*.v") if re.fullmatch(rf"{top}_{module}", each.stem))
        text = path.read_text()
        changed = re.sub(old, new, text, count=1)
        assert changed != text
        path.write_text(changed)

    cases = [replace(case, stall={}) for case in random_cases(chip.tile.array, 5, 4)]
    assert failures(run(chip, cases, "icarus", tmp_path, mutate)) != []


@pytest.mark.parametrize(("sigma", "mean"), in_turn([(s, m) for s, m in PUBLISHED.items() if s is not None], 0))
def test_verilog_counts_the_published_digits(sigma, mean, tmp_path):
    """One element works a cycle for each digit that is not zero, and one for an operand of zero."""
    need("icarus")
    chip = load_chip(
        "systolic-os-8", [("tile.array.rows", "1"), ("tile.array.cols", "1"), ("tile.array.element", "digit_serial")]
    )
    case = scheduled(chip.tile.array, FoldCase((ArrayProduct(1, 1, 4000),), 7, sigma=sigma))
    (parity,) = run(chip, [case], "icarus", tmp_path)
    assert parity.errors == []
    ((a, _),) = operands(case)
    cycles = parity.result.folds[0].last_output - chip.tile.array.output_latency
    assert (cycles - np.count_nonzero(a == 0)) / a.size == pytest.approx(mean, rel=0.005)


def test_the_slowest_operand_of_a_beat_decides():
    array = load_chip("systolic-os-8", [("tile.array.element", "digit_serial"), ("tile.array.depth", "2")]).tile.array
    a = np.array([[0, 0, 4, 1, 7], [0, 0, 1, 2, 127]])
    assert beat_steps(array, a).tolist() == [1, 1, 2]


class SumContract(Monitor):
    """Any state, resolved, and the products of any operands: the next state is resolved to their sum."""

    def __init__(self, array):
        self.array, self.arithmetic = array, arithmetic_of(array)
        ports = {"state": In(self.arithmetic.state_bits), "a": In(self.arithmetic.a_bits)}
        ports |= {"b": In(self.arithmetic.b_bits), "assert_sum": Out(1), "assume_code": Out(1), "cover_less": Out(1)}
        super().__init__(Library("proof"), f"proof_{array.element}", ports, reset=True)

    def elaborate(self, platform):
        m = self.module()
        own, en = self.arithmetic, Const(1, 1)
        following = Signal(own.state_bits)
        m.d.comb += following.eq(self.next(own.added(m, en, self.state, own.product(m, en, self.a, self.b))))
        before, after = (self.resolved(own, each) for each in (self.state, following))
        wanted = (before + self.products(m, own))[: own.sum_bits]
        m.d.comb += [self.assert_sum.eq(after == wanted), self.cover_less.eq(wanted[-1])]
        return m

    def next(self, state):
        return state

    def resolved(self, own, state):
        """The sum that a state is, by definition."""
        weights = range(own.digits) if self.array.element == "compressor" else range(1)
        total, at = Const(0, own.sum_bits), 0
        for weight in weights:
            width = own.sum_bits - 2 * weight
            first, second = state[at : at + width], state[at + width : at + 2 * width - 1]
            total = total + (first << 2 * weight) + (second << 2 * weight + 1)
            at += 2 * width - 1
        return total[: own.sum_bits]

    def products(self, m, own):
        m.d.comb += self.assume_code.eq(1)
        if self.array.element != "digit_serial":
            return sum(a.as_signed() * b.as_signed() for a, b in own.operands(self.a, self.b))
        codes = [self.a[at : at + own.code_bits] for at in range(0, own.a_bits, own.code_bits)]
        m.d.comb += self.assume_code.eq(Cat(*(~(code[0] & code[1]) for code in codes)).all())
        made = 0
        for lane, code in enumerate(codes):
            once = self.b[lane * own.bits : (lane + 1) * own.bits].as_signed() << 2 * code[3:]
            many = Mux(code[1], once << 1, Mux(code[0], once, 0))
            made = made + Mux(code[2], -many, many)
        return made


class SumContractOfAWrongState(SumContract):
    def next(self, state):
        return state ^ (state[5] & ~state[6] & state[9])


FORMAL = [("carry_save", "int4", 1), ("digit_serial", "int4", 1), ("digit_serial", "int8", 1)]


def kept(element, operands, depth):
    fields = {"dataflow": "output_stationary", "operands": (operands,), "multiply_stages": 0}
    return SystolicArray(rows=1, cols=1, element=element, depth=depth, **fields)


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("element", "operands", "depth"), FORMAL)
def test_the_next_sum_is_proved_of_all_sums_and_operands(element, operands, depth):
    need_yosys()
    pytest.importorskip("z3")
    assert prove(SumContract(kept(element, operands, depth)), depth=2, induction=1).induction == 1


def test_a_proof_finds_a_wrong_bit():
    need_yosys()
    pytest.importorskip("z3")
    assert check(SumContractOfAWrongState(kept("carry_save", "int4", 1)), depth=2).counterexample is not None


@pytest.mark.parametrize("operands", ["int8", "int16"])
@pytest.mark.parametrize("depth", [2, 3, 5, 7, 12])
def test_sums_of_any_depth_hold_the_largest_products(operands, depth):
    own = arithmetic_of(kept("multiply_add", operands, depth))
    m, a, b = Module(), Signal(own.a_bits), Signal(own.b_bits)
    total = own.product(m, Const(1, 1), a, b)
    least, mask = -(1 << own.bits - 1), (1 << own.bits) - 1
    chance = np.random.default_rng(depth)
    cases = [tuple(np.full(depth, value) for value in pair) for pair in ((least, least), (least, ~least), (~least, -1))]
    cases += [tuple(chance.integers(least, -least, (2, depth))) for _ in range(20)]

    async def bench(context):
        for values in cases:
            for signal, lanes in zip((a, b), values, strict=True):
                context.set(signal, sum((int(lane) & mask) << at * own.bits for at, lane in enumerate(lanes)))
            assert context.get(total.as_signed()) == int(np.dot(*values))

    simulator = Simulator(m)
    simulator.add_testbench(bench)
    simulator.run()
