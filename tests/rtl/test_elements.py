"""Elements without an adder, and deep ones: values and cycles of their Verilog, and what they count of digits."""

import random
import re

import numpy as np
import pytest
from msgspec.structs import replace

from siliconloom.arch import load_chip
from siliconloom.arch.digits import beat_steps
from siliconloom.rtl.array.folds import ArrayProduct, FoldCase, operands
from siliconloom.verification.array import random_cases, scheduled
from tests.arch.test_digits import PUBLISHED
from tests.rtl.test_parity import failures, need, run

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


@pytest.mark.parametrize(("element", "depth", "module", "old", "new"), MUTATIONS)
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


@pytest.mark.parametrize(("sigma", "mean"), [(s, m) for s, m in PUBLISHED.items() if s is not None])
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
