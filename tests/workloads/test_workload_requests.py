"""Steps of a serving engine: requests of unequal lengths, prompts and next tokens at once."""

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
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.workloads import Attention, Gemm, Graph, Phase, Vector, load_workload
from siliconloom.workloads.roles import Role

SMALL: dict[str, list[tuple[str, str]]] = {
    "llama3-8b": [("layers", "2")],
    "gpt2": [("layers", "1")],
    "mistral-7b": [("layers", "2"), ("model.sliding_window", "24")],
    "qwen3-32b": [("layers", "1")],
    "falcon-7b": [("layers", "1")],
}
"""Models that keep keys and values, with fewer layers and a narrow window."""
MODELS = st.sampled_from(sorted(SMALL))
REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60), st.integers(1, 4)), min_size=1, max_size=5)
"""New tokens, earlier ones, and how many requests have them."""
LONGER = st.tuples(st.integers(1, 300), st.integers(0, 900), st.integers(1, 9))
Lengths = list[tuple[int, int, int]]


def written(requests: Lengths) -> str:
    return "[" + ", ".join(f"{{new: {new}, context: {past}, count: {n}}}" for new, past, n in requests) + "]"


def step(model: str, requests: Lengths, *sets: tuple[str, str]) -> Graph:
    return load_workload(model, [*SMALL.get(model, []), ("requests", written(requests)), *sets])


def ordinary(model: str, new: int, past: int, count: int, *sets: tuple[str, str]) -> Graph:
    """The same requests as a batch of prompts, or of next tokens."""
    if new == 1 and past:
        lengths = [("phase", "decode"), ("context", str(past + 1))]
    else:
        lengths = [("sequence", str(new)), *([("context", str(past))] if past else [])]
    return load_workload(model, [*SMALL.get(model, []), *lengths, ("batch", str(count)), *sets])


def attentions(graph: Graph) -> list[Attention]:
    return [o for o in graph.operators() if isinstance(o, Attention)]


def whole(graph: Graph) -> list[Any]:
    return [graph.phase, graph.batch, graph.tokens, graph.notes, graph.operators(), [*graph.dataflow.edges()]]


@settings(max_examples=60, deadline=None)
@given(
    model=MODELS,
    new=st.integers(1, 60),
    past=st.integers(0, 200),
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_equal_requests_are_an_ordinary_batch(model, new, past, counts) -> None:
    made = step(model, [(new, past, n) for n in counts])
    assert whole(made) == whole(ordinary(model, new, past, sum(counts)))
    assert made.requests == ()


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(
    chip=st.sampled_from(["npu-edge-int8", "npu-edge"]),
    lengths=st.sampled_from([(1, 40), (16, 0), (16, 33), (1, 0)]),
    counts=st.lists(st.integers(1, 3), min_size=1, max_size=2),
)
def test_equal_requests_take_the_cycles_of_an_ordinary_batch(chip, lengths, counts) -> None:
    results = [
        simulate(chip, graph).result()
        for graph in (step("gpt2", [(*lengths, n) for n in counts]), ordinary("gpt2", *lengths, sum(counts)))
    ]
    assert results[0]["cycles"] == results[1]["cycles"]
    assert results[0]["traffic"] == results[1]["traffic"]


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(model=MODELS, requests=REQUESTS, kept=st.sampled_from([(), (("cache_precision", "fp8"),)]))
def test_work_and_bytes_are_those_of_all_requests(model, requests, kept) -> None:
    made = step(model, requests, *kept)
    alone = [ordinary(model, *each, *kept) for each in requests]
    assert made.tokens == sum(each.tokens for each in alone)
    assert made.batch == sum(each.batch for each in alone)
    assert made.weight_bytes == alone[0].weight_bytes
    for name in ("macs", "unmasked_flops", "kv_bytes"):
        assert getattr(made, name) == sum(getattr(each, name) for each in alone)
    assert made.kv_bytes_per_token == alone[0].kv_bytes_per_token
    kinds: list[tuple[type, Role]] = [(Attention, Role.ATTENTION), (Vector, Role.CACHE), (Gemm, Role.QKV)]
    kinds += [(Gemm, Role.HEAD), (Vector, Role.RESIDUAL)]
    for kind, role in kinds:
        for name in ("input_elements", "output_bytes", "vector_elements", "macs"):
            found = [
                sum(getattr(o, name) * o.repeat for o in graph.operators() if isinstance(o, kind) and o.role is role)
                for graph in (made, *alone)
            ]
            assert found[0] == sum(found[1:]), (role, name)
    # what is read of a cache that is kept in fewer bits depends on the lengths alone
    read = [sum(o.kv_read_bytes * o.repeat for o in attentions(graph)) for graph in (made, *alone)]
    assert read[0] == sum(read[1:])


@settings(max_examples=40, deadline=None)
@given(model=MODELS, requests=REQUESTS)
def test_every_length_has_one_attention_and_its_own_cache(model, requests) -> None:
    made = step(model, requests)
    lengths = {(new, past) for new, past, _ in requests}
    layer = [o for o in attentions(made) if o.place.layer == 0 and o.block == attentions(made)[0].block]
    assert {(o.q_len, o.kv_len - o.q_len) for o in layer} == lengths
    assert len(layer) == len(lengths)
    for attention in layer:
        appends = [
            o for name in made.dataflow.predecessors(attention.name) if (o := made.dataflow[name]).role is Role.CACHE
        ]
        assert [each.rows for each in appends if isinstance(each, Vector)] == [attention.batch * attention.q_len]
    decode = all(new == 1 and past for new, past in lengths)
    assert made.phase is (Phase.DECODE if decode else Phase.PREFILL)
    assert len(made.requests) == (len(lengths) if len(lengths) > 1 else 0)


@pytest.mark.slow(seconds=2.5)
@settings(max_examples=4, deadline=None)
@given(
    chip=st.sampled_from(["npu-edge-int8", "npu-edge"]),
    requests=st.lists(
        st.tuples(st.sampled_from([1, 5, 16]), st.sampled_from([0, 7, 40]), st.integers(1, 2)), min_size=2, max_size=3
    ),
)
def test_a_step_is_no_faster_than_its_bound_and_says_what_has_no_layout(chip, requests) -> None:
    made = step("gpt2", requests)
    result = simulate(chip, made).result()
    assert result["cycles"] >= result["bound"]["lower_bound_cycles"]
    rows = [row for row in result["operators"] if row["kind"] == "attention"]
    assert len(rows) == max(len(made.requests), 1)
    assert all(row["hardware"] == "specified" for row in rows if made.requests)
    assert sum(row["macs"] for row in result["operators"]) == made.macs
    if made.requests:
        asked = {(each["new"], each["context"]): each["count"] for each in result["asked"]["requests"]}
        assert asked == {(each.new, each.context): each.count for each in made.requests}


@pytest.mark.slow(seconds=1)
@settings(max_examples=20, deadline=None)
@given(contexts=st.dictionaries(st.integers(1, 3000), st.integers(1, 9), min_size=2, max_size=4))
def test_a_gpu_has_one_kernel_for_next_tokens_of_all_lengths(contexts) -> None:
    """It has the keys of all requests: as many requests of their mean length."""
    gpu, made = load_gpu("h100"), step("llama3-8b", [(1, past, n) for past, n in contexts.items()])
    seconds = predict_model(gpu, made).by_operator
    total = sum(seconds.get(attention.name, 0.0) for attention in attentions(made))
    count = sum(contexts.values())
    mean = round(sum((past + 1) * n for past, n in contexts.items()) / count)
    own = predict_model(gpu, ordinary("llama3-8b", 1, mean - 1, count)).by_operator
    assert total == pytest.approx(own["layer.attention"])


@pytest.mark.slow(seconds=1)
@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(st.tuples(st.integers(2, 900), st.sampled_from([0, 7, 512])), min_size=2, max_size=3, unique=True)
)
def test_what_any_kernel_takes_counts_once_for_prompts_of_several_lengths(prompts) -> None:
    gpu = load_gpu("h100")
    made = step("llama3-8b", [(new, past, 1) for new, past in prompts])
    seconds = predict_model(gpu, made).by_operator
    own = [predict_model(gpu, ordinary("llama3-8b", *each, 1)).by_operator["layer.attention"] for each in prompts]
    least = predict_model(gpu, ordinary("llama3-8b", 1, 0, 1)).by_operator["layer.attention"]
    total = sum(seconds[attention.name] for attention in attentions(made))
    assert total <= sum(own) * (1 + 1e-9)
    assert total == pytest.approx(sum(own) - (len(own) - 1) * least, rel=0.02)


def test_a_gpu_holds_the_cache_of_all_requests() -> None:
    requests = [(512, 0, 1), (1, 4096, 60), (1, 300, 1)]
    made = step("llama3-8b", requests)
    result = evaluate(read_machine("h100", []), made).result
    alone = [evaluate(read_machine("h100", []), ordinary("llama3-8b", *each)).result for each in requests]
    other = evaluate(read_machine("h100", []), step("llama3-8b", [*requests, (1, 9000, 4)])).result
    assert result["memory"]["used_bytes"] > max(each["memory"]["used_bytes"] for each in alone)
    assert other["memory"]["used_bytes"] - result["memory"]["used_bytes"] >= 4 * 9000 * made.kv_bytes_per_token


BESIDE = [("batch", "4"), ("sequence", "32"), ("context", "32"), ("phase", "decode"), ("training_batch", "8")]


@pytest.mark.parametrize("given", BESIDE, ids=[key for key, _ in BESIDE])
def test_keys_of_all_sequences_are_refused_beside_requests(given) -> None:
    with pytest.raises(LoomError, match=f"{given[0]}: give requests or this key") as caught:
        step("llama3-8b", [(4, 0, 1), (1, 9, 2)], given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "requests", "rule"),
    [
        ("mamba-2.8b", [(4, 0, 1)], "not supported: requests of mamba"),
        ("t5-base", [(4, 0, 1)], "not supported: requests of t5"),
        ("vit-base", [(4, 0, 1)], "not supported: requests of vit"),
        ("deepseek-v3", [(4, 0, 1), (1, 9, 1)], "latent attention"),
        ("bert-base", [(4, 3, 1)], "leave out context"),
        ("gpt2", [(4, 1021, 1)], "1025 tokens"),
    ],
)
def test_models_without_such_a_step_are_refused(model, requests, rule) -> None:
    with pytest.raises(LoomError, match=rule):
        load_workload(model, [("requests", written(requests))])


def test_a_file_of_requests_is_a_step_and_takes_no_batch_beside(tmp_path) -> None:
    path = tmp_path / "step.yaml"
    text = "kind: transformer\nmodel: {model_type: gpt2, n_embd: 64, n_layer: 1, n_head: 4}\n"
    path.write_text(text + "requests: [{new: 8}, {new: 1, context: 5, count: 3}]\n")
    assert load_workload(str(path)).tokens == 11
    with pytest.raises(LoomError, match="batch: give requests or this key"):
        load_workload(str(path), [("batch", "2")])
    path.write_text(text + "sequence: 8\nrequests: [{new: 8}]\n")
    with pytest.raises(LoomError, match=r"step.yaml:3:\d+: .*sequence"):
        load_workload(str(path))


@pytest.mark.parametrize("key", ["data=2", "pipeline=2", "microbatch=1"])
def test_chips_share_heads_of_such_a_step_and_no_sequences(key) -> None:
    made = step("llama3-8b", [(64, 0, 1), (1, 40, 3)])
    shared = evaluate(read_machine("dgx-h100", [("plan.tensor", "2")]), made).result
    alone = evaluate(read_machine("h100", []), made).result
    assert shared["seconds"] < alone["seconds"]
    name, _, value = key.partition("=")
    with pytest.raises(LoomError, match=f"plan.{name} {value} of requests of unequal lengths"):
        evaluate(read_machine("dgx-h100", [("plan.tensor", "2"), (f"plan.{name}", value)]), made)


def test_plans_are_looked_for_that_share_such_a_step(capsys) -> None:
    """Every plan was one that deals sequences, and a given one ended in an internal error."""
    sets = ["--set", "workload.requests=[{new: 64}, {new: 1, context: 400, count: 6}]"]
    assert main(["plan", "dgx-h100", "llama3-8b", *sets]) == 0
    assert "data 1, tensor 8, pipeline 1" in capsys.readouterr().out
    assert main(["plan", "dgx-h100", "llama3-8b", *sets, "--set", "plan.tensor=8", "--set", "plan.microbatch=7"]) == 0
    assert "batch 7)" in " ".join(capsys.readouterr().out.split())


def test_values_of_such_a_step_are_refused(capsys) -> None:
    sets = ["--set", "workload.layers=1", "--set", "workload.requests=[{new: 4}, {new: 1, context: 3}]"]
    assert main(["run", "npu-edge-int8", "gpt2", *sets]) != 0
    assert "requests of unequal lengths" in " ".join(capsys.readouterr().err.split())


def test_memory_that_computes_refuses_such_a_step() -> None:
    with pytest.raises(NotSupported, match="requests of unequal lengths"):
        evaluate(read_machine("neupims", []), step("llama3-8b", [(1, 4, 1), (1, 40, 3)]))


@pytest.mark.slow(seconds=1)
def test_sequences_of_an_encoder_may_differ() -> None:
    made = load_workload("bert-base", [("requests", "[{new: 8}, {new: 16, count: 2}]")])
    assert [(o.batch, o.q_len, o.kv_len) for o in attentions(made)][:2] == [(1, 8, 8), (2, 16, 16)]
    result = simulate("npu-edge-int8", made).result()
    assert result["tokens"] == 40
