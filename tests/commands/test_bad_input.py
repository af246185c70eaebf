"""Every kind of bad input: one clear line on standard error, exit status 2, nothing written."""

import stat
import subprocess
import sys

import pytest

from siliconloom.cli import main

CHIP = """\
kind: chip
name: mine
clock: 1 GHz
tile:
  kind: npu
  array: {rows: 8, cols: 8, dataflow: weight_stationary}
  scratchpad: {capacity: 64 KiB}
  accumulator: {capacity: 16 KiB}
  vector: {lanes: 8}
memory:
  dram: {kind: ddr4, capacity: 1 GiB, bandwidth: 10 GB/s, latency: 50 ns}
"""
GEMMS = "kind: gemms\nprecision: int8\ngemms: [{name: a, m: 8, n: 8, k: 8}]\n"


def bomb():
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for this, last in zip("bcdefghij", "abcdefghi", strict=True):
        text += f"{this}: &{this} [{', '.join(['*' + last] * 9)}]\n"
    return text


@pytest.fixture
def files(tmp_path):
    made = {
        "chip": CHIP,
        "gemms": GEMMS,
        "bomb": bomb(),
        "nothing": "",
        "list": "- 1\n",
        "broken": "kind: [chip\n",
        "empty": "kind: gemms\ngemms: []\n",
        "typo": GEMMS.replace("m: 8", "mm: 8"),
        "negative": GEMMS.replace("m: 8", "m: -8"),
        "huge": GEMMS.replace("m: 8", f"m: {10**30}"),
        "zero": GEMMS.replace("m: 8", "m: 0"),
        "other": "kind: recipe\nflour: 500 g\n",
        "long": GEMMS.replace("m: 8", "m: 100000000"),
    }
    for name, text in made.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    (tmp_path / "locked").mkdir()
    return tmp_path


TRACED = ["sim", "npu-edge-int8", "{}/gemms.yaml", "--trace", "{}/t.json", "--window"]
MEMORY = ["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set"]
CASES = [
    # windows of a trace
    (["sim", "npu-edge-int8", "{}/gemms.yaml", "--window", "1:2"], "add --trace FILE"),
    ([*TRACED, "1000"], "expected FROM:TO"),
    ([*TRACED, "2000:1000"], "it ends before it begins"),
    ([*TRACED, "5:5"], "it ends before it begins"),
    ([*TRACED, "0:1 parsec"], "unknown unit 'parsec'"),
    ([*TRACED, "-5:9"], "has no unit"),
    ([*TRACED, "0:99999999999999999999"], "62 bits"),
    # chip descriptions
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.array.rwos=4"], "did you mean 'rows'?"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "clock=1 GB"], "unknown unit 'GB'"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "clock=-1 GHz"], "greater than zero"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.array.rows=0"], "tile.array.rows"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.array.rows=1e99"], "tile.array.rows"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.array.rows=true"], "must be a number (got true)"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "workload.precision=true"], "--set workload.precision=true: "),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.scratchpad.capacity=64 B"], "tile.scratchpad.capacity"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "tile.accumulator.capacity=10 B"], "tile.accumulator.capacity"),
    (
        [
            "sim",
            "{}/chip.yaml",
            "{}/gemms.yaml",
            "--set",
            "memory.dram.capacity=100 B",
            "--set",
            "workload.precision=int8",
        ],
        "256 B of mine's memory.dram, which has 100 B",
    ),
    # memory levels
    ([*MEMORY, "memory.dram.ports=0"], "memory.dram.ports: must be greater than or equal to 1 (got 0)"),
    ([*MEMORY, "memory.dram.devices=0"], "memory.dram.devices"),
    ([*MEMORY, "memory.dram.port=2"], "did you mean 'ports'?"),
    ([*MEMORY, "memory.dram.interleave=4 KiB"], "interleave is for a level with several ports or devices"),
    ([*MEMORY, "memory.dram.ports=2", "--set", "memory.dram.interleave=100 B"], "a multiple of access_bytes, 64 B"),
    (
        [*MEMORY, "memory.dram.holds=[parameters, cash]"],
        "memory.dram.holds.1: must be one of parameters, cache, activations",
    ),
    ([*MEMORY, "memory.dram.holds=[parameters, activations]"], "some memory level must hold cache (memory.NAME.holds)"),
    (["sim", "npu-cxl", "gpt2", "--set", "memory.cxl.devices=5"], "1, 2, 3, 4, 6, 8, 12, 16 devices, not over 5"),
    (["sim", "npu-cxl", "gpt2", "--set", "memory.cxl.interleave=64 KiB"], "by 256 B to 16 KiB, a power of two"),
    (["sim", "npu-cxl", "gpt2", "--set", "memory.far.kind=ddr5"], "memory.far"),
    (["sim", "sn40l", "gpt3-175b", "--set", "memory.ddr.capacity=64 GiB"], "memory.ddr, which has 64 GiB (memory.ddr."),
    (["map", "sn40l", "gpt3-175b", "--set", "memory.ddr.capacity=64 GiB"], "memory.hbm, which has 64 GiB (memory.hbm."),
    (["sim", "sn40l", "gpt2", "--set", "memory.hbm.capacity=1 PiB"], "before the last are more than 48 bits"),
    # published results
    (["sim", "dgx-h100", "gpt2", "--set", "plan.tensor=" + 5000 * "9"], "must be a whole number from 1"),
    (
        [
            *("plan", "neupims", "gpt2", "--set", "workload.phase=decode", "--set", "workload.batch=64"),
            *("--set", "plan.tensor=1", "--set", "plan.data=1"),
        ],
        "data x tensor x context x pipeline must be 32",
    ),
    (["sim", "dgx-h100", "gpt2", "--set", "plan.tensor=\u00b2"], "must be a whole number from 1"),
    (["sim", "dgx-h100", "gpt2", "--set", "chips.\u00b2=1"], "write an index below that"),
    (["sim", "dgx-h100", "gpt2", "--memory", "\u00b2"], "must be a number with a unit"),
    (["reproduce", "fusemx"], "did you mean 'fusemax'?"),
    (["reproduce", "nothing-like-it"], "known: "),
    (["reproduce", "flat", "--json", "{}/no/such/folder/x.json"], "does not exist"),
    (["sim", "{}/chip.yaml", "{}/gemms.yaml", "--set", "nonsense"], "must look like path.to.key=value"),
    (["sim", "{}/gemms.yaml", "{}/chip.yaml"], "kind"),
    (["sim", "npu-edgy", "gpt2"], "did you mean 'npu-edge'?"),
    (["sim", "{}/nowhere.yaml", "gpt2"], "no such file"),
    (["sim", "{}/bomb.yaml", "gpt2"], "expands to more than"),
    (["sim", "{}/nothing.yaml", "gpt2"], "empty"),
    (["sim", "{}/list.yaml", "gpt2"], "must be a mapping"),
    (["sim", "{}/broken.yaml", "gpt2"], "not valid YAML"),
    (["sim", "{}", "gpt2"], "is a folder"),
    # workloads
    (["sim", "npu-edge-int8", "{}/empty.yaml"], "gemms: must have at least 1 entry"),
    (["sim", "npu-edge-int8", "{}/typo.yaml"], "did you mean 'm'?"),
    (["sim", "npu-edge-int8", "{}/negative.yaml"], "gemms.0.m"),
    (["sim", "npu-edge-int8", "{}/zero.yaml"], "gemms.0.m"),
    (["sim", "npu-edge-int8", "{}/huge.yaml"], "gemms.0.m"),
    (["sim", "npu-edge-int8", "{}/other.yaml"], "kind"),
    (["sim", "npu-edge-int8", "{}/bomb.yaml"], "expands to more than"),
    (["sim", "npu-edge-int8", "gtp2"], "did you mean 'gpt2'?"),
    (["sim", "npu-edge-int8", "gpt2", "--set", "workload.phase=decoding"], "did you mean 'decode'?"),
    (["sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=100"], "12 layers"),
    (["sim", "npu-edge-int8", "gpt2", "--set", "workload.sequence=5000"], "1024"),
    (
        ["sim", "npu-edge-int8", "gpt2", "--set", "workload.precision=bf16"],
        "bf16 operands are not among those of npu-edge-int8",
    ),
    (["sim", "npu-edge-int8", "bert-base", "--set", "workload.phase=decode"], "encoder"),
    (["sim", "npu-edge-int8", "llama3-70b"], "GiB of npu-edge-int8's memory.dram"),
    (["sim", "systolic-ws-8", "gpt2"], "not supported"),
    (["workload", "{}/chip.yaml"], "kind"),
    (["workload", "gpt2", "--set", "tile.array.rows=3"], "tile"),
    (["schema", "chips"], "did you mean 'chip'?"),
    # outputs
    (["sim", "npu-edge-int8", "{}/gemms.yaml", "--json", "{}/no/such/folder/x.json"], "does not exist"),
    (["sim", "npu-edge-int8", "{}/gemms.yaml", "--trace", "{}/locked"], "is a folder"),
    (["sim", "npu-edge-int8", "{}/gemms.yaml", "--json", "/proc/x.json"], "cannot be written"),
    (["rtl", "npu-edgee", "-o", "{}/out"], "did you mean 'npu-edge'?"),
    (["verify", "systolic-ws-8", "--simulator", "ikarus"], "did you mean 'icarus'?"),
]


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=[" ".join(c[0])[:70] for c in CASES])
def test_bad_input_is_one_clear_line(files, capsys, arguments, words):
    before = {p: p.stat().st_mtime_ns for p in files.rglob("*")}
    status = main([a.replace("{}", str(files)) for a in arguments])
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith("compiling")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("loom: ")
    assert words in lines[0]
    assert "Traceback" not in captured.err
    assert {p: p.stat().st_mtime_ns for p in files.rglob("*")} == before, "nothing may be written"


@pytest.mark.parametrize(
    "arguments", [["sim"], ["sim", "npu-edge-int8"], ["frobnicate"], ["sim", "a", "b", "--sett", "x"], []]
)
def test_a_wrong_command_line_ends_with_status_2(capsys, arguments):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("loom: ") and error.count("\n") == 1 if arguments else error.startswith("Usage: loom")


def test_an_unwritable_folder_is_refused_before_the_work(files, capsys, monkeypatch):
    locked = files / "locked"
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    status = main(["sim", "npu-edge-int8", str(files / "gemms.yaml"), "--json", str(locked / "x.json")])
    assert status == 2
    assert "cannot be written: permission denied" in capsys.readouterr().err


def test_debug_shows_the_traceback(files):
    from siliconloom.arch import LoomError

    with pytest.raises(LoomError):
        main(["sim", "npu-edgy", "gpt2", "--debug"])


def test_an_interrupt_leaves_no_file(files, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    status = main(["sim", "npu-edge-int8", str(files / "gemms.yaml"), "--json", str(files / "x.json")])
    assert status == 130
    assert capsys.readouterr().err == "loom: interrupted; nothing was left half written\n"
    assert not list(files.glob("*x.json*"))


@pytest.mark.parametrize("change", ["memory.dram.bandwidth=1e-9B/s", "memory.dram.latency=1000s"])
def test_memories_that_no_machine_has_are_refused(capsys, change):
    """The first was rounded to none and divided by; the second gave more cycles than a cost holds."""
    assert main(["sim", "npu-edge-int8", "gpt2", "--set", change]) == 2
    assert "than any machine this tool describes" in capsys.readouterr().err


def test_the_longest_latency_has_a_time(capsys):
    assert main(["sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=1", "--set", "memory.dram.latency=1s"]) == 0


def test_tables_and_a_result_in_one_file_are_refused(tmp_path):
    with open(tmp_path / "out", "wb") as out:
        command = [sys.executable, "-m", "siliconloom", "list", "--json", str(tmp_path / "out")]
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "standard output goes there, too; --json - writes only this to it" in done.stderr


def test_a_limit_below_what_the_program_takes_is_refused(capsys):
    assert main(["--memory", "1KiB", "list"]) == 2
    assert "the program itself takes" in capsys.readouterr().err


def test_the_latency_of_links_between_gpus_is_refused_where_measured_collectives_hold(capsys):
    command = ["sim", "dgx-h100", "llama3-8b", "--set", "workload.phase=decode", "--set", "link.latency=5us"]
    assert main(command) == 2
    assert "link.latency: changes nothing: what collectives of GPUs take was measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (["sim", "", "gpt2"], "chip, system or GPU"),
        (["sim", "npu-edge-int8", ""], "workload"),
        (["gpu", " "], "GPU"),
        (["compare", "npu-edge-int8", "gpt2", "--gpu", ""], "GPU"),
        (["collective", "", "all_reduce", "1MiB"], "system"),
        (["plan", "", "gpt2"], "system"),
    ],
)
def test_an_empty_name_is_called_empty(line, what, capsys):
    assert main(line) == 2
    assert capsys.readouterr().err == f"loom: the name of a {what} is empty; see loom list\n"


@pytest.mark.parametrize(("asked", "meant"), [("rtx4090", "rtx-4090"), ("mi300", "mi300x"), ("npu-edg", "npu-edge")])
def test_a_gpu_that_is_meant_is_suggested(asked, meant, capsys):
    assert main(["sim", asked, "gpt2"]) == 2
    assert f"did you mean '{meant}'?" in capsys.readouterr().err
