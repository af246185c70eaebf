"""GPUs that are held below what they could do: locked clocks, power caps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import DescriptionError
from siliconloom.arch.gpu import load_gpu
from siliconloom.baselines.efficiency import load_efficiency
from siliconloom.baselines.mechanism import mechanism
from siliconloom.baselines.operation_rows import make_operations
from siliconloom.baselines.predict import predict
from siliconloom.baselines.residuals import NO_FIELDS

GEMM = {"op": "gemm", "dtype": "bf16", "m": 8192, "n": 8192, "k": 8192}
DECODE = {"op": "gemm", "dtype": "bf16", "m": 4, "n": 8192, "k": 8192}
NORM = {"op": "rmsnorm", "dtype": "bf16", "m": 65536, "n": 8192}
MESSAGE = {"op": "all_reduce", "dtype": "bf16", "bytes": 2**26, "gpus": 8}
ROWS = (GEMM, DECODE, NORM, MESSAGE, {**GEMM, "m": 300, "n": 1000}, {**GEMM, "dtype": "int8"})


def held(name, **keys):
    return load_gpu(name, [(key, str(value)) for key, value in keys.items()])


def alone(gpu, rows=ROWS, **keys):
    return predict(gpu, make_operations(list(rows)), fields=NO_FIELDS, **keys)


@pytest.mark.parametrize("name", ["h100", "a100", "l40s"])
@pytest.mark.parametrize("sustained", [False, True])
def test_a_lower_clock_slows_what_computes_and_hardly_what_waits_for_memory(name, sustained):
    gpu = load_gpu(name)
    locked = gpu.clock // 2
    usual, low = alone(gpu, sustained=sustained), alone(held(name, locked_clock=f"{locked} Hz"), sustained=sustained)
    ratio = low.seconds / usual.seconds
    assert 1.3 < ratio[0] < 2.05
    assert ratio[1] < 1.25
    assert 1 <= ratio[2] < 1.3
    assert ratio[3] == pytest.approx(1)
    if not (sustained or load_efficiency(gpu.architecture).limited):
        assert ratio[0] == pytest.approx(2, rel=0.05)
    assert (low.joules[:2] / low.seconds[:2] < usual.joules[:2] / usual.seconds[:2]).all()


@pytest.mark.slow(seconds=2.5)
@given(st.sampled_from(["h100", "a100", "rtx-4090"]), st.floats(1e-3, 0.99), st.floats(1e-3, 0.99), st.booleans())
def test_less_power_is_no_faster_and_is_kept_to(name, low, high, sustained):
    low, high = sorted((low, high))
    gpu = load_gpu(name)
    watts = [gpu.idle_power + share * (gpu.power - gpu.idle_power) for share in (low, high)]
    found = [alone(held(name, power_cap=cap), sustained=sustained) for cap in watts]
    usual = alone(gpu, sustained=sustained)
    assert (found[1].seconds >= usual.seconds * (1 - 1e-9)).all()
    assert (found[0].seconds >= found[1].seconds * (1 - 1e-9)).all()
    for prediction, cap in zip(found, watts, strict=True):
        assert (prediction.joules / prediction.seconds <= cap * (1 + 1e-3)).all()
        within = usual.joules / usual.seconds <= cap
        assert prediction.seconds[within] == pytest.approx(usual.seconds[within])


@pytest.mark.slow(seconds=3.5)
@given(st.sampled_from(["h100", "a100"]), st.floats(0.35, 0.95), st.sampled_from(ROWS[:3]))
def test_a_kernel_under_a_cap_has_the_highest_clock_that_draws_no_more(name, share, row):
    """Every clock is tried, in steps of a thousandth, by the energy that the description of the model states."""
    gpu = load_gpu(name)
    cap = gpu.idle_power + share * (gpu.power - gpu.idle_power)
    operations = make_operations([row])
    usual = alone(gpu, [row])
    whole = usual.joules[0] - gpu.idle_power * usual.seconds[0]
    flops = 2.0 * row["m"] * row["n"] * row.get("k", 0)
    power = load_efficiency(gpu.architecture).power
    element = 2
    moved = element * (
        row["m"] * row["k"] + row["k"] * row["n"] + row["m"] * row["n"] if "k" in row else 2 * row["m"] * row["n"]
    )
    part = flops * power.flop / (flops * power.flop + moved * power.byte)

    def watts(clock):
        slow = mechanism(gpu.model_copy(update={"clock": round(gpu.clock * clock)}), operations).seconds[0]
        return whole * (part * clock**2 + 1 - part) / slow, slow

    best = next((s for s in (watts(c) for c in np.arange(1, 0.3, -1e-3)) if s[0] <= cap - gpu.idle_power), None)
    found = alone(held(name, power_cap=cap), [row])
    if best is not None:
        assert found.seconds[0] == pytest.approx(best[1], rel=0.02)


@pytest.mark.parametrize("name", ["h100", "a100"])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_less_power_of_a_librarys_gpu_is_a_cap(name, share):
    gpu = load_gpu(name)
    watts = gpu.idle_power + share * (gpu.power - gpu.idle_power)
    cap, less = alone(held(name, power_cap=watts)), alone(held(name, power=watts))
    both = alone(held(name, power=watts, power_cap=watts - 10))
    assert less.seconds == pytest.approx(cap.seconds)
    assert less.joules == pytest.approx(cap.joules)
    assert (both.seconds >= less.seconds * (1 - 1e-9)).all()


def test_what_holds_nothing_or_too_much_is_told():
    for key, value, told in (
        ("power_cap", 700, "between idle_power, 120 W, and power, 700 W"),
        ("power_cap", 120, "between idle_power"),
        ("locked_clock", "1830 MHz", "to below clock, 1.83 GHz"),
        ("locked_clock", "300 MHz", "from 366 MHz"),
    ):
        with pytest.raises(DescriptionError, match=told):
            held("h100", **{key: value})
