"""Striped memories and copies between levels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError, Memory
from siliconloom.reproduce.tiers import copy_time
from siliconloom.sim.timing.units import moved_bytes, striped_bytes


def memory(bandwidth="100 GB/s", latency="100 ns", **more):
    return Memory.model_validate(
        {"kind": "ddr4", "capacity": "1 TiB", "bandwidth": bandwidth, "latency": latency, **more}
    )


@given(
    rows=st.integers(1, 9),
    row=st.integers(1, 5000),
    ports=st.integers(1, 5),
    devices=st.integers(1, 4),
    stripe=st.sampled_from(["64 B", "256 B", "1 KiB"]),
)
def test_striping_wastes_ports_but_never_bytes(rows, row, ports, devices, stripe):
    many = {"interleave": stripe} if ports * devices > 1 else {}
    level = memory(ports=ports, devices=devices, **many)
    moved, held = moved_bytes(level, rows, row), striped_bytes(level, rows, row)
    assert moved <= held <= moved * level.channels
    whole = level.channels * level.stripe
    if row % whole == 0 or level.channels == 1:
        assert held == moved


def test_an_access_of_one_stripe_has_one_devices_bandwidth():
    level = memory(devices=4, interleave="256 B")
    assert striped_bytes(level, 1, 256) == 4 * 256
    assert striped_bytes(level, 1, 1024) == 1024
    assert striped_bytes(level, 1, 1025) == 1024 + 4 * 64


@given(
    size=st.integers(1, 10**9),
    chunk=st.sampled_from([4096, 65536, 2**20]),
    source=st.sampled_from([3, 40, 200]),
    target=st.sampled_from([3, 40, 200]),
    path=st.sampled_from([None, 10, 64]),
    engines=st.integers(1, 8),
)
def test_a_copy_is_bounded_by_its_slowest_part_and_by_store_and_forward(size, chunk, source, target, path, engines):
    rates = [source, target] + ([] if path is None else [path])
    made = copy_time(
        memory(f"{source} GB/s"),
        memory(f"{target} GB/s"),
        size,
        chunk=chunk,
        engines=engines,
        path=None if path is None else path * 10**9,
    )
    share = -(-size // engines)
    rounded = -(-share // 64) * 64 + 64 * (share // chunk)
    assert made.seconds >= share / (min(rates) * 1e9) + 2e-7
    assert made.seconds <= sum(rounded / (rate * 1e9) for rate in rates) + 2e-7 + 1e-12
    longer = copy_time(
        memory(f"{source} GB/s"),
        memory(f"{target} GB/s"),
        size + chunk * engines,
        chunk=chunk,
        engines=engines,
        path=None if path is None else path * 10**9,
    )
    assert longer.seconds > made.seconds


def test_a_long_copy_runs_at_the_slower_ends_bandwidth():
    made = copy_time(memory("200 GB/s"), memory("1800 GB/s"), 64 * 2**30)
    assert made.bandwidth == pytest.approx(200e9, rel=1e-3)
    assert made.limit == "source"


@pytest.mark.parametrize(("name", "value"), [("size", 0), ("chunk", 0), ("engines", -1)])
def test_nothing_to_copy_is_refused(name, value):
    with pytest.raises(LoomError, match=f"needs a {name} of at least 1"):
        copy_time(memory(), memory(), **{"size": 1, name: value})
