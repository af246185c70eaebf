"""Experts that tokens are dealt to evenly where these do not divide: no row more than there are, anywhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.cli import main
from siliconloom.evaluate.chip import simulate
from siliconloom.render.tables import shape_text
from siliconloom.workloads import Gemm, load_workload
from siliconloom.workloads.dealt import dealt
from siliconloom.workloads.roles import EXPERTS, Role

EVEN = "[1,1,1,1,1,1,1,0.999]"
"""Nearly so, in words that count every expert's rows by themselves."""


def mixture(batch, *sets, model="mixtral-8x7b"):
    return load_workload(model, [("phase", "decode"), ("batch", str(batch)), *sets])


@pytest.mark.parametrize("tokens", [1, 3, 5, 9, 64])
def test_gradients_of_experts_take_twice_the_work_of_their_products(tokens):
    """Each expert's weights are summed over its own rows, of which some have one less."""
    training = load_workload("mixtral-8x7b", [("phase", "training"), ("sequence", str(tokens)), ("layers", "1")])
    products = [o for o in training.operators() if isinstance(o, Gemm) and o.role in EXPERTS]
    forward = sum(o.macs * o.repeat for o in products if not o.place.backward)
    backward = sum(o.macs * o.repeat for o in products if o.place.backward)
    assert forward == tokens * 2 * 3 * 4096 * 14336
    assert backward == 2 * forward


@given(batch=st.integers(1, 80), model=st.sampled_from(["mixtral-8x7b", "deepseek-v3", "qwen3-next-80b"]))
@settings(max_examples=25, deadline=None)
def test_every_token_uses_as_many_experts_as_it_chooses(batch, model):
    """In all operators, dealt or not; what is stored, and what tokens use, stays as it was, and so do all elements."""
    graph = mixture(batch, ("layers", "5"), model=model)
    apart = dealt(graph)
    product = next(o for o in graph.operators() if o.role is Role.EXPERT_ROW)
    layers = sum(o.repeat for o in graph.operators() if o.role is Role.EXPERT_ROW)
    for each in (graph, apart):
        rows = sum(o.repeat * o.rows for o in each.operators() if isinstance(o, Gemm) and o.role is Role.EXPERT_ROW)
        assert rows == layers * batch * product.chosen
    assert all(not o.short for o in apart.operators() if isinstance(o, Gemm))
    for key in ("macs", "parameters", "active_parameters"):
        assert getattr(graph, key) == getattr(apart, key)
    for role in EXPERTS:
        for key in ("input_elements", "output_elements"):
            one, two = ([o.repeat * getattr(o, key) for o in g.operators() if o.role is role] for g in (graph, apart))
            assert sum(one) == sum(two)
    assert sum(each[2] for each in graph.dataflow.edges()) == sum(each[2] for each in apart.dataflow.edges())


def test_a_row_says_how_many_rows_there_are(capsys):
    """Ten rows of eight experts: their products' data beside the work of as many, and a shape that says so."""
    assert main(["workload", "mixtral-8x7b", "--set", "workload.phase=decode", "--set", "workload.batch=5"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "expert_gate_up" in line)
    assert "8 x 2 x 28672 x 4096" in line
    assert line.split()[-2:] == ["640", "KiB"]  # ten rows of 4,096 and of 28,672 elements
    product = next(o for o in mixture(5).operators() if o.role is Role.EXPERT_COLUMN)
    assert product.shape["batch"] * product.shape["m"] - product.shape["short"] == product.rows == 10
    assert shape_text({"kind": "gemm", "shape": product.shape}).endswith("x 4096 (10 rows)")
    assert "short" not in next(o for o in mixture(8).operators() if o.role is Role.EXPERT_COLUMN).shape


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
