"""What a bench's build finds on its path."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.rtl.bench import runner
from siliconloom.verification.npu import bundle_of
from tests.rtl.npu import quick_chip
from tests.rtl.test_float_tiles import needs


@pytest.mark.parametrize("ours", [False, True])
def test_a_build_runs_scripts_by_this_python_whichever_is_first_on_the_path(ours, tmp_path, monkeypatch):
    if not (Path(sys.executable).parent / "python3").exists():
        pytest.skip("this Python is not called python3")
    other = tmp_path / "python3"
    if ours:
        other.symlink_to(sys.executable)
    else:
        other.write_text("#!/bin/sh\nexit 1\n")
        other.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setattr(runner, "simulator_path", lambda simulator: "/nowhere")
    with runner._environment("verilator"):
        found = shutil.which("python3")
        assert os.path.realpath(found) == os.path.realpath(sys.executable)
        assert (Path(found).parent == tmp_path) is ours
        assert os.environ["PATH"].startswith("/nowhere" + os.pathsep)
    assert os.environ["PATH"] == path


@given(a=st.integers(1, 2**22), b=st.integers(1, 2**22))
def test_a_longer_bench_is_compiled_with_no_less_care(a, b):
    assert runner.care(min(a, b)) <= runner.care(max(a, b))
    assert {runner.care(cycles) for cycles in (1, runner.SHORT, runner.LONG)} == {0, 1, 2}
    assert runner.care(0) == 1  # how long it runs is not known


@given(sizes=st.lists(st.integers(0, 60), max_size=4), headers=st.integers(0, 200))
def test_little_code_is_compiled_at_once(sizes, headers, tmp_path_factory):
    """Sources count, not what they include or become; 100 bytes stand for `runner.FEW_BYTES`."""
    folder = tmp_path_factory.mktemp("build")
    for number, size in enumerate(sizes):
        (folder / f"Vtop_{number}.cpp").write_bytes(b" " * size)
    (folder / "Vtop.h").write_bytes(b" " * headers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "FEW_BYTES", 100)
        assert runner.by_one_compiler(folder) == (sum(sizes) <= 100)


@pytest.mark.slow(seconds=8)
def test_equal_circuits_share_the_code_that_simulates_them(tmp_path):
    """Lanes with their tables: what names one of them is written for each. Verilator may order a few otherwise."""
    needs("verilator")
    chip = quick_chip()
    bundle = bundle_of(chip)
    sources = bundle.write(tmp_path / "rtl")
    verilator = Path(runner.simulator_path("verilator")) / "verilator"
    words = [*runner.SHARED, "-Wno-fatal", "-Wno-lint", "--prefix", "Vtop", "--top-module", bundle.top]
    subprocess.run([verilator, "--cc", "-Mdir", tmp_path / "cpp", *words, *sources], check=True, capture_output=True)
    text = "".join(path.read_text() for path in (tmp_path / "cpp").glob("*_lane__*.cpp"))
    written = set(re.findall(r"^void \w+?_lane___nba_sequent__\w*?DOT__(lane_\d+)\w*\(", text, re.M))
    assert 1 <= len(written) < chip.tile.vector.lanes, written
