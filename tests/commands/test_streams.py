"""Where results go and where they come from: closed, full, read by nobody, not Unicode, the same file twice."""

import gc
import gzip
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import siliconloom
from siliconloom.arch.errors import LoomError
from siliconloom.cli import main
from siliconloom.commands import streams
from siliconloom.commands.execution_traces import check_step_outputs
from siliconloom.render.output import check_outputs, write_text
from siliconloom.render.tables import Screen, bold, table

GEMMS = "kind: gemms\nname: {}\nprecision: int8\ngemms: [{{name: a, m: 8, n: 8, k: 8}}]\n"
LOOM = f"{sys.executable} -m siliconloom"


def shell(command, folder, **environment):
    """Run a shell's command line on ``loom``; returns the status, standard output and standard error."""
    made = subprocess.run(
        ["bash", "-c", command.replace("loom", LOOM, 1)],
        cwd=folder,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(siliconloom.__file__).parents[1]), **environment},
    )
    return made.returncode, made.stdout.decode(), made.stderr.decode()


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("loom list > /dev/full", 2, "loom: standard output: No space left on device"),
        ("loom gpu h100 > /dev/full", 2, "loom: standard output: No space left on device"),
        ("loom list --json - > /dev/full", 2, "standard output: cannot be written: No space left on device"),
        ("loom list 2>&-", 0, ""),
        ("loom rtl systolic-ws-8 -o made --json - 2>/dev/full", 0, ""),
        ("loom rtl systolic-ws-8 -o made 2>/dev/full", 0, ""),
        ("loom rtl systolic-ws-8 -o made 2> >(true)", 0, ""),
        ("loom lisst 2>/dev/full", 2, ""),
        ("loom list >&-", 2, "standard output: it is closed, and what was meant for it is lost"),
        ("loom list --json out.json >&-", 0, ""),
        ("loom gpu h100 - <&-", 2, "standard input is closed; name a file"),
        ("loom lisst 2>&-", 2, ""),
        ("loom list <&- >&- 2>&-", 2, ""),
        ("loom list --json - <&- >&- 2>&-", 2, ""),
        ("loom list --json out.json <&- >&- 2>&-", 0, ""),
        ("loom workload gpt2 | cat; exit ${PIPESTATUS[0]}", 0, ""),
        ("loom workload gpt2 | true; exit ${PIPESTATUS[0]}", streams.BROKEN_PIPE, ""),
        ("loom schema chip | true; exit ${PIPESTATUS[0]}", streams.BROKEN_PIPE, ""),
        ("loom list --json /dev/full", 2, "/dev/full: cannot be written: No space left on device"),
    ],
)
def test_a_stream_that_takes_nothing_is_told_once(tmp_path, command, status, words):
    found, _, error = shell(command, tmp_path)
    assert found == status, error
    assert words in error
    assert error.count("\n") == (1 if words else 0)


@pytest.mark.slow(seconds=2.5)
def test_a_terminal_that_is_not_unicode_gets_what_it_can_show(tmp_path):
    (tmp_path / "g.yaml").write_text(GEMMS.format("g"))
    command = "loom compare npu-edge-int8 g.yaml --gpu h100 2>/dev/null"
    status, out, _ = shell(command, tmp_path, PYTHONIOENCODING="ascii")
    assert status == 0
    assert "?" in out
    assert "±" in shell(command, tmp_path, PYTHONIOENCODING="utf-8")[1]


def test_a_disk_that_takes_no_files_stops_the_verilog_in_one_line(tmp_path):
    status, _, error = shell("ulimit -f 4; loom rtl systolic-ws-8 -o out 2>&1 >/dev/null", tmp_path)
    assert status == 2, error
    assert sorted(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x[/foo]", '"x\\e[31m"', '"a\\nb"', "x" * 201, "'[bold]x[/bold]'", "'\u202ex'"])
def test_a_name_is_a_name(tmp_path, capsys, name):
    (tmp_path / "g.yaml").write_text(GEMMS.format(name))
    assert main(["workload", str(tmp_path / "g.yaml")]) == 2
    captured = capsys.readouterr()
    assert "name: must " in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.strip().isprintable()


def test_text_is_only_text_on_the_terminal():
    out = io.StringIO()
    screen = Screen(width=60)
    screen.file = out
    screen.print(f"{bold('[/x]')} [bold]y[/bold] \x1b[31m \x9b0m \u202e")
    screen.print(table("[/t] \x1b]0;x\x07", [("[red]head", "left")], [("[/foo]\x1b[2J",)]))
    screen.print("two\nlines")
    text = out.getvalue()
    for kept in ("[/x] [bold]y[/bold] \\x1b[31m \\x9b0m \\u202e", "[/t]", "[red]head", "[/foo]\\x1b[2J", "two\nlines"):
        assert kept in text
    assert not set(text) & set("\x1b\x07\x9b\u202e\ue000\ue001")


def test_bold_is_bold():
    out = io.StringIO()
    screen = Screen(width=60)
    screen.file, screen._color_system = out, None
    made = screen.render_str(f"a {bold('b')} c {bold('d')}")
    assert made.plain == "a b c d"
    assert [(s.start, s.end, s.style) for s in made.spans] == [(2, 3, "bold"), (6, 7, "bold")]


def test_no_output_is_an_input_or_another_output(tmp_path):
    chip = tmp_path / "chip.yaml"
    chip.write_text("kind: chip\n")
    (tmp_path / "link").symlink_to("chip.yaml")
    for outputs, inputs, words in [
        ({"--json": chip}, [str(chip)], "--json .*chip.yaml: is an input"),
        ({"--csv": tmp_path / "link"}, [str(chip)], "is an input"),
        ({"--json": "-", "--csv": "-"}, [], "--json and --csv both name standard output"),
        ({"--json": tmp_path / "new", "--csv": f"{tmp_path}/./new"}, [], "--json and --csv both name"),
    ]:
        with pytest.raises(LoomError, match=words):
            check_outputs(outputs, inputs)
    check_outputs({"--json": "/dev/null", "--csv": "/dev/null", "--report": None}, [str(chip), None, "npu-edge-int8"])


def test_a_file_that_was_read_on_the_way_is_not_written_over(tmp_path, capsys):
    """A system's chip is an input, too, although the command line does not name it."""
    chip, system = tmp_path / "chip.yaml", tmp_path / "system.yaml"
    library = Path(siliconloom.__file__).parent / "arch" / "library"
    chip.write_text((library / "npu-edge-int8.yaml").read_text())
    text = (library / "npu-x4-ring.yaml").read_text()
    system.write_text(
        text.replace("chip: npu-edge-int8", f"chip: {chip}").replace("chip: npu-datacenter", f"chip: {chip}")
    )
    assert str(chip) in system.read_text()
    before = chip.read_text()
    sets = ["--set", "workload.phase=decode", "--set", "workload.layers=1", "--set", "workload.precision=int8"]
    assert main(["sim", str(system), "gpt2", *sets, "--json", str(chip)]) == 2
    assert "is an input of this command" in capsys.readouterr().err
    assert chip.read_text() == before


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("options", ["", "--json -", "--json out.json"])
def test_standard_output_does_not_go_to_an_input(tmp_path, options):
    for name in ("g.yaml", "link.yaml"):
        (tmp_path / "g.yaml").write_text(GEMMS.format("g"))
        (tmp_path / "link.yaml").unlink(missing_ok=True)
        (tmp_path / "link.yaml").symlink_to("g.yaml")
        status, _, error = shell(f"loom sim npu-edge-int8 {name} {options} >> g.yaml", tmp_path)
        words = "is an input of this command, and standard output goes there, too"
        assert (status, error) == (2, f"loom: {name}: {words}\n")
        assert (tmp_path / "g.yaml").read_text() == GEMMS.format("g")


def test_nor_to_a_file_that_is_read_on_the_way(tmp_path):
    library = Path(siliconloom.__file__).parent / "arch" / "library"
    chip = (library / "npu-edge-int8.yaml").read_text()
    (tmp_path / "chip.yaml").write_text(chip)
    text = (library / "npu-x4-ring.yaml").read_text().replace("chip: npu-edge-int8", "chip: chip.yaml")
    (tmp_path / "system.yaml").write_text(text)
    options = "--set workload.phase=decode --set workload.layers=1 --set workload.precision=int8 --json -"
    status, _, error = shell(f"loom sim system.yaml gpt2 {options} >> chip.yaml", tmp_path)
    assert (status, error) == (2, "loom: standard output: goes to a file that is an input of this command\n")
    assert (tmp_path / "chip.yaml").read_text() == chip


def test_a_library_that_cannot_be_loaded_is_named(tmp_path, monkeypatch, capsys):
    """LLVM, of a process whose address space is small; and as NumPy tells it."""
    command = "ulimit -v 220000; loom collective mesh-2d all_reduce 1MiB --flows --chips 4"
    cache = {"NUMBA_CACHE_DIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}  # no machine code is kept there
    status, _, error = shell(command, tmp_path, **cache)
    assert status == 2
    assert error.startswith("loom: a library cannot be loaded: ")
    assert "libllvmlite.so" in error
    assert error.endswith("; there is too little memory for it (ulimit -v)\n")

    def broken(*_):
        try:
            raise ImportError("libblas.so: failed to map segment from shared object")
        except ImportError as error:
            raise ImportError("read this\nfor advice") from error

    monkeypatch.setattr("siliconloom.render.output.check_outputs", broken)
    assert main(["list"]) == 2
    assert "loom: a library cannot be loaded: libblas.so: failed to map segment" in capsys.readouterr().err


def test_data_on_standard_output_is_unicode_whatever_the_terminal_is(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    write_text("-", "± \ud800")
    assert raw.getvalue() == "± \\ud800".encode()


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("loom sim npu-edge-int8 g.yaml --json - --report /dev/stdout > out", 2, "--json both name standard output"),
        ("loom sim npu-edge-int8 g.yaml --json - --report /dev/fd/1 > out", 2, "--json both name standard output"),
        ("loom sim npu-edge-int8 g.yaml --json - --report out > out", 2, "--json both name standard output"),
        (
            "loom sim npu-edge-int8 g.yaml --json - --report /dev/stdout | cat; exit ${PIPESTATUS[0]}",
            2,
            "standard output",
        ),
        ("loom sim npu-edge-int8 g.yaml --json - --report /dev/null > out", 0, ""),
        ("loom sim npu-edge-int8 g.yaml --json new/", 2, "new/: names a folder, a file name was expected"),
        ("loom sim npu-edge-int8 g.yaml --json new/.", 2, "new/.: names a folder"),
        ("loom measure -o new.csv/", 2, "new.csv/: names a folder"),
        ("loom schema chip -o new/", 2, "new/: names a folder"),
    ],
)
def test_two_results_never_mix_and_a_folder_is_no_file(tmp_path, command, status, words):
    (tmp_path / "g.yaml").write_text(GEMMS.format("g"))
    found, _, error = shell(command, tmp_path)
    assert found == status, error
    assert words in error
    assert not list(tmp_path.glob("new*"))


def test_a_stream_outlives_what_stands_before_it_and_is_closed_with_it(tmp_path):
    for close in (False, True):
        with (tmp_path / "out").open("w") as stream:
            before = streams.Output(stream)
            before.write("kept")
            if close:
                before.close()
                assert stream.closed
                assert before.closed
            del before
            gc.collect()
            if not close:
                stream.write(" and more")
        assert (tmp_path / "out").read_text() == ("kept" if close else "kept and more")


@pytest.mark.parametrize(
    ("outputs", "inputs", "words"),
    [
        ({"--json": "a.json"}, [], "--trace a.et and --json both name a.json"),
        ({"--json": "b.json", "--report": "./a.json"}, [], "--trace a.et and --report both name ./a.json"),
        ({"--json": "a.11.et"}, [], "--trace a.et \\(a rank's file\\) and --json both name a.11.et"),
        ({"--json": "b.json"}, ["a.json"], "a.json: is an input"),
    ],
)
def test_no_output_is_called_as_a_file_of_an_execution_trace(tmp_path, monkeypatch, outputs, inputs, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(LoomError, match=words):
        check_step_outputs({"--trace": "a.et", **outputs}, inputs)
    check_step_outputs({"--trace": "a.et", "--json": "b.json", "--report": "a.html", "--csv": None}, ["b.et"])


def test_a_trace_and_a_result_of_one_name_write_nothing(tmp_path, capsys):
    sets = ["--set", "plan.tensor=2", "--set", "workload.layers=1", "--set", "workload.sequence=8"]
    files = ["--trace", str(tmp_path / "a.et"), "--json", str(tmp_path / "a.json")]
    assert main(["sim", "dgx-h100", "gpt2", *sets, *files]) == 2
    assert "both name" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("command", "ending", "known"),
    [
        (["sim", "npu-edge", "gpt2"], ".fst", ".json.gz"),
        (["sim", "npu-edge", "gpt2"], ".txt", ".kanata"),
        (["sim", "npu-edge", "gpt2"], "", ".json"),
        (["plan", "dgx-h100", "gpt2"], ".fst", ".et"),
        (["collective", "ring", "all_gather", "1 KiB", "--chips", "4"], ".et", ".json.gz"),
        (["serve", "npu-edge", "gpt2", "8x8"], ".txt", ".json"),
    ],
)
def test_a_trace_has_an_ending_that_is_known(tmp_path, capsys, command, ending, known):
    assert main([*command, "--trace", str(tmp_path / f"run{ending}")]) == 2
    error = capsys.readouterr().err
    assert known in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_compressed_trace_is_the_same(tmp_path):
    command = ["collective", "ring", "all_gather", "1 KiB", "--chips", "4", "--trace"]
    for name in ("a.json", "b.json.gz"):
        assert main([*command, str(tmp_path / name)]) == 0
    assert gzip.decompress((tmp_path / "b.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
