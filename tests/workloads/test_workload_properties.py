"""Laws that hold for every attention mask and every transformer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from siliconloom.arch import DataType, LoomError
from siliconloom.arch.document import Document
from siliconloom.workloads import Attention, Gemm, Graph, Phase
from siliconloom.workloads.attention import TokenStep
from siliconloom.workloads.huggingface import read_architecture
from siliconloom.workloads.load import read_workload
from siliconloom.workloads.precision import CacheName
from siliconloom.workloads.training import training_graph
from siliconloom.workloads.transformer import forward_graph


def build(config: dict[str, Any], phase: Phase, batch: int, q_len: int, kv_len: int) -> Graph:
    model = read_architecture(Document.parse(json.dumps(config)))
    run = TokenStep(phase=phase, batch=batch, q_len=q_len, kv_len=kv_len)
    dataflow = forward_graph(model, run, DataType.BF16)
    graph = Graph(
        name="random",
        phase=phase,
        precision=DataType.BF16,
        explicit_precision=False,
        batch=batch,
        tokens=run.tokens,
        dataflow=dataflow,
    )
    if phase is not Phase.TRAINING:
        return graph
    return Graph(**{**asdict(graph), "dataflow": training_graph(dataflow, graph.blocks(), model.hidden)})


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    kv_heads, group, width = draw(st.integers(1, 4)), draw(st.integers(1, 4)), 2 * draw(st.integers(1, 16))
    hidden = kv_heads * group * width
    kind = draw(
        st.sampled_from(
            [
                "llama",
                "mistral",
                "mixtral",
                "qwen2",
                "qwen3",
                "qwen3_moe",
                "phi3",
                "gemma",
                "gemma2",
                "gemma3_text",
                "gpt2",
                "opt",
                "phi",
                "deepseek_v3",
                "gpt_neox",
                "gptj",
                "falcon",
            ]
        )
    )
    layers = draw(st.integers(1, 9))
    config: dict[str, Any] = {"model_type": kind, "vocab_size": draw(st.integers(1, 500))}
    if kind == "gpt2":
        return {**config, "n_embd": hidden, "n_layer": layers, "n_head": kv_heads * group}
    if kind == "gptj":
        turned = draw(st.none() | st.integers(1, width // 2).map(lambda pairs: 2 * pairs))
        return {**config, "n_embd": hidden, "n_layer": layers, "n_head": kv_heads * group, "rotary_dim": turned}
    config |= {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": kv_heads * group,
        "num_key_value_heads": kv_heads,
        "intermediate_size": draw(st.integers(1, 300)),
        "head_dim": width,
        "tie_word_embeddings": draw(st.booleans()),
    }
    if kind in ("mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "phi3", "gemma2", "gemma3_text"):
        config["sliding_window"] = draw(st.none() | st.integers(1, 40))
    if kind == "phi":  # half of a head is turned, by pairs of columns
        config |= {"hidden_size": 2 * hidden, "head_dim": 2 * width}
    if kind in ("opt", "deepseek_v3"):
        del config["num_key_value_heads"], config["head_dim"]
    if kind == "opt":
        config |= {"word_embed_proj_dim": draw(st.integers(1, 64)), "do_layer_norm_before": draw(st.booleans())}
        config["ffn_dim"] = config.pop("intermediate_size")
    if kind == "gpt_neox":
        del config["num_key_value_heads"], config["head_dim"]
        return config | {"rotary_pct": 1.0, "use_parallel_residual": draw(st.booleans())}
    if kind == "falcon":
        inner, kv = config.pop("intermediate_size"), config.pop("num_key_value_heads")
        del config["head_dim"]
        config |= {
            "ffn_hidden_size": inner,
            "bias": draw(st.booleans()),
            "new_decoder_architecture": draw(st.booleans()),
        }
        return config | ({"num_kv_heads": kv} if config["new_decoder_architecture"] else {})
    if kind in ("mixtral", "qwen3_moe", "deepseek_v3"):
        experts = draw(st.integers(1, 9))
        config["num_experts_per_tok"] = draw(st.integers(1, experts))
        if kind != "mixtral":
            config["moe_intermediate_size"] = 24
        config[{"mixtral": "num_local_experts", "qwen3_moe": "num_experts"}.get(kind, "n_routed_experts")] = experts
    if kind == "deepseek_v3":
        config |= {
            "q_lora_rank": draw(st.none() | st.integers(1, 50)),
            "kv_lora_rank": draw(st.integers(1, 50)),
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 6,
            "v_head_dim": draw(st.integers(1, 20)),
        }
    return config


@given(
    q_len=st.integers(1, 30),
    more=st.integers(0, 30),
    window=st.none() | st.integers(1, 70),
    causal=st.booleans(),
    batch=st.integers(1, 3),
)
def test_pairs_equal_brute_force(q_len: int, more: int, window: int | None, causal: bool, batch: int) -> None:
    kv_len = q_len + more
    window = window if causal else None
    attention = Attention(
        name="a",
        block="a",
        precision=DataType.BF16,
        batch=batch,
        heads=6,
        kv_heads=3,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=5,
        v_head_dim=7,
        causal=causal,
        window=window,
    )
    seen = [
        (query, key)
        for query in range(more, kv_len)
        for key in range(kv_len)
        if not causal or (key <= query and (window is None or key > query - window))
    ]
    assert attention.pairs == len(seen)
    assert attention.macs == batch * 6 * len(seen) * 12
    assert attention.unmasked_macs == batch * 6 * q_len * kv_len * 12
    assert attention.kv_read == len({key for _, key in seen})


@pytest.mark.slow(seconds=1)
@settings(deadline=None, max_examples=60)
@given(config=configs(), batch=st.integers(1, 3), sequence=st.integers(1, 40))
def test_totals_are_sums_and_phases_agree_on_parameters(config: dict[str, Any], batch: int, sequence: int) -> None:
    prefill = build(config, Phase.PREFILL, batch, sequence, sequence)
    decode = build(config, Phase.DECODE, batch, 1, sequence)
    training = build(config, Phase.TRAINING, batch, sequence, sequence)
    assert prefill.parameters == decode.parameters == training.parameters
    assert prefill.kv_bytes_per_token == decode.kv_bytes_per_token
    assert prefill.kv_bytes == decode.kv_bytes
    assert training.kv_bytes == 0
    for graph in (prefill, decode, training):
        assert graph.macs == sum(operator.macs * operator.repeat for operator in graph.operators())
        assert graph.unmasked_flops >= graph.flops
        assert graph.active_parameters <= graph.parameters
    forward = [
        operator
        for block, _, operators in training.blocks()
        for operator in operators
        if not block.endswith((".backward", ".optimizer"))
    ]
    gemms = sum(operator.macs * operator.repeat for operator in forward if isinstance(operator, Gemm))
    backward = 0
    for operator in forward:
        if isinstance(operator, Attention):
            columns = 3 * operator.head_dim + 2 * operator.v_head_dim
            backward += operator.repeat * operator.batch * operator.heads * operator.pairs * columns
    attention = sum(operator.macs * operator.repeat for operator in forward if isinstance(operator, Attention))
    assert training.macs == 3 * gemms + attention + backward


@settings(deadline=None, max_examples=60)
@given(config=configs(), batch=st.integers(1, 3), context=st.integers(1, 40))
def test_decode_is_the_last_row_of_a_prefill(config: dict[str, Any], batch: int, context: int) -> None:
    if config["model_type"] == "deepseek_v3":  # decodes in the absorbed form, which does other products
        return
    decode = build(config, Phase.DECODE, batch, 1, context)
    one = build(config, Phase.PREFILL, batch, 1, 1)

    def split(graph: Graph) -> tuple[int, int]:
        attention = sum(o.macs * o.repeat for o in graph.operators() if isinstance(o, Attention))
        return graph.macs - attention, attention

    def last_row(length: int) -> int:
        return split(build(config, Phase.PREFILL, batch, length, length))[1] if length else 0

    assert split(decode)[0] == split(one)[0]
    assert split(decode)[1] == last_row(context) - last_row(context - 1)


@settings(deadline=None, max_examples=30)
@given(config=configs(), layers=st.integers(1, 12))
def test_work_grows_by_a_layer_at_a_time(config: dict[str, Any], layers: int) -> None:
    key = "n_layer" if "n_layer" in config else "num_hidden_layers"
    if config["model_type"] in ("gemma2", "gemma3_text", "deepseek_v3"):
        config |= {"first_k_dense_replace": 0} if config["model_type"] == "deepseek_v3" else {"sliding_window": None}
    first, second, last = (build({**config, key: count}, Phase.PREFILL, 1, 8, 8) for count in (1, 2, layers))
    for total in ("parameters", "macs", "weight_bytes", "kv_bytes"):
        layer = getattr(second, total) - getattr(first, total)
        assert getattr(last, total) == getattr(first, total) + (layers - 1) * layer


ODD: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-3, 2**30) | st.floats() | st.text(max_size=3) | st.just([]) | st.just({})
)


@pytest.mark.slow(seconds=1)
@settings(deadline=None, max_examples=150)
@given(config=configs(), data=st.data())
def test_odd_values_are_loaded_or_refused_in_one_line(config: dict[str, Any], data: st.DataObject) -> None:
    others = ["torch_dtype", "hidden_act", "layer_types", "partial_rotary_factor", "rope_parameters", "mlp_only_layers"]
    for key in data.draw(st.lists(st.sampled_from([*config, *others]), min_size=1, max_size=2, unique=True)):
        config[key] = data.draw(ODD)
    document = Document({"model": config}, {}, "config.json")
    text = ""
    try:
        read_architecture(document, ("model",))
    except LoomError as error:
        text = str(error)
    assert text == "" or text.startswith(("config.json:1:1: model", "not supported: "))
    assert "\n" not in text


@settings(deadline=None, max_examples=40)
@given(config=configs(), phase=st.sampled_from([Phase.PREFILL, Phase.DECODE]), kept=st.sampled_from(list(CacheName)))
def test_a_cache_in_fewer_bits_has_their_bytes_and_a_scale_and_an_offset_for_each_head(
    config: dict[str, Any], phase: Phase, kept: CacheName
) -> None:
    document = Document({"kind": "transformer", "model": config}, {}, "model.yaml")
    stated = [("phase", phase.value), ("precision", "bf16"), ("batch", "2")]
    plain = read_workload(Document(dict(document.data), {}, "model.yaml"), "model", stated)
    stated.append(("cache_precision", kept.value))
    if config["model_type"] == "deepseek_v3" or kept in (CacheName.FP16, CacheName.FP32):
        with pytest.raises(LoomError, match="cache_precision"):
            read_workload(document, "model", stated)
        return
    graph = read_workload(document, "model", stated)
    pairs = zip(plain.operators(), graph.operators(), strict=True)
    for one, other in pairs:
        assert (one.macs, one.input_elements) == (other.macs, other.input_elements)
    if kept is CacheName.BF16:
        assert (graph.kv_bytes, graph.cache_formats) == (plain.kv_bytes, ())
        return
    heads = sum(2 * o.kv_heads * o.repeat for o in _attentions(graph))
    codes = plain.kv_bytes_per_token * kept.dtype.bits // 16
    assert graph.kv_bytes_per_token == codes + 4 * heads * kept.dtype.is_integer
    read = _attentions(graph)
    assert all((o.cached is not None) == (phase is Phase.DECODE) for o in read)
    if phase is Phase.DECODE:
        for o, before in zip(read, _attentions(plain), strict=True):
            assert o.head_dim <= 8 or o.input_bytes < before.input_bytes  # scales are more than what small heads save


def _attentions(graph: Graph) -> list[Attention]:
    return [o for o in graph.operators() if isinstance(o, Attention)]
