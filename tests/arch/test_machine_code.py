"""Kernels as shared libraries: they compute what Python computes, whatever is passed, and need no Numba."""

import subprocess
import sys
from collections import namedtuple
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from siliconloom.arch import kernels
from siliconloom.arch.kernels import Kernel
from siliconloom.arch.machine_code import LINKERS, call_key, type_key


class Pair(NamedTuple):
    numbers: np.ndarray
    flags: np.ndarray


def weigh(pair, table, shift, scale, negate):
    total, seen = 0.0, 0
    for i in range(pair.numbers.shape[0]):
        if pair.flags[i]:
            pair.numbers[i] += shift
            seen += 1
            total += scale * pair.numbers[i]
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            total += table[i, j]
    if negate:
        total = -total
    return total, seen, seen > 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if not any(subprocess.run(["which", name], capture_output=True).returncode == 0 for name in LINKERS):
        pytest.skip("there is no linker")
    path = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NUMBA_CACHE_DIR", str(path))
        yield path


ARRAYS = st.tuples(
    hnp.arrays(np.int64, st.integers(0, 9), elements=st.integers(-(10**6), 10**6)),
    hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5), elements=st.floats(-9, 9)),
    st.integers(-(2**40), 2**40),
    st.floats(-9, 9),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.slow(seconds=1.5)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ARRAYS)
def test_a_library_computes_what_python_computes(folder, drawn):
    numbers, table, shift, scale, negate, turned, sliced = drawn
    table = table.T if turned else table
    flags = numbers % 2 == 0
    if sliced:
        numbers, flags = numbers[::2], flags[::2]
    python = Pair(numbers.copy()[:], flags)
    expected = weigh(python, table, shift, scale, negate)
    for attempt in range(2):  # through Numba, which keeps a library; then, as a process that begins, through that
        kernel = Kernel(weigh, {})
        mine = np.zeros(2 * len(numbers), np.int64)[::2] if sliced else np.zeros(len(numbers), np.int64)
        mine[:] = numbers
        found = kernel(Pair(mine, flags), table, shift, scale, negate)
        assert found == pytest.approx(expected, nan_ok=True)
        assert [type(each) for each in found] == [float, int, bool]
        assert np.array_equal(mine, python.numbers)
        if attempt:
            assert "dispatcher" not in kernel.__dict__, "the second time without Numba"


def double(values, narrow, places, doubled):
    for i in range(len(places)):
        doubled[i] = 2.0 * values[i] + narrow[places[i]]


@pytest.mark.parametrize("short", [np.int8, np.int16, np.uint16, np.int32, np.uint32])
def test_arrays_of_short_elements_are_passed(folder, short):
    values, narrow = np.array([0.5, -3.25, 1e20]), np.array([7, 2, -9], np.float32)
    places, doubled = np.array([2, 0, 1], short), np.empty(3)
    for attempt in range(2):
        kernel = Kernel(double, {})
        doubled[:] = np.nan
        kernel(values, narrow, places, doubled)
        assert doubled.tolist() == [-8.0, 0.5, 2e20]
        assert ("dispatcher" in kernel.__dict__) != bool(attempt), "the second time without Numba"


def grow(numbers):
    return np.concatenate((numbers, numbers))


def refuse(number):
    if number < 0:
        raise ValueError("negative")
    return number


@pytest.mark.parametrize(("function", "argument"), [(grow, np.arange(3)), (refuse, 3)])
def test_what_a_library_cannot_do_goes_through_numba(folder, function, argument):
    """Arrays that a kernel allocates and exceptions that it raises need Numba's own runtime."""
    for _ in range(2):
        assert np.array_equal(Kernel(function, {})(argument), function(argument))
    if function is refuse:
        with pytest.raises((ValueError, AssertionError)):
            Kernel(function, {})(-1)


def test_a_call_that_no_library_is_for_is_known_by_its_types():
    int64, float64 = np.zeros(3, np.int64), np.zeros((2, 3))
    assert call_key((int64, float64, 1, 2.0, True)) == "(A int64 1 C, A float64 2 C, int64, float64, bool)"
    assert type_key(float64.T) == "A float64 2 F"
    assert type_key(float64[:, ::2]) == "A float64 2 A"
    locked = np.zeros(2, np.int64)
    locked.setflags(write=False)
    assert type_key(locked) == "A const int64 1 C"
    assert type_key(Pair(int64, int64)) == "Pair[numbers flags](A int64 1 C, A int64 1 C)"
    for other in ("text", 2**63, np.zeros(2, np.complex128), np.zeros(2, ">i8"), (1, "text"), None):
        assert type_key(other) is None


def hundreds(pair):
    return 100 * pair.a + pair.b


def test_fields_that_change_their_order_are_not_taken_for_the_old_ones(folder, monkeypatch, tmp_path):
    """Machine code knows the fields of a named tuple by their places: from libraries, and from Numba's cache."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for linker in ("cc", None):
        if linker is None:
            monkeypatch.setattr("siliconloom.arch.machine_code.shutil.which", lambda name: None)
        for order in ("a b", "b a", "a b"):
            fields = namedtuple("Swapped", order)
            assert Kernel(hundreds, {})(fields(a=1, b=2)) == 102


@pytest.mark.slow(seconds=1)
def test_a_library_that_is_damaged_is_not_used(folder):
    numbers = np.arange(4)
    Kernel(weigh, {})(Pair(numbers, numbers > 0), np.ones((1, 1)), 1, 1.0, False)
    kept = [path for path in folder.rglob("*.loom.so") if "weigh" in path.name]
    assert kept
    for path in kept:
        changed = bytearray(path.read_bytes())
        changed[len(changed) // 2] ^= 255
        path.unlink()  # this process may have it mapped
        path.write_bytes(changed)
    kernel = Kernel(weigh, {})
    kernel(Pair(numbers, numbers > 0), np.ones((1, 1)), 1, 1.0, False)
    assert "dispatcher" in kernel.__dict__


def test_without_a_linker_numba_serves(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("siliconloom.arch.machine_code.shutil.which", lambda name: None)
    for _ in range(2):
        kernel = Kernel(refuse, {})
        assert kernel(4) == 4
        assert "dispatcher" in kernel.__dict__
    assert not list(tmp_path.rglob("*.loom.so"))


COMMANDS = """
import sys
from siliconloom.cli import main
for command in (
    "sim npu-edge-int8 gpt2-block-gemms",
    "sim npu-edge gpt2 --set workload.layers=1",
    "collective ring all_reduce 64MiB --chips 16",
    "serve h100 llama3-8b azure-conv --set serve.requests=5",
):
    assert main([*command.split(), "--json", sys.argv[1]]) == 0
    print(command, [name for name in ("numba", "networkx") if name in sys.modules])
"""


def test_warm_commands_load_neither_numba_nor_networkx(folder, tmp_path, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for _ in range(2):  # the first makes the libraries where the warm-up has not
        made = subprocess.run(
            [sys.executable, "-c", COMMANDS, str(tmp_path / "out.json")], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stderr
    lines = [line for line in made.stdout.splitlines() if line.endswith("]") and "[" in line]
    assert len(lines) == 4
    assert [line for line in lines if not line.endswith(" []")] == []


WARM = """
import sys
from siliconloom.arch.kernels import KERNELS
from siliconloom.commands.warming import warm_up
warm_up()
print([name for name, kernel in KERNELS.items() if "dispatcher" in kernel.__dict__], "numba" in sys.modules)
"""


def test_every_kernel_that_the_warm_up_calls_runs_without_numba(folder, monkeypatch):
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    for _ in range(2):
        made = subprocess.run([sys.executable, "-c", WARM], capture_output=True, text=True, check=True)
    assert made.stdout.strip().splitlines()[-1] == "[] False"


def test_a_kernel_that_is_called_often_goes_through_numba(folder, monkeypatch):
    monkeypatch.setattr(kernels, "OFTEN", 3)
    kernel = Kernel(refuse, {})
    assert [kernel(n) for n in range(6)] == list(range(6))
    assert "dispatcher" in kernel.__dict__


def smooth(values, width):
    """Moving sums by way of two arrays of its own, one of which is larger than the other."""
    held, padded = np.zeros(width, np.int64), np.zeros(len(values) + width, np.int64)
    total = 0
    for i in range(len(values)):
        padded[i + width] = values[i]
    for i in range(len(values)):
        for j in range(width):
            held[j] = padded[i + j + 1]
        values[i] = 0
        for j in range(width):
            values[i] += held[j]
        total += values[i]
    return total


@pytest.mark.slow(seconds=1)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hnp.arrays(np.int64, st.integers(0, 40), elements=st.integers(-(10**6), 10**6)), st.integers(0, 9))
def test_a_kernel_has_arrays_of_its_own_without_numba(folder, numbers, width):
    python = numbers.copy()
    expected = smooth(python, width)
    for attempt in range(2):
        kernel, mine = Kernel(smooth, {}), numbers.copy()
        assert kernel(mine, width) == expected
        assert np.array_equal(mine, python)
        if attempt:
            assert "dispatcher" not in kernel.__dict__, "the second time without Numba"


@pytest.mark.slow(seconds=1)
def test_a_kernels_own_arrays_are_given_back(folder):
    import resource

    kernel = Kernel(smooth, {})
    kernel(np.zeros(1, np.int64), 1)
    kernel = Kernel(smooth, {})
    kernel(np.zeros(1, np.int64), 100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(500):  # of 1.6 MB each
        kernel(np.zeros(1, np.int64), 100_000)
    assert "dispatcher" not in kernel.__dict__
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB
