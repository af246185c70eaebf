"""LibreLane's configuration, and memories of sky130's macros against the memories that they replace."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import load_chip
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.integration.sky130 import MACROS, tiling_of, wrapper
from siliconloom.rtl.library import Library
from siliconloom.sim.dram.memory import effective
from siliconloom.verification.emission import example_cycles
from tests.rtl.npu import small_chip
from tests.tools import need_yosys

MACRO = """
module {cell}(clk0, csb0, web0, wmask0, addr0, din0, dout0, clk1, csb1, addr1, dout1);
  input clk0, csb0, web0, clk1, csb1;
  input [{lanes}-1:0] wmask0;
  input [{address}-1:0] addr0, addr1;
  input [{width}-1:0] din0;
  output reg [{width}-1:0] dout0, dout1;
  reg [{width}-1:0] mem [0:{depth}-1];
  reg write, read;
  reg [{lanes}-1:0] mask;
  reg [{address}-1:0] to, from;
  reg [{width}-1:0] data;
  integer lane;
  // what is asked for is taken on the rising edge, after which no word is promised; work is done on the falling one
  always @(posedge clk0) begin
    write <= !csb0 && !web0; mask <= wmask0; to <= addr0; data <= din0;
  end
  always @(posedge clk1) begin
    read <= !csb1; from <= addr1; #1 dout1 = {{{width}{{1'bx}}}};
  end
  always @(negedge clk0)
    if (write)
      for (lane = 0; lane < {lanes}; lane = lane + 1)
        if (mask[lane]) mem[to][8 * lane +: 8] = data[8 * lane +: 8];
  always @(negedge clk1) if (read) #1 dout1 = mem[from];
endmodule
"""
BENCH = """
module bench;
  reg clk = 0, ren = 0;
  reg [{address}-1:0] raddr = 0, waddr = 0;
  reg [{granules}-1:0] wen = 0;
  reg [{width}-1:0] wdata = 0;
  wire [{width}-1:0] due, found;
  integer step, bits, reads = 0, wrong = 0, seed = {seed};
  {plain} plain(clk, ren, raddr, due, wen, waddr, wdata);
  tiled tiled(clk, ren, raddr, found, wen, waddr, wdata);
  always #5 clk = !clk;
  initial begin
    for (step = 0; step < {depth} + {steps}; step = step + 1) begin
      @(negedge clk);
      waddr = step < {depth} ? step : $unsigned($random(seed)) % {depth};
      wen = step < {depth} ? ~{granules}'d0 : {{{granules}{{1'b1}}}} & {{{words}{{$random(seed)}}}};
      raddr = $unsigned($random(seed)) % (step < {depth} ? step + 1 : {depth});
      ren = $random(seed) && !(|wen && raddr == waddr) && step > 0;
      for (bits = 0; bits < {width}; bits = bits + 1) wdata[bits] = $random(seed);
      @(posedge clk); // words of the cycle before are looked at where a register would take them
      if (reads > 0 && found !== due) wrong = wrong + 1;
      reads = reads + ren;
    end
    if (wrong == 0 && reads > {depth} / 8) $display("PASS"); else $display("FAIL: %0d of %0d", wrong, reads);
    $finish;
  end
endmodule
"""


def memory_of(width, depth, granularity):
    return {"module": "tiled", "width": width, "depth": depth, "write_granularity": granularity}


def simulate(folder, width, depth, granularity, seed=1, change=lambda text: text):
    if shutil.which("iverilog") is None:
        pytest.skip("iverilog is not installed")
    plain = SramWrapper(Library("x", "sync"), width, depth, granularity)
    macro = tiling_of(width, depth, granularity).macro
    sizes = {"width": macro.width, "depth": macro.depth, "lanes": macro.lanes, "address": macro.address_bits}
    values = {"width": width, "depth": depth, "granules": width // granularity, "address": plain.address_bits}
    values |= {"seed": seed, "steps": 400, "words": -(-(width // granularity) // 32), "plain": plain.module_name}
    texts = [plain.written(), change(wrapper(memory_of(width, depth, granularity)))]
    texts += [MACRO.format(cell=macro.cell, **sizes), BENCH.format(**values)]
    (folder / "all.v").write_text("\n".join(texts))
    built = subprocess.run(
        ["iverilog", "-g2012", "-s", "bench", "-o", "all.vvp", "all.v"], cwd=folder, capture_output=True, text=True
    )
    assert (built.returncode, built.stderr) == (0, "")
    return subprocess.run(["vvp", "-n", "all.vvp"], cwd=folder, capture_output=True, text=True).stdout


granules = st.sampled_from([1, 3, 4, 8, 9, 16, 20, 26, 32, 64])


@pytest.mark.slow(seconds=2)
@settings(max_examples=12, deadline=None)
@given(
    granules, st.integers(1, 5), st.sampled_from([2, 16, 64, 255, 256, 257, 512, 700, 1024, 1100]), st.integers(0, 99)
)
def test_tiles_of_macros_read_and_write_as_the_memory_that_they_replace(tmp_path_factory, granule, count, depth, seed):
    folder = tmp_path_factory.mktemp("tiles")
    assert simulate(folder, granule * count, depth, granule, seed) == "PASS\n"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from <= raddr", "from <= waddr"),
        ("if (fresh) kept", "if (ren) kept"),
        (".addr1(raddr[7:0])", ".addr1(waddr[7:0])"),
        ("{2{wen[granule]}}", "{2{wen[0]}}"),
        ("waddr[9:8] == bank", "waddr[9:8] != bank"),
        ("fresh ? read", "1'b1 ? read"),
    ],
)
def test_a_fault_in_a_wrapper_is_found(old, new, tmp_path):
    def plant(text):
        assert old in text
        return text.replace(old, new)

    assert simulate(tmp_path, 48, 700, 12).startswith("PASS")
    assert simulate(tmp_path, 48, 700, 12, change=plant).startswith("FAIL")


@given(granules, st.integers(1, 80), st.integers(1, 4000))
def test_a_tiling_has_room_for_every_bit_and_no_macro_too_many(granule, count, depth):
    tiling = tiling_of(granule * count, depth, granule)
    assert tiling.macro in MACROS
    lanes = count * tiling.granule_bytes
    assert (tiling.across - 1) * tiling.macro.lanes < lanes <= tiling.across * tiling.macro.lanes
    assert (tiling.banks - 1) * tiling.macro.depth < depth <= tiling.banks * tiling.macro.depth
    assert 0 <= 8 * tiling.granule_bytes - granule < 8


@cache
def emitted(name):
    chip = effective(small_chip()) if name == "small" else load_chip(name)
    return build_rtl(chip, flows=("librelane",), remembered=True)


@pytest.mark.parametrize("name", ["small", "systolic-ws-8"])
def test_the_configuration_names_files_that_are_there_and_each_module_once(name):
    made = emitted(name)
    config = json.loads(made.files["librelane/config.json"])
    assert config["DESIGN_NAME"] == made.top
    assert config["CLOCK_PERIOD"] == 1e9 / made.sidecar["clock_hz"]
    named = [*config["VERILOG_FILES"], config["PNR_SDC_FILE"], config["SIGNOFF_SDC_FILE"]]
    named += [file for macro in config.get("MACROS", {}).values() for file in macro["vh"]]
    paths = [os.path.normpath(f"librelane/{each.removeprefix('dir::')}") for each in named]
    assert set(paths) <= made.files.keys()
    sources = [os.path.basename(path) for path in paths if path.endswith(".v")]
    assert sorted(sources) == sorted(made.sidecar["verilog"])
    replaced = {path for path in paths if path.startswith("librelane/macros/") and path.endswith(".v")}
    assert {os.path.basename(path) for path in replaced} == {memory["file"] for memory in made.sidecar["memories"]}
    used = {macro.cell for macro in MACROS if any(macro.cell in made.files[path] for path in replaced)}
    assert config.get("MACROS", {}).keys() == used
    assert (name == "systolic-ws-8") == (not used)


def sources(made, *, tool):
    """The Verilog of the configuration as paths from the folder: with the macros' ports, or none of them."""
    config = json.loads(made.files["librelane/config.json"])
    files = [*config["VERILOG_FILES"]]
    if tool == "synthesis":
        files = [file for macro in config["MACROS"].values() for file in macro["vh"]] + files
    return [os.path.normpath(f"librelane/{each.removeprefix('dir::')}") for each in files]


@pytest.mark.slow(seconds=1.5)
def test_yosys_reads_the_design_with_its_macros_and_finds_no_latch(tmp_path):
    need_yosys()
    made = emitted("small")
    made.write(tmp_path / "rtl")
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    script = [f"read_verilog -DSYNTHESIS {' '.join(sources(made, tool='synthesis'))}"]
    script += [f"hierarchy -check -top {made.top}", "proc", "check -assert", "select -assert-none t:$dlatch t:$adlatch"]
    done = subprocess.run([sys.executable, "-c", code, *script], cwd=tmp_path / "rtl", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.slow
@pytest.mark.rtl
def test_the_example_runs_on_the_tile_with_its_memories_in_macros(tmp_path):
    """The whole tile with every memory replaced; with enables turned round the run fails."""
    if shutil.which("iverilog") is None:
        pytest.skip("iverilog is not installed")
    made = emitted("small")
    made.write(tmp_path / "rtl")
    models = [
        MACRO.format(cell=m.cell, width=m.width, depth=m.depth, lanes=m.lanes, address=m.address_bits) for m in MACROS
    ]
    (tmp_path / "rtl" / "macros.v").write_text("\n".join(models))

    def run():
        words = ["iverilog", "-g2012", "-s", "example_tb", "-o", "example.vvp", "macros.v", "example/example_tb.v"]
        built = subprocess.run(
            [*words, *sources(made, tool="simulation")], cwd=tmp_path / "rtl", capture_output=True, text=True
        )
        assert built.returncode == 0, built.stderr[-2000:]
        return subprocess.run(
            ["vvp", "-n", "example.vvp"], cwd=tmp_path / "rtl", capture_output=True, text=True, timeout=300
        )

    done = run()
    assert re.match(rf"PASS: .* after {example_cycles(small_chip())} cycles", done.stdout), done.stdout[-2000:]
    for memory in made.sidecar["memories"]:
        path = tmp_path / "rtl" / "librelane" / "macros" / memory["file"]
        path.write_text(path.read_text().replace("enabled[part", "~enabled[part"))
    assert not run().stdout.startswith("PASS")


CHECKED = """
import json, os, sys
from librelane.common import GenericDict
from librelane.config import universal_flow_config_variables
from librelane.config.preprocessor import preprocess_dict
from librelane.flows import Flow
flow, kit = Flow.factory.get("Classic"), os.path.abspath("kit")
config = json.load(open("rtl/librelane/config.json"))
for macro in config["MACROS"].values():
    for name in (*macro["gds"], *macro["lef"], *macro["lib"]["*"]):
        path = name.replace("pdk_dir::", f"{kit}/")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").close()
steps = [each for step in flow.Steps for each in step.config_vars]
declared = {each.name: each for each in (*universal_flow_config_variables, *flow.config_vars, *steps)}
read = preprocess_dict(
    config, os.path.abspath("rtl/librelane"), pdk=config["PDK"], pdkpath=kit, scl=config["STD_CELL_LIBRARY"]
)
told = []
for name in config.keys() - {"meta"}:
    declared[name].compile(GenericDict(read), told, permissive_typing=False)
print(json.dumps(told))
"""


def test_librelane_takes_every_key_and_value(tmp_path):
    """Its own preprocessor and its variables' types; of the process's kit only empty files are there."""
    python = os.environ.get("LIBRELANE_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import librelane"], capture_output=True).returncode:
        pytest.skip("LibreLane is not installed (LIBRELANE_PYTHON may name the Python that has it)")
    emitted("small").write(tmp_path / "rtl")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", CHECKED], cwd=tmp_path, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []
