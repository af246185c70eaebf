"""Mappings that a local search found, or that load early: every value of their golden runs is the exact reading's."""

import random

import numpy as np
import pytest
from hypothesis import given, settings

from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.weights import RandomWeights
from siliconloom.mapper.chip.budget import Budget
from siliconloom.mapper.chip.local_search import improved
from siliconloom.mapper.chip.mapping import map_workload
from siliconloom.mapper.chip.objective import Objective
from siliconloom.sim.chip.engine import Stopwatch
from tests.execution.models import VOCABULARY, chip_of, config_of, drawn_models, graph_of
from tests.mapper.chip.early import loaded_early


@pytest.mark.slow(seconds=5)
@settings(max_examples=4, deadline=None)
@given(**drawn_models(shortest=2))
def test_a_mapping_that_was_found_computes_the_model(
    tmp_path_factory, family, shape, dataflow, bus, dim, length, decode, dtype, seed
):
    sets = [("phase", "decode"), ("context", str(length + 1))] if decode else [("sequence", str(length))]
    graph = graph_of(tmp_path_factory.mktemp("model"), config_of(family, 4, 2, dim, 1), [*sets, ("precision", dtype)])
    chip = chip_of(*shape, bus, dataflow=dataflow, dtype=dtype)
    plan = map_workload(chip, graph, Stopwatch(chip), search=False)
    # the other way round many small tiles are best: changes are kept whatever they cost in time
    longest = Objective("time", lambda program: 10**9 - Stopwatch(chip)(program))
    for objective in (Objective("time", Stopwatch(chip)), longest):
        found = improved(plan, objective, Budget(trials=25, seed=seed))
        found = loaded_early(found, random.Random(seed))
        tokens = np.random.default_rng(seed).integers(0, VOCABULARY, lengths(found.graph)[:2])
        made = run_model(found, RandomWeights(found.graph, seed), tokens)
        assert {row.name: row.differing for row in made.rows if row.differing} == {}
