from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from siliconloom.arch.quantity import (
    BANDWIDTH,
    BYTES,
    DURATION,
    FREQUENCY,
    Bandwidth,
    Bytes,
    Duration,
    Energy,
    Frequency,
    format_bytes,
    format_si,
)


class Sizes(BaseModel):
    b: Bytes = 1
    r: Bandwidth = 1
    f: Frequency = 1
    d: Duration = 1
    e: Energy = 0.0


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("b", "256 KiB", 262144),
        ("b", "1.5 MiB", 3 * 2**19),
        ("b", "2 kB", 2000),
        ("b", "7B", 7),
        ("r", "900 GB/s", 900 * 10**9),
        ("r", "1 GiB/s", 2**30),
        ("r", "819.2 GB/s", 819_200_000_000),
        ("f", "1.2 GHz", 1_200_000_000),
        ("f", "940 MHz", 940_000_000),
        ("d", "500 ns", 500_000),
        ("d", "1.5 us", 1_500_000),
    ],
)
def test_units_have_their_exact_value(key, text, value):
    assert getattr(Sizes(**{key: text}), key) == value


def test_energy_is_in_joules():
    assert Sizes(e="0.8 pJ").e == pytest.approx(0.8e-12)


@pytest.mark.parametrize(
    ("key", "text", "rule"),
    [
        ("b", "256", "has no unit"),
        ("b", 256, "has no unit"),
        ("b", "256 kb", "unknown unit 'kb'"),
        ("b", "-1 KiB", "greater than zero"),
        ("b", "0 B", "greater than zero"),
        ("b", "1e30 B", "larger than any machine"),
        ("r", "900 GB", "unknown unit 'GB'"),
        ("f", "fast", "must be a number"),
        ("d", "5 Hz", "unknown unit 'Hz'"),
        ("b", True, "must be a quantity"),
        ("b", None, "must be a quantity"),
        ("e", "-1 pJ", "must not be negative"),
        ("b", "1 2 B", "must be a number"),
        ("b", "", "must be a number"),
        ("b", "nan B", "must be a number"),
    ],
)
def test_a_bad_quantity_says_what_is_wrong(key, text, rule):
    with pytest.raises(ValidationError, match=rule):
        Sizes(**{key: text})


@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTES)))
def test_every_byte_unit_scales(number, unit):
    if number * BYTES[unit] <= 2**60:
        assert Sizes(b=f"{number} {unit}").b == number * BYTES[unit]


def test_decimal_and_binary_prefixes_differ():
    assert BANDWIDTH["GB/s"] == Decimal(10**9)
    assert BANDWIDTH["GiB/s"] == Decimal(2**30)
    assert FREQUENCY["MHz"] == 10**6
    assert DURATION["us"] == 10**6


@pytest.mark.parametrize(("value", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (2**40, "1 TiB")])
def test_bytes_are_shown_with_binary_prefixes(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(("value", "text"), [(0.0, "0 s"), (1.5e-6, "1.5 us"), (2.0, "2 s"), (1.2e9, "1.2 Gs")])
def test_seconds_are_shown_with_decimal_prefixes(value, text):
    assert format_si(value, "s") == text
