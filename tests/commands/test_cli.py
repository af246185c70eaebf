import io
import itertools
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from siliconloom.cli import main
from siliconloom.commands.group import PLANNED
from siliconloom.render import tables

GEMMS = (
    "kind: gemms\nprecision: int8\ngemms:\n  - {name: qkv, m: 64, n: 96, k: 32}\n  - {name: out, m: 64, n: 32, k: 32}\n"
)


@pytest.fixture
def gemms(tmp_path):
    path = tmp_path / "gemms.yaml"
    path.write_text(GEMMS)
    return str(path)


def loom(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def loom_json(capsys, *arguments):
    status, out, err = loom(capsys, *arguments, "--json", "-")
    assert status == 0, err
    return json.loads(out)


def test_sim_prints_the_contracted_keys(capsys):
    result = loom_json(
        capsys, "sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=1", "--set", "workload.sequence=64"
    )
    assert set(result) >= {
        "schema",
        "cycles",
        "seconds",
        "clock_hz",
        "macs",
        "utilization",
        "energy_j",
        "bound",
        "operators",
        "units",
        "traffic_bytes",
        "simulator",
    }
    assert set(result["bound"]) >= {"compute_cycles", "memory_cycles", "lower_bound_cycles", "name"}
    assert set(result["simulator"]) >= {"wall_s", "events"}
    assert result["schema"] == "siliconloom.result/2"
    assert result["seconds"] == pytest.approx(result["cycles"] / result["clock_hz"])
    assert result["energy_j"] == pytest.approx(sum(result["energy"].values()))
    for unit in result["units"].values():
        assert unit["busy_cycles"] + sum(unit["stall_cycles"].values()) == result["cycles"]


@pytest.mark.slow(seconds=1)
def test_exact_prints_the_same_and_says_what_it_ran(capsys):
    arguments = "sim", "npu-datacenter", "llama3-8b", "--set", "workload.phase=decode"
    fast, exact = loom_json(capsys, *arguments), loom_json(capsys, *arguments, "--exact")
    jumped, every = fast.pop("simulator"), exact.pop("simulator")
    assert fast == exact
    assert jumped["events"] + jumped["events_skipped"] == every["events"]
    assert jumped["events"] * 10 < every["events"]
    assert (every["events_skipped"], every["periods"], every["lookups"]) == (0, 0, 0)
    assert jumped["periods"] > 0


@pytest.mark.slow(seconds=1)
def test_a_window_of_a_trace_shows_every_event_in_it(capsys, tmp_path):
    arguments = ["sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=3", "--set", "workload.sequence=64"]
    spans = {}
    for name, more in {"folded": [], "exact": ["--exact"], "window": ["--window", "2 ms:2.5 ms"]}.items():
        path = tmp_path / f"{name}.json"
        status, _, err = loom(capsys, *arguments, *more, "--trace", str(path))
        assert status == 0, err
        trace = json.loads(path.read_text())
        spans[name] = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] != "jump"]
        other = trace["otherData"]
        assert other["recorded"] == len(spans[name]) > 0
        assert other["left_out"] == 0
        assert other["recorded"] + other.get("jumped", other.get("outside")) == other["executed"]
        shown = [e for e in trace["traceEvents"] if e.get("cat") == "jump"]
        assert (len(shown) > 0) == (name == "folded")
    inside = [e for e in spans["exact"] if e["args"]["done"] > 2_000_000 and e["args"]["cycle"] < 2_500_000 - 10]
    assert [e for e in spans["window"] if e["args"]["cycle"] < 2_500_000 - 10] == inside
    assert len(spans["folded"]) < len(spans["exact"])


def test_the_progress_bar_comes_late_and_tells_an_upper_bound(monkeypatch):
    clock, screen = [0.0], io.StringIO()
    monkeypatch.setattr(tables.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tables, "Screen", lambda **_: Console(file=screen, force_terminal=True, width=120))
    with tables.progress_bar(True, "simulating") as advance:
        clock[0] = 1.9
        advance(0.01)
        assert screen.getvalue() == ""
        clock[0] = 10.0
        advance(0.25)
    assert "simulating" in screen.getvalue()
    assert "at most 30 s left" in screen.getvalue()


def test_durations_read_as_people_say_them():
    assert [tables.format_seconds(s) for s in (0, 59.4, 61, 3600, 7325)] == [
        "0 s",
        "59 s",
        "1 min 01 s",
        "1 h 00 min",
        "2 h 02 min",
    ]


def test_decode_is_set_from_the_command_line(capsys):
    result = loom_json(
        capsys, "sim", "npu-datacenter", "llama3-8b", "--set", "workload.phase=decode", "--set", "workload.layers=2"
    )
    assert result["phase"] == "decode"
    assert result["bound"]["name"] == "memory"
    assert result["tokens"] == 1


def test_workload_prints_the_contracted_keys(capsys):
    summary = loom_json(capsys, "workload", "llama3-70b")
    assert set(summary) >= {"parameters", "flops", "weight_bytes", "kv_bytes_per_token", "operators"}
    assert summary["parameters"] == pytest.approx(70.55e9, rel=0.005)
    assert summary["weight_bytes"] == pytest.approx(2 * 70.55e9, rel=0.005)
    assert summary["kv_bytes_per_token"] == 80 * 2 * 8 * 128 * 2


def test_bare_arrays_time_every_operator(capsys, gemms):
    result = loom_json(capsys, "sim", "systolic-ws-8", gemms, "--set", "tile.array.rows=4")
    first, second = result["operators"]
    assert first["start_cycle"] == 0
    assert first["start_cycle"] < first["end_cycle"] <= second["end_cycle"] == result["cycles"]


@pytest.mark.slow(seconds=1)
def test_map_names_the_bound_and_the_tiles(capsys):
    summary = loom_json(capsys, "map", "npu-edge-int8", "gpt2", "--set", "workload.layers=1")
    assert summary["estimated_cycles"] >= summary["bound"]["lower_bound_cycles"]
    assert summary["program"]["bytes"] == 256 * summary["program"]["instructions"]
    status, out, _ = loom(capsys, "map", "npu-edge-int8", "gpt2", "--set", "workload.layers=1", "--program")
    assert status == 0
    assert "matmul" in out
    assert "lower bound" in out


def test_tables_fit_the_terminal(capsys, gemms):
    for arguments in (
        ("sim", "npu-edge-int8", gemms),
        ("map", "npu-edge-int8", gemms),
        ("workload", "gpt2"),
        ("sim", "npu-edge-int8", "gpt2"),
    ):
        status, out, _ = loom(capsys, *arguments)
        assert status == 0
        assert max(len(line) for line in out.splitlines()[4:]) <= 140


def test_files_are_written(capsys, tmp_path, gemms):
    paths = {name: tmp_path / name for name in ("r.json", "t.json", "o.csv")}
    status, _, err = loom(
        capsys,
        "sim",
        "npu-edge-int8",
        gemms,
        "--json",
        str(paths["r.json"]),
        "--trace",
        str(paths["t.json"]),
        "--csv",
        str(paths["o.csv"]),
    )
    assert status == 0, err
    result, trace = (json.loads(paths[n].read_text()) for n in ("r.json", "t.json"))
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert trace["otherData"]["left_out"] == 0
    assert len(spans) == trace["otherData"]["recorded"]
    last = max(e["args"]["done"] for e in spans)
    assert last == result["cycles"]
    by_unit = {}
    for span in spans:
        by_unit.setdefault(span["tid"], []).append((span["ts"], span["ts"] + span["dur"]))
    for tid in (1, 2, 4):
        windows = sorted(by_unit[tid])
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(windows)), "a unit does one thing at a time"


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_the_help_of_what_is_not_built_says_so(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"Not built yet: {PLANNED[name]}." in capsys.readouterr().out


def test_of_several_limits_of_memory_the_last_holds_and_one_without_a_size_is_told(capsys):
    assert main(["list", "--memory", "1KiB", "--memory=2GiB"]) == 0
    assert main(["--memory", "2GiB", "list", "--memory", "1KiB"]) == 2
    assert "(got '1KiB')" in capsys.readouterr().err
    assert main(["list", "--memory"]) == 2
    assert capsys.readouterr().err == "loom: --memory: must be a number with a unit, such as '2 GiB' (got '')\n"


@pytest.mark.parametrize("name", sorted(PLANNED))
def test_commands_that_are_not_built_say_so(capsys, name):
    status, out, err = loom(capsys, name, "anything", "--json", "-")
    assert (status, out) == (2, "")
    assert err.startswith(f"loom: not supported: loom {name} ")


def test_help_lists_every_command():
    done = subprocess.run([sys.executable, "-m", "siliconloom", "--help"], capture_output=True, text=True, check=True)
    for command in ("sim", "workload", "map", "rtl", "verify", "schema", "list"):
        assert command in done.stdout


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from siliconloom.cli import main; main(['--help']); "
        "heavy = 'numba numpy amaranth networkx pydantic'; "
        "print([m for m in heavy.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.slow(seconds=1)
def test_a_run_of_a_chip_imports_nothing_that_it_does_not_use():
    """Circuits, plans of systems and graphs for users take longer to import than the run takes."""
    code = (
        "import sys; from siliconloom.cli import main; main(['sim', 'npu-edge-int8', 'gpt2', '--json', '-']); "
        "heavy = 'amaranth networkx siliconloom.rtl.library siliconloom.mapper.system siliconloom.mapper.experts '"
        "'gguf safetensors tokenizers jinja2'; "
        "print([m for m in heavy.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_results_do_not_depend_on_the_hash_seed(gemms):
    outputs = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "siliconloom", "sim", "npu-edge-int8", gemms, "--json", "-"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        result = json.loads(done.stdout)
        result.pop("simulator")
        outputs.add(json.dumps(result))
    assert len(outputs) == 1


def test_version(capsys):
    status, out, _ = loom(capsys, "--version")
    assert status == 0
    assert out.startswith("siliconloom ")
