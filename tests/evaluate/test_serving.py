"""Serving from descriptions to results: costs of steps, memory, replicas, capacity, and what is refused."""

import csv
import io
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import memo
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.served import ServingResult
from siliconloom.arch.service_level import parse_level
from siliconloom.cli import main
from siliconloom.evaluate.capacity import find_capacity
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.evaluate.serving_memory import memory_of
from siliconloom.evaluate.serving_run import _costs, serve
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.service.costs import RequestLengths
from siliconloom.sim.service.fleet import Fleet
from siliconloom.workloads import load_workload
from tests.in_turn import in_turn

SMALL = [("workload.layers", "2")]
SET_LAYERS = ["--set", "workload.layers=2"]
CHIP = "npu-edge"


def costs_of(machine, model, plan=None, sets=(), longest=4096):
    described = read_machine(machine, [])
    prepared = prepare_named(machine, model, "8x8", [("serve.requests", "1"), *sets])
    return ReplicaCosts(
        prepared.cluster.part((plan or Plan()).chips), prepared.model.ask, plan or Plan(), longest=longest
    ), described


def alike(contexts):
    return RequestLengths(Counter(each - 1 for each in contexts))


@pytest.fixture(scope="module")
def gpu_costs():
    return {1: costs_of("h100", "llama3-8b")[0], 4: costs_of("dgx-a100", "llama3-8b", Plan(tensor=4))[0]}


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize(("count", "context"), [(1, 64), (7, 1024), (64, 4096), (200, 128)])
def test_a_step_of_next_tokens_is_what_loom_sim_says(gpu_costs, tensor, count, context):
    """At lengths that are asked for, a step's kernels are the step of the evaluator that every command asks."""
    told = gpu_costs[tensor].kernels([], 0, count, np.array([float(context)]))[0][0]
    keys = [("phase", "decode"), ("batch", str(count)), ("context", str(context))]
    machine = read_machine("h100" if tensor == 1 else "dgx-a100", [] if tensor == 1 else [("plan.tensor", "4")])
    assert told == pytest.approx(evaluate(machine, load_workload("llama3-8b", keys)).result["seconds"], rel=1e-9)


@pytest.mark.slow(seconds=1)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(48, 700), st.sampled_from([0, 0, 256, 1000])), max_size=2, unique=True),
    st.lists(st.integers(2, 3000), max_size=40),
)
def test_a_mixed_step_is_near_what_it_is_in_full(gpu_costs, chunks, contexts):
    if not chunks and not contexts:
        return
    costs = gpu_costs[1]
    mean = np.array([np.mean(contexts) if contexts else 0.0])
    told = costs.kernels(chunks, len(chunks), len(contexts), mean, alike(contexts))[0][0]
    assert told == pytest.approx(costs.whole(chunks, contexts), rel=0.03)


@pytest.mark.parametrize(
    ("chunks", "contexts"),
    in_turn([([], [5, 90, 300]), ([(100, 0)], [40, 41, 42, 200]), ([(37, 64), (9, 0)], [100]), ([(64, 128)], [])], 0),
)
def test_a_step_of_our_own_chip_is_near_what_it_is_in_full(chunks, contexts):
    costs = costs_of(CHIP, "gpt2", sets=SMALL, longest=512)[0]
    mean = np.array([np.mean(contexts) if contexts else 0.0])
    told = costs.kernels(chunks, len(chunks), len(contexts), mean, alike(contexts))[0][0]
    assert told == pytest.approx(costs.whole(chunks, contexts), rel=0.03)


@settings(deadline=None)
@given(st.integers(1, 60), st.lists(st.floats(1, 4000), min_size=1, max_size=9).map(sorted))
def test_steps_in_a_row_are_each_as_by_itself(gpu_costs, count, contexts):
    costs = gpu_costs[1]
    together = costs.steps([], 0, count, np.array(contexts))
    for at, context in enumerate(contexts):
        alone = costs.steps([], 0, count, np.array([context]))
        assert (together[0][at], together[1][at]) == pytest.approx((alone[0][0], alone[1][0]), rel=1e-12)


def answered(*words):
    out = io.StringIO()
    import contextlib

    with contextlib.redirect_stdout(out):
        status = main(["serve", *words, "--json", "-"])
    return status, json.loads(out.getvalue()) if out.getvalue() else None


@pytest.mark.slow(seconds=1.5)
def test_a_run_is_a_result_of_its_schema_and_the_same_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (
        "h100",
        "llama3-8b",
        "azure-code",
        "--set",
        "serve.requests=60",
        "--set",
        "serve.rate=9",
        "--slo",
        "ttft=1s",
    )
    status, result = answered(*words, "--csv", "r.csv", "--trace", "t.json")
    assert status == 0
    ServingResult.model_validate(result)
    again = answered(*words)[1]
    for each in (result, again):
        del each["simulator"], each["costs"]
    assert result == again
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text())))
    assert len(rows) == 60
    first = np.array([float(row["ttft_s"]) for row in rows])
    assert first.mean() == pytest.approx(result["ttft_s"]["mean"])
    assert np.quantile(first, 0.9) == pytest.approx(result["ttft_s"]["p90"])
    assert (first <= 1).mean() == pytest.approx(result["slo"]["attained"])
    spans = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    answers = [s for s in spans if s.get("cat") == "answer"]
    assert len(answers) == sum(int(row["output_tokens"]) > 1 for row in rows)
    line = result["timeline"]
    width = line["start_s"][1] - line["start_s"][0]
    assert sum(line["tokens_per_s"]) * width == pytest.approx(result["requests"]["output_tokens"], rel=1e-6)
    assert result["cost"]["chip_hours"] == pytest.approx(result["duration_s"] / 3600)


@pytest.mark.slow(seconds=1)
def test_no_step_is_faster_than_its_bytes_and_its_arithmetic(tmp_path, monkeypatch):
    """Tokens a second are under what weights, read once a step, and products at the peak allow."""
    result = answered("h100", "llama3-8b", "512x64", "--set", "serve.requests=40")[1]
    gpu = read_machine("h100", []).cluster.machine.gpu
    token = load_workload("llama3-8b", [("phase", "decode"), ("batch", "1"), ("context", "1")])
    steps = sum(r["steps"] for r in result["replicas"])
    tokens = result["requests"]["prompt_tokens"] + result["requests"]["output_tokens"] - 40
    products = token.macs - token.weight_bytes * 0
    floor = max(
        steps * token.weight_bytes / gpu.memory_bandwidth * 0.9, 2 * products * tokens / gpu.peak_flops("bf16") * 0.9
    )
    assert result["duration_s"] > floor


def test_memory_is_what_the_chips_have_and_the_model_leaves():
    served = prepare_named("dgx-a100", "llama2-70b", "512x64", [("serve.requests", "4"), ("plan.tensor", "4")])
    memory = memory_of(served)
    assert served.replicas == 2
    assert memory.capacity == pytest.approx(4 * 80 * 2**30, rel=0.08)
    assert memory.weights == pytest.approx(2 * 69e9, rel=0.01)
    assert memory.per_token == 2 * 80 * 8 * 128 * 2
    used = memory.weights + memory.activations + memory.blocks * memory.block * memory.per_token
    assert memory.usable - memory.per_token * memory.block * 4 <= used <= memory.usable


TUNED = [("serve.tune_sequence", "1024"), ("serve.tune_rank", "16"), ("serve.tune_step_s", "0.04")]


def test_training_beside_requests_takes_memory_and_what_steps_leave():
    """Of Llama 3 8B: results that the way back reads, gradients of keys and values, and 16 bytes a parameter."""
    sets = [("serve.requests", "40"), ("serve.rate", "4")]
    alone = prepare_named("h100", "llama3-8b", "azure-conv", sets)
    served = prepare_named("h100", "llama3-8b", "azure-conv", [*sets, *TUNED])
    memory, without = memory_of(served), memory_of(alone)
    width, keys, inner = 4096, 1024, 14336
    # the layer's input, its norm, queries with keys and values, the former two turned, attention, the sum behind it,
    # its norm, gate with up, and their product
    kept = width + width + (width + 2 * keys) + (width + keys) + width + width + width + 2 * inner + inner
    pairs = (width + width + 2 * keys) + 2 * width + (width + 2 * inner) + (inner + width)
    expected = 1024 * 32 * (2 * kept + 2 * 2 * keys) + 16 * 32 * 16 * pairs
    assert memory.tuning == pytest.approx(expected, rel=1e-9)
    assert without.tuning == 0
    taken = (without.blocks - memory.blocks) * memory.block * memory.per_token
    assert taken == pytest.approx(expected, abs=memory.block * memory.per_token)
    plain, tuned = serve(alone), serve(served)
    assert "tuning" not in plain
    assert tuned["tpot_s"]["p50"] > plain["tpot_s"]["p50"]
    assert tuned["energy_j"] > plain["energy_j"]
    assert tuned["busy"] > 0.99
    # products of 7.5 G parameters, forward and back, at the tensor units' rate
    peak = served.cluster.machine.gpu.peak_flops("bf16")
    assert 0.1 * peak < tuned["tuning"]["tokens_per_s"] * 4 * 7.5e9 < peak
    with pytest.raises(LoomError, match=r"tune_step_s 0.004: a step of one token"):
        serve(
            prepare_named(
                "h100", "llama3-8b", "64x8", [("serve.requests", "2"), *TUNED, ("serve.tune_step_s", "0.004")]
            )
        )
    for name, model, more in (
        ("npu-datacenter", "llama3-8b", ()),
        ("h100", "llama3-8b", (("workload.precision", "w4a16"),)),
        ("neupims", "gpt3-7b", ()),
    ):
        with pytest.raises(NotSupported, match=r"serve.tune_sequence"):
            serve(prepare_named(name, model, "64x8", [("serve.requests", "2"), *TUNED, *more]))


@pytest.mark.slow(seconds=2)
def test_a_page_says_what_is_trained_and_which_models_were_brought(tmp_path):
    page, path = tmp_path / "page.html", tmp_path / "models.csv"
    words = ["serve", "h100", "llama3-8b", "64x8", "--set", "serve.requests=4", "--report", str(page)]
    assert main([*words, *(word for key, value in TUNED for word in ("--set", f"{key}={value}"))]) == 0
    assert "tokens trained a second" in page.read_text()
    assert '"training"' in page.read_text()
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,model\n" + "".join(f"{n},64,8,{'ab'[n % 2]}\n" for n in range(4))
    )
    words[3], words[5] = str(path), "serve.model_slots=1"
    assert main([*words, "--set", "serve.model_bandwidth=50GB/s"]) == 0
    assert "times that a model was brought" in page.read_text()


def test_a_column_of_one_model_says_nothing(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,model\n0,100,20,a\n1,50,20,a\n2,50,20,b\n")
    sets = [("serve.requests", "2")]
    assert serve(prepare_named("h100", "llama3-8b", str(path), sets))["requests"]["finished"] == 2
    with pytest.raises(LoomError, match="asks 2 models"):
        prepare_named("h100", "llama3-8b", str(path), [])
    with pytest.raises(LoomError, match="model_slots 2: one asks 1 model"):
        prepare_named(
            "h100", "llama3-8b", str(path), [*sets, ("serve.model_slots", "2"), ("serve.model_bandwidth", "1GB/s")]
        )


def test_step_costs_that_are_kept_are_of_one_popularity(tmp_path, monkeypatch):
    """Experts that are preferred are the same ones in a step of one token, whatever they are preferred by."""
    sets = [("serve.requests", "8"), ("workload.layers", "1"), ("plan.tensor", "2")]
    found = {}
    for kept in (None, tmp_path):
        for popularity in ("2", "5"):
            monkeypatch.setattr(memo.Shared, "memo", memo.Memo(kept))
            chosen = [*sets, ("workload.expert_popularity", popularity)]
            result = serve(prepare_named("dgx-h100", "mixtral-8x7b", "64x8", chosen))
            found[kept, popularity] = result["energy_j"], result["duration_s"]
    assert found[None, "2"] != found[None, "5"]
    assert [found[tmp_path, each] for each in ("2", "5")] == [found[None, each] for each in ("2", "5")]


def test_models_that_come_take_their_bytes_and_lie_beside_each_other(tmp_path):
    """A model is brought in its bytes over the bandwidth, to the digit, and those that lie there leave less room."""
    path = tmp_path / "models.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,model\n"
        + "".join(f"{at},100,20,{name}\n" for at, name in enumerate("aabba"))
    )
    sets = [("serve.model_bandwidth", "50GB/s")]
    logs, memories = [], []
    for slots in ("1", "2"):
        served = prepare_named("h100", "llama3-8b", str(path), [*sets, ("serve.model_slots", slots)])
        kept = []
        result = serve(served, kept=kept)
        logs.append(kept[0].log.first - kept[0].log.arrival)
        memories.append(memory_of(served))
        assert result["replicas"][0]["model_loads"] == (3 if slots == "1" else 2)
        assert result["memory"]["models"] == int(slots)
    each = memories[0].weights
    assert memories[1].weights == 2 * each
    room = memories[0].blocks * memories[0].block * memories[0].per_token
    assert memories[1].blocks * memories[1].block * memories[1].per_token == pytest.approx(room - each, rel=1e-3)
    brought = each / 50e9
    assert logs[0] - logs[0][1] == pytest.approx([brought, 0, brought, 0, brought], rel=1e-9)
    assert logs[1] - logs[1][1] == pytest.approx([brought, 0, brought, 0, 0], rel=1e-9)


@pytest.mark.parametrize(
    ("sets", "error", "told"),
    [
        ([("plan.tensor", "1")], LoomError, "leaves no room for keys and values"),
        ([("plan.tensor", "16")], LoomError, "has 8 chips"),
        ([("plan.data", "9")], LoomError, "plan.data 9"),
        ([("plan.context", "2")], NotSupported, "plan.context"),
        ([("plan.pipeline", "16")], LoomError, "plan.pipeline 16"),
        ([("plan.pipeline", "2"), ("serve.speculate", "2"), ("serve.acceptance", "0.5")], NotSupported, "speculate"),
        ([("plan.pipeline", "2"), ("plan.tensor", "2"), ("serve.cache_tokens", "16")], LoomError, "2 schedulers"),
        ([("serve.prefill_replicas", "2")], LoomError, "one at least must make the answers"),
        ([("workload.phase", "decode")], LoomError, "the requests say this"),
        ([("serve.max_sequences", "4096")], LoomError, "serve.token_budget 2048"),
        ([("serve.requests", "99999")], LoomError, "has 19,366"),
        ([("serve.chunked", "false"), ("serve.requests", "3000")], LoomError, "serve.chunked false"),
    ],
)
def test_what_cannot_be_served_is_told(sets, error, told):
    with pytest.raises(error, match=told):
        serve(prepare_named("dgx-a100", "llama2-70b", "azure-conv", [("serve.requests", "9"), *sets]))


@pytest.mark.parametrize(
    ("machine", "model", "trace", "told"),
    [
        ("h100", "mamba-2.8b", "8x8", "not supported"),
        ("h100", "vit-base", "8x8", "not supported"),
        ("h100", "gpt2", "1000x100", "1,100 tokens"),
        ("pim-hbm", "llama3-8b", "8x8", "not supported"),
        ("npu-edge-int8", "llama3-70b", "8x8", "no room"),
        ("h100", "llama3-8b", "azure", "no trace of that name"),
    ],
)
def test_machines_and_models_that_do_not_serve_are_told_in_a_line(machine, model, trace, told, capsys):
    assert main(["serve", machine, model, trace, "--set", "serve.requests=2"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "trace", "told"),
    [
        (
            "resnet50",
            "5x5",
            "loom: serving resnet50: requests are answered by language models (kind: transformer), not",
        ),
        (
            "gpt2",
            "1020x10",
            "loom: 1020x10: request 1 has 1,030 tokens: the model has learned positions for 1024 tokens",
        ),
    ],
)
def test_refusals_are_in_terms_of_what_was_given(model, trace, told, capsys):
    assert main(["serve", "h100", model, trace, "--set", "serve.requests=2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(told)
    assert "--set" not in error


def test_requests_beyond_the_positions_of_a_model_are_noted():
    """As a step of them is, and of a model that guesses, too."""
    guess = [("serve.speculate", "2"), ("serve.acceptance", "0.7"), ("serve.draft", "smollm2-135m")]
    for sets, prompt, told in (
        ([], 20000, "20,010 tokens are more than the 8,192 positions that the model was made for"),
        (guess, 9000, "serve.draft smollm2-135m: 9,010 tokens are more than the "),
    ):
        result = serve(prepare_named("h100", "llama3-8b", f"{prompt}x10", [("serve.requests", "2"), *sets]))
        assert any(note.startswith(told) for note in result["notes"])
    result = serve(prepare_named("h100", "llama3-8b", "100x10", [("serve.requests", "2"), *guess]))
    assert not any("positions" in note for note in result["notes"])
    assert any("smollm2-135m tells 49,152 tokens apart and llama3-8b 128,256" in note for note in result["notes"])
    guess[-1] = ("serve.draft", "llama3-8b")
    result = serve(prepare_named("h100", "llama3-8b", "100x10", [("serve.requests", "2"), *guess]))
    assert not any("tells" in note for note in result["notes"])


def test_what_is_known_of_a_cost_is_printed(capsys):
    """Without a price of chips the electricity alone, in the table as in the note and in JSON."""
    assert main(["serve", "h100", "llama3-8b", "64x8", "--set", "serve.requests=2", *SET_LAYERS]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "note: of the cost electricity alone is known: chips have no price (serve.price" in out
    result = serve(prepare_named("h100", "llama3-8b", "64x8", [("serve.requests", "2"), *SMALL]))
    assert result["cost"]["usd"] is None
    assert f"chip hours; {result['cost']['electricity_usd']:,.4g} $ of electricity, no price of chips" in out


@pytest.mark.slow
def test_the_highest_rate_is_one_above_which_limits_are_broken():
    sets = [("serve.requests", "60"), ("serve.arrivals", "poisson"), ("serve.rate", "2")]
    served = prepare_named("h100", "llama3-8b", "512x64", sets)
    level = parse_level("ttft=200ms,tpot=12ms")
    found = find_capacity(served, "rate", level, 0.9)
    tried = {each["value"]: each["attained"] for each in found["found"]["tried"]}
    best = found["found"]["value"]
    assert found["slo"]["attained"] >= 0.9
    above = [value for value in tried if value > best]
    assert above
    assert min(above) <= best * 1.0101
    assert all(tried[value] < 0.9 for value in above)
    with pytest.raises(LoomError, match="at no rate"):
        find_capacity(served, "rate", parse_level("ttft=1us"), 0.9)


@pytest.mark.slow(seconds=3.5)
def test_the_fewest_replicas_are_one_more_than_too_few():
    sets = [("serve.requests", "400"), ("serve.arrivals", "poisson"), ("serve.rate", "60"), ("plan.tensor", "1")]
    served = prepare_named("dgx-h100", "llama3-8b", "512x64", sets)
    found = find_capacity(served, "replicas", parse_level("ttft=250ms,tpot=20ms"), 0.95)
    tried = {each["value"]: each["attained"] for each in found["found"]["tried"]}
    best = found["found"]["value"]
    assert found["asked"]["plan"]["data"] == best
    assert 1 < best < 8
    assert tried[best] >= 0.95 > tried[best - 1]


@pytest.mark.slow(seconds=1)
def test_an_interrupted_run_keeps_what_it_has(monkeypatch):
    served = prepare_named("h100", "llama3-8b", "azure-code", [("serve.requests", "900")])
    advance, count = Fleet._serve, 0

    def cut(self, replicas, arrivals, later, told, *, handed=False):
        def interrupts(share):
            nonlocal count
            count += 1
            if count == 20:
                raise KeyboardInterrupt

        advance(self, replicas, arrivals, later, interrupts, handed=handed)

    monkeypatch.setattr(Fleet, "_serve", cut)
    result = serve(served)
    assert result["complete"] is False
    assert 0 < result["requests"]["finished"] < 900
    assert "interrupted" in result["notes"][0]
    ServingResult.model_validate(result)


@pytest.mark.slow(seconds=1)
def test_a_draft_model_takes_time_and_memory_and_saves_steps():
    sets = [("serve.requests", "20"), ("plan.tensor", "4"), ("plan.data", "1")]
    guess = [("serve.speculate", "3"), ("serve.acceptance", "0.8")]
    plain, heads, draft = (
        serve(prepare_named("dgx-h100", "llama3-70b", "256x64", [*sets, *more]))
        for more in ([], guess, [*guess, ("serve.draft", "llama3-8b")])
    )
    steps = [r["replicas"][0]["steps"] for r in (plain, heads, draft)]
    assert steps[1] == steps[2] < 0.5 * steps[0]
    assert heads["duration_s"] < draft["duration_s"] < plain["duration_s"]
    more = draft["memory"]["weight_bytes"] - plain["memory"]["weight_bytes"]
    assert more == pytest.approx(2 * 8.03e9, rel=0.02)
    assert draft["memory"]["kv_bytes_per_token"] - plain["memory"]["kv_bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert draft["accepted"] == heads["accepted"]
    with pytest.raises(LoomError, match="no such file"):
        prepare_named("dgx-h100", "llama3-70b", "256x64", [*sets, *guess, ("serve.draft", "llama3-9000b")])


@pytest.mark.slow(seconds=1)
def test_a_tree_of_guesses_is_guessed_place_by_place_and_checked_whole():
    """Of a tree of 2, 2 and 1: steps of the draft model for 1, 2 and 4 tokens of a request, a check of 11."""
    sets = [("serve.requests", "1"), ("plan.tensor", "4"), ("plan.data", "1"), ("serve.draft", "llama3-8b")]
    tree = [("serve.speculate", "[2, 2, 1]"), ("serve.acceptance", "[0.6, 0.2]")]
    served = prepare_named("dgx-h100", "llama3-70b", "256x3", [*sets, *tree])
    costs = _costs(served)[0]
    at, one = np.array([300.0]), served.replica
    plan = served.plan
    checks = ReplicaCosts(one, served.model.ask, plan, stack=served.stack, longest=259, guesses=10)
    expected = checks.steps((), 0, 1, at)[0][0]
    for tokens in (1, 2, 4):
        draft = ReplicaCosts(one, served.draft.model.ask, plan, longest=259, guesses=tokens - 1)
        expected += draft.kernels((), 0, 1, at)[0][0]
    assert costs.steps((), 0, 1, at)[0][0] == pytest.approx(expected, rel=1e-9)
    chains = [("serve.speculate", "3"), ("serve.acceptance", "0.8")]
    branch = [("serve.speculate", "[1, 1, 1]"), ("serve.acceptance", "[0.8]")]
    chain, alike = (serve(prepare_named("dgx-h100", "llama3-70b", "256x64", [*sets, *k])) for k in (chains, branch))
    assert chain["e2e_s"] == alike["e2e_s"]


@pytest.mark.parametrize(
    ("speculate", "acceptance", "told"),
    [
        ("[4, 2]", "0.5", "the chance of each of the 4 tokens"),
        ("[4, 2]", "[0.5, 0.2]", "the chance of each of the 4 tokens"),
        ("[2]", "[0.8, 0.3]", "chances add up to 1"),
        ("[40, 40]", "0.5", "at most 1,024 guesses"),
        ("[0]", "[0.5]", "from 1 to 64"),
        ("65", "0.5", "from 1 to 64"),
        ("[]", "[0.5]", "from 1 to 64"),
        ("3", "[0.5, 0.2]", "2 chances for the 3 guesses"),
    ],
)
def test_trees_that_are_none_are_told(speculate, acceptance, told):
    sets = [("serve.speculate", speculate), ("serve.acceptance", acceptance), ("serve.requests", "2")]
    with pytest.raises(LoomError, match=told):
        prepare_named("h100", "llama3-8b", "64x8", sets)


@pytest.mark.slow(seconds=6)
def test_our_own_chips_serve_too():
    served = prepare_named(
        CHIP, "gpt2", "64x16", [("serve.requests", "6"), ("serve.arrivals", "poisson"), ("serve.rate", "50"), *SMALL]
    )
    result = serve(served)
    ServingResult.model_validate(result)
    assert result["costs"]["audited"]
    assert result["costs"]["audit_max"] < 0.03
    assert result["energy_j"] > 0


@pytest.mark.parametrize("kept", ["fp8_e4m3", "int4"])
def test_prompts_behind_a_prefix_that_is_kept_in_fewer_bits_are_as_in_full(kept, tmp_path):
    rows = [f"{i / 4},{1500 + 37 * i},2,p,1024" for i in range(12)]
    trace = tmp_path / "t.csv"
    trace.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens", *rows]))
    sets = [("workload.cache_precision", kept), ("workload.layers", "2")]
    result = serve(prepare_named("h100", "llama3-8b", str(trace), sets), audits=20)
    assert result["memory"]["kv_bytes_per_token"] < 2 * 2 * 1024 * 2
    assert result["cached_share"] > 0.4
    assert result["costs"]["audit_max"] < 0.01


@pytest.mark.slow
def test_what_was_found_is_what_its_settings_say():
    """The rate of a process is what it draws with: the same keys without a search serve the same requests."""
    sets = [("serve.requests", "80"), ("serve.arrivals", "poisson"), ("serve.rate", "2")]
    found = find_capacity(prepare_named("h100", "llama3-8b", "512x64", sets), "rate", parse_level("ttft=150ms"), 0.9)
    again = [*sets[:2], ("serve.rate", repr(found["asked"]["settings"]["rate"]))]
    same = serve(prepare_named("h100", "llama3-8b", "512x64", again), parse_level("ttft=150ms"))
    assert same["ttft_s"]["mean"] == pytest.approx(found["ttft_s"]["mean"], rel=1e-6)
    assert same["requests"]["rate"] == pytest.approx(found["found"]["value"], rel=1e-9)


@pytest.mark.slow(seconds=1)
def test_limits_that_no_rate_breaks_have_no_highest_one():
    sets = [("serve.requests", "5"), ("serve.arrivals", "poisson"), ("serve.rate", "1")]
    with pytest.raises(LoomError, match="no rate that can be tried breaks the limits"):
        find_capacity(prepare_named("h100", "llama3-8b", "64x8", sets), "rate", parse_level("ttft=100s"), 0.9)


def test_a_search_that_is_interrupted_keeps_the_best_and_says_so(monkeypatch):
    sets = [("serve.requests", "60"), ("serve.arrivals", "poisson"), ("serve.rate", "40"), ("plan.tensor", "1")]
    served, level = prepare_named("dgx-h100", "llama3-8b", "512x64", sets), parse_level("ttft=250ms")
    run, count = Fleet.run, 0

    def cut(self, told=None):
        nonlocal count
        count += 1
        if count >= 2:
            raise KeyboardInterrupt
        run(self)

    monkeypatch.setattr(Fleet, "run", cut)
    found = find_capacity(served, "replicas", level, 0.9)
    assert not found["complete"]
    assert found["found"]["value"] == 8
    count = 1
    assert "found" not in find_capacity(served, "replicas", level, 0.9)


@pytest.mark.slow
def test_requests_of_different_lengths_on_our_own_chips_are_attentions_of_their_own():
    costs = costs_of("npu-datacenter", "smollm2-135m", sets=SMALL, longest=2048)[0]
    contexts = list(range(2, 1500, 50))
    mean = np.array([np.mean(contexts)])
    told = costs.kernels([], 0, len(contexts), mean, alike(contexts))[0][0]
    same = costs.kernels([], 0, len(contexts), mean)[0][0]
    whole = costs.whole([], contexts)
    assert told == pytest.approx(whole, rel=0.03)
    assert same < 0.8 * whole


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("h100", "llama3-8b", "64x8", "--attain", "0.5"), "--attain: is of --find"),
        (("h100", "llama3-8b", "64x8", "--set", "serve.cache_tokens=8"), "less than a block"),
        (("h100", "llama3-8b", "64x8", "--set", "serve.router=least_loaded"), "there is one replica"),
        (
            ("dgx-h100", "llama3-8b", "64x8", "--set", "plan.data=2", "--find", "replicas", "--slo", "ttft=1s"),
            "plan.data",
        ),
        (("rtx-pro-6000", "llama3-8b", "64x8", "--profile", "measured", "--set", "clock=1GHz"), "changes nothing"),
        (
            ("dgx-h100", "llama3-8b", "64x8", "--set", "serve.prefill_replicas=1", "--set", "serve.batching=static"),
            "is not of serve.batching static",
        ),
    ],
)
def test_what_would_change_nothing_or_has_no_meaning_is_told_in_a_line(words, told, capsys):
    assert main(["serve", *words, "--set", "serve.requests=4"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("h100", "gpt2", "512x64", "--set", "serve.requests=50"),
        ("h100", "gpt2", "900x50", "--set", "serve.batching=prefill_first", "--set", "serve.requests=8"),
        (
            *("h100", "llama3-8b", "60x60", "--set", "serve.requests=3", "--set", "serve.chunked=false"),
            *("--set", "serve.token_budget=64", "--set", "serve.max_sequences=3", "--set", "serve.cache_tokens=240"),
        ),
        (
            *("dgx-h100", "mixtral-8x7b", "64x8", "--set", "serve.requests=9"),
            *("--set", "plan.tensor=8", "--set", "plan.expert=8"),
        ),
        ("dgx-h100", "mixtral-8x7b", "64x8", "--set", "serve.requests=9", "--set", "plan.expert=4"),
    ],
)
def test_what_has_a_meaning_is_served(words):
    status, result = answered(*words)
    assert status == 0
    assert result["requests"]["finished"] == result["requests"]["count"]


@pytest.mark.parametrize("count", [2, 32])
def test_prompts_that_are_alike_are_one_attention(gpu_costs, count):
    """Requests of one length that come at once: their chunks run side by side, as in the step asked in full."""
    chunks = [(64, 0)] * count
    told = gpu_costs[1].kernels(chunks, count, 0, np.zeros(1))[0][0]
    assert told == pytest.approx(gpu_costs[1].whole(chunks, []), rel=0.002)


@pytest.mark.parametrize(("machine", "model"), [("dgx-h100", "llama3-8b"), ("dgx-h100", "mixtral-8x7b")])
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_of_a_pipeline_take_what_a_plan_of_it_says(machine, model, stages):
    """Steady next tokens under ``loom sim``'s plan: as many parts as stages, one after the other in the slowest."""
    count, context = 24, 700
    described = read_machine(machine, [("plan.tensor", "2"), ("plan.pipeline", str(stages))])
    cluster = described.cluster.part(2 * stages)
    plan = Plan(tensor=2, pipeline=stages)
    costs = ReplicaCosts(cluster, lambda step: load_workload(model, list(step)), plan, longest=4096)
    graph = load_workload(model, [("phase", "decode"), ("batch", str(count * stages)), ("context", str(context))])
    said = Server(cluster, graph).step(Plan(tensor=2, pipeline=stages, microbatch=count))
    passage = costs.passage([], 0, count, float(context))
    period = max(sum(passage.stages) + stages * passage.hop, stages * max(passage.stages))
    assert period == pytest.approx(said.seconds, rel=0.01)
    assert costs.steps([], 0, count, np.array([float(context)]))[0][0] == pytest.approx(passage.seconds)


def test_a_pipeline_has_the_memory_of_its_fullest_stage_and_a_part_of_it_for_each_scheduler():
    keys = [("serve.requests", "4"), ("plan.tensor", "2"), ("plan.pipeline", "2")]
    served = prepare_named("dgx-a100", "llama2-70b", "512x64", keys)
    memory = memory_of(served)
    assert served.replicas == 2
    assert memory.weights == pytest.approx(2 * 69e9, rel=0.01)
    assert memory.per_token == 2 * 80 * 8 * 128 * 2
    flat = memory_of(prepare_named("dgx-a100", "llama2-70b", "512x64", [("serve.requests", "4"), ("plan.tensor", "4")]))
    assert memory.blocks == pytest.approx(flat.blocks, rel=0.02)
    with pytest.raises(LoomError, match=r"has room for 3,200.*the 2 schedulers of plan.pipeline"):
        serve(prepare_named("dgx-a100", "llama2-70b", "3300x1", [*keys, ("serve.cache_tokens", "6400")]))


@pytest.mark.slow(seconds=2)
def test_a_service_in_a_pipeline_is_between_its_bounds():
    """Twice the chips in stages answer at most twice as much, and a lone request waits for all of them."""
    keys = [("serve.requests", "200"), ("serve.arrivals", "at_once"), ("plan.data", "1"), ("plan.tensor", "2")]
    one = serve(prepare_named("dgx-h100", "llama3-8b", "256x64", keys))
    two = serve(prepare_named("dgx-h100", "llama3-8b", "256x64", [*keys, ("plan.pipeline", "2")]))
    assert one["duration_s"] / 2 < two["duration_s"] < one["duration_s"]
    assert two["asked"]["plan"] == {"tensor": 2, "pipeline": 2, "expert": 1, "data": 1}
    assert 0.5 < two["busy"] <= 1
    lone = [("serve.requests", "1"), *keys[2:]]
    alone, staged = (
        serve(prepare_named("dgx-h100", "llama3-8b", "256x64", [*lone, *more]))
        for more in ((), (("plan.pipeline", "2"),))
    )
    assert staged["tpot_s"]["mean"] > alone["tpot_s"]["mean"]
    assert 0.3 < staged["busy"] < 0.5  # two stages in turn, and the host before them


@pytest.mark.slow(seconds=1)
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(48, 20000), min_size=1, max_size=40), st.integers(0, 1))
def test_layers_that_see_a_window_count_each_request_at_its_own_length(windowed_costs, contexts, chunked):
    """A step of short and of long requests is what it is in full, where layers see the last 4,096 tokens or fewer."""
    chunks = [(300, 0)] * chunked
    mean = np.array([np.mean(contexts)])
    for costs in windowed_costs:
        told = float(costs.kernels(chunks, chunked, len(contexts), mean, alike(contexts))[0][0])
        assert told == pytest.approx(costs.whole(chunks, contexts), rel=0.03)


@pytest.mark.parametrize("chunk", [(2048, 0), (2048, 12000), (1, 12000), (64, 60)])
def test_a_chunk_of_a_prompt_sees_the_window(chunk):
    """Behind long prompts most of a chunk's time was attention to keys that no query sees."""
    narrow, wide = (
        costs_of("h100", "mistral-7b", sets=[("workload.model.sliding_window", str(window))], longest=20480)[0]
        for window in (128, 20480)
    )
    told, whole = (costs.kernels([chunk], 1, 0, np.zeros(1), alike([]))[0][0] for costs in (narrow, wide))
    assert told == pytest.approx(narrow.whole([chunk], []), rel=0.03)
    assert told <= whole * (1 if sum(chunk) <= 128 else 0.999)


@pytest.fixture(scope="module")
def windowed_costs():
    return [costs_of("h100", model, longest=20480)[0] for model in ("mistral-7b", "gpt-oss-20b")]
