"""Values flow from operator to operator as the graph says: seen in memory after the golden model has run a program."""

import json
from math import gcd, lcm

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.arch.layout import padded
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import duration
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.verification.filling import filled
from siliconloom.workloads import load_workload
from siliconloom.workloads.operators import Attention
from tests.execution.models import DATAFLOWS, SHAPES, chip_of
from tests.in_turn import examples


def graph_of(folder, family, heads, kv_heads, dim, layers, sets):
    width = heads * dim
    if family == "gpt2":
        model = {"model_type": "gpt2", "n_embd": width, "n_head": heads, "n_layer": layers, "n_positions": 64}
    else:
        model = {
            "model_type": "llama",
            "hidden_size": width,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "num_hidden_layers": layers,
            "intermediate_size": 2 * width,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
        }
    file = folder / "config.json"
    file.write_text(json.dumps({**model, "vocab_size": 40}))
    return load_workload(str(file), list(sets))


def ran(chip, graph, seed=0):
    """The mapped workload and its memory before and after."""
    mapped = map_workload(chip, graph, lambda program: duration(program, chip))
    made = filled(mapped, seed)
    before = made.loaded()
    after = before.copy()
    GoldenMachine(chip, after).run(made.program)
    return mapped, before, after


def matrix(memory, stored, rows, cols):
    """A result that lies row by row."""
    lines = memory[stored.address : stored.address + rows * stored.row].reshape(rows, stored.row)
    return lines[:, :cols].view(np.int8).astype(np.int64)


def object_of(mapped, operator, role):
    return next((a, item) for a, item in mapped.memory.objects() if item.key == (operator, role))


def keys_and_values(mapped, memory, attention, layer):
    """Keys and values (sequence, head, position, column), read from the cache as ``docs/npu.md`` says they lie."""
    chip = mapped.chip
    side, beats = chip.tile.array.cols, chip.tile.array.load_rows
    # a block has as many positions as the array has columns, or the next power of two of all of them
    width = min(side, 1 << (attention.kv_len - 1).bit_length())
    places = -(-attention.kv_len // width) * width
    depth = -(-attention.head_dim // beats) * beats
    pairs = attention.batch * attention.kv_heads
    at, item = object_of(mapped, attention.name, "keys")
    unit = memory[at + layer * item.unit_bytes : at + (layer + 1) * item.unit_bytes].view(np.int8)
    # folds of a block follow one another, and only the last one is filled up
    blocks = unit.reshape(pairs, places // width, depth, width)[:, :, : attention.head_dim]
    keys = blocks.transpose(0, 1, 3, 2).reshape(pairs, places, attention.head_dim)[:, : attention.kv_len]
    at, item = object_of(mapped, attention.name, "values")
    unit = memory[at + layer * item.unit_bytes : at + (layer + 1) * item.unit_bytes].view(np.int8)
    panels, places = -(-attention.v_head_dim // side), -(-places // beats) * beats
    if panels > 1:  # each begins where a long row may, of less than a beat in a window of the next power of two
        window = min(chip.tile.dma.bytes_per_cycle, 1 << (places * side - 1).bit_length())
        places = padded(places, lcm(beats, window // gcd(window, side)))
    line = item.unit_bytes // (pairs * panels * places)
    lines = unit.reshape(pairs, panels, places, line)[..., : min(side, attention.v_head_dim)]
    values = lines.transpose(0, 2, 1, 3).reshape(pairs, places, -1)[:, : attention.kv_len, : attention.v_head_dim]
    shape = attention.batch, attention.kv_heads, attention.kv_len
    return keys.reshape(*shape, -1).astype(np.int64), values.reshape(*shape, -1).astype(np.int64)


def tile_of_keys(mapped, name):
    """Keys of a tile in which peaks and totals of rows are carried, or all of them."""
    tiling = next(task.tiling for task in mapped.tasks if task.task.operator.name == name)
    return 1 << 20 if tiling.whole else tiling.keys


def attended(sums, values, seen, lanes, multiplier, shift, step):
    """Products of powers with values, tile by tile of keys, and totals of powers: sums are rounded as peaks rise."""
    made, carried = 0, None
    for first in range(0, sums.shape[1], step):
        part = slice(first, first + step)
        powers, carried, rise = functions.softmax_online(sums[:, part], multiplier, shift, seen - first, lanes, carried)
        made = powers @ values[part] + (functions.rescaled(made, rise) if first else 0)
    return made, carried[1]


@examples(2, 24, seconds=20)
def test_attention_reads_what_was_projected(examples, tmp_path_factory):
    """New keys and values stand in the cache behind the older ones, and its result is attention of just these."""

    @settings(max_examples=examples, deadline=None)
    @given(
        family=st.sampled_from(["gpt2", "llama"]),
        shape=st.sampled_from(SHAPES),
        dataflow=st.sampled_from(DATAFLOWS),
        bus=st.sampled_from([8, 16, 32]),
        dim=st.sampled_from([8, 16, 10, 5, 24]),
        group=st.sampled_from([1, 2]),
        batch=st.sampled_from([1, 2, 3]),
        length=st.integers(1, 21),
        decode=st.booleans(),
        seed=st.integers(0, 99),
    )
    def holds(family, shape, dataflow, bus, dim, group, batch, length, decode, seed):
        folder = tmp_path_factory.mktemp("flow")
        sets = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
        sets.append(("batch", str(batch)))
        heads = 2 * group if family == "llama" else 2
        dim += dim % 2 if family == "llama" else 0  # rotations turn pairs
        graph = graph_of(folder, family, heads, 2, dim, 1, sets)
        mapped, before, after = ran(chip_of(*shape, bus, dataflow=dataflow), graph, seed)
        attention = next(o for o in graph.operators() if isinstance(o, Attention))
        assert not mapped.apart, mapped.apart
        tiling = next(task.tiling for task in mapped.tasks if task.task.operator.name == attention.name)
        assert isinstance(tiling, AttentionTiling)
        assume(tiling.whole or tiling.keys >= attention.kv_len)  # rows that are carried are rounded tile by tile
        tokens, q, kv = attention.batch * attention.q_len, heads * dim, attention.kv_heads * dim
        qkv = matrix(after, mapped.results["layer.qkv"], tokens, q + 2 * kv)
        turned = matrix(after, mapped.results["layer.rope"], tokens, q + kv) if family == "llama" else qkv
        keys, values = keys_and_values(mapped, after, attention, 0)
        old_keys, old_values = keys_and_values(mapped, before, attention, 0)
        past = attention.kv_len - attention.q_len
        made = attention.batch, attention.q_len, attention.kv_heads, dim
        np.testing.assert_array_equal(keys[:, :, :past], old_keys[:, :, :past])
        np.testing.assert_array_equal(values[:, :, :past], old_values[:, :, :past])
        np.testing.assert_array_equal(keys[:, :, past:], turned[:, q : q + kv].reshape(made).transpose(0, 2, 1, 3))
        np.testing.assert_array_equal(values[:, :, past:], qkv[:, q + kv :].reshape(made).transpose(0, 2, 1, 3))
        queries = turned[:, :q].reshape(attention.batch, attention.q_len, heads, dim).transpose(0, 2, 1, 3)
        got = matrix(after, mapped.results["layer.attention"], tokens, q)
        got = got.reshape(attention.batch, attention.q_len, heads, dim).transpose(0, 2, 1, 3)
        multiplier, shift, columns = scales_of(mapped, after, attention)
        for sequence in range(attention.batch):
            for head in range(heads):
                shared = head // group if family == "llama" else head
                k, v = keys[sequence, shared], values[sequence, shared]
                sums = queries[sequence, head] @ k.T
                seen = past + 1 + np.arange(attention.q_len)
                expected = functions.requantize_rows(
                    *attended(sums, v, seen, shape[2], multiplier, shift, tile_of_keys(mapped, "layer.attention")),
                    *columns,
                )
                np.testing.assert_array_equal(got[sequence, head], np.clip(expected, -128, 127))

    holds()


def scales_of(mapped, memory, attention):
    """Multiplier and shift of the softmax, and bias, multiplier and shift of every column of a head."""
    lanes = mapped.chip.tile.vector.lanes
    at, _ = object_of(mapped, attention.name, "scales")
    multiplier = int(memory[at : at + 2].view("<i2")[0])
    shift = int(memory[at + 4])
    once = -(-8 // lanes) * lanes
    line = min(lanes, 1 << (attention.v_head_dim - 1).bit_length())
    blocks = -(-attention.v_head_dim // line)
    planes = memory[at + once : at + once + blocks * 8 * line].reshape(blocks, 8, line).astype(np.int64)
    flat = planes.transpose(1, 0, 2).reshape(8, -1)[:, : attention.v_head_dim]
    bias = sum(flat[n] << 8 * n for n in range(4))
    bias = np.where(bias >= 1 << 31, bias - (1 << 32), bias)
    factor = flat[4] | flat[5] << 8
    return multiplier, shift, (bias, np.where(factor >= 1 << 15, factor - (1 << 16), factor), flat[6])
