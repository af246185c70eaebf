import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache

import pytest

from siliconloom.arch import LoomError, NotSupported, load_chip
from siliconloom.cli import main
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import SIDECAR, build_rtl
from siliconloom.rtl.npu.scratchpad import GROUP, group_size
from siliconloom.verification.emission import complete_rtl
from tests.in_turn import in_turn
from tests.rtl import npu
from tests.tools import need_yosys

PIM_SMALL = (
    ("tile.dram.organization.ranks", "2"),
    ("tile.dram.organization.bank_groups", "2"),
    ("tile.lanes", "4"),
    ("tile.dram.organization.banks", "2"),
    ("tile.commands", "per_bank"),
    ("tile.dual_row_buffer", "false"),
    ("tile.bank_machines", "1"),
    ("tile.operands", "[int8]"),
)
SMALL = [
    ("systolic-ws-8", ()),
    ("systolic-is-8", (("tile.array.load_rows", "8"), ("tile.array.operands", "int4"))),
    ("systolic-ws-8", (("tile.array.rows", "1"), ("tile.array.cols", "1"))),
    (
        "systolic-ws-8",
        (
            ("tile.array.rows", "6"),
            ("tile.array.cols", "3"),
            ("tile.array.load_rows", "2"),
            ("tile.array.multiply_stages", "3"),
        ),
    ),
    ("systolic-os-8", ()),
    (
        "systolic-is-8",
        (("tile.array.operands", "fp16"), ("tile.array.add_stages", "3"), ("tile.array.multiply_stages", "3")),
    ),
    ("systolic-os-8", (("tile.array.operands", "fp8_e4m3"),)),
    ("systolic-os-8", (("tile.array.rows", "1"), ("tile.array.cols", "5"), ("tile.array.multiply_stages", "2"))),
    ("systolic-os-8", (("tile.array.rows", "3"), ("tile.array.cols", "1"))),
    ("systolic-os-8", (("tile.array.rows", "2"), ("tile.array.cols", "2"), ("tile.array.element", "digit_serial"))),
    ("systolic-os-8", (("tile.array.rows", "1"), ("tile.array.cols", "1"))),
    ("systolic-os-8", (("tile.array.rows", "2"), ("tile.array.cols", "3"), ("tile.array.depth", "7"))),
    (
        "systolic-os-8",
        (
            ("tile.array.rows", "1"),
            ("tile.array.cols", "2"),
            ("tile.array.depth", "12"),
            ("tile.array.operands", "int16"),
        ),
    ),
    ("npu-edge-int8", tuple(npu.SMALL.items())),
    ("npu-edge-int8", (*npu.SMALL.items(), ("tile.array.operands", "int16"), ("tile.vector.format", "fp32"))),
    ("npu-edge-int8", (*npu.SMALL.items(), ("tile.array.operands", "fp16"))),
    ("pim-hbm", ()),
    ("pim-hbm", PIM_SMALL),
]


@cache
def bundle(name, overrides=()):
    return build_rtl(load_chip(name, list(overrides)), remembered=True)


def tool(name):
    if name == "verilator":
        folder = simulator_path("verilator")
        path = None if folder is None else os.path.join(folder, "verilator")
    else:
        path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides"), SMALL)
def test_verilator_has_nothing_to_complain_about(name, overrides, tmp_path):
    made = bundle(name, overrides)
    made.write(tmp_path / "rtl")
    waivers = [name for name in made.files if name.endswith(".vlt")]
    floats = "fp" in dict(overrides).get("tile.array.operands", "")
    without_adder = "tile.array.element" in dict(overrides)
    assert bool(waivers) == (name in ("npu-edge-int8", "pim-hbm") or floats or without_adder)
    done = subprocess.run(
        [tool("verilator"), "--lint-only", "-Wall", "--top-module", made.top, *waivers, "-f", f"{made.top}.f"],
        cwd=tmp_path / "rtl",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "%Warning" not in done.stderr


@pytest.mark.slow(seconds=0.8)
@pytest.mark.parametrize(("name", "overrides"), SMALL)
def test_icarus_accepts_it(name, overrides, tmp_path):
    made = bundle(name, overrides)
    made.write(tmp_path / "rtl")
    done = subprocess.run(
        [tool("iverilog"), "-g2012", "-s", made.top, "-o", os.devnull, "-f", f"{made.top}.f"],
        cwd=tmp_path / "rtl",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("name", "overrides"), in_turn([*SMALL[:7], SMALL[-3], SMALL[-1]], 0, seconds=2.5))
def test_yosys_accepts_it_and_finds_no_latch(name, overrides, tmp_path):
    need_yosys()
    made = bundle(name, overrides)
    made.write(tmp_path / "rtl")
    script = [
        f"read_verilog {tmp_path / 'rtl'}/*.v",
        f"hierarchy -check -top {made.top}",
        "proc",
        "check -assert",
        "select -assert-none t:$dlatch t:$adlatch",
        "flatten",
        "check -assert",
    ]
    code = "import sys; from pyosys import libyosys as y; d = y.Design(); [y.run_pass(c, d) for c in sys.argv[1:]]"
    done = subprocess.run([sys.executable, "-c", code, *script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["systolic-ws-128", "systolic-os-128"])
def test_a_large_array_stays_small(name):
    made = build_rtl(load_chip(name))
    lines = sum(made.files[f].count("\n") for f in made.sidecar["verilog"])
    assert lines < 5000
    assert made.sidecar["parameters"]["rows"] == 128


@pytest.mark.slow
def test_the_datacentre_npu_is_emitted_whole():
    made = build_rtl(load_chip("npu-datacenter"))
    assert made.sidecar["contains"] == "the whole tile"
    assert (made.sidecar["parameters"]["rows"], made.sidecar["parameters"]["data_ports"]) == (128, 16)
    assert sum(made.files[f].count("\n") for f in made.sidecar["verilog"]) < 100_000


@pytest.mark.parametrize("number", in_turn([-5, -3], 0, seconds=15))
def test_lines_are_shifted_by_modules_written_in_verilog(number):
    made = bundle(*SMALL[number])
    found = set()
    for file in made.sidecar["verilog"]:
        text = made.files[file]
        widths = {each[2]: int(each[1]) + 1 for each in re.finditer(r"(?:wire|reg) \[(\d+):0\] (\w+) ?;", text)}
        for target, word in re.findall(r"^  assign (\w+) = (\w+) >> \{", text, re.M):
            if widths.get(word, 1) == widths.get(target, 1):  # a whole line, and not a part of one
                found.add(file)
    assert not found, "a shift of a whole line by any number is synthesised for every one"
    assert any("_shift_" in file for file in made.sidecar["verilog"])


@pytest.mark.parametrize("banks", [1, 2, 3, 4, 6, 8, 16, 24, 32, 64, 96, 128, 256])
def test_groups_of_banks_have_none_too_many(banks):
    size = group_size(banks)
    assert size < banks or banks <= GROUP
    assert banks % size == 0 or size == GROUP  # of the smallest groups the last one may have room


@pytest.mark.parametrize("number", in_turn([-2, -3], 0))
def test_every_module_stands_in_a_file_of_its_name_exactly_once(number):
    made = bundle(*SMALL[number])
    defined = [re.findall(r"^module (\S+?)\(", made.files[f], re.M) for f in made.sidecar["verilog"]]
    assert defined == [[f.removesuffix(".v")] for f in made.sidecar["verilog"]]
    used = set(
        re.findall(rf"^  ({made.top}\w*) \S+ +\(", "\n".join(made.files[f] for f in made.sidecar["verilog"]), re.M)
    )
    assert used | {made.top} == {name for names in defined for name in names}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sets"), [("systolic-os-8", ()), ("pim-hbm", ()), ("npu-edge-int8", tuple(npu.SMALL.items()))]
)
def test_output_is_the_same_bytes_whatever_the_hash_seed(name, sets, tmp_path):
    """In two processes with hash seeds that differ, one of them this one, which has made the tile of many tests."""
    code = (
        "import json, sys; from siliconloom.arch import load_chip; "
        "from siliconloom.verification.emission import complete_rtl; "
        "made = complete_rtl(load_chip(sys.argv[1], json.loads(sys.argv[2]))); "
        "sys.stdout.write(''.join(k + v for k, v in made.files.items()))"
    )
    text = subprocess.run(
        [sys.executable, "-c", code, name, json.dumps(sets)],
        capture_output=True,
        text=True,
        check=True,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(tmp_path),
            "PYTHONHASHSEED": "77" if os.environ.get("PYTHONHASHSEED") == "1" else "1",
        },
    ).stdout
    made = npu.npu() if sets else complete_rtl(load_chip(name))
    assert text == "".join(name + content for name, content in made.files.items())
    assert os.getcwd() not in text
    assert os.path.expanduser("~") not in text or os.path.expanduser("~") == "/"
    assert not re.search(r"20\d\d-\d\d-\d\d", text), "no dates"


@pytest.mark.slow(seconds=1)
def test_the_sidecar_says_what_was_generated(tmp_path):
    chip = load_chip("systolic-ws-8", [("tile.array.rows", "4")])
    made = build_rtl(chip)
    made.write(tmp_path / "rtl")
    sidecar = json.loads((tmp_path / "rtl" / SIDECAR).read_text())
    assert sidecar["description_digest"] == chip.digest
    assert all(chip.digest in (tmp_path / "rtl" / f).read_text() for f in sidecar["verilog"])
    ports = {p["name"]: p for p in sidecar["ports"]}
    assert ports["moving_data"]["width"] == 4 * 8
    assert ports["output_data"]["width"] == 8 * 32
    assert all(p["meaning"] for p in sidecar["ports"])
    declared = re.findall(
        r"^  (input|output) (?:\[(\d+):0\] )?(\w+);", (tmp_path / "rtl" / f"{made.top}.v").read_text(), re.M
    )
    assert {name: int(high or 0) + 1 for _, high, name in declared} == {n: p["width"] for n, p in ports.items()}


def test_only_a_folder_of_ours_is_replaced(tmp_path):
    made = bundle("systolic-ws-8")
    made.write(tmp_path / "rtl")
    made.write(tmp_path / "rtl")
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("ten years of work")
    with pytest.raises(LoomError, match="did not write"):
        made.write(foreign)
    assert (foreign / "thesis.tex").exists()
    with pytest.raises(LoomError, match="is a file"):
        made.write(foreign / "thesis.tex")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "rtl"]


@pytest.mark.parametrize(
    ("chip", "overrides", "rule"),
    [
        ("npu-datacenter", [("tile.array.operands", "[fp32, bf16]")], "not supported: RTL for fp32, bf16 operands"),
        ("systolic-ws-8", [("tile.array.operands", "fp32")], "not supported: RTL for fp32 operands"),
    ],
)
def test_operands_without_rtl_are_not_supported(chip, overrides, rule):
    with pytest.raises(NotSupported, match=rule):
        build_rtl(load_chip(chip, overrides))


def test_the_command_writes_files_or_nothing(tmp_path, capsys):
    assert main(["rtl", "systolic-ws-8", "-o", str(tmp_path / "out")]) == 0
    verilog = json.loads((tmp_path / "out" / SIDECAR).read_text())["verilog"]
    assert f"{len(verilog)} modules" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").glob("*.v")} == set(verilog)
    assert main(["rtl", "systolic-ws-8", "-o", str(tmp_path / "two"), "--set", "tile.array.operands=fp32"]) == 2
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    ("sets", "reason"),
    in_turn(
        [((("tile.vector.lanes", "3"),), "tile.vector.lanes is not a power of two (got 3)"), ((), None)], 2, seconds=10
    ),
)
def test_a_fallback_to_the_array_is_told_on_standard_error_and_in_the_sidecar(sets, reason, tmp_path, capsys):
    words = [word for key, value in (*npu.SMALL.items(), *sets) for word in ("--set", f"{key}={value}")]
    assert main(["rtl", "npu-edge-int8", "-o", str(tmp_path / "out"), *words]) == 0
    sidecar = json.loads((tmp_path / "out" / SIDECAR).read_text())
    told = capsys.readouterr().err
    assert sidecar["array_only"] is (reason is not None)
    if reason is None:
        assert (sidecar["not_emitted"], told) == (None, "")
    else:
        assert reason in sidecar["not_emitted"]
        begins = "loom: warning: npu-edge-int8: only the systolic array of the tile was written: not supported: "
        assert told.startswith(begins)
        assert reason in told


@pytest.mark.slow(seconds=8)
def test_a_tile_of_few_banks_is_written_without_a_bench(tmp_path, capsys):
    sets = {**npu.SMALL, "tile.scratchpad.banks": "4"}
    few = ["npu-edge-int8", *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]
    assert main(["rtl", *few, "-o", str(tmp_path / "rtl"), "--json", "-"]) == 0
    told = capsys.readouterr()
    assert "written without a bench: tile.scratchpad.banks is 4, and programs of benches use 8" in told.err
    assert json.loads(told.out)["bench"] == []
    assert main(["verify", *few]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("tile.scratchpad.banks is 4, and programs of benches use 8; --set tile.scratchpad.banks=8")


@pytest.mark.slow(seconds=8)
def test_several_tiles_are_refused_with_what_would_be_written(tmp_path, capsys):
    assert main(["rtl", "npu-edge-int8", "-o", str(tmp_path / "out"), "--set", "tile_count=4"]) == 2
    told = capsys.readouterr().err
    assert (
        "not supported: RTL of a chip of several tiles (tile_count of npu-edge-int8: 4), so nothing is written" in told
    )
    assert "tile_count=1 writes one of them" in told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("name", "top"), [("module", "chip_module"), ("wire", "chip_wire"), ("always_ff", "chip_always_ff")]
)
def test_a_chip_called_like_a_word_of_verilog_is_accepted_by_simulators(name, top, tmp_path):
    made = build_rtl(load_chip("systolic-ws-8", [("name", name), ("tile.array.rows", "2")]))
    assert made.top == top
    made.write(tmp_path / "rtl")
    command = [tool("iverilog"), "-g2012", "-s", top, "-o", os.devnull, "-f", f"{top}.f"]
    done = subprocess.run(command, cwd=tmp_path / "rtl", capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
