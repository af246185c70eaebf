"""Values of models whose keys and values are kept in fewer bits than elements."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.datatype import CacheFormat, DataType
from siliconloom.arch.floats import narrowed, values_of, widened
from siliconloom.arch.isa import Opcode
from siliconloom.execution.image import fill_cache, read_cache
from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.walk import Past
from siliconloom.execution.weights import RandomWeights
from siliconloom.mapper.chip.attention_layout import AttentionLayout
from siliconloom.sim.golden.opcodes import vector
from siliconloom.workloads import Attention
from tests.execution.models import VOCABULARY, config_of, graph_of
from tests.execution.test_run import mapped_to

SIDES = ((4, 4, 4), (8, 8, 8), (16, 16, 16), (8, 16, 16), (16, 8, 8), (12, 20, 16))


def edge(sides, load_rows, wide, cache):
    sets = {
        "tile.array.rows": sides[0],
        "tile.array.cols": sides[1],
        "tile.array.load_rows": load_rows,
        "tile.array.weights": "null",
        "tile.array.cache": f"[{cache}]",
        "tile.vector.lanes": sides[2],
        "tile.vector.format": "fp32" if wide else "null",
        "tile.accumulator.capacity": "32 KiB",
        "tile.dma.bytes_per_cycle": 16,
        "memory.dram.access_bytes": 16,
    }
    return load_chip("npu-edge", [(key, str(value)) for key, value in sets.items()])


def scaled_sides(sides, load_rows, kept):
    """Sides of an array that may keep keys and values with scales, where they are kept so."""
    if not kept.startswith("int"):
        return sides, load_rows
    rows, cols, lanes = (16, 16, 16) if sides[0] == 12 else sides
    return (rows, min(cols, lanes), lanes), max(load_rows, 2) if kept == "int4" else load_rows


def run_of(folder, chip, config, sets, seed=0):
    mapped = mapped_to(chip, graph_of(folder, config, sets))
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, lengths(mapped.graph)[:2])
    return run_model(mapped, RandomWeights(mapped.graph, seed), tokens, keep=True)


@settings(max_examples=6, deadline=None)
@given(
    sides=st.sampled_from(SIDES),
    load_rows=st.sampled_from([1, 2, 4]),
    wide=st.booleans(),
    kept=st.sampled_from(["bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int4"]),
    family=st.sampled_from(["gpt2", "llama"]),
    dim=st.sampled_from([4, 8, 12, 24]),
    decode=st.booleans(),
    batch=st.integers(1, 2),
    length=st.integers(2, 40),
    seed=st.integers(0, 9),
)
def test_a_golden_run_is_the_exact_reading(
    tmp_path_factory, sides, load_rows, wide, kept, family, dim, decode, batch, length, seed
):
    if not wide and kept == "bf16":
        kept = "fp8_e5m2"
    sides, load_rows = scaled_sides(sides, load_rows, kept)
    sets = [("batch", str(batch)), ("cache_precision", kept), ("phase", "decode" if decode else "prefill")]
    sets.append(("context" if decode else "sequence", str(length)))
    config = config_of(family, 4, 2, dim, 2)
    made = run_of(tmp_path_factory.mktemp("model"), edge(sides, load_rows, wide, kept), config, sets, seed)
    assert {row.name: row.differing for row in made.rows if row.differing} == {}


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_cache_in_the_format_of_operands_changes_no_bit(tmp_path, phase):
    """The array rounds keys and values to bf16 where they are kept in fp32; in fp8 they are others."""
    chip, config = edge((8, 8, 8), 2, True, "bf16, fp8_e4m3"), config_of("llama", 4, 2, 8, 2)
    sets = [("phase", phase), ("context" if phase == "decode" else "sequence", "30")]
    plain, same, other = (
        run_of(tmp_path, chip, config, [*sets, *stated])
        for stated in ([], [("cache_precision", "bf16")], [("cache_precision", "fp8")])
    )
    for name, values in plain.tensors.items():
        np.testing.assert_array_equal(values, same.tensors[name])
    assert plain.next_tokens == same.next_tokens
    assert (plain.tensors["golden/head/0"] != other.tensors["golden/head/0"]).any()
    assert other.differing == 0


def test_a_result_that_is_not_rounded_is_seen(tmp_path, monkeypatch):
    """The exact reading rounds by itself, so that a golden model that cuts bits off instead shows."""
    chip, config = edge((8, 8, 8), 2, True, "fp8_e4m3"), config_of("gpt2", 4, 4, 8, 1)
    right = vector.narrowed

    def cut(words, dtype):
        return right(words & np.uint32(0xFFF00000) if dtype is DataType.FP8_E4M3 else words, dtype)

    monkeypatch.setattr(vector, "narrowed", cut)
    made = run_of(tmp_path, chip, config, [("sequence", "9"), ("cache_precision", "fp8")])
    assert any(row.differing for row in made.rows if row.name == "layer.kv_append")


def test_a_product_that_reads_no_format_is_seen(tmp_path):
    """A program whose attention reads its cache as elements differs from the reading of its graph."""
    chip, config = edge((8, 8, 8), 2, True, "bf16"), config_of("gpt2", 4, 4, 8, 1)
    mapped = mapped_to(chip, graph_of(tmp_path, config, [("sequence", "9"), ("cache_precision", "bf16")]))
    attention = mapped.program.operators.index("layer.attention")
    reads = [i for i in mapped.program.instructions if i.opcode == Opcode.MATMUL and i.operator == attention]
    assert reads
    assert all(i.packing is not None for i in reads)


@settings(max_examples=30, deadline=None)
@given(
    sides=st.sampled_from(SIDES),
    wide=st.booleans(),
    kept=st.sampled_from([DataType.FP8_E4M3, DataType.FP8_E5M2, DataType.BF16]),
    dim=st.sampled_from([4, 8, 12, 32]),
    kv_heads=st.integers(1, 3),
    batch=st.integers(1, 2),
    kv_len=st.integers(2, 40),
    keys=st.booleans(),
    data=st.data(),
)
def test_a_cache_is_read_as_it_is_filled(sides, wide, kept, dim, kv_heads, batch, kv_len, keys, data):
    kept = DataType.FP8_E4M3 if kept is DataType.BF16 and not wide else kept
    chip = edge(sides, 1, wide, kept.value)
    own = chip.tile.circuit_format
    shape = Attention(
        name="a",
        block="b",
        precision=own,
        batch=batch,
        heads=kv_heads,
        kv_heads=kv_heads,
        q_len=1,
        kv_len=kv_len,
        head_dim=dim,
        v_head_dim=dim,
        causal=True,
        cached=CacheFormat(kept),
    )
    layout = AttentionLayout(chip.tile, chip.nearest, shape)
    past = data.draw(st.integers(1, kv_len))
    chance = np.random.default_rng(0)
    real = (chance.standard_normal((batch, past, kv_heads * dim)).astype(np.float32).view(np.uint32) for _ in range(2))
    held = Past(*(narrowed(widened(narrowed(each, kept), kept), own).astype(np.int64) for each in real))
    room = np.zeros(batch * kv_heads * (layout.key_plane if keys else layout.value_plane), np.uint8)
    fill_cache(room, layout, held, keys)
    found = read_cache(room, layout, past, keys)
    np.testing.assert_array_equal(found, held.keys if keys else held.values)
    assert np.isfinite(values_of(found.astype(np.uint32 if wide else np.uint16), own)).all()
