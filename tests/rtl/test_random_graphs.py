"""Any small graph on any small tile: RTL, simulator and golden model agree in every cycle and every byte."""

import pytest

from siliconloom.rtl.bench.runner import simulator_path
from tests.rtl.graphs import GRAPHS, TILES, random_pairs, verified

A_DAY = 4


@pytest.mark.rtl
@pytest.mark.slow(seconds=50)
@pytest.mark.parametrize("number", range(A_DAY))
@pytest.mark.parametrize("graph", range(GRAPHS))
def test_random_graphs_on_random_tiles_agree_in_every_cycle_and_byte(number, graph, seed):
    """Four of the tiles a day, each graph by itself."""
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    found = verified((A_DAY * seed + number) % TILES, graphs=slice(graph, graph + 1))
    assert len(found) == 1
    for name, case in found:
        assert case.passed, (name, case)
        assert case.difference == 0
        assert case.bytes_compared > 0


@pytest.mark.slow(seconds=11)
def test_most_graphs_are_run(seed):
    """What a tile refuses, or what is too long, is left out of the pairs: it must not be most of them."""
    _, found, left = random_pairs(seed % TILES)
    assert len(found) == GRAPHS, f"{left} graphs were left out"
