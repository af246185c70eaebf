"""The example in the folder of a whole tile: somebody who has the folder, a C compiler and a simulator, and no more."""

import re
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from siliconloom.arch.assembler import check_program
from siliconloom.arch.isa import Opcode
from siliconloom.rtl.npu.example import ExampleTile, ProductShape, default_shapes, example_run, memory_bytes, why_none
from siliconloom.rtl.npu.testbench import sparse_words
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.emission import complete_rtl
from siliconloom.verification.random_tiles import random_npu
from tests.rtl.npu import npu, small_chip

FILES = ("start.hex", "memory.hex", "expected.hex")
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]


def odd_chip():
    """A tile of 3 x 5, input stationary, whose vector unit has other lanes than the array columns."""
    chip = small_chip()
    array = {"rows": 3, "cols": 5, "load_rows": 1, "dataflow": "input_stationary"}
    parts = {"array": chip.tile.array.model_copy(update=array)}
    return chip.model_copy(update={"name": "odd", "tile": chip.tile.model_copy(update=parts)})


CHIPS = {"square": small_chip, "odd": odd_chip, "depth": lambda: random_npu(0)}


def test_the_chips_have_every_dataflow():
    found = {name: make().tile.array.dataflow for name, make in CHIPS.items()}
    assert found == {"square": "weight_stationary", "odd": "input_stationary", "depth": "output_stationary"}


def command(words, folder):
    if shutil.which(words[0]) is None and not words[0].startswith("./"):
        pytest.skip(f"{words[0]} is not installed")
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Emits a chip once, and builds its example and its bench by what the README says."""

    @cache
    def build(name):
        chip, folder = CHIPS[name](), tmp_path_factory.mktemp(name) / "rtl"
        bundle = npu() if name == "square" else complete_rtl(chip)
        bundle.write(folder)
        return chip, folder, readme_commands(bundle)

    return build


def readme_commands(bundle):
    block = re.search(r"^## A program of your own\n.*?^```\n(.*?)^```", bundle.files["README.md"], re.M | re.S)[1]
    return [line.split() for line in block.splitlines()]


def compiled(folder, commands):
    """The example, compiled by the README's line with every warning an error."""
    line = next(words for words in commands if words[0] == "cc")
    done = command([*line[:1], *WARNINGS, *line[1:]], folder)
    assert (done.returncode, done.stderr) == (0, "")


def matmul(folder, name, *sizes):
    (folder / name).mkdir(exist_ok=True)
    done = command(["./matmul", name, *map(str, sizes)], folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@example(94, True, (13, 27, 33), (5, 3, 7))  # of 80 columns at least, whose parameters take more than a bank
@given(
    seed=st.integers(0, 400),
    any_sides=st.booleans(),
    whole=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 70)),
    limits=st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(1, 70)),
)
def test_the_program_is_legal_on_any_tile_and_leaves_what_it_must(seed, any_sides, whole, limits):
    chip = random_npu(seed, any_sides)
    assert why_none(chip.tile) == ""
    run = example_run(chip, chip.tile.dma.bytes_per_cycle, ProductShape(*whole), ProductShape(*limits), 1 << 22)
    assume(run is not None)  # tiny tiles of a product may take more memory
    check_program(run.program, chip)
    after = run.before.copy()
    GoldenMachine(chip, after).run(run.program)
    np.testing.assert_array_equal(after, run.after)
    assert (run.after != run.before).any()


@pytest.mark.parametrize("counts", list(np.ndindex(3, 3, 3)))
def test_every_buffer_alternates_between_its_slots(counts):
    """Of neighbouring rounds none meets in one slot, however many rounds each level has: a race would rarely show."""
    chip, m, n, k = small_chip(), *(count + 1 for count in counts)
    run = example_run(chip, 16, ProductShape(2 * m, 4 * n, 8 * k), ProductShape(2, 4, 8), 1 << 20)
    used = {}

    def walk(place, indices):
        while True:
            i = run.program.instructions[place]
            if i.opcode == Opcode.LOOP:
                for index in range(i.m):
                    after = walk(place + 1, [*indices, index])
                place = after
                continue
            if i.opcode in (Opcode.NEXT, Opcode.END):
                return place + 1
            for name in ("a", "b", "c", "d"):
                address = getattr(i, name)
                if address.slot and (i.opcode != Opcode.MATMUL or name != "c" or indices[2] == 0):
                    used.setdefault((place, name), []).append((address.at(indices) - address.base) // address.slot)
            place += 1

    walk(0, [])
    assert len(used) == 10  # 3 loads, 3 of the product, 3 of the vector unit, a store
    for slots in used.values():
        assert slots == [number % 2 for number in range(len(slots))]
    assert {len(slots) for slots in used.values()} == {m * n, m * n * k}


def test_tiles_without_room_for_a_product_say_so():
    chip = small_chip()
    few = chip.tile.scratchpad.model_copy(update={"banks": 2})
    assert "tile.scratchpad.banks is 2" in why_none(chip.tile.model_copy(update={"scratchpad": few}))
    short = chip.tile.sequencer.model_copy(update={"program_words": 12})
    assert "program_words is 12" in why_none(chip.tile.model_copy(update={"sequencer": short}))
    narrow = chip.tile.scratchpad.model_copy(update={"capacity": 4 * 32, "banks": 4})
    assert "no room" in why_none(chip.tile.model_copy(update={"scratchpad": narrow}))


@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("name", CHIPS)
def test_the_c_program_writes_the_same_bytes_as_the_generator(name, made):
    chip, folder, commands = made(name)
    compiled(folder, commands)
    (folder / "same").mkdir(exist_ok=True)
    assert command(["./matmul", "same"], folder).returncode == 0
    for each in FILES:
        assert (folder / "same" / each).read_text() == (folder / "example" / "data" / each).read_text(), each
    tile, bus = ExampleTile(chip.tile), chip.tile.dma.bytes_per_cycle
    size = memory_bytes(tile, bus)
    for whole, limits in [((11, 7, 21), (4, 5, 6)), ((1, 1, 1), (1, 1, 1)), ((9, 23, 50), (9, 23, 50))]:
        matmul(folder, "same", *whole, *limits)
        run = example_run(chip, bus, ProductShape(*whole), ProductShape(*limits), size)
        found = {each: (folder / "same" / each).read_text() for each in FILES}
        assert found["memory.hex"] == sparse_words(np.zeros_like(run.before), run.before, bus)
        assert found["expected.hex"] == sparse_words(run.before, run.after, bus)
        assert found["start.hex"] == "".join(f"{offset:08x}{value:08x}\n" for offset, value in run.writes)


def test_the_example_has_several_tiles_along_every_dimension():
    for make in CHIPS.values():
        tile = ExampleTile(make().tile)
        whole, limits = default_shapes(tile)
        shape = tile.choose(whole, limits)
        assert all(size > part for size, part in zip(whole, shape, strict=True))
        assert any(size % part for size, part in zip(whole, shape, strict=True))


@pytest.mark.slow(seconds=11)
@pytest.mark.parametrize("name", CHIPS)
def test_sizes_that_do_not_fit_are_refused(name, made):
    _, folder, commands = made(name)
    compiled(folder, commands)
    for sizes, reason in [
        (("0", "1", "1"), "whole number"),
        (("1", "1", "70000"), "32 bits"),
        (("1", "x", "1"), "whole"),
    ]:
        done = command(["./matmul", "example/data", *sizes], folder)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
    done = command(["./matmul", "example/data", "9000", "900", "900"], folder)
    assert (done.returncode, "bytes of memory" in done.stderr) == (2, True), done.stderr
    assert command(["./matmul", "nowhere", "1", "1", "1"], folder).returncode == 2
    assert command(["./matmul"], folder).returncode == 2


@pytest.mark.slow
@pytest.mark.rtl
@pytest.mark.parametrize("name", CHIPS)
def test_a_users_own_product_runs_on_the_folder_alone_and_a_wrong_byte_fails(name, made):
    _, folder, commands = made(name)
    done = command(commands[0], folder)
    assert (done.returncode, done.stderr) == (0, "")
    shipped = command(commands[1], folder)
    assert (shipped.returncode, shipped.stdout[:5]) == (0, "PASS:"), shipped.stdout
    compiled(folder, commands)
    matmul(folder, "mine", 5, 11, 19, 2, 6, 8)
    mine = [*commands[1], "+folder=mine"]
    right = command(mine, folder)
    assert (right.returncode, right.stdout[:5]) == (0, "PASS:"), right.stdout
    for file in ("expected.hex", "memory.hex"):  # a result, a value of the operands
        path = folder / "mine" / file
        text = path.read_text()
        lines = text.splitlines()
        place = next(n for n in range(len(lines) - 2, 0, -1) if not lines[n].startswith("@") and int(lines[n], 16))
        if file == "memory.hex":  # of A, which follows the program on its page of its own
            place = next(n for n, line in enumerate(lines) if line == f"@{4096 // (len(lines[1]) // 2):x}") + 1
        lines[place] = lines[place][:-1] + f"{int(lines[place][-1], 16) ^ 1:x}"
        path.write_text("\n".join(lines) + "\n")
        wrong = command(mine, folder)
        assert wrong.returncode != 0, file
        assert "FAIL: memory at" in wrong.stdout, file
        path.write_text(text)
    (folder / "mine" / "start.hex").unlink()
    assert command(mine, folder).returncode != 0
