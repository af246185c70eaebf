"""Weights in groups on arrays wider than their products: last panels in narrow lines, and halves that are gated."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.arch.assembler import check_program
from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.weights import RandomWeights
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.sim.chip.engine import duration
from tests.execution.models import VOCABULARY, config_of, graph_of


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    family=st.sampled_from(["gpt2", "llama", "mixtral"]),
    side=st.sampled_from([(4, 4, 2), (4, 16, 1), (8, 32, 2), (4, 8, 4)]),
    machine=st.sampled_from(["npu-edge w4a16", "npu-edge w8a16", "npu-edge-w4a8 w4a8"]),
    minima=st.booleans(),
    group=st.sampled_from([4, 8]),
    dim=st.sampled_from([8, 16]),
    length=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_weights_in_groups_on_any_array_are_the_exact_reading_s(
    tmp_path_factory, family, side, machine, minima, group, dim, length, seed
):
    (rows, cols, load_rows), (name, precision) = side, machine.split()
    sets = {"tile.array.rows": rows, "tile.array.cols": cols, "tile.array.load_rows": load_rows}
    sets |= {"tile.array.weights.minima": str(minima).lower(), "tile.vector.lanes": 4, "tile.dma.bytes_per_cycle": 16}
    sets |= {"tile.array.cache": "[]", "tile.accumulator.capacity": "32 KiB", "memory.dram.access_bytes": 16}
    chip = load_chip(name, [(key, str(value)) for key, value in sets.items()])
    stated = [("sequence", str(length)), ("precision", precision), ("weight_group", str(group))]
    graph = graph_of(tmp_path_factory.mktemp("model"), config_of(family, 4, 2, dim, 1), stated)
    made = map_workload(chip, graph, lambda program: duration(program, chip))
    check_program(made.program, chip)
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, lengths(made.graph)[:2])
    assert run_model(made, RandomWeights(made.graph, seed), tokens).differing == 0
