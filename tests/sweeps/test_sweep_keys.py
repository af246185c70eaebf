"""Every key of a sweep's description changes what comes of it."""

import pytest

from siliconloom.arch import sweep as described
from siliconloom.arch.document import Description
from siliconloom.sweeps.run import run_sweep
from tests.keys.test_every_key import keys_of
from tests.sweeps.small import CHIP, PRODUCTS, SERVED, sweep, without_times

RATES = {"from": "2 GB/s", "to": "8 GB/s", "step": "2 GB/s"}
RANDOM = {"method": "random", "points": 3}
SEARCHED = {
    "method": "nsga2",
    "points": 12,
    "population": 4,
    "keys": {"memory.dram.bandwidth": {**RATES, "to": "80 GB/s"}},
}
HELD = {"constraints": [{"metric": "power", "at_most": "1 W"}]}


def keyed(**key):
    return {"keys": {"memory.dram.bandwidth": key}}


ROWS = {
    "Sweep.name": ({"name": "a"}, {"name": "b"}),
    "Sweep.machine": ({}, {"machine": "other.yaml"}),
    "Sweep.workload": ({}, {"workload": "others.yaml"}),
    "Sweep.set": ({}, {"set": {"clock": "2 GHz"}}),
    "Sweep.keys": ({}, keyed(values=["1 GB/s"])),
    "Sweep.method": ({"method": "random", "points": 12}, {"method": "latin_hypercube", "points": 12}),
    "Sweep.points": (RANDOM, {**RANDOM, "points": 4}),
    "Sweep.population": (SEARCHED, {**SEARCHED, "population": 6}),
    "Sweep.seed": (RANDOM, {**RANDOM, "seed": 1}),
    "Sweep.objectives": ({}, {"objectives": ["energy"]}),
    "SweepKey.values": ({}, keyed(values=["1 GB/s", "9 GB/s"])),
    "SweepKey.from": (keyed(**RATES), keyed(**{**RATES, "from": "4 GB/s"})),
    "SweepKey.to": (keyed(**RATES), keyed(**{**RATES, "to": "9.9 GB/s"} | {"to": "10 GB/s"})),
    "SweepKey.step": (keyed(**RATES), keyed(**{**RATES, "step": "3 GB/s"})),
    "SweepKey.factor": (
        keyed(**{"from": "1 GB/s", "to": "9 GB/s", "factor": 2}),
        keyed(**{"from": "1 GB/s", "to": "9 GB/s", "factor": 3}),
    ),
    "SweepKey.with": (keyed(**RATES), keyed(**RATES, **{"with": {"tile.vector.lanes": [8, 8, 16, 16]}})),
    "SweepConstraint.metric": (HELD, {"constraints": [{"metric": "energy", "at_most": 1}]}),
    "SweepConstraint.at_most": (HELD, {"constraints": [{"metric": "power", "at_most": "1 mW"}]}),
    "SweepConstraint.at_least": (HELD, {"constraints": [{"metric": "power", "at_least": "1 W"}]}),
    "Sweep.trace": (SERVED, {**SERVED, "trace": "64x17"}),
    "Sweep.slo": (SERVED, {**SERVED, "slo": "ttft=1ns"}),
    "Sweep.stack": (SERVED, {**SERVED, "stack": "none"}),
    "SweepMapping.search": ({}, {"mapping": {"search": True}}),
    "SweepMapping.seed": ({"mapping": {"search": True}}, {"mapping": {"search": True, "seed": 1}}),
    "SweepMapping.objective": ({}, {"mapping": {"objective": "energy"}}),
    "SweepMapping.placement": ({}, {"mapping": {"placement": "exact"}}),
}
LONG = {"SweepMapping.search", "SweepMapping.seed"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LONG)) for n in ROWS])
def test_a_key_changes_what_comes_of_a_sweep(folder, name):
    (folder / "other.yaml").write_text(CHIP.replace("10 GB/s", "10 GB/s, ports: 1").replace("50 ns", "500 ns"))
    (folder / "others.yaml").write_text(PRODUCTS.replace("k: 16", "k: 32"))
    before, after = (without_times(run_sweep(sweep(**each), workers=1)) for each in ROWS[name])
    assert before != after


def test_every_key_has_a_row():
    kinds = [
        each
        for each in vars(described).values()
        if isinstance(each, type) and issubclass(each, Description) and each is not Description
    ]
    known = {f"{kind.__name__}.{key}" for kind in kinds for key in keys_of(kind)}
    assert known == set(ROWS) - {"Sweep.keys"}  # whose own keys have rows
