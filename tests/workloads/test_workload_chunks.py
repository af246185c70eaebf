"""Steps that are neither a whole prompt nor one token of each sequence: chunks of prompts, and several tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.model import predict_model
from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.attention_places import query_parts
from siliconloom.mapper.chip.operands import Cached
from siliconloom.mapper.pim.offload import Head
from siliconloom.mapper.system.shard import tokens_of
from siliconloom.workloads import Attention, Gemm, Graph, Vector, load_workload
from siliconloom.workloads.roles import Role, Section

SMALL: dict[str, list[tuple[str, str]]] = {
    "llama3-8b": [("layers", "2")],
    "gpt2": [("layers", "1")],
    "mistral-7b": [("layers", "2"), ("model.sliding_window", "24")],
    "mixtral-8x7b": [("layers", "1")],
    "qwen3-32b": [("layers", "1")],
    "falcon-7b": [("layers", "1")],
    "pythia-1b": [("layers", "1")],
}
"""Models that keep keys and values, with fewer layers and a narrow window."""
MODELS = st.sampled_from(sorted(SMALL))
STATED = st.sampled_from([(), (("cache_precision", "fp8"),), (("batch", "3"),), (("cache_length", "400"),)])


def chunk(model: str, past: int, new: int, *sets: tuple[str, str]) -> Graph:
    """New tokens of a prompt behind earlier ones, of which there may be none."""
    earlier = before(past)
    return load_workload(model, [*SMALL.get(model, []), ("sequence", str(new)), *earlier, *sets])


def decode(model: str, context: int, new: int, *sets: tuple[str, str]) -> Graph:
    """Several tokens of each sequence, the last ones of so many."""
    lengths = [("phase", "decode"), ("context", str(context)), ("sequence", str(new))]
    return load_workload(model, [*SMALL.get(model, []), *lengths, *sets])


def attentions(graph: Graph) -> list[Attention]:
    return [o for o in graph.operators() if isinstance(o, Attention)]


def work(graph: Graph) -> list[tuple[Any, ...]]:
    """What each operator but the head's does and moves."""
    return [
        (o.name, o.repeat, o.macs, o.unmasked_macs, o.input_bytes, o.output_bytes, o.weight_bytes, o.shape)
        for o in graph.operators()
        if o.place.section is not Section.HEAD
    ]


@settings(max_examples=60, deadline=None)
@given(model=MODELS, past=st.integers(1, 300), new=st.integers(1, 60), stated=STATED)
def test_several_tokens_in_decode_are_a_chunk_whose_logits_are_all_made(model, past, new, stated) -> None:
    chunked, decoded = chunk(model, past, new, *stated), decode(model, past + new, new, *stated)
    assert work(chunked) == work(decoded)
    assert attentions(chunked) == attentions(decoded)
    for name in ("kv_bytes", "kv_bytes_per_token", "tokens", "weight_bytes", "batch"):
        assert getattr(chunked, name) == getattr(decoded, name)
    heads = [next(o for o in g.operators() if o.role is Role.HEAD) for g in (chunked, decoded)]
    assert [head.shape["m"] for head in heads] == [chunked.batch, chunked.batch * new]


@settings(max_examples=40, deadline=None)
@given(model=MODELS, cuts=st.lists(st.integers(1, 90), min_size=1, max_size=5), stated=STATED)
def test_chunks_attend_to_as_many_pairs_as_the_whole_prompt(model, cuts, stated) -> None:
    whole = chunk(model, 0, sum(cuts), *stated)
    parts = [chunk(model, sum(cuts[:n]), new, *stated) for n, new in enumerate(cuts)]
    for name in ("macs", "vector_elements", "output_bytes"):
        done = [sum(getattr(o, name) * o.repeat for o in attentions(part)) for part in parts]
        assert sum(done) == sum(getattr(o, name) * o.repeat for o in attentions(whole))
    assert parts[-1].kv_bytes == whole.kv_bytes
    appended = [
        sum(o.output_bytes for o in part.operators() if isinstance(o, Vector) and o.role is Role.CACHE)
        for part in (*parts, whole)
    ]
    assert sum(appended[:-1]) == appended[-1]
    assert all(not part.notes for part in parts)


@pytest.mark.slow(seconds=3)
@settings(max_examples=2, deadline=None)
@given(
    chip=st.sampled_from(["npu-edge-int8", "npu-edge"]),
    model=st.sampled_from(["gpt2", "llama3-8b", "pythia-1b"]),
    cuts=st.lists(st.sampled_from([1, 5, 16, 33, 64]), min_size=2, max_size=3),
)
def test_chunks_never_take_less_in_all_than_the_whole_prompt_could(chip, model, cuts) -> None:
    sets = [("layers", "1")]
    bound = simulate(chip, chunk(model, 0, sum(cuts), *sets)).result()["bound"]["lower_bound_cycles"]
    results = [simulate(chip, chunk(model, sum(cuts[:n]), new, *sets)).result() for n, new in enumerate(cuts)]
    assert sum(result["cycles"] for result in results) >= bound
    assert all(result["cycles"] >= result["bound"]["lower_bound_cycles"] for result in results)


@settings(max_examples=20, deadline=None)
@given(past=st.integers(1, 200), new=st.integers(1, 50), batch=st.integers(1, 3))
def test_a_latent_is_expanded_again_for_earlier_tokens_and_read_as_it_is_in_decode(past, new, batch) -> None:
    sets = [("layers", "1"), ("batch", str(batch))]
    graph, decoded = chunk("deepseek-v3", past, new, *sets), decode("deepseek-v3", past + new, new, *sets)
    expanded = graph.dataflow["layer.kv_up" if "layer.kv_up" in graph.dataflow else "dense_layer.kv_up"]
    assert isinstance(expanded, Gemm)
    assert expanded.m == batch * (past + new)
    makers = graph.dataflow.predecessors(expanded.name)
    assert [graph.dataflow[name].role for name in makers] == [Role.LATENT_CACHE]
    (attention,), (absorbed,) = attentions(graph), attentions(decoded)
    assert (attention.past, attention.remade, absorbed.past) == (0, True, past)
    assert Cached(attention, keys=True).tokens == past + new
    assert Cached(absorbed, keys=True).tokens == new
    assert graph.kv_bytes == decoded.kv_bytes == chunk("deepseek-v3", 0, past + new, *sets).kv_bytes


@settings(max_examples=20, deadline=None)
@given(past=st.integers(0, 90), half=st.integers(1, 40))
def test_halves_of_a_chunk_attend_to_what_it_attends_to(past, half) -> None:
    whole = chunk("llama3-8b", past, 2 * half)
    halves = [tokens_of(whole, part, 2) for part in range(2)]
    assert sum(o.macs for part in halves for o in attentions(part)) == sum(o.macs for o in attentions(whole))
    assert [o.past for part in halves for o in attentions(part)] == [past, past + half]


@settings(max_examples=20, deadline=None)
@given(past=st.integers(1, 4000), new=st.sampled_from([2, 4, 8, 64, 512]), decoded=st.booleans())
def test_a_gpu_takes_more_time_for_more_tokens_and_not_less_than_its_roofline(past, new, decoded) -> None:
    made = decode if decoded else chunk
    times = []
    for count in (new, 2 * new):
        graph = made("llama3-8b", past + count if decoded else past, count)
        found = predict_model(load_gpu("h100"), graph)
        assert (found.seconds >= found.roofline * (1 - 1e-9)).all()
        times.append(float((found.seconds * found.repeats).sum()))
    assert times[1] >= times[0]


def test_the_error_of_a_chunks_attention_is_wider_than_the_kernels() -> None:
    """Nobody has measured it: at least three times the whole prompt's, whose rows the tables have."""
    whole, part = (
        predict_model(load_gpu("h100"), graph)
        for graph in (load_workload("llama3-8b", [("sequence", "512")]), chunk("llama3-8b", 3584, 512))
    )
    errors = [
        {k.operator: float(error) for k, error in zip(found.kernels, found.error, strict=True)}
        for found in (whole, part)
    ]
    assert errors[1]["layer.attention"] >= 3 * errors[0]["layer.attention"] > 0
    assert errors[1]["layer.qkv"] == errors[0]["layer.qkv"]


@pytest.mark.parametrize(
    ("system", "sets", "word"),
    [
        ("dgx-h100", [("plan.context", "2"), ("plan.tensor", "4")], "context"),
        ("dgx-h100", [("plan.documents", "64,64"), ("plan.tensor", "8")], "documents"),
        ("dgx-h100", [("plan.attention_chips", "4"), ("plan.data", "4"), ("plan.tensor", "1")], "attention_chips"),
    ],
)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_plans_refuse_chunks_by_name(capsys, system, sets, word, phase) -> None:
    lengths = [("context", "128"), ("sequence", "64"), ("layers", "4"), ("batch", "8"), ("phase", phase)]
    given = [*((f"workload.{key}", value) for key, value in lengths), *sets, ("plan.pipeline", "1")]
    words = [word for key, value in given for word in ("--set", f"{key}={value}")]
    assert main(["plan", system, "llama3-8b", *words]) == 2
    said = capsys.readouterr().err
    assert f"plan.{word}" in said
    assert "workload.context in prefill, workload.sequence in decode" in " ".join(said.split()) or phase == "decode"


@pytest.mark.slow(seconds=1)
@given(st.sampled_from(["llama3-8b", "mistral-7b", "gpt2"]), st.integers(1, 900), st.integers(2, 100))
@settings(max_examples=30)
def test_chunks_on_a_gpu_read_what_is_kept_in_fewer_bits(model: str, past: int, new: int) -> None:
    gpu = load_gpu("a100")
    plain = predict_model(gpu, chunk(model, past, new))
    for kept in ("fp8", "int8", "int4"):
        found = predict_model(gpu, chunk(model, past, new, ("cache_precision", kept)))
        (of_chunk,) = {k.row["cache"] for k in found.kernels if "attention" in k.row["op"]}
        assert of_chunk == kept
        reads = found.operations.reads_cache()
        assert reads.any()
        assert (found.operations.read_bytes()[reads] < plain.operations.read_bytes()[reads]).all()
        assert (found.seconds >= found.roofline).all()
        assert (found.error >= plain.error).all()


def test_what_has_no_chunks_says_so() -> None:
    (attention,) = attentions(decode("gpt2", 20, 4))
    with pytest.raises(NotSupported, match=r"several queries in memory \(workload.sequence\)"):
        Head.of(attention)
    for model, sets, words in (
        ("bert-base", [("context", "8")], "context in prefill"),
        ("vit-base", [("context", "8")], "context in prefill"),
        ("t5-base", [("context", "8")], "context in prefill"),
        ("t5-base", [("phase", "decode"), ("sequence", "8")], "sequence in decode"),
        ("mamba-2.8b", [("context", "8")], "keeps a state of one size"),
        ("mamba2-2.7b", [("phase", "decode"), ("sequence", "8")], "keeps a state of one size"),
        ("gpt2", [("phase", "training"), ("context", "8")], "context in training"),
        ("gpt2", [("phase", "decode"), ("context", "8"), ("sequence", "9")], "the last ones of context, 8"),
        ("gpt2", [("context", "1000"), ("sequence", "25")], "learned positions for 1024 tokens only"),
        ("llama3-8b", [("context", "90"), ("sequence", "25"), ("cache_length", "100")], "room for 115 positions"),
    ):
        with pytest.raises(LoomError, match=words):
            load_workload(model, sets)


@settings(max_examples=60, deadline=None)
@given(
    past=st.integers(0, 5000),
    new=st.integers(1, 300),
    window=st.one_of(st.none(), st.integers(1, 400)),
    count=st.integers(1, 4),
)
def test_parts_of_queries_read_what_they_see_and_little_that_they_do_not(past, new, window, count) -> None:
    sets = [("model.sliding_window", str(window or 10**6)), ("layers", "1"), ("batch", str(count))]
    (shape,) = attentions(load_workload("mistral-7b", [("sequence", str(new)), *sets, *before(past)]))
    parts = query_parts(shape)
    assert [part.query_start for part in parts] == [sum(p.queries for p in parts[:n]) for n in range(len(parts))]
    assert sum(part.queries for part in parts) == new
    for part in parts:
        first, last = past + part.query_start, past + part.query_start + part.queries - 1
        assert part.key_start == max(0, first + 1 - (window or 10**6))
        assert part.key_start + part.keys == last + 1
    computed = sum(part.queries * part.keys for part in parts)
    seen = min(past + new, window or past + new)
    hidden = 2 if window else 1  # at both ends of what a query sees
    if new <= seen:  # a prompt that is longer than its window is cut as often as any
        assert computed - shape.pairs <= hidden * (new * seen / 16 + new / 2)
    if 8 * new <= seen:
        assert len(parts) == 1


def before(past: int) -> list[tuple[str, str]]:
    """Earlier tokens, where there are any."""
    return [("context", str(past))] if past else []
