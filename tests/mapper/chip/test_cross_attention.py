"""An encoder with a decoder on tiles: keys and values of cross-attention in memory, biases of scores, what rests."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, load_chip
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.operands import NO_BIAS, updated
from siliconloom.sim.golden import functions
from siliconloom.workloads import load_workload
from siliconloom.workloads.roles import Role
from tests.execution.models import DATAFLOWS, SHAPES, chip_of
from tests.in_turn import examples
from tests.mapper.chip.test_flow import attended, keys_and_values, matrix, ran, scales_of, tile_of_keys


def graph_of(folder, heads, dim, layers, source, sets):
    sides = ("encoder", "decoder")
    model = {
        "model_type": "whisper",
        "d_model": heads * dim,
        **{f"{side}_layers": layers for side in sides},
        **{f"{side}_attention_heads": heads for side in sides},
        **{f"{side}_ffn_dim": 2 * heads * dim for side in sides},
        "num_mel_bins": 3,
        "max_source_positions": source,
        "max_target_positions": 64,
        "vocab_size": 40,
    }
    file = folder / "config.json"
    file.write_text(json.dumps(model))
    return load_workload(str(file), list(sets))


@examples(2, 12, seconds=12)
def test_cross_attention_reads_what_the_encoder_made(examples, tmp_path_factory):
    """All positions of the encoder, in every layer; a step of decode finds them in memory and leaves them there."""

    @settings(max_examples=examples, deadline=None)
    @given(
        shape=st.sampled_from(SHAPES),
        dataflow=st.sampled_from(DATAFLOWS),
        bus=st.sampled_from([8, 16, 32]),
        dim=st.sampled_from([8, 16, 10, 5, 24]),
        batch=st.sampled_from([1, 2, 3]),
        layers=st.sampled_from([1, 2]),
        source=st.integers(1, 21),
        target=st.integers(1, 9),
        decode=st.booleans(),
        seed=st.integers(0, 99),
    )
    def holds(shape, dataflow, bus, dim, batch, layers, source, target, decode, seed):
        sets = [("phase", "decode"), ("context", str(target))] if decode else [("decoder_sequence", str(target))]
        heads, last = 2, layers - 1
        graph = graph_of(tmp_path_factory.mktemp("cross"), heads, dim, layers, source, [*sets, ("batch", str(batch))])
        mapped, before, after = ran(chip_of(*shape, bus, dataflow=dataflow), graph, seed)
        attention = graph.dataflow["decoder_layer.cross_attention"]
        assert set(mapped.apart) <= {"embedding.conv2", "embedding.conv2.transpose"}
        tiling = next(task.tiling for task in mapped.tasks if task.task.operator.name == attention.name)
        assert isinstance(tiling, AttentionTiling)
        assume(tiling.whole or tiling.keys >= source)
        width, made = heads * dim, (batch, source, heads, dim)
        keys, values = keys_and_values(mapped, after, attention, last)
        if decode:
            for layer in range(layers):
                found = zip(
                    *(keys_and_values(mapped, memory, attention, layer) for memory in (before, after)), strict=True
                )
                for old, new in found:
                    np.testing.assert_array_equal(old, new)
        else:
            both = matrix(after, mapped.results["decoder_layer.cross_kv"], batch * source, 2 * width)
            np.testing.assert_array_equal(keys, both[:, :width].reshape(made).transpose(0, 2, 1, 3))
            np.testing.assert_array_equal(values, both[:, width:].reshape(made).transpose(0, 2, 1, 3))
        asked, rows = (batch, attention.q_len, heads, dim), batch * attention.q_len
        queries = matrix(after, mapped.results["decoder_layer.cross_query"], rows, width)
        queries = queries.reshape(asked).transpose(0, 2, 1, 3)
        got = matrix(after, mapped.results["decoder_layer.cross_attention"], rows, width)
        got = got.reshape(asked).transpose(0, 2, 1, 3)
        multiplier, shift, columns = scales_of(mapped, after, attention)
        for sequence in range(batch if layers == 1 else 0):  # whose scales are the first ones
            for head in range(heads):
                k, v = keys[sequence, head], values[sequence, head]
                seen = np.full(attention.q_len, source)
                expected = functions.requantize_rows(
                    *attended(
                        queries[sequence, head] @ k.T,
                        v,
                        seen,
                        shape[2],
                        multiplier,
                        shift,
                        tile_of_keys(mapped, attention.name),
                    ),
                    *columns,
                )
                np.testing.assert_array_equal(got[sequence, head], np.clip(expected, -128, 127))

    holds()


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_layers_result_is_the_next_ones_operand_whatever_else_its_layers_read(phase):
    for name in ("t5-base", "whisper-small"):
        graph = load_workload(name, [("phase", phase)])
        made = {name.partition(".")[0]: before for name, before in updated(graph).items()}
        whole = {"encoder_layer", "decoder_layer"} if phase == "prefill" else {"decoder_layer"}
        assert set(made) == whole
        assert made["decoder_layer"].startswith("decoder_embedding.")


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_biases_of_scores_take_time_and_are_said_to_have_no_circuit(phase):
    done = simulate("npu-edge", load_workload("t5-base", [("phase", phase), ("layers", "2")]))
    result = done.result()
    stacks = 2 if phase == "prefill" else 1
    assert result["hardware"]["word"] == "specified"
    assert result["hardware"]["why"] == {NO_BIAS: 2 * stacks}, "the sums and the attention behind them"
    sums = [o for o in result["operators"] if o["name"].endswith("score_bias")]
    assert len(sums) == stacks
    for each in sums:
        operator = done.graph.dataflow[each["name"]]
        assert operator.role is Role.SCORE_BIAS
        bytes_moved = (operator.input_bytes + operator.output_bytes) * operator.repeat
        assert each["cycles"] >= bytes_moved / 51.2, "no less than memory takes for scores, biases and sums"
    assert simulate("npu-edge", load_workload("whisper-small", [("phase", "decode")])).result()["hardware"]["word"] == (
        "proven"
    )


def test_what_rests_in_decode_takes_room_and_no_time():
    sets = [("phase", "decode"), ("layers", "2"), ("context", "64"), ("encoder_sequence", "64")]
    chip, graph = load_chip("npu-edge"), load_workload("t5-base", sets)
    plan = map_workload(chip, graph)
    names = {o.name for o in graph.resting}
    assert names > {"encoder_layer.qkv", "decoder_layer.cross_kv"}
    assert names <= {item.operator for _, item in plan.memory.objects()}
    assert plan.memory_bytes > graph.weight_bytes
    small = load_chip("npu-edge", [("memory.dram.capacity", f"{plan.memory_bytes - 2**20} B")])
    with pytest.raises(LoomError, match="memory"):
        map_workload(small, graph)
