"""Where the rings of a division of local memory begin: at lines, in banks of their own kind."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict

from siliconloom.arch import load_chip
from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip.layout import BANKED, bank_bytes, banks_of, bases, grain_of, layouts, slots_of
from siliconloom.workloads import load_workload

RINGS = [ring for rings in BANKED for ring in rings]


@given(
    capacity=st.integers(1 << 15, 1 << 21),
    banks=st.integers(1, 40),
    bus=st.sampled_from([16, 64, 256]),
    lanes=st.sampled_from([4, 16, 128]),
    constants=st.integers(0, 4096),
    least=st.dictionaries(
        st.sampled_from(["weights", "moving", "vector", "results", "values", "second"]), st.integers(1, 3000)
    ),
)
def test_rings_begin_at_lines_within_the_banks_of_their_kind(capacity, banks, bus, lanes, constants, least):
    """Whatever banks there are: one of an odd size begins within a line, and a row from there came byte by byte."""
    sets = {"tile.scratchpad.capacity": f"{capacity} B", "tile.scratchpad.banks": str(banks)}
    sets |= {"tile.dma.bytes_per_cycle": str(bus), "tile.vector.lanes": str(lanes)}
    tile = load_chip("npu-edge-int8", list(sets.items())).tile
    grain, bank = grain_of(tile), bank_bytes(tile)
    for layout in layouts(tile, [constants], least):
        places, sizes = bases(tile, layout), asdict(layout)
        ends = {ring: places[ring] + slots_of(tile, ring, sizes[ring]) * sizes[ring] for ring in places}
        assert all(places[ring] % grain == 0 for ring in RINGS)
        assert all(ends[ring] <= capacity for ring in RINGS if sizes[ring])
        used = sorted((places[ring], ends[ring]) for ring in RINGS if sizes[ring])
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(used))
        assert all(sizes[ring] >= need for ring, need in least.items() if ring in sizes)
        if banks_of(tile, layout) > banks:
            continue
        kinds = {}
        for kind, rings in enumerate(BANKED):
            for ring in rings:
                if sizes[ring]:
                    for number in range(places[ring] // bank, (ends[ring] - 1) // bank + 1):
                        assert kinds.setdefault(number, kind) == kind
        assert max(kinds, default=0) < banks


@pytest.mark.parametrize("key", ["tile.scratchpad.capacity", "tile.scratchpad.banks"])
def test_banks_of_odd_sizes_are_no_slower(key):
    """1 MiB in 12 banks took 2,508,037 cycles, and 768 KiB 291,205: rings began at the 87,382nd byte."""
    model = [("layers", "1"), ("sequence", "51"), ("batch", "2")]
    graph, before = load_workload("gpt2", model), None
    values = {
        "tile.scratchpad.capacity": ["512 KiB", "768 KiB", "1 MiB", "2 MiB"],
        "tile.scratchpad.banks": ["16", "15", "12", "11"],
    }
    for value in values[key]:
        sets = [(key, value)] + ([] if key.endswith("capacity") else [("tile.scratchpad.capacity", "1 MiB")])
        cycles = simulate(load_chip("tpu-v5e", sets), graph).run.cycles
        assert before is None or cycles <= before * (1.01 if key.endswith("capacity") else 1.1)
        before = cycles
