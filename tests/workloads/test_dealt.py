"""Experts that tokens are dealt to evenly where these do not divide: no row more than there are, anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.evaluate.chip import simulate
from siliconloom.workloads import Gemm, load_workload
from siliconloom.workloads.dealt import dealt
from siliconloom.workloads.roles import EXPERTS, Role

EVEN = "[1,1,1,1,1,1,1,0.999]"
"""Nearly so, in words that count every expert's rows by themselves."""


def mixture(batch, *sets, model="mixtral-8x7b"):
    return load_workload(model, [("phase", "decode"), ("batch", str(batch)), *sets])


@given(batch=st.integers(1, 80), model=st.sampled_from(["mixtral-8x7b", "deepseek-v3", "qwen3-next-80b"]))
@settings(max_examples=25, deadline=None)
def test_every_token_uses_as_many_experts_as_it_chooses(batch, model):
    """In all operators, dealt or not; what is stored, and what tokens use, stays as it was, and so do all elements."""
    graph = mixture(batch, ("layers", "5"), model=model)
    apart = dealt(graph)
    product = next(o for o in graph.operators() if o.role is Role.EXPERT_ROW)
    layers = sum(o.repeat for o in graph.operators() if o.role is Role.EXPERT_ROW)
    for each in (graph, apart):
        rows = sum(
            o.repeat * (o.batch * o.m - o.short)
            for o in each.operators()
            if isinstance(o, Gemm) and o.role is Role.EXPERT_ROW
        )
        assert rows == layers * batch * product.chosen
    assert all(not o.short for o in apart.operators() if isinstance(o, Gemm))
    for key in ("macs", "parameters", "active_parameters"):
        assert getattr(graph, key) == getattr(apart, key)
    for role in EXPERTS:
        elements = [sum(o.repeat * o.output_elements for o in g.operators() if o.role is role) for g in (graph, apart)]
        assert elements[0] - elements[1] == sum(
            o.repeat * o.short * o.n for o in graph.operators() if isinstance(o, Gemm) and o.role is role
        )


@pytest.mark.parametrize("batch", [5, 21])
def test_a_chip_takes_as_long_as_with_a_popularity_that_says_so(batch):
    """Of 21 tokens 42 rows go to eight experts: 48 were computed, and the bound of that was above this time."""
    sets = [("memory.dram.capacity", "256 GiB")]
    words = [("workload.phase", "decode"), ("workload.layers", "2"), ("workload.batch", str(batch))]
    even = simulate("npu-edge-int8", "mixtral-8x7b", [*sets, *words])
    said = simulate("npu-edge-int8", "mixtral-8x7b", [*sets, *words, ("workload.expert_popularity", EVEN)])
    assert even.run.cycles == said.run.cycles
    assert even.plan.bound.lower_bound_cycles == said.plan.bound.lower_bound_cycles <= said.run.cycles
    assert even.graph.macs == said.graph.macs
