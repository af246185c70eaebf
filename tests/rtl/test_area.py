"""Parts of a design, of which Yosys counts the cells."""

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.rtl.synthesis.area import DEPTH, SHARE, luts_of, parts_of

CELLS = ("LUT4", "TRELLIS_FF", "CCU2C", "MULT18X18D", "DP16KD", "$_DFF_P_", "INV", "top_blackbox")
HIDDEN = ("top_blackbox",)


@st.composite
def hierarchies(draw):
    """Cells and instances of modules; each contains modules that come after it alone."""
    names = ["top", *(f"top_m{number}" for number in range(draw(st.integers(0, 6))))]
    counts = {}
    for number, name in enumerate(names):
        inside = st.sampled_from([*CELLS, *names[number + 1 :]])
        counts[name] = draw(st.dictionaries(inside, st.integers(1, 9), max_size=5))
    return counts


def expanded(counts, name):
    """All cells below a module, instance by instance."""
    found = []
    for kind, count in counts[name].items():
        found += (expanded(counts, kind) if kind in counts else [kind] * (kind not in HIDDEN)) * count
    return found


@pytest.mark.slow(seconds=1)
@given(hierarchies())
def test_parts_are_what_counting_every_instance_gives(counts):
    statistics = {"modules": {f"\\{name}": {"num_cells_by_type": found} for name, found in counts.items()}}
    parts = parts_of(statistics, "top", HIDDEN)
    everything = Counter(expanded(counts, "top"))
    assert len({part.path for part in parts}) == len(parts)
    shown = {part.path: part for part in parts}
    for part in parts:
        chain = ["top", *(f"top_{name}" for name in part.path)]
        instances = 1
        for above, below in pairwise(chain):
            instances *= counts[above][below]
        cells = Counter(expanded(counts, chain[-1]) * instances)
        assert part.instances == instances
        assert (part.cells, part.luts) == (cells.total(), luts_of(cells))
        assert part.registers == cells["TRELLIS_FF"] + cells["$_DFF_P_"]
        assert (part.multipliers, part.block_rams) == (cells["MULT18X18D"], cells["DP16KD"])
        assert len(part.path) <= DEPTH
        assert len(part.path) == 1 or part.path[:-1] in shown
    for name, count in counts["top"].items():
        if name in counts and len(expanded(counts, name)) * count >= max(SHARE * everything.total(), 1):
            assert (name.removeprefix("top_"),) in shown, "one that is large is told"


@pytest.mark.checkout
def test_memories_are_block_ram_alone_and_the_rule_of_modules_finds_what_has_grown():
    from benchmarks import synthesis

    kept = json.loads(synthesis.RESULTS.read_text(encoding="utf-8"))
    assert kept.keys() >= {f"{chip} {module}" for chip, modules in synthesis.MODULES.items() for module in modules}
    memories = {name: row for name, row in kept.items() if " sram_" in name}
    assert memories
    assert all(row["block_rams"] * (row["luts"] + row["registers"]) == 0 for row in memories.values()), memories
    assert not synthesis.worse(kept, kept)
    for name, row in kept.items():
        for figure, count in row.items():
            grown = kept | {name: row | {figure: count + count // 40 + 1}}
            assert len(synthesis.worse(grown, kept)) == 1
            assert not synthesis.worse(kept, grown)


@pytest.mark.checkout
@given(st.floats(1, 400), st.floats(0.5, 1.5))
def test_a_placed_tile_may_be_a_tenth_slower_with_the_same_seeds(mhz, factor):
    from benchmarks import synthesis

    before = {"tile": {"seeds": [1, 2], "mhz": [mhz * 1.1, mhz]}}
    now = {"tile": {"seeds": [1, 2], "mhz": [mhz * factor, mhz * 1.2]}}
    lost = min(factor, 1.2) < 1 - synthesis.SLOWER
    assert len(synthesis.slower(now, before)) == lost
    assert not synthesis.slower({"tile": now["tile"] | {"seeds": [1]}}, before), "other seeds are not compared"
    assert not synthesis.slower(now, {})
