"""Attention of next tokens to what requests share on GPUs: never slower, once read, and refused where it is nothing."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.evaluate.step_costs import ReplicaCosts
from siliconloom.sim.service.costs import RequestLengths, SharedPart

LONGEST = 70_000
TOKEN_BYTES = 2 * 2 * 1024 * 2
"""Keys and values of a token in two layers of llama3-8b."""
TWO = ("workload.layers", "2")


@cache
def costs_of(machine, model="llama3-8b", *sets):
    served = prepare_named(machine, model, "8x8", [("serve.requests", "1"), TWO, *sets])
    return ReplicaCosts(served.replica, served.model.ask, served.plan, longest=LONGEST)


def asked(costs, count, contexts, parts=()):
    shared = tuple(SharedPart(tokens, requests) for tokens, requests in parts)
    return costs.kernels([], 0, count, np.array(contexts, float), RequestLengths({}, 0, shared))


def attention(costs, count, context, parts):
    """Seconds of a step's attention alone."""
    shared = tuple(SharedPart(tokens, requests) for tokens, requests in parts)
    return costs._predicted.tokens(count, np.array([float(context)]), RequestLengths({}, 0, shared))[0][0]


@st.composite
def sharings(draw):
    """A number of requests, their mean length, and parts that some have in common, none longer than a request."""
    count = draw(st.integers(2, 256))
    context, parts, read = draw(st.integers(16, 30_000)), [], 0
    for _ in range(draw(st.integers(1, 9))):
        requests, tokens = draw(st.integers(2, count)), draw(st.integers(1, 20_000))
        if read + requests * tokens < count * context:
            parts.append((tokens, requests))
            read += requests * tokens
    return count, context, parts


MACHINES = st.sampled_from(["h100", "a100"])
FORMATS = st.sampled_from([(), (("workload.cache_precision", "fp8"),), (("workload.cache_precision", "int4"),)])


@pytest.mark.slow(seconds=1)
@settings(max_examples=60)
@given(MACHINES, FORMATS, sharings(), st.integers(1, 20))
def test_no_step_is_slower_for_what_could_be_shared_and_a_row_of_steps_is_its_steps(machine, kept, sharing, steps):
    costs, (count, context, parts) = costs_of(machine, "llama3-8b", *kept), sharing
    contexts = [context + i for i in range(steps)]
    alone, _, launched = asked(costs, count, contexts)
    told, joules, more = asked(costs, count, contexts, parts)
    assert (told <= alone).all()
    each = [asked(costs, count, [c], parts) for c in contexts]
    assert told == pytest.approx(np.array([float(s[0]) for s, _, _ in each]), rel=1e-9)
    assert joules == pytest.approx(np.array([float(j[0]) for _, j, _ in each]), rel=1e-9)
    shares = told < alone
    assert (np.broadcast_to(more, len(told))[shares] == launched + 2 * 2).all()  # two kernels in each of two layers
    assert (np.broadcast_to(more, len(told))[~shares] == launched).all()


@pytest.mark.slow(seconds=1)
@settings(max_examples=40)
@given(MACHINES, st.integers(2, 256), st.integers(1024, 60_000), st.integers(1, 200))
def test_what_all_share_is_read_once_and_not_faster(machine, count, shared, own):
    costs = costs_of(machine)
    told, apart = (attention(costs, count, shared + own, parts) for parts in ([(shared, count)], []))
    gpu = costs.cluster.machine.gpu
    least = TOKEN_BYTES * (shared + count * own) / gpu.memory_bandwidth
    pairs = 2 * count * (shared + own)  # in two layers
    assert told >= max(least, 4 * 32 * 128 * pairs / gpu.peak_flops("bf16"))
    if count >= 64 and shared >= 16384:  # most of what is read less
        assert apart - told > TOKEN_BYTES * shared * (count - 1) / gpu.memory_bandwidth / 2


def test_parts_that_few_share_are_left_where_the_kernel_takes_longer():
    costs = costs_of("h100")
    assert asked(costs, 8, [2000.0])[0][0] == asked(costs, 8, [2000.0], [(16, 2)])[0][0]


def trace_of(tmp_path, shared=4096, requests=40):
    rows = [f"{i / 1000},{shared + 64},24,p,{shared}" for i in range(requests)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens", *rows]))
    return str(path)


STAGES = (("plan.pipeline", "2"), ("plan.tensor", "1"), ("plan.data", "1"))
GUESSES = (("serve.speculate", "2"), ("serve.acceptance", "0.5"))


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("machine", "sets"), [("h100", ()), ("h100", GUESSES), ("dgx-h100", STAGES)])
def test_a_service_whose_requests_share_a_long_prefix_answers_sooner(tmp_path, machine, sets):
    given_sets = [("workload.layers", "4"), *sets]
    alone, together = (
        serve(prepare_named(machine, "llama3-8b", trace_of(tmp_path), [*given_sets, ("serve.shared_attention", on)]))
        for on in ("false", "true")
    )
    assert together["tpot_s"]["mean"] < 0.97 * alone["tpot_s"]["mean"]
    assert together["energy_j"] < alone["energy_j"]
    assert together["requests"]["output_tokens"] == alone["requests"]["output_tokens"]


@pytest.mark.parametrize(
    ("machine", "model", "sets", "words"),
    [
        ("npu-edge", "gpt2", (), "serve.shared_attention on npu-edge"),
        ("h100", "mistral-7b", (), "serve.shared_attention of mistral-7b, all of whose layers see a window"),
        ("h100", "llama3-8b", (("serve.prefix_cache", "false"),), "changes nothing without serve.prefix_cache"),
        ("h100", "llama3-8b", (("serve.max_sequences", "1"),), "a step has one request"),
        ("h100", "llama3-8b", (("serve.batching", "static"),), "is not of serve.batching static"),
        ("dgx-h100", "llama3-8b", (("serve.prefill_replicas", "1"),), "what is handed over is shared with nobody"),
    ],
)
def test_where_nothing_can_be_shared_the_key_is_refused(tmp_path, machine, model, sets, words):
    with pytest.raises((LoomError, NotSupported), match=words):
        prepare_named(machine, model, trace_of(tmp_path, 64), [("serve.shared_attention", "true"), *sets])


def test_a_trace_of_which_nothing_is_shared_refuses_the_key():
    with pytest.raises(LoomError, match="changes nothing: 512x8 has no column prefix, session or hash_ids"):
        prepare_named("h100", "llama3-8b", "512x8", [("serve.shared_attention", "true"), ("serve.requests", "4")])
