"""Gathers: rows of tables arrive by index, whatever their width, the chunks of indices and the bus."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import LoomError, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.faults import Cause, IllegalProgram
from siliconloom.arch.isa import Address, Instruction, Opcode, Program
from siliconloom.arch.layout import INDEX_BYTES, padded
from siliconloom.mapper.chip.gather import table_rows
from siliconloom.mapper.chip.gemm_layout import row_bytes
from siliconloom.mapper.chip.layout import most_indices
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import run
from siliconloom.sim.chip.levels import READ, USEFUL_READ, instruction_levels
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.filling import filled
from siliconloom.workloads import load_workload

END = Instruction(opcode=Opcode.END)
GATHER = Instruction(opcode=Opcode.GATHER, m=3, n=16, k=5, pitch=64, local_pitch=16, b=Address(base=0x8000))


def small(bus, scratchpad="32 KiB", **more):
    sets = {
        "tile.array.rows": 8,
        "tile.array.cols": 8,
        "tile.array.load_rows": 2,
        "tile.scratchpad.capacity": scratchpad,
        "tile.accumulator.capacity": "8 KiB",
        "tile.vector.lanes": 8,
        "tile.dma.bytes_per_cycle": bus,
        "tile.dma.port_bytes": bus,
        "memory.dram.access_bytes": bus,
        "memory.dram.bandwidth": f"{bus} GB/s",
        **more,
    }
    return load_chip("npu-edge-int8", [(key, str(value)) for key, value in sets.items()])


def gpt2(folder, width, vocabulary, positions, tokens):
    model = {"model_type": "gpt2", "n_embd": width, "n_head": 1, "n_layer": 1}
    (folder / "config.json").write_text(json.dumps(model | {"n_positions": positions, "vocab_size": vocabulary}))
    return load_workload(str(folder / "config.json"), [("sequence", str(tokens))])


@pytest.mark.slow(seconds=2)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bus=st.sampled_from([2, 8, 32, 64]),
    width=st.integers(1, 14).map(lambda n: 8 * n),
    vocabulary=st.integers(1, 90),
    tokens=st.one_of(st.integers(1, 20), st.integers(65, 140)),
    seed=st.integers(0, 99),
)
def test_every_row_is_the_one_that_its_index_names(tmp_path, bus, width, vocabulary, tokens, seed):
    chip, graph = small(bus), gpt2(tmp_path, width, vocabulary, 160, tokens)
    mapped = map_workload(chip, graph)
    own = [n for n, name in enumerate(mapped.program.operators) if name in ("embedding.tokens", "embedding.positions")]
    code = [i for i in mapped.program.instructions if i.operator in own]
    program = Program((*code, END), mapped.program.semaphores, mapped.program.operators)
    check_program(program, chip)
    made = filled(mapped, seed)
    before, after = made.loaded(), made.loaded()
    GoldenMachine(chip, after).run(program)
    places = {item.key: address for address, item in mapped.memory.objects()}
    pitch, row = padded(width, bus), row_bytes(chip.tile, width, 8)
    for name, role in (("tokens", "table"), ("positions", "parameters")):
        operator = graph.dataflow[f"embedding.{name}"]
        assert table_rows(operator) == {"tokens": vocabulary, "positions": 160}[name]
        found = places[operator.name, "indices"]
        indices = before[found : found + INDEX_BYTES * tokens].view("<u4")
        assert indices.max() == table_rows(operator) - 1
        table = before[places[operator.name, role] :][: table_rows(operator) * pitch].reshape(-1, pitch)
        result = after[places[operator.name, "result"] :][: tokens * row].reshape(tokens, row)
        assert np.array_equal(result[:, :width], table[indices, :width])


def test_indices_of_more_rows_than_there_is_room_for_come_in_chunks(tmp_path):
    chip = small(32)
    tokens = 2 * most_indices(chip.tile) + 21
    program = map_workload(chip, gpt2(tmp_path, 32, 40, 160, tokens)).program
    first = [i for i in program.instructions if program.operators[i.operator] == "embedding.tokens"]
    assert first[0].opcode == Opcode.LOOP
    assert first[0].m == 2
    chunk, *rest = [i.m * i.n for i in first if i.opcode == Opcode.LOAD]
    assert 2 * chunk + sum(rest) == INDEX_BYTES * tokens
    assert {i.unit.name for i in first if i.opcode == Opcode.GATHER} == {"LOAD"}


def test_the_bytes_of_indices_are_counted(tmp_path):
    chip, graph = small(32), gpt2(tmp_path, 40, 40, 160, 50)
    mapped = map_workload(chip, graph)
    done = run(mapped.program, chip)
    moved = done.traffic[mapped.program.operators.index("embedding.positions")].sum(axis=0)
    assert moved[READ] == 50 * 64 + padded(50 * INDEX_BYTES, 32)
    assert moved[USEFUL_READ] == 50 * 40 + 50 * INDEX_BYTES


@pytest.mark.parametrize(("bus", "apart"), [(8, 24), (16, 32), (32, 32), (64, 32)])
def test_rows_on_a_wider_bus_are_copied_as_they_are(bus, apart, tmp_path):
    """Rows of 24 bytes stay in a window of 32; as far apart as the bus is wide, of 64 twice as many were copied."""
    program = map_workload(small(bus), gpt2(tmp_path, 24, 40, 160, 50)).program
    own = [i for i in program.instructions if program.operators[i.operator] == "embedding.tokens"]
    assert {i.local_pitch for i in own if i.opcode == Opcode.GATHER} == {apart}
    assert {i.n for i in own if i.opcode == Opcode.VECTOR and i.m > 1} == {apart}


def test_other_operators_take_as_long_as_without_gathers():
    """Indices lie where results of a gather do not; nobody else's tiles are smaller."""
    chip = load_chip("npu-edge-int8")
    mapped = map_workload(chip, load_workload("llama3-8b", [("layers", "1"), ("sequence", "64")]))
    bank = chip.tile.scratchpad.capacity // chip.tile.scratchpad.banks
    assert 2 * mapped.layout.results % bank == 0, "results have all of their banks"


def test_an_index_beyond_the_table_is_refused():
    chip = load_chip("npu-edge-int8")
    memory = np.zeros(1 << 12, np.uint8)
    machine = GoldenMachine(chip, memory)
    machine.scratchpad[0x8000 : 0x8000 + 12] = np.array([4, 0, 5], "<u4").view(np.uint8)
    with pytest.raises(LoomError, match="gather: the index of row 2 is 5, and the table has 5 rows"):
        machine.run(Program((GATHER, END)))
    machine.run(Program((replace(GATHER, m=2), END)))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"memory": Address(base=32)}, r"its table's rows must begin at multiples of 64 bytes \(got 0x20\)"),
        ({"memory": Address(strides=(16, 0, 0, 0, 0, 0))}, r"its table's rows must begin at multiples of 64"),
        ({"m": 1, "pitch": 96}, r"its table's rows must begin at multiples of 64 bytes \(got 0x60\)"),
        ({"b": Address(base=2)}, r"its indices must begin at multiples of 4 bytes \(got 0x2\)"),
        ({"a": Address(base=8)}, r"its local addresses must be multiples of 16"),
    ],
)
def test_a_gather_that_the_tile_would_stop_at_is_refused(changes, rule):
    with pytest.raises(IllegalProgram, match=rule) as found:
        check_program(Program((replace(GATHER, **changes), END)), load_chip("npu-edge-int8"))
    assert (found.value.cause, found.value.instruction) == (Cause.MISALIGNED_TRANSFER, 0)


def test_indices_are_read_through_the_dma_s_port_and_by_nobody_else():
    chip = load_chip("npu-edge-int8")
    store = Instruction(opcode=Opcode.STORE, m=1, n=64, a=GATHER.b)
    check_program(Program((GATHER, store, END)), chip)
    copy = Instruction(opcode=Opcode.VECTOR, m=1, n=16, a=GATHER.b, c=Address(base=0x10000))
    with pytest.raises(IllegalProgram, match="bank conflict: scratchpad bank 2 is read through the port 'first' here"):
        check_program(Program((GATHER, copy, END)), chip)


def test_all_rows_of_a_table_must_lie_in_one_memory_level():
    chip = load_chip("npu-cxl")
    first = next(iter(chip.memory.values())).total_capacity
    table = replace(GATHER, memory=Address(base=first - 4 * 64), k=4, n=64, local_pitch=64)
    assert instruction_levels(Program((table, END)), chip) == [0, -1]
    with pytest.raises(LoomError, match="must stay in one memory level"):
        instruction_levels(Program((replace(table, k=5), END)), chip)
