"""Keys and values that a tile keeps in fewer bits than elements: what is mapped, what it moves, what is refused."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.arch.datatype import CacheFormat, DataType, Packing
from siliconloom.arch.document import Document
from siliconloom.arch.isa import Opcode
from siliconloom.arch.vector import VectorFunction
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.sim.chip.engine import Stopwatch
from siliconloom.workloads import Attention, Vector, load_workload
from siliconloom.workloads.load import read_workload

DECODE = [("layers", "1"), ("phase", "decode"), ("context", "500")]
KEPT = ("", "bf16", "fp8")
MLA = "deepseek-v3"


def edge(**sets):
    return load_chip("npu-edge", [(key, str(value)) for key, value in sets.items()])


def llama(**sets):
    return load_workload("llama3-8b", [*DECODE, *sets.items()])


def attention_of(graph):
    return next(o for o in graph.operators() if isinstance(o, Attention))


def append_of(graph):
    return next(o for o in graph.operators() if isinstance(o, Vector) and o.function is VectorFunction.KV_APPEND)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("kept", [DataType.BF16, DataType.FP8_E4M3])
def test_attention_reads_what_is_kept_also_that_of_a_prompt(phase, kept):
    sets = [("layers", "1"), ("phase", phase), ("cache_precision", kept.value)]
    fitted, _ = fit_precision(edge(), load_workload("gpt2", sets))
    assert attention_of(fitted).cached == append_of(fitted).cached == CacheFormat(kept)
    assert fitted.kv_bytes == load_workload("gpt2", [*sets[:2], ("precision", "fp8")]).kv_bytes * kept.bits // 8


@pytest.mark.slow(seconds=1)
def test_a_cache_in_the_format_of_elements_changes_nothing():
    chip = load_chip("npu-datacenter")
    plain, stated = (
        map_workload(chip, load_workload("gpt2", [*DECODE, *sets]), Stopwatch(chip), search=False)
        for sets in ([], [("cache_precision", "bf16")])
    )
    assert plain.program == stated.program
    assert attention_of(stated.graph).cached is None


def test_instructions_say_what_they_keep_and_read():
    chip = edge()
    program = map_workload(chip, llama(cache_precision="fp8"), Stopwatch(chip), search=False).program
    check_program(program, chip)
    fp8 = Packing(DataType.FP8_E4M3, 0)
    kept = [i for i in program.instructions if i.packing == fp8]
    appends = {i.function for i in kept if i.opcode == Opcode.VECTOR}
    assert appends == {VectorFunction.KV_APPEND, VectorFunction.TRANSPOSE}
    names = {program.operators[i.operator] for i in kept if i.opcode == Opcode.MATMUL}
    assert names == {"layer.attention"}
    unsaid = [
        i
        for i in program.instructions
        if i.opcode == Opcode.MATMUL and program.operators[i.operator] == "layer.attention" and i.packing is None
    ]
    assert not unsaid


@pytest.mark.slow(seconds=1)
def test_half_of_the_bytes_are_read_in_bf16_and_a_quarter_in_fp8():
    chip = edge()
    results = {kept: simulate(chip, llama(**({"cache_precision": kept} if kept else {}))).result() for kept in KEPT}
    rows = [next(row for row in each["operators"] if row["name"] == "layer.attention") for each in results.values()]
    cache = [row["read_bytes"] - 3 * 16384 for row in rows]  # less the queries, and what is read beside them
    assert cache[0] > 1.9 * cache[1] > 3.6 * cache[2]
    cycles, energies, footprints, bounds = (
        [found(each) for each in results.values()]
        for found in (
            lambda each: each["cycles"],
            lambda each: each["energy_j"],
            lambda each: each["memory"]["used_bytes"],
            lambda each: each["bound"]["lower_bound_cycles"],
        )
    )
    for falls in (cycles, energies, footprints, bounds):
        assert falls[0] > falls[1] > falls[2]
    assert all(bound <= taken for bound, taken in zip(bounds, cycles, strict=True))


FLOATS = {"tile.array.cache": "[bf16, fp8_e4m3]"}


CONFIG = {
    "model_type": "llama",
    "vocab_size": 40,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 2,
}


@given(
    sides=st.sampled_from([(4, 4, 4), (8, 8, 8), (16, 16, 16), (8, 16, 16), (16, 8, 8), (12, 20, 16)]),
    load_rows=st.sampled_from([1, 2, 4]),
    wide=st.booleans(),
    kept=st.sampled_from(["bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"]),
    dim=st.sampled_from([4, 8, 12, 16, 24, 32]),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)]),
    decode=st.booleans(),
    length=st.integers(1, 90),
    batch=st.integers(1, 2),
    bus=st.sampled_from([8, 16, 64]),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_small_model_is_legal_and_not_below_its_bound(
    sides, load_rows, wide, kept, dim, heads, decode, length, batch, bus
):
    if not wide and kept == "bf16":
        kept = "fp8_e4m3"
    if kept.startswith("int"):  # lines of the vector unit are whole rows of the array, and of these pairs
        sides = (16, 16, 16) if sides[0] == 12 else (sides[0], min(sides[1], sides[2]), sides[2])
        load_rows = max(load_rows, 2)
    chip = edge(
        **{
            "tile.array.rows": sides[0],
            "tile.array.cols": sides[1],
            "tile.array.load_rows": load_rows,
            "tile.array.weights": "null",
            "tile.array.cache": f"[{kept}]",
            "tile.vector.lanes": sides[2],
            "tile.vector.format": "fp32" if wide else "null",
            "tile.sequencer.program_words": 4096,
            "tile.accumulator.capacity": "32 KiB",
            "tile.dma.bytes_per_cycle": bus,
            "memory.dram.access_bytes": bus,
        }
    )
    model = CONFIG | {
        "hidden_size": heads[0] * dim,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "intermediate_size": 3 * dim,
    }
    sets = [("batch", str(batch)), ("phase", "decode" if decode else "prefill"), ("cache_precision", kept)]
    sets.append(("context" if decode else "sequence", str(length)))
    graph = read_workload(Document({"kind": "transformer", "model": model}, {}, "model.yaml"), "model", sets)
    mapped = map_workload(chip, graph, Stopwatch(chip), search=False)
    check_program(mapped.program, chip)
    assert Stopwatch(chip)(mapped.program) >= mapped.bound.lower_bound_cycles
    attention = attention_of(mapped.graph)
    layout = AttentionLayout(chip.tile, chip.nearest, attention)
    assert layout.block == sides[1]
    assert attention.kept is DataType(kept)


@pytest.mark.parametrize(
    ("chip", "sets", "kept", "message"),
    [
        ("npu-edge-int8", {}, "bf16", None),
        ("npu-edge-int8", {}, "fp8", "fp8_e4m3 on npu-edge-int8, which keeps them in int8 as it computes (workload"),
        ("npu-edge", FLOATS, "int8", "int8 on npu-edge, which keeps them in fp32 as it computes, or in bf16 or fp8_e4"),
        ("npu-edge", FLOATS, "int4", "int4 on npu-edge, which keeps them in fp32"),
        ("npu-edge-w8a8", {}, "int8", "int8 on npu-edge-w8a8, which keeps them in fp32 as it computes (workload"),
        ("neupims-device", {}, "int4", "int4 on neupims-device"),
        ("tpu-v4", {}, "int8", "int8 on tpu-v4"),
        ("npu-edge", {}, "fp8_e5m2", "fp8_e5m2 on npu-edge, which keeps them in fp32 as it computes, or in bf16"),
        ("npu-edge-w8a8", {}, "bf16", "bf16 on npu-edge-w8a8, which keeps them in fp32 as it computes (workload"),
        ("neupims-device", {}, "fp8", "fp8_e4m3 on neupims-device"),
    ],
)
def test_formats_without_a_circuit_are_refused(chip, sets, kept, message):
    graph = load_workload("gpt2", [("layers", "1"), ("phase", "decode"), ("cache_precision", kept)])
    if message is None:
        message = "bf16 on npu-edge-int8"
    with pytest.raises(NotSupported, match=re.escape(message)):
        fit_precision(load_chip(chip, list(sets.items())), graph)


def test_a_latent_cache_is_refused_by_name():
    with pytest.raises(NotSupported, match="cache_precision of a latent cache"):
        load_workload(MLA, [("layers", "1"), ("phase", "decode"), ("cache_precision", "fp8")])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"tile.array.cache": "[int16]"}, "tile.array.cache: must be among bf16, fp8_e4m3, fp8_e5m2, int8, int4 .got"),
        ({"tile.array.cache": "[fp16]"}, "must be among bf16, fp8_e4m3, fp8_e5m2"),
        (
            {"tile.array.cache": "[int8]", "tile.vector.lanes": 8},
            "tile.vector.lanes: a line of the vector unit is whole rows of the array",
        ),
        (
            {"tile.array.cache": "[int4]", "tile.array.load_rows": 1},
            "tile.array.load_rows: must be even where keys are kept in int4",
        ),
        (
            {"tile.array.cache": "[int8]", "tile.array.cols": 4, "tile.array.load_rows": 8},
            "tile.array.cols: columns that share a scale are whole",
        ),
        ({"tile.array.cache": "[bf16, bf16]"}, "must not say a format twice"),
        ({"tile.vector.format": "null"}, "the operands' own format are for wider elements"),
        ({"tile.array.operands": "[int8]", "tile.array.weights": "null"}, "made to operands in bf16 or fp16"),
        (
            {"tile.array.dataflow": "input_stationary", "tile.array.weights": "null", "tile.vector.format": "null"},
            "is for weight stationary arrays",
        ),
        (
            {"tile.array.rows": 12, "tile.array.load_rows": 3, "tile.array.weights": "null"},
            "load_rows: must be a power",
        ),
    ],
)
def test_descriptions_without_a_circuit_are_refused(sets, message):
    with pytest.raises(LoomError, match=message):
        edge(**sets)


def test_a_bare_array_keeps_nothing():
    with pytest.raises(LoomError, match=r"tile.array.cache: keys and values are those of an npu tile"):
        load_chip("systolic-ws-8", [("tile.array.operands", "[bf16]"), ("tile.array.cache", "[fp8_e4m3]")])


@pytest.mark.slow(seconds=1)
def test_scales_are_a_byte_to_a_row_of_the_array():
    """A 16th more than codes on npu-edge, in memory and on the way; a byte for 128 elements on npu-datacenter."""
    chip = edge()
    kept = {name: simulate(chip, llama(cache_precision=name)).result() for name in ("fp8", "int8", "int4")}
    read = {
        name: next(row for row in each["operators"] if row["name"] == "layer.attention")["read_bytes"] - 3 * 16384
        for name, each in kept.items()
    }
    assert 1.05 < read["int8"] / read["fp8"] < 1.07
    assert 1.87 < read["int8"] / read["int4"] < 1.93  # 8.5 bits and 4.5
    graphs = [
        fit_precision(each, llama(cache_precision="int8"))[0]
        for each in (chip, load_chip("npu-datacenter", [("tile.array.cache", "[int8]")]))
    ]
    assert [attention_of(graph).cached.scale_bytes for graph in graphs] == [8, 1]
    tokens = 500 * 2 * 8
    assert [graph.kv_bytes for graph in graphs] == [tokens * 136, tokens * 129]
    assert llama(cache_precision="int8").kv_bytes == tokens * 132  # a scale and an offset of 16 bits, on a GPU


def test_instructions_say_whose_the_scales_are():
    program = map_workload(edge(), llama(cache_precision="int4"), Stopwatch(edge()), search=False).program
    keys, values = Packing(DataType.INT4, 0), Packing(DataType.INT4, 0, by_rows=True)
    found = [(i.opcode, i.function, i.packing) for i in program.instructions if i.packing in (keys, values)]
    appends = {(function, packing) for opcode, function, packing in found if opcode is Opcode.VECTOR}
    assert appends == {(VectorFunction.TRANSPOSE, keys), (VectorFunction.KV_APPEND, values)}
    assert {packing for opcode, _, packing in found if opcode is Opcode.MATMUL} == {keys, values}


def test_odd_heads_have_no_pairs():
    model = CONFIG | {"model_type": "gpt2", "n_embd": 10, "n_head": 2, "n_layer": 1, "n_positions": 64}
    model = {key: value for key, value in model.items() if key in ("model_type", "vocab_size") or key[:2] == "n_"}
    sets = [("phase", "decode"), ("context", "9"), ("cache_precision", "int4")]
    graph = read_workload(Document({"kind": "transformer", "model": model}, {}, "model.yaml"), "model", sets)
    with pytest.raises(NotSupported, match="int4 of heads of 5 columns on npu-edge, which keeps pairs"):
        fit_precision(edge(), graph)


@pytest.mark.parametrize(
    ("sets", "kept"),
    [
        ({}, ["bf16", "fp8_e4m3", "int8", "int4"]),
        ({"tile.array.cache": "scaled"}, ["int8", "int4"]),
        ({"tile.array.cols": 32}, ["bf16", "fp8_e4m3"]),
        ({"tile.array.rows": 5}, ["bf16", "fp8_e4m3", "int8"]),
        ({"tile.vector.lanes": 64}, ["bf16", "fp8_e4m3", "int8", "int4"]),
    ],
)
def test_scaled_are_the_formats_whose_scales_the_vector_unit_can_find(sets, kept):
    assert [dtype.value for dtype in edge(**sets).tile.array.cache] == kept
