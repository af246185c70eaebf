"""Waves: every signal of a bench with the model's timeline beside the RTL's, and files that show both in viewers."""

import json
from itertools import groupby, takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vcd.reader import TokenKind, tokenize

import siliconloom as sl
from siliconloom.arch import CheckFailed, Chip, LoomError
from siliconloom.arch.listing import disassemble, title
from siliconloom.cli import main
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path, without_noise
from siliconloom.rtl.bench.timeline import CYCLE_PS, TEXT_BYTES, Waves, timeline_of, write_timeline
from siliconloom.rtl.emit import build_rtl
from siliconloom.sim.golden.npu import LoadedProgram
from siliconloom.verification.npu import check_programs, predicted
from siliconloom.verification.programs import random_program
from tests.rtl.npu import SMALL, quick_chip

SETS = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
NAMES = ("right", "right, too", "late")
BITS = f"{8 * TEXT_BYTES - 1}:0"
UNITS = ("load", "store", "matmul", "vector")
pytestmark = pytest.mark.rtl


def needs(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")


def signals(path):
    """Of a VCD file: by their whole names, the values of signals and since when, in picoseconds; and all names.

    A value counts that stays beyond its instant.
    """
    scopes, names, changes, now = [], {}, {}, 0
    with path.open("rb") as file:
        for token in tokenize(file):
            if token.kind is TokenKind.SCOPE:
                scopes.append(token.scope.ident)
            elif token.kind is TokenKind.UPSCOPE:
                scopes.pop()
            elif token.kind is TokenKind.VAR:
                bits = f"[{token.var.size - 1}:0]" if token.var.size > 1 else ""
                name = f"{'.'.join(scopes)}.{token.var.reference}{bits}"
                names.setdefault(token.var.id_code, []).append(name)
            elif token.kind is TokenKind.CHANGE_TIME:
                now = token.time_change
            elif token.kind is TokenKind.CHANGE_SCALAR:
                for name in names[token.scalar_change.id_code]:
                    changes.setdefault(name, {})[now] = token.scalar_change.value
            elif token.kind is TokenKind.CHANGE_VECTOR:
                for name in names[token.vector_change.id_code]:
                    changes.setdefault(name, {})[now] = token.vector_change.value
    kept = {name: [next(same) for _, same in groupby(seen.items(), lambda c: c[1])] for name, seen in changes.items()}
    return kept, {name for each in names.values() for name in each}


def text(value):
    """Characters of a signal."""
    return value.to_bytes(TEXT_BYTES, "big").decode().rstrip()


def shown(view):
    """Signals of a save file of GTKWave."""
    lines = view.read_text().splitlines()
    return [line for line in lines if line[:1].isalpha()]


class Run(NamedTuple):
    """What the bench of three programs wrote; of the last one's model a cycle was moved, the one that is ``late``."""

    path: Path
    bench: str
    chip: Chip
    made: list[LoadedProgram]
    late: int
    changes: dict[str, list[tuple[int, int | str]]]
    names: set[str]


@pytest.fixture(scope="module")
def waves(tmp_path_factory):
    """Three programs by Icarus as VCD; the model of the third one has an execution that begins a cycle late."""
    needs("icarus")
    chip, folder = quick_chip(), tmp_path_factory.mktemp("waves")
    made = [random_program(chip, n) for n in (3, 4, 3)]
    runs = [predicted(each.program, chip).runs for each in made]
    number, begins, ends = runs[2]["vector"][1]
    runs[2]["vector"][1] = (number, begins + 1, ends)
    bundle = build_rtl(chip)
    written = Waves("waves.vcd", NAMES, [timeline_of(m.program, r) for m, r in zip(made, runs, strict=True)])
    run_programs(
        chip,
        bundle.write(folder / "rtl"),
        bundle.top,
        [ProgramCase(each.program, each.memory, each.base) for each in made],
        folder=folder / "bench",
        simulator="icarus",
        waves=written,
    )
    written.keep(folder / "bench", folder / "run.vcd", f"{bundle.top}_bench", bundle.ports)
    return Run(folder / "run.vcd", f"{bundle.top}_bench", chip, made, begins, *signals(folder / "run.vcd"))


def test_rtl_and_model_execute_the_same_at_the_same_time(waves):
    changes = waves.changes
    running = changes[f"{waves.bench}.timeline.running[{BITS}]"]
    assert [text(value) for _, value in running if isinstance(value, int)] == list(NAMES)
    third = running[-1][0]
    texts = set()
    for unit in UNITS:
        scope = f"{waves.bench}.timeline.{unit}"
        for signal in (*(f"{{}}_{name}[31:0]" for name in ("in_flight", "started", "completed")), f"{{}}[{BITS}]"):
            rtl, model = ([c for c in changes[f"{scope}.{signal.format(s)}"] if c[0] < third] for s in ("rtl", "model"))
            assert rtl == model, (unit, signal)
        texts |= {text(value) for _, value in rtl if isinstance(value, int)} - {""}
        steps = [value for _, value in changes[f"{scope}.rtl_started[31:0]"] if isinstance(value, int) and value > 0]
        assert len(steps) == sum(len(predicted(m.program, waves.chip).runs[unit]) for m in waves.made)
    assert len(texts) > 10
    lines = [f"{number} {title(each)}" for m in waves.made for number, each in enumerate(m.program.instructions)]
    assert texts <= {line[:TEXT_BYTES].rstrip() for line in lines}


def test_a_model_that_is_a_cycle_late_differs_there_and_then(waves):
    changes = waves.changes
    third = changes[f"{waves.bench}.timeline.running[{BITS}]"][-1][0]
    cycles = dict(changes[f"{waves.bench}.trace_cycle[63:0]"])
    for name in ("differs", "timeline.vector.differs"):
        (rise,) = [time for time, value in changes[f"{waves.bench}.{name}"] if value == "1"]
        assert rise > third
        assert cycles[rise] == waves.late
        assert (rise + CYCLE_PS, "0") in changes[f"{waves.bench}.{name}"]
    for unit in ("load", "store", "matmul"):
        assert "1" not in [value for _, value in changes[f"{waves.bench}.timeline.{unit}.differs"]]


def test_views_show_signals_that_are_there(waves):
    view = waves.path.with_suffix(".gtkw")
    assert len(shown(view)) > 30
    assert set(shown(view)) <= waves.names
    assert f'[dumpfile] "{waves.path}"' in view.read_text()
    commands = waves.path.with_suffix(".sucl").read_text().splitlines()
    assert commands[0] == f"load_file {waves.path}"
    added = [line.split()[1] for line in commands if line.startswith("variable_add")]
    assert added == [name.partition("[")[0] for name in shown(view)]


def test_waves_of_a_run_that_fails_are_kept(tmp_path, monkeypatch):
    needs("icarus")
    monkeypatch.setattr("siliconloom.rtl.bench.runner.check_log", lambda _: (_ for _ in ()).throw(CheckFailed("no")))
    chip, path = quick_chip(), tmp_path / "run.vcd"
    with pytest.raises(CheckFailed):
        check_programs(chip, [("one", random_program(chip, 3))], simulator="icarus", waves=path)
    assert path.stat().st_size > 100_000
    assert path.with_suffix(".gtkw").exists()


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_the_command_writes_fst(tmp_path, capsys, simulator):
    needs(simulator)
    path, record = tmp_path / "run.fst", tmp_path / "r.json"
    words = ["verify", "npu-edge-int8", *SETS, "--simulator", simulator, "--only", "random 0", "--programs", "1"]
    status = main([*words, "--waves", str(path), "--json", str(record)])
    told = capsys.readouterr()
    if simulator == "verilator" and "lz4" in told.err:
        assert status == 2
        pytest.skip("no headers of lz4")
    assert status == 0
    assert f"gtkwave {path.with_suffix('.gtkw')}" in told.out.replace("\n", "")
    assert path.read_bytes()[0] == 0, "a header block of FST"
    found = json.loads(record.read_text())
    assert [each["name"] for each in found["cases"]] == ["random 0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["npu-edge-int8", "--waves", "run.txt"], "--waves run.txt: a name that ends in .fst or .vcd (got .txt)"),
        (["npu-edge-int8", "--waves", "run"], "--waves run: a name that ends in .fst or .vcd (got no suffix)"),
        (["systolic-ws-8", "--waves", "run.fst"], "not supported: --waves for systolic-ws-8: whole npu tiles run"),
        (["systolic-ws-8", "--only", "x"], "not supported: --only for systolic-ws-8: whole npu tiles run programs"),
        (["npu-edge-int8", "gpt2", "--only", "x"], "--only: of random work; a workload's program runs once"),
        (
            ["npu-edge-int8", "--waves", "run.vcd", "--json", "run.gtkw"],
            "--json and --waves (.gtkw) both name run.gtkw",
        ),
        (["npu-edge-int8", "--waves", "no/run.fst"], "no/run.fst"),
    ],
)
def test_what_has_no_waves_is_refused(words, message, capsys, tmp_path, monkeypatch):
    needs("verilator")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", *words]) == 2
    told = capsys.readouterr().err
    assert message in " ".join(told.split())
    assert len(told.strip().splitlines()) <= 2
    assert list(Path().iterdir()) == []


def test_fst_without_headers_is_refused_before_anything_is_built(capsys, monkeypatch, tmp_path):
    needs("verilator")
    monkeypatch.setattr("siliconloom.rtl.bench.runner.writes_fst", lambda: False)
    path = tmp_path / "run.fst"
    assert main(["verify", "npu-edge-int8", *SETS, "--only", "full queues", "--waves", str(path)]) == 2
    told = capsys.readouterr().err
    assert "liblz4-dev" in told
    assert ".vcd" in told
    assert "--simulator icarus" in told
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_program_is_refused_with_the_nearest(capsys):
    needs("icarus")
    assert main(["verify", "npu-edge-int8", *SETS, "--simulator", "icarus", "--only", "random 00"]) == 2
    assert "random 0" in capsys.readouterr().err


@given(st.integers(0, 200))
def test_texts_name_what_the_listing_lists(seed):
    chip = quick_chip()
    made = random_program(chip, seed)
    lines = [line.split(maxsplit=1)[1] for line in disassemble(made.program).splitlines()]
    for each, line in zip(made.program.instructions, lines, strict=True):
        assert all(word in line.split() for word in title(each).split())


@given(st.integers(0, 50))
def test_files_of_a_timeline_have_every_execution(tmp_path_factory, seed):
    chip, folder = quick_chip(), tmp_path_factory.mktemp("timeline")
    made = random_program(chip, seed)
    runs = predicted(made.program, chip).runs
    timeline = timeline_of(made.program, runs)
    write_timeline(folder, 0, timeline)
    room = Waves("w.fst", ["one"], [timeline]).for_bench()["units"]
    for number, (unit, executed) in enumerate(runs.items()):
        lines = (folder / f"model_0_{number}.hex").read_text().split()[1:]
        texts = (folder / f"texts_0_{number}.hex").read_text().split()[1:]
        assert (room[number]["name"], len(lines) <= room[number]["executions"]) == (unit, True)
        seen = [
            (int(bytes.fromhex(texts[int(w[24:], 16)]).split()[0]), int(w[:12], 16), int(w[12:24], 16)) for w in lines
        ]
        assert seen == executed


def test_clocks_of_modules_and_what_has_no_name_are_not_traced(tmp_path):
    source = tmp_path / "a.v"
    unnamed = r"  wire [3:0] \$auto$wreduce.cc:513:run$2488 ;" + "\n" + r"  reg \$5 ;" + "\n"
    source.write_text(f"module a(clk, d);\n  input clk;\n  wire clk;\n  input d;\n{unnamed}  wire clkd;\nendmodule\n")
    (written,) = without_noise([source], tmp_path / "traced")
    lines = written.read_text().splitlines()
    assert "\n".join(line for line in lines if "verilator" not in line) + "\n" == source.read_text()
    traced, state = [], True
    for line in lines:
        state = state if "verilator" not in line else "tracing_on" in line
        traced += [line.strip()] if state and "verilator" not in line else []
    assert traced == ["module a(clk, d);", "input d;", "wire clkd;", "endmodule"]


def test_waves_that_cannot_be_written_are_refused_before_anything_runs(tmp_path, monkeypatch):
    needs("icarus")
    monkeypatch.setattr("siliconloom.verification.machine.require_simulator", lambda _: pytest.fail("it ran"))
    (tmp_path / "run.gtkw").mkdir()
    for path, message in ((tmp_path / "no" / "run.vcd", "does not exist"), (tmp_path / "run.vcd", "is a folder")):
        with pytest.raises(LoomError, match=message):
            sl.verify("npu-edge-int8", sets=SMALL, simulator="icarus", only="random 0", waves=path)


def failing(message):
    """A function that fails with this."""

    def fails(*_, **__):
        raise LoomError(message)

    return fails


def test_what_went_wrong_before_counts_where_waves_cannot_be_written(tmp_path, monkeypatch):
    needs("icarus")
    monkeypatch.setattr("siliconloom.verification.npu.run_programs", failing("the first"))
    monkeypatch.setattr(Waves, "keep", failing("no space"))
    with pytest.raises(LoomError, match="the first"):
        check_programs(quick_chip(), [("one", random_program(quick_chip(), 3))], waves=tmp_path / "run.vcd")


def test_runs_of_too_many_cycles_have_no_waves(tmp_path, monkeypatch):
    monkeypatch.setattr("siliconloom.verification.npu.MOST_WAVES", 100)
    with pytest.raises(LoomError, match=r"takes [\d,]+ cycles, and waves are written of up to 100"):
        check_programs(quick_chip(), [("one", random_program(quick_chip(), 3))], waves=tmp_path / "run.vcd")


@pytest.mark.slow(seconds=40)
def test_vcd_of_verilator_has_no_name_that_viewers_stumble_over(tmp_path):
    needs("verilator")
    path = tmp_path / "run.vcd"
    words = ["verify", "npu-edge-int8", *SETS, "--only", "full queues", "--waves", str(path)]
    assert main(words) == 0
    with path.open(encoding="ascii") as file:
        names = [
            line.split()[4] for line in takewhile(lambda line: "$enddefinitions" not in line, file) if "$var" in line
        ]
    assert len(names) > 500
    assert not [name for name in names if name.startswith("$") or ":" in name]
