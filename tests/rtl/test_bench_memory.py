"""Main memory goes into a bench and comes out of it as it is: whatever its size, its words, and who writes where."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.isa import Address, Instruction, Opcode, Program, Semaphore
from siliconloom.rtl.bench import images
from siliconloom.rtl.bench.images import chunk_words, hex_image, memory_image, put_written, write_image
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from tests.rtl.npu import small_chip

END = Instruction(opcode=Opcode.END)


@given(bus=st.sampled_from([1, 4, 16, 64]), words=st.integers(1, 40), behind=st.integers(0, 9), seed=st.integers(0, 99))
def test_an_image_holds_each_word_highest_byte_first(tmp_path_factory, bus, words, behind, seed):
    image = np.random.default_rng(seed).integers(0, 256, words * bus, np.uint8)
    path = tmp_path_factory.mktemp("image") / "memory.bin"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "BLOCK_BYTES", 7 * bus)
        write_image(path, image, bus, words + behind)
    found = path.read_bytes()
    assert len(found) == (words + behind) * bus
    for word in range(words):
        assert found[word * bus : (word + 1) * bus][::-1] == image[word * bus : (word + 1) * bus].tobytes()
    assert not any(found[words * bus :])


@given(
    bus=st.sampled_from([1, 4, 16]),
    words=st.integers(1, 12),
    chunks=st.sets(st.integers(0, 7)),
    seed=st.integers(0, 99),
)
def test_only_written_chunks_are_put_back(tmp_path_factory, bus, words, chunks, seed):
    chance = np.random.default_rng(seed)
    memory, after = chance.integers(0, 256, (2, 8 * words * bus), np.uint8)
    text = ""
    for chunk in sorted(chunks):
        text += f"@{chunk * words:08x}\n"
        part = after[chunk * words * bus : (chunk + 1) * words * bus]
        text += hex_image(part, bus, words)
    path = tmp_path_factory.mktemp("image") / "result.hex"
    path.write_text(text)
    short = memory[: 7 * words * bus + bus].copy()
    put_written(path, short, bus)
    wanted = memory.copy()
    for chunk in chunks:
        wanted[chunk * words * bus : (chunk + 1) * words * bus] = after[chunk * words * bus : (chunk + 1) * words * bus]
    np.testing.assert_array_equal(short, wanted[: len(short)])


def test_unknown_digits_read_as_zero(tmp_path):
    (tmp_path / "result.hex").write_text("@00000001\nxX3f\nz100\n")
    memory = np.full(8, 9, np.uint8)
    put_written(tmp_path / "result.hex", memory, 2)
    assert memory.tolist() == [9, 9, 0x3F, 0, 0, 1, 9, 9]
    (tmp_path / "whole.hex").write_text("// a word\nxx3f\n")
    assert memory_image(tmp_path / "whole.hex", 2).tolist() == [0x3F, 0]


@pytest.mark.slow
@pytest.mark.rtl
def test_what_a_program_writes_comes_back_from_both_ends_of_a_large_memory(tmp_path, monkeypatch):
    """Stores at the first and the last word, over the edge of a chunk, and none in a case that follows."""
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    monkeypatch.setattr(images, "CHUNK_BYTES", 4096)
    chip = small_chip()
    bus, size = chip.tile.dma.bytes_per_cycle, 1 << 18
    assert chunk_words(bus) * bus == 4096
    places = (0, 5 * 4096 - 2 * bus, size - 4 * bus)
    load = Instruction(opcode=Opcode.LOAD, m=1, n=4 * bus, memory=Address(base=1 << 16), post=1)
    stores = [
        Instruction(opcode=Opcode.STORE, m=1, n=4 * bus, memory=Address(base=place), wait=int(number == 0))
        for number, place in enumerate(places)
    ]
    program = Program((load, *stores, END), (Semaphore("loaded"),))
    chance = np.random.default_rng(3)
    memories = chance.integers(0, 256, (2, size), np.uint8)
    base = 1 << 17
    only = ProgramCase(Program((load, END), (Semaphore("loaded"),)), memories[1], base)
    bundle = build_rtl(chip)
    outcomes = run_programs(
        chip,
        bundle.write(tmp_path / "rtl"),
        bundle.top,
        [ProgramCase(program, memories[0], base), only],
        folder=tmp_path / "bench",
        simulator="icarus",
    )
    for case, memory, outcome in zip((program, only.program), memories, outcomes, strict=True):
        wanted = memory.copy()
        code = np.frombuffer(case.encode(), np.uint8)
        wanted[base : base + len(code)] = code
        if case is program:
            for place in places:
                wanted[place : place + 4 * bus] = memory[1 << 16 :][: 4 * bus]
        np.testing.assert_array_equal(outcome.memory, wanted)
