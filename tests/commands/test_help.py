"""Help, examples and completion: nothing is cut off at 80 columns, and every example is a command that runs."""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer

from siliconloom.cli import app, main
from siliconloom.commands.group import COMMANDS, PLANNED

EXAMPLES = {name: __import__(f"siliconloom.commands.{name}", fromlist=["EXAMPLES"]).EXAMPLES for name in COMMANDS}
LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines]
WAITED = (
    "loom rtl",
    "loom plan",
    "loom map npu-edge gpt2 --set workload.layers=1 --search",
    "loom serve dgx-a100 llama2-70b azure-conv --set serve.requests=500",
    "loom serve npu-edge gpt2 64x16",
    "loom dram ddr4 examples/requests.csv --commands",
)
"""Beginnings of examples that take some seconds."""
LONG = ("verify", "run", "synth", "reproduce", "measure", "warmup")
"""Commands whose examples take a minute, a GPU or the network: they are parsed."""
SMALL_SWEEP = """\
kind: sweep
machine: npu-edge-int8
workload: gpt2-block-gemms
keys: {tile.dma.bytes_per_cycle: [32, 64]}
objectives: [time, area]
"""
FILES = {
    "examples/array-sweep.yaml": SMALL_SWEEP,
    "examples/npu-search.yaml": SMALL_SWEEP,
    "examples/operations.csv": "op,gpus,bytes,dtype\nall_reduce,8,67108864,fp16\n",
    "examples/requests.csv": "cycle,op,address\n0,R,0\n7,W,4096\n",
}


@pytest.fixture
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")


def test_no_summary_of_a_command_is_cut_off(narrow, capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert max(map(len, text.splitlines())) <= 80
    for name in COMMANDS:
        assert any(line.split()[:1] == [name] and line.endswith(".") for line in text.splitlines()), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_that_fit(name, narrow, capsys):
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Examples:" in text
    for line in EXAMPLES[name]:
        assert f"    {line}\n" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("name", "line"), LINES, ids=[line for _, line in LINES])
def test_examples_are_understood(name, line):
    """Whatever its command would do, its options and arguments are those that there are."""
    first, command, *rest = shlex.split(line)
    assert (first, command) == ("loom", name)
    group = typer.main.get_command(app)
    assert group.commands[name].make_context(name, rest).info_name == name


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A function that gives the results of the small sweep, which is run where they are first asked for."""

    @cache
    def results():
        folder = tmp_path_factory.mktemp("swept")
        (folder / "array-sweep.yaml").write_text(SMALL_SWEEP)
        with contextlib.chdir(folder):
            assert main(["sweep", "array-sweep.yaml"]) == 0
        return folder / "array-sweep.sqlite"

    return results


QUICK = [(name, line) for name, line in LINES if name not in LONG]


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.slow] if line.startswith(WAITED) else []) for _, line in QUICK]
)
def test_examples_run(line, swept, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    words = shlex.split(line)[1:]
    if words[:2] == ["models", "get"] or "--scheduler" in words:
        pytest.skip("needs the network")
    if "array-sweep.sqlite" in words:
        shutil.copy(swept(), "array-sweep.sqlite")
    if "result.json" in words:
        assert main(["sim", "npu-edge-int8", "gpt2", "--set", "workload.layers=1", "--json", "result.json"]) == 0
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().out or "-o" in words


def test_a_planted_wrong_example_is_found():
    group = typer.main.get_command(app)
    with pytest.raises(Exception, match="No such option"):
        group.commands["sim"].make_context("sim", ["npu-edge", "gpt2", "--exat"])


def completed(line):
    words = line.split(" ")
    environment = {
        **os.environ,
        "_LOOM_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "from siliconloom.start import loom; loom()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.split()


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(
    ("line", "offered", "left_out"),
    [
        ("loom comp", {"compare"}, {"sim"}),
        ("loom sim npu-e", {"npu-edge", "npu-edge-int8"}, {"npu-datacenter", "gpt2"}),
        ("loom sim h", {"h100", "h200"}, set()),
        ("loom sim npu-edge gpt2", {"gpt2", "gpt2-xl"}, {"npu-edge"}),
        ("loom compare npu-edge gpt2 --gpu h100,a", {"h100,a100", "h100,a10"}, {"a100"}),
        ("loom sim npu-edge gpt2 --set tile.array.r", {"tile.array.rows="}, {"tile.array.cols="}),
        ("loom sim npu-edge gpt2 --set workload.ph", {"workload.phase="}, {"workload.batch="}),
        ("loom sim dgx-h100 gpt2 --set ", {"topology.kind=", "plan.tensor=", "workload.phase="}, {"tile.array.rows="}),
        ("loom sim nothing gpt2 --set ", {"workload.phase="}, {"tile.array.rows="}),
        ("loom collective ri", {"ring"}, {"npu-edge"}),
    ],
)
def test_a_shell_is_offered_names_and_key_paths(line, offered, left_out):
    found = set(completed(line))
    assert offered <= found
    assert not left_out & found


def test_a_completion_script_is_shown():
    done = subprocess.run(
        [sys.executable, "-c", "from siliconloom.start import loom; loom()", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "_LOOM_COMPLETE" in done.stdout


def test_completing_a_name_loads_no_numbers_and_no_schema():
    code = (
        "import sys; from siliconloom.commands.completion import machines, workloads; machines('n'); workloads('g'); "
        "print([m for m in 'numpy numba pydantic yaml'.split() if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_planned_names_stay_hidden(capsys):
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.partition("Commands:")[2].splitlines()
    listed = {line.split()[0] for line in lines if line.strip()}
    assert not set(PLANNED) & listed
