"""The simulator's library is compiled once for all benches: not twice, and not once for texts or flags that differ."""

import os
import subprocess
from pathlib import Path

import pytest

from siliconloom.arch import memo
from siliconloom.rtl.bench import compiled
from siliconloom.rtl.bench.runner import simulator_path

pytestmark = pytest.mark.rtl


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """A memo of its own."""
    monkeypatch.setattr(memo.Shared, "compiled", memo.Memo(tmp_path / "kept"))
    return memo.Shared.compiled.answers


def bench(folder, text="int one;", flags="-O1"):
    """A folder such as Verilator writes, and its library, in short: what ``make`` makes of it."""
    include = folder.parent / "include"
    for each in (folder, include):
        each.mkdir(exist_ok=True)
    (include / "verilated.cpp").write_text(text)
    rule = f"verilated.o: {include}/verilated.cpp Vtop.mk\n\tc++ {flags} -c -o verilated.o {include}/verilated.cpp\n"
    (folder / "Vtop.mk").write_text(rule + "\techo compiled >> log\n")
    compiled.lay_library(folder, os.environ)
    done = subprocess.run(["make", "-C", str(folder), "-f", "Vtop.mk"], capture_output=True, check=False)
    return done.returncode, (folder / "log").exists()


def test_another_bench_gets_what_the_first_one_compiled(tmp_path, kept):
    assert bench(tmp_path / "a") == (0, True)
    assert bench(tmp_path / "b") == (0, False)
    assert (tmp_path / "a" / "verilated.o").read_bytes() == (tmp_path / "b" / "verilated.o").read_bytes()
    assert (kept.found, kept.read) == (1, 1)


@pytest.mark.parametrize("change", [{"text": "int two;"}, {"flags": "-O2"}], ids=["text", "flags"])
def test_other_texts_and_other_flags_are_compiled(tmp_path, change):
    assert bench(tmp_path / "a") == (0, True)
    assert bench(tmp_path / "b", **change) == (0, True)


def test_what_does_not_compile_is_left_to_make(tmp_path, kept):
    code, _ = bench(tmp_path / "a", text="int one")
    assert code != 0
    assert bench(tmp_path / "b") == (0, True)
    assert kept.found == 1


def test_every_file_of_the_library_is_known(tmp_path):
    """Verilator's own makefile names the commands as `lay_library` reads them."""
    path = simulator_path("verilator")
    if path is None:
        pytest.skip("verilator is not installed")
    (tmp_path / "top.v").write_text("module top(input clk, output reg q);\nalways @(posedge clk) q <= !q;\nendmodule\n")
    command = ["perl", str(Path(path) / "verilator"), "-cc", "--exe", "--vpi", "-Mdir", ".", "--prefix", "Vtop"]
    subprocess.run([*command, "--top-module", "top", "top.v", "main.cpp"], cwd=tmp_path, check=True)
    told = subprocess.run(
        ["make", "-n", "-f", "Vtop.mk", "verilated_vpi.o", "verilated.o", "verilated_threads.o"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {each[2] for each in compiled._COMPILES.finditer(told.stdout)}
    assert found == {"verilated", "verilated_vpi", "verilated_threads"}
