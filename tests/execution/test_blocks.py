"""Rows in blocks of fewer rows than an array has that keeps its sums: values of whole models."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.weights import RandomWeights
from siliconloom.mapper.chip.gemm_layout import smaller_blocks
from siliconloom.workloads import Gemm
from tests.execution.models import VOCABULARY, chip_of, config_of, graph_of
from tests.mapper.chip.tiled import in_blocks


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    family=st.sampled_from(["gpt2", "llama", "mixtral"]),
    rows=st.sampled_from([4, 6, 8]),
    dtype=st.sampled_from(["int8", "bf16", "w8a8"]),
    bus=st.sampled_from([8, 16, 32]),
    batch=st.integers(1, 3),
    length=st.integers(1, 21),
    decode=st.booleans(),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_rows_in_smaller_blocks_have_the_same_values(
    tmp_path_factory, family, rows, dtype, bus, batch, length, decode, seed, data
):
    sets = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
    sets += [("batch", str(batch)), ("precision", dtype)]
    graph = graph_of(tmp_path_factory.mktemp("model"), config_of(family, 4, 2, 8, 2), sets)
    chip = chip_of(rows, 4, 4, bus, dataflow="output_stationary", dtype=dtype)
    products = [operator.name for operator in graph.operators() if isinstance(operator, Gemm)]
    sizes = st.sampled_from([0, *smaller_blocks(chip.tile.array)])
    made = in_blocks(chip, graph, {name: size for name in products if (size := data.draw(sizes, label=name))})
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, lengths(made.graph)[:2])
    assert run_model(made, RandomWeights(made.graph, seed), tokens).differing == 0
