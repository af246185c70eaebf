"""T5 and Whisper against formulas of parameters, work, bytes and caches that know nothing of operators."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import DataType, LoomError
from siliconloom.arch.document import Document
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.vector import VectorFunction
from siliconloom.execution.walk import GraphWalk
from siliconloom.mapper.system.shard import tensor_shard, tokens_of, with_context
from siliconloom.workloads import Attention, Gemm, Graph, Vector, load_workload
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.roles import Role

Config = dict[str, Any]


def load(config: Config, **sets: object) -> Graph:
    document = Document.parse(json.dumps({"kind": "transformer", "model": config}))
    return read_workload(document, "model", [(key, str(value)) for key, value in sets.items()])


@st.composite
def t5_configs(draw: st.DrawFn) -> Config:
    gate = draw(st.sampled_from(("relu", "gated-gelu", "gelu", "gated-silu")))
    return {
        "model_type": "t5",
        "d_model": draw(st.integers(1, 80)),
        "d_kv": draw(st.integers(1, 20)),
        "d_ff": draw(st.integers(1, 200)),
        "num_layers": draw(st.integers(1, 5)),
        "num_decoder_layers": draw(st.integers(1, 5)),
        "num_heads": draw(st.integers(1, 6)),
        "vocab_size": draw(st.integers(1, 400)),
        "relative_attention_num_buckets": draw(st.integers(2, 40)),
        "feed_forward_proj": gate,
        "tie_word_embeddings": draw(st.booleans()),
    }


@st.composite
def whisper_configs(draw: st.DrawFn) -> Config:
    heads = draw(st.integers(1, 4))
    return {
        "model_type": "whisper",
        "d_model": 12 * draw(st.integers(1, 6)),
        "encoder_layers": draw(st.integers(1, 4)),
        "decoder_layers": draw(st.integers(1, 4)),
        "encoder_attention_heads": heads,
        "decoder_attention_heads": draw(st.sampled_from((1, 2, 3, 4, 6))),
        "encoder_ffn_dim": draw(st.integers(1, 200)),
        "decoder_ffn_dim": draw(st.integers(1, 200)),
        "num_mel_bins": draw(st.integers(1, 100)),
        "max_source_positions": draw(st.integers(1, 60)),
        "max_target_positions": 40,
        "vocab_size": draw(st.integers(1, 400)),
        "tie_word_embeddings": draw(st.booleans()),
    }


LENGTHS = {"source": st.integers(1, 60), "target": st.integers(1, 40), "batch": st.integers(1, 3)}


def causal(tokens: int) -> int:
    """Pairs of a query and a key, of which none is later."""
    return tokens * (tokens + 1) // 2


class T5:
    """What the paper says of a configuration, product by product."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.d, self.f, self.v = config["d_model"], config["d_ff"], config["vocab_size"]
        self.h, self.heads = config["num_heads"] * config["d_kv"], config["num_heads"]
        self.encoders, self.decoders = config["num_layers"], config["num_decoder_layers"]
        self.matrices = 3 if config["feed_forward_proj"].startswith("gated") else 2
        self.attention, self.perceptron = 4 * self.d * self.h, self.matrices * self.d * self.f

    @property
    def parameters(self) -> int:
        encoder = self.encoders * (self.attention + self.perceptron + 2 * self.d) + self.d
        decoder = self.decoders * (2 * self.attention + self.perceptron + 3 * self.d) + self.d
        biases = 2 * self.config["relative_attention_num_buckets"] * self.heads
        return encoder + decoder + biases + self.v * self.d * (1 if self.config["tie_word_embeddings"] else 2)

    def encoder_macs(self, source: int) -> int:
        return self.encoders * (source * (self.attention + self.perceptron) + 2 * self.h * source * source)

    def keys_values_macs(self, source: int) -> int:
        """Those of cross-attention, in all decoder layers."""
        return self.decoders * source * 2 * self.d * self.h

    def decoder_macs(self, tokens: int, pairs: int, source: int) -> int:
        """Cross-attention has a product of queries and one of results, beside its scores."""
        products = tokens * (self.attention + 2 * self.d * self.h + self.perceptron)
        return self.decoders * (products + 2 * self.h * pairs + 2 * self.h * tokens * source) + self.d * self.v


@given(config=t5_configs(), **LENGTHS)
def test_t5(config: Config, source: int, target: int, batch: int) -> None:
    paper = T5(config)
    prompt = load(config, sequence=source, decoder_sequence=target, batch=batch)
    macs = paper.encoder_macs(source) + paper.keys_values_macs(source)
    assert prompt.macs == batch * (macs + paper.decoder_macs(target, causal(target), source))
    step = load(config, phase="decode", context=target, encoder_sequence=source, batch=batch)
    assert step.macs == batch * paper.decoder_macs(1, target, source)
    each = 2 * paper.h * paper.decoders * 2  # bytes of a position's keys and values in bf16
    for graph in (prompt, step):
        assert graph.parameters == paper.parameters
        assert graph.weight_bytes == 2 * paper.parameters
        assert graph.kv_bytes_per_token == each
        assert graph.cross_bytes == batch * source * each
        assert graph.kv_bytes == batch * (target + source) * each
    assert (prompt.tokens, step.tokens) == (batch * (source + target), batch)


@given(config=whisper_configs(), target=st.integers(1, 40), batch=st.integers(1, 3))
def test_whisper(config: Config, target: int, batch: int) -> None:
    d, v, source = config["d_model"], config["vocab_size"], config["max_source_positions"]
    if d % config["encoder_attention_heads"] or d % config["decoder_attention_heads"]:
        return
    encoders, decoders, bands = config["encoder_layers"], config["decoder_layers"], config["num_mel_bins"]
    inner, outer = config["encoder_ffn_dim"], config["decoder_ffn_dim"]
    stem = 3 * bands * d + d + 3 * d * d + d
    attention = 4 * d * d + 3 * d  # biases of queries, values and results
    norm = 2 * d
    encoder = encoders * (attention + 2 * d * inner + inner + d + 2 * norm) + norm + source * d
    decoder = decoders * (2 * attention + 2 * d * outer + outer + d + 3 * norm) + norm + 40 * d
    parameters = stem + encoder + decoder + v * d * (1 if config["tie_word_embeddings"] else 2)
    prompt = load(config, decoder_sequence=target, batch=batch)
    macs = 2 * source * 3 * bands * d + source * 3 * d * d
    macs += encoders * (source * (4 * d * d + 2 * d * inner) + 2 * d * source**2)

    def writing(tokens: int, pairs: int) -> int:
        products = tokens * (4 * d * d + 2 * d * d + 2 * d * outer)
        return decoders * (products + 2 * d * pairs + 2 * d * tokens * source) + d * v

    assert prompt.macs == batch * (macs + decoders * source * 2 * d * d + writing(target, causal(target)))
    step = load(config, phase="decode", context=target, batch=batch)
    assert step.macs == batch * writing(1, target)
    for graph in (prompt, step):
        assert graph.parameters == parameters
        assert graph.weight_bytes == 2 * parameters
        assert graph.kv_bytes_per_token == 2 * d * decoders * 2
        assert graph.kv_bytes == batch * (target + source) * 2 * d * decoders * 2


@given(config=t5_configs(), source=st.integers(1, 60), context=st.integers(1, 60), room=st.integers(0, 30))
def test_a_cache_has_room_for_more_tokens_of_the_decoder_and_no_more_of_the_encoder(
    config: Config, source: int, context: int, room: int
) -> None:
    sets: dict[str, object] = {"phase": "decode", "context": context, "encoder_sequence": source}
    graph = load(config, **sets, cache_length=context + room)
    each = 2 * config["num_heads"] * config["d_kv"] * config["num_decoder_layers"] * 2
    assert graph.kv_bytes == (context + room + source) * each
    halved = load(config, **sets, cache_precision="fp8")
    assert 2 * halved.kv_bytes == load(config, **sets).kv_bytes
    assert 2 * halved.cross_bytes == source * each


@given(config=t5_configs(), **LENGTHS)
def test_cross_attention_sees_every_position_and_a_step_appends_none(
    config: Config, source: int, target: int, batch: int
) -> None:
    prompt = load(config, sequence=source, decoder_sequence=target, batch=batch)
    step = load(config, phase="decode", context=target, encoder_sequence=source, batch=batch)
    for graph, queries in ((prompt, target), (step, 1)):
        found = [o for o in graph.operators() if o.role is Role.CROSS_ATTENTION]
        assert found
        for each in found:
            assert isinstance(each, Attention)
            assert (each.causal, each.q_len, each.kv_len) == (False, queries, source)
            assert each.pairs == queries * source
    made = (Role.CROSS_KEYS_VALUES, Role.CROSS_CACHE)
    assert [o.role for o in prompt.operators() if o.role in made] == [*made]
    assert not [o for o in step.operators() if o.role in made]
    assert {o.place.section.value for o in step.operators()} == {"embedding", "layer", "head"}


@given(config=t5_configs(), **LENGTHS)
def test_every_score_of_own_tokens_has_a_bias_and_of_each_distance_there_is_one(
    config: Config, source: int, target: int, batch: int
) -> None:
    prompt = load(config, sequence=source, decoder_sequence=target, batch=batch)
    heads = config["num_heads"]
    added = {o.block: o for o in prompt.operators() if o.role is Role.SCORE_BIAS}
    tables = {o.block: o for o in prompt.operators() if o.role is Role.POSITION_BIAS}
    for block, table, length, distances in (
        ("encoder_layer", "embedding", source, 2 * source - 1),
        ("decoder_layer", "decoder_embedding", target, target),
    ):
        sums, found = added[block], tables[table]
        assert isinstance(sums, Vector)
        assert isinstance(found, Vector)
        assert sums.vector_elements == batch * heads * length**2
        assert sums.input_bytes + sums.output_bytes == 3 * 2 * batch * heads * length**2
        assert (found.rows, found.cols) == (distances, heads)
        assert prompt.dataflow.predecessors(sums.name) == [found.name]
        assert prompt.dataflow.successors(sums.name) == [f"{block}.attention"]
    assert len(added) == 2, "cross-attention has none"


def test_whisper_has_no_bias_of_scores_and_reads_a_spectrogram() -> None:
    graph = load_workload("whisper-small")
    assert not [o for o in graph.operators() if o.role in (Role.SCORE_BIAS, Role.POSITION_BIAS)]
    first, second = graph.dataflow["embedding.conv1"], graph.dataflow["embedding.conv2"]
    assert isinstance(first, Gemm)
    assert isinstance(second, Gemm)
    assert (first.m, first.n, first.k) == (3000, 768, 3 * 80)
    assert (second.m, second.n, second.k) == (1500, 768, 3 * 768)
    functions = [o.function for o in graph.operators() if isinstance(o, Vector) and o.block == "embedding"]
    assert functions == [VectorFunction.GELU, VectorFunction.GELU, VectorFunction.GATHER, VectorFunction.ADD]


@pytest.mark.parametrize("name", ["t5-base", "whisper-small"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("tensor", [2, 3, 4, 6, 12])
def test_chips_share_heads_columns_and_both_caches_evenly(name: str, phase: str, tensor: int) -> None:
    whole = load_workload(name, [("phase", phase), ("batch", "2")])
    part = tensor_shard(whole, tensor)
    for operator in whole.operators():
        mine = part.dataflow[operator.name].macs
        if operator.role is Role.WHOLE:  # convolutions, which every chip does
            assert mine == operator.macs
        elif operator.role is not Role.HEAD:  # whose columns need not divide
            assert mine * tensor == operator.macs, operator.name
    assert part.kv_bytes * tensor == whole.kv_bytes
    assert part.cross_bytes * tensor == whole.cross_bytes
    assert whole.weight_bytes / tensor < part.weight_bytes < whole.weight_bytes / tensor + 8e6
    for operator in whole.operators():
        mine = part.dataflow[operator.name]
        if operator.role in (Role.SCORE_BIAS, Role.CROSS_KEYS_VALUES, Role.CROSS_CACHE, Role.CROSS_ATTENTION):
            assert mine.output_elements * tensor == operator.output_elements, operator.name


def test_a_longer_context_leaves_the_encoders_positions() -> None:
    sets = [("phase", "decode"), ("encoder_sequence", "77")]
    made = with_context(load_workload("t5-base", [*sets, ("context", "100")]), 300)
    assert made.operators() == load_workload("t5-base", [*sets, ("context", "300")]).operators()


def test_formats_reach_what_rests_in_memory() -> None:
    sets = [("phase", "decode"), ("context", "8")]
    plain = load_workload("t5-base", sets)
    assert plain.resting_bytes == 2 * sum(o.parameters * o.repeat for o in plain.resting) > 0
    assert 2 * plain.with_precision(DataType.INT8).resting_bytes == plain.resting_bytes
    packed = load_workload("t5-base", [*sets, ("precision", "w4a16")])
    assert packed.resting_bytes < 0.27 * plain.resting_bytes
    whole = replace(plain, resting=())
    assert plain.weight_bytes - whole.weight_bytes == plain.resting_bytes


SMALL = {"model_type": "t5", "d_model": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 9}
SOUND = {
    "model_type": "whisper",
    "d_model": 8,
    **{f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")},
}


@pytest.mark.parametrize(
    ("config", "sets", "expected"),
    [
        (SMALL, {"phase": "training"}, "phase: not supported: training of t5, an encoder with a decoder"),
        (SMALL, {"encoder_sequence": 4}, "encoder_sequence in prefill; sequence is the length of the encoder's input"),
        (SMALL, {"phase": "decode", "sequence": 4}, "sequence: not supported: sequence in decode"),
        (SMALL, {"phase": "decode", "decoder_sequence": 4}, "decoder_sequence in decode, which makes one token"),
        (SMALL, {"phase": "decode", "context": 9, "cache_length": 8}, "the cache must have room for 9 positions"),
        (SMALL, {"layers": 3}, "layers: the decoder has 2 layers (got 3)"),
        (SMALL, {"experts": "all"}, "the model has no experts"),
        (SOUND, {"sequence": 1499}, "must be 1500: the positions that convolutions leave of 3000 frames"),
        (SOUND, {"phase": "decode", "encoder_sequence": 7}, "encoder_sequence: must be 1500: the positions"),
        (SOUND, {"phase": "decode", "context": 449}, "context: the decoder has learned positions for 448 tokens only"),
        (SOUND, {"decoder_sequence": 449}, "decoder_sequence: the decoder has learned positions for 448"),
        ({**SMALL, "feed_forward_proj": "gated-relu"}, {}, "model.feed_forward_proj: must be one of gated-gelu"),
        ({**SMALL, "model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}, {"decoder_sequence": 2}, "model"),
    ],
)
def test_refusals(config: Config, sets: dict[str, object], expected: str) -> None:
    with pytest.raises(LoomError) as caught:
        load(config, **sets)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["decoder_sequence", "encoder_sequence"])
def test_a_model_of_one_part_has_no_length_of_another(key: str) -> None:
    phase = "prefill" if key == "decoder_sequence" else "decode"
    with pytest.raises(LoomError, match=f"{key}: gpt2 is no encoder with a decoder"):
        load_workload("gpt2", [("phase", phase), (key, "8")])


def test_values_and_runs_of_tokens_are_refused_by_what_the_model_is() -> None:
    graph = load_workload("t5-base")
    with pytest.raises(NotSupported, match="values of t5-base, an encoder with a decoder that attends to it"):
        GraphWalk(graph)
    with pytest.raises(NotSupported, match="t5-base: runs of the tokens of an encoder and a decoder"):
        tokens_of(graph, 0, 3)


def test_files_state_the_lengths_of_both_phases() -> None:
    document = {"kind": "transformer", "model": SMALL, "sequence": 33, "decoder_sequence": 3, "context": 5}

    def made(*sets: tuple[str, str]) -> list[Attention]:
        graph = read_workload(Document.parse(json.dumps(document)), "model", list(sets))
        return [o for o in graph.operators() if isinstance(o, Attention)]

    assert [(o.q_len, o.kv_len) for o in made()] == [(33, 33), (3, 3), (3, 33)]
    assert [(o.q_len, o.kv_len) for o in made(("phase", "decode"))] == [(1, 5), (1, 33)]


@given(config=t5_configs(), source=st.integers(1, 60), batch=st.integers(1, 3), named=st.booleans())
def test_an_encoder_by_itself(config: Config, source: int, batch: int, named: bool) -> None:
    """Text encoders of models that make images: no decoder, no head, one table of distances."""
    paper, own = (
        T5(config),
        config["num_layers"] * (T5(config).attention + T5(config).perceptron + 2 * config["d_model"]),
    )
    said = {"architectures": ["T5EncoderModel"], "num_decoder_layers": 0} if named else {"is_encoder_decoder": False}
    prompt = load(config | said, sequence=source, batch=batch)
    table = config["relative_attention_num_buckets"] * config["num_heads"]
    assert prompt.parameters == own + config["d_model"] + table + config["vocab_size"] * config["d_model"]
    assert prompt.macs == batch * paper.encoder_macs(source)
    assert (prompt.kv_bytes, prompt.tokens) == (0, batch * source)
    assert not any("decoder" in o.name or "cross" in o.name for o in prompt.operators())


@pytest.mark.parametrize(
    ("said", "more", "rule"),
    [
        ({"architectures": ["T5ForSequenceClassification"]}, {}, "architectures: not supported: must be one of T5For"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": False}, {}, "has a decoder"),
        ({"architectures": ["T5EncoderModel"]}, {"phase": "decode"}, "t5 is an encoder and does not decode"),
        ({"architectures": ["T5EncoderModel"]}, {"phase": "training"}, "training of t5's encoder by itself"),
        ({"architectures": ["T5EncoderModel"]}, {"sample": "greedy"}, "no head to sample from"),
        ({"num_decoder_layers": 0}, {}, "num_decoder_layers: must be from 1"),
        ({"is_causal": False}, {}, "is_causal: not supported: model type t5 without a causal mask"),
    ],
)
def test_what_is_neither_is_refused(said: Config, more: Config, rule: str) -> None:
    with pytest.raises(LoomError, match=rule):
        load({"model_type": "t5", "d_model": 8, "num_layers": 2, "num_heads": 2} | said, **more)


def test_whispers_encoder_by_itself_is_refused() -> None:
    sizes = ("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads")
    config = {"model_type": "whisper", "d_model": 8, **dict.fromkeys(sizes, 2)}
    assert load(config, sequence=1500).parameters
    with pytest.raises(LoomError, match="is_encoder_decoder: not supported: whisper's encoder"):
        load(config | {"is_encoder_decoder": False}, sequence=1500)
