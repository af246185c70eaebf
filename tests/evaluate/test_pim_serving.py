"""Services on chips whose memory computes: steps beside the evaluator's own, channels, rows of the banks."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch import load_chip
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.arch.system import Policy
from siliconloom.evaluate.chips import chip_system_result
from siliconloom.evaluate.cluster import chip_alone, machine_of
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.pim_costs import PimCosts, bytes_in_rows
from siliconloom.evaluate.served_model import read_model
from siliconloom.evaluate.serving_memory import memory_of
from siliconloom.evaluate.serving_run import serve
from siliconloom.mapper.pim.offload import Head, balance, shape_of, shared
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.chip.energy import standing_power
from siliconloom.sim.service.costs import RequestLengths
from siliconloom.workloads import Attention

LONGEST = 700
SMALL = [("serve.requests", "4"), ("workload.layers", "2"), ("workload.precision", "fp16")]
ONE = [("plan.tensor", "1"), ("plan.data", "1")]


def cluster_of(chip="neupims-device", **policy):
    made = load_chip(chip)
    return replace(chip_alone(made), kinds=((machine_of(made, Policy(**policy)), 1),))


def model():
    return read_model("gpt2", [("layers", "2"), ("precision", "fp16")])


def costs_of(**policy):
    return PimCosts(cluster_of(**policy), model().ask, Plan(), longest=LONGEST)


def lengths_of(contexts):
    return RequestLengths(Counter(each - 1 for each in contexts))


def step(costs, contexts, chunks=()):
    seconds, joules = costs.steps(chunks, 0, len(contexts), np.array([np.mean(contexts)]), lengths_of(contexts))
    return float(seconds[0]), float(joules[0])


@pytest.fixture(scope="module")
def costs():
    return costs_of()


@pytest.mark.slow(seconds=4)
@pytest.mark.parametrize("policy", [{}, {"attention": "npu"}, {"weights": "npu", "interleave": "always"}])
@pytest.mark.parametrize(("count", "length"), [(1, 64), (32, 257), (48, 128)])
def test_a_step_of_next_tokens_is_the_evaluators_own(policy, count, length):
    cluster = cluster_of(**policy)
    graph = model().ask([("phase", "decode"), ("batch", str(count)), ("context", str(length))])
    whole = chip_system_result(cluster, Policy(), graph)
    watts = sum(standing_power(cluster.machine.chip).values())
    seconds, joules = step(costs_of(**policy), [length] * count)
    assert seconds == pytest.approx(whole["seconds"])
    assert joules == pytest.approx(whole["energy_j"] - watts * whole["seconds"], rel=1e-6)


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("count", [3, 33, 65])
def test_unequal_requests_wait_for_the_fullest_channel(costs, count, seed):
    """Beside the evaluator, which has every channel's own sequences; the mean of all lengths alone is too fast."""
    draw = np.random.default_rng(seed)
    contexts = sorted(draw.integers(20, LONGEST, count).tolist())
    contexts[-1] = LONGEST
    true = costs.whole([], contexts)
    assert step(costs, contexts)[0] == pytest.approx(true, rel=0.06)


@pytest.mark.slow(seconds=10)
def test_one_long_request_among_short_ones_is_waited_for(costs):
    contexts = [33] * 31 + [LONGEST]
    alike = float(costs.steps([], 0, 32, np.array([np.mean(contexts)]))[0][0])
    true = costs.whole([], contexts)
    ours = step(costs, contexts)[0]
    assert ours == pytest.approx(true, rel=0.06)
    assert abs(ours - true) < abs(alike - true) / 3


@pytest.mark.slow(seconds=20)
@pytest.mark.parametrize("count", [1, 5, 33])
def test_a_row_of_steps_is_each_of_them(costs, count):
    """Lengths between those that are asked for, from the first step of the row on."""
    contexts = 120.0 + np.arange(20)
    row = costs.steps([], 0, count, contexts)[0]
    each = [float(costs.steps([], 0, count, contexts[at : at + 1])[0][0]) for at in range(len(contexts))]
    assert row == pytest.approx(each, rel=0.03)
    for offsets, at in (({100: 1, 150: 2}, 20), ({120: 1, 170: 2}, 0)):  # as many steps ago
        found = costs.steps([], 0, 3, np.array([154.0]), RequestLengths(offsets, at))[0][0]
        assert found == pytest.approx(step(costs, [121, 171, 171])[0], rel=0.01)
    assert (np.diff(row) >= -1e-12).all()


@pytest.mark.slow(seconds=6)
def test_energy_goes_with_what_all_have_and_is_of_all_chips():
    """Not with the fullest channel; of two chips that share every operator it is both ones'."""
    found = prepare_named("neupims", "gpt2", "64x8", [*SMALL, ("plan.tensor", "2"), ("plan.data", "1")])
    costs = PimCosts(found.replica, found.model.ask, found.plan, longest=LONGEST)
    contexts = [33] * 31 + [LONGEST]
    alike = float(costs.steps([], 0, 32, np.array([np.mean(contexts)]))[1][0])
    assert step(costs, contexts)[1] == pytest.approx(alike)
    graph = found.model.ask([("phase", "decode"), ("batch", "32"), ("context", "128")])
    whole = chip_system_result(found.replica, Policy(tensor=2), graph)
    watts = 2 * sum(standing_power(found.cluster.machine.chip).values())
    assert step(costs, [128] * 32)[1] == pytest.approx(whole["energy_j"] - watts * whole["seconds"], rel=1e-6)


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize("chunks", [[], [(96, 0)]])
def test_halves_that_swap_places_have_channels_of_their_own(chunks):
    """In steps with prompts, too, whose attention is that of the halves, one behind the other."""
    costs, contexts = costs_of(interleave="always", weights="npu"), [LONGEST, 65] * 32
    true = costs.whole(chunks, contexts)
    alike = float(costs.steps(chunks, 0, 64, np.array([np.mean(contexts)]))[0][0])
    assert step(costs, contexts, chunks)[0] == pytest.approx(true, rel=0.06 if chunks else 0.02)  # of the head alone
    assert alike < 0.96 * true


@pytest.mark.slow(seconds=12)
def test_dealt_in_turn_long_requests_meet():
    """In an order that is drawn: slower than in the best one, and no slower than where all long ones meet."""
    contexts, worst = [LONGEST] * 32 + [65] * 32, [LONGEST, 65] * 32
    greedy, turns = costs_of(), costs_of(balance="round_robin")
    assert step(greedy, contexts)[0] < step(turns, contexts)[0] <= 1.02 * turns.whole([], worst)


@pytest.mark.slow(seconds=9)
def test_beside_prompts_attention_comes_behind_the_arrays(costs):
    """Products of all new tokens together, the prompt's attention, and that of next tokens by itself."""
    contexts, chunk = [128] * 32, (96, 0)
    both, prompt = step(costs, contexts, [chunk])[0], float(costs.steps([chunk], 0, 0, np.zeros(1))[0][0])
    more = float(costs.steps([(128, 0)], 0, 0, np.zeros(1))[0][0])
    alone = costs._whole_step(32, 128)[2]
    assert both == pytest.approx(costs.whole([chunk], contexts), rel=0.1)  # of two layers the head is a good part
    assert prompt + alone <= both <= more + alone + step(costs, contexts)[0]
    assert step(costs, [LONGEST] * 32, [chunk])[0] > both


@given(
    st.integers(1, 300),
    st.integers(0, 400),
    st.integers(1, 64),
    st.sampled_from(["packed", "row"]),
    st.sampled_from(["gpt2", "llama3-8b"]),
    st.integers(1, 60),
)
def test_blocks_hold_the_rows_that_keys_and_values_take(shortest, more, block, values, name, many):
    """Of as many equal requests as blocks have room for, and of fewer, whose heads lie in several channels."""
    machine, part = cluster_of(values=values).machine, read_model(name, [("layers", "2")]).token
    attention = next(o for o in part.operators() if isinstance(o, Attention))
    pim, head = machine.chip.pim, Head.of(attention, values)
    longest = -(-(shortest + more) // block) * block
    left = many * longest * 2.0 * part.kv_bytes_per_token
    each = bytes_in_rows(machine, part, (shortest, shortest + more), block, left)
    row = pim.dram.organization.row_bytes * pim.banks * attention.repeat
    for sequences in range(1, int(left // (each * longest)) + 1):
        share, split = shared(pim, head, sequences)
        assert sequences * split * shape_of(pim, share, shortest + more).rows * row <= left * (1 + 1e-9)
    assert each * longest >= shape_of(pim, head, shortest + more).rows * row * (1 - 1e-9)
    assert each >= part.kv_bytes_per_token


@pytest.mark.parametrize(("share", "times"), [("0.9", 1.0), ("0.1", 2.5)])
def test_few_long_requests_that_fill_memory_have_their_heads_in_several_channels(share, times):
    made = prepare_named(
        "neupims", "llama3-8b", "7000x2", [*SMALL, *ONE, ("serve.token_budget", "512"), ("serve.memory_share", share)]
    )
    memory, plain = memory_of(made), made.model.token.kv_bytes_per_token
    assert memory.per_token / plain == pytest.approx(times, rel=0.1)


def test_memory_counts_whole_rows():
    small = [("serve.requests", "4"), ("workload.layers", "2")]
    rows, plain = (
        memory_of(prepare_named("neupims", "gpt2", "100x28", [*small, *ONE, ("policy.attention", where)]))
        for where in ("pim", "npu")
    )
    assert rows.per_token > plain.per_token
    assert rows.blocks < plain.blocks


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9))
def test_the_heaviest_goes_to_the_least_loaded_channel(loads, channels):
    dealt = balance(loads, channels, "greedy")
    assert sorted(n for part in dealt for n in part) == list(range(len(loads)))
    total = [0] * channels
    for number in sorted(range(len(loads)), key=lambda n: (-loads[n], n)):
        least = min(range(channels), key=lambda c: (total[c], c))
        assert number in dealt[least]
        total[least] += loads[number]


@pytest.mark.slow(seconds=20)
def test_a_service_is_faster_where_memory_computes():
    sets = [("serve.requests", "6"), ("workload.layers", "2"), ("workload.precision", "fp16")]
    memory, arrays = (
        serve(prepare_named("neupims", "gpt2", "200x60", [*sets, *ONE, ("policy.attention", where)]))
        for where in ("pim", "npu")
    )
    assert memory["requests"]["output_tokens"] == arrays["requests"]["output_tokens"] == 6 * 60
    assert memory["tpot_s"]["mean"] < arrays["tpot_s"]["mean"]
    assert memory["costs"]["audit_max"] < 0.1


@pytest.mark.parametrize(
    ("machine", "sets", "told"),
    [
        ("neupims", [("plan.pipeline", "2"), ("plan.tensor", "1")], "plan.pipeline 2 of a service on neupims"),
        ("neupims", [("serve.speculate", "2"), ("serve.acceptance", "0.5")], "one query of a sequence at a time"),
        ("pim-hbm", [], "a pim tile runs products alone"),
        ("neupims", [("policy.interleave", "always"), ("policy.weights", "pim")], "must not be pim"),
    ],
)
def test_what_has_no_meaning_there_is_refused(machine, sets, told):
    with pytest.raises((NotSupported, LoomError), match=told):
        serve(prepare_named(machine, "gpt2", "32x8", [("serve.requests", "2"), *sets]))


def test_prefixes_that_requests_share_are_refused_where_each_has_a_channel(tmp_path):
    trace = tmp_path / "shared.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n0,64,4,a,16\n0,64,4,a,16\n")
    with pytest.raises(NotSupported, match=r"serve.prefix_cache=false"):
        prepare_named("neupims", "gpt2", str(trace), [])
    for allowed in (("serve.prefix_cache", "false"), ("policy.attention", "npu")):
        prepare_named("neupims", "gpt2", str(trace), [allowed])


def test_what_a_step_asks_for_is_no_key_that_somebody_gave():
    """It said that ``--set workload.requests=...`` is not supported."""
    served = read_model("deepseek-v3", [("layers", "2")])
    with pytest.raises(NotSupported, match=r"^not supported: serving deepseek-v3: requests of .*latent attention"):
        served.ask([("requests", "[{new: 20, context: 0}, {new: 36, context: 4}]")])
