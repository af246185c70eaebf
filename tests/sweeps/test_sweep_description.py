"""What a sweep's file may say: ranges, keys that move together, and what is refused where it stands."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from siliconloom.arch.errors import LoomError
from siliconloom.arch.sweep import Sweep, SweepKey, amount_of, load_sweep
from siliconloom.sweeps.run import run_sweep
from tests.sweeps.small import SERVED, write

UNITS = st.sampled_from(["", " KiB", " GB/s", " MHz", " ns", " pJ"])


@given(st.integers(1, 99), st.integers(1, 50), st.integers(0, 60), st.integers(0, 49), UNITS)
def test_a_range_with_a_step_ends_at_the_last_value_not_beyond_its_end(first, step, count, beyond, unit):
    last = first + step * count + min(beyond, step - 1)
    key = SweepKey.model_validate({"from": f"{first}{unit}", "to": f"{last}{unit}", "step": f"{step}{unit}"})
    assert key.levels == tuple(f"{first + step * n}{unit}" for n in range(count + 1))


@given(st.integers(1, 99), st.integers(2, 4), st.integers(0, 8))
def test_a_range_with_a_factor_multiplies(first, factor, count):
    key = SweepKey.model_validate({"from": first, "to": first * factor**count, "factor": factor})
    assert [amount_of(level).number for level in key.levels] == [Decimal(first * factor**n) for n in range(count + 1)]


def test_a_range_keeps_the_unit_that_it_began_with():
    key = SweepKey.model_validate({"from": "512 KiB", "to": "2 MiB", "factor": 2})
    assert key.levels == ("512 KiB", "1024 KiB", "2048 KiB")


REFUSED = [
    ({"values": [1], "from": 1}, "not both"),
    ({}, "must be a list of values"),
    ({"from": 1, "to": 5}, "a step or a factor"),
    ({"from": 1, "step": 5}, "no 'to'"),
    ({"from": 1, "to": 5, "step": 1, "factor": 2}, "a step or a factor"),
    ({"from": 1, "to": "5 KiB", "step": 1}, "same kind"),
    ({"from": "1 KiB", "to": "5 GB/s", "step": "1 KiB"}, "same kind"),
    ({"from": 5, "to": 1, "step": 1}, "below the range's first value"),
    ({"from": 1, "to": 5, "step": 0}, "greater than zero"),
    ({"from": 0, "to": 5, "factor": 2}, "greater than zero"),
    ({"from": 1, "to": 10**9, "step": 1}, "more than 10,000 values"),
    ({"from": "red", "to": 5, "step": 1}, "a number or a quantity"),
    ([1, 1], "stands twice"),
    ({"values": [1, 2], "with": {"a.b": [1]}}, "has 1 values"),
]


@pytest.mark.parametrize(("key", "rule"), REFUSED, ids=lambda v: str(v)[:40])
def test_a_key_that_says_two_things_or_none_is_refused(key, rule):
    with pytest.raises(ValidationError, match=rule):
        SweepKey.model_validate(key)


BAD = [
    ({"keys": {"tile.array.rwos": [4]}}, r"sweep.yaml:5:.*rwos.*did you mean 'rows'"),
    ({"keys": {"workload.gemms.7.m": [4]}}, r"sweep.yaml:5:.*the list has 1 entries"),
    ({"keys": {"tile.array.rows": [8, None]}}, r"sweep.yaml:7:.*rows.*must be a value; null, or nothing, is none"),
    ({"keys": {"clock.speed": ["1 GHz"]}}, r"sweep.yaml:5:.*single value"),
    ({"set": {"tile.lanes": 4}}, r"sweep.yaml:.*set\.tile\.lanes.*unknown key 'lanes'"),
    ({"keys": {"tile.array.rows": {"values": [8], "with": ["tile.array.clos"]}}}, "clos.*did you mean 'cols'"),
    ({"keys": {"serving.rate": [1]}}, "unknown key 'serving'"),
    ({"keys": {"serve.rate": [1]}}, r"serve\.rate.*is of a service, and the sweep has no trace"),
    ({**SERVED, "keys": {"serve.rat": [1]}}, r"sweep.yaml:.*serve\.rat: .*did you mean 'rate'"),
    ({**SERVED, "keys": {"workload.batch": [1]}}, "the requests say this of every step"),
    ({**SERVED, "objectives": ["time"]}, r"objectives.*which is of single steps, and a trace is served"),
    ({**SERVED, "objectives": ["goodputt"]}, "did you mean 'goodput'"),
    ({**SERVED, "constraints": [{"metric": "ttft", "at_most": "5 J"}]}, "unknown unit 'J'"),
    ({**SERVED, "mapping": {"search": True}}, "is of single steps, and a trace is served"),
    ({**SERVED, "trace": "azure-con"}, r"sweep.yaml:.*trace: azure-con: .*did you mean 'azure-conv'"),
    ({**SERVED, "slo": "ttt=5s"}, r"sweep.yaml:.*slo: .*did you mean 'ttft'"),
    ({**SERVED, "stack": "vllmm"}, r"sweep.yaml:.*stack: .*did you mean 'vllm'"),
    ({**SERVED, "machine": "npu-edge", "stack": "vllm"}, r"sweep.yaml:.*stack: .*was measured on GPUs"),
    ({"slo": "ttft=5s"}, "slo: is of a service, and there is no trace"),
    ({"stack": "vllm"}, "stack: is of a service, and there is no trace"),
    ({"keys": {"run.steps": [1]}}, "loom plan has them"),
    ({"keys": {"plan.tensr": [1]}}, "unknown key"),
    ({"objectives": ["cost"]}, r"sweep.yaml:.*objectives.*which needs a trace to be served"),
    ({"objectives": ["tine"]}, r"did you mean 'time'"),
    ({"constraints": [{"metric": "power", "at_most": "5 J"}]}, "unknown unit 'J'"),
    ({"constraints": [{"metric": "utilization", "at_least": "5 W"}]}, "must be a bare number"),
    ({"constraints": [{"metric": "goodput", "at_most": 5}]}, r"constraints.*which needs a trace to be served"),
    ({"constraints": [{"metric": "power"}]}, "at_most or at_least"),
    ({"points": 5}, "a grid has every combination"),
    ({"method": "random"}, "'points' is missing"),
    ({"method": "random", "points": 13}, r"sweep.yaml:\d+:\d+: points: .*12 combinations"),
    ({"method": "random", "points": 5, "population": 4}, "is of a search"),
    ({"method": "saltelli", "points": 9}, r"sweep.yaml:\d+:\d+: points: saltelli of .* at least 40 points \(got 9\)"),
    ({"method": "morris", "points": 9}, r"sweep.yaml:\d+:\d+: points: .*at least 16 points"),
    ({"objectives": ["time", "energy", "area", "power", "edp"]}, r"objectives: must have at most 4 entries \(got 5\)"),
    ({"objectives": []}, "objectives: must have at least 1 entry"),
    ({"method": "gird"}, "did you mean 'grid'"),
    ({"mapping": {"seed": 1}}, "is of a search"),
    ({"set": {"tile.vector.lanes": 4}}, "stands twice in set and keys"),
    ({"keys": {"a b": [1]}}, "no key path"),
    ({"machine": "nonesuch"}, "no such file and no chip"),
    ({"kind": "swep"}, "must be one of sweep"),
]


@pytest.mark.parametrize(("changed", "told"), BAD, ids=lambda v: str(v)[:50])
def test_a_bad_sweep_ends_before_any_point_in_one_line(folder, changed, told):
    path = write(folder, **changed)
    with pytest.raises(LoomError, match=told) as caught:
        run_sweep(path, "kept.sqlite", workers=1)
    assert "\n" not in str(caught.value)
    assert not (folder / "kept.sqlite").exists()


def test_the_schema_takes_the_examples_and_what_is_written_is_read_again(folder):
    found, _ = load_sweep(write(folder))
    assert Sweep.model_validate_json(found.model_dump_json(by_alias=True, exclude_unset=True)) == found
