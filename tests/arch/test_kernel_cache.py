"""Machine code of kernels: all of it is made by the warm-up, kept for its own checkout, and fresh or not used."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import siliconloom
from siliconloom.arch import kernels
from siliconloom.arch.kernels import kernel_digest, part

PACKAGE = Path(siliconloom.__file__).parent
GEMMS = "kind: gemms\nprecision: int8\ngemms: [{name: a, m: 8, n: 8, k: 8}]\n"
TRACE = "cycle,op,address\n" + "".join(f"{7 * i},{'RW'[i % 2]},{4096 * i}\n" for i in range(200))
SQUARE = "\n".join(",".join("0" if i == j else str(1000 * (i + j)) for j in range(8)) for i in range(8)) + "\n"
PROGRAM = """\
kind: communication
name: two
splits: {tensor: {size: 4}, data: {size: 2, stride: 4}}
program:
  - do: [{compute: {time: 50 us}}, {all_reduce: {group: tensor, bytes: 4 MiB}}]
  - {stream: gradients, do: [{reduce_scatter: {group: data, bytes: 16 MiB}}]}
"""
EVENTS = "events: [{at: 100 us, chip: 3, factor: 1.5}, {at: 120 us, between: [0, 1], failed: true}]\ntimeout: 20 us\n"
COMMANDS = [
    "sim npu-edge-int8 gemms.yaml",
    "sim npu-edge-int8 gemms.yaml --exact",
    "sim npu-edge-int8 gemms.yaml --trace t.json",
    "sim npu-edge-int8 gpt2 --set workload.layers=1 --set workload.precision=int8 --set workload.sequence=64",
    "sim npu-edge-int8 gemms.yaml --trace t.json --window 1:100",
    "sim npu-edge-int8 gemms.yaml --search",
    "sim npu-x4-ring gpt2 --set workload.layers=1 --set workload.phase=decode",
    "sim neupims gpt3-7b --set workload.phase=decode --set workload.layers=1 --set workload.batch=8",
    "sim csd-flash llama2-7b --set workload.phase=decode --set workload.layers=1",
    "sim npu-cxl gpt2 --set workload.layers=1",
    "sim h100 gpt2",
    "sim dgx-h100 llama3-8b",
    "map npu-edge-int8 gemms.yaml",
    "gpu h100 ops.csv",
    "gpu a100 ops.csv --sustained",
    "compare npu-edge-int8 gpt2 --gpu h100,a100 --tensor 2 --set workload.layers=1 --set workload.precision=int8",
    "collective torus-2d program.yaml --chips 8",
    "collective torus-2d program.yaml --chips 8 --exact",
    "collective torus-2d program.yaml --chips 8 --flows",
    "collective torus-2d events.yaml --chips 8 --exact",
    "collective torus-2d all_to_all square.csv",
    "collective torus-2d all_to_all square.csv --flows",
    *(
        f"collective ring {op} 1MiB --chips 8"
        for op in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive")
    ),
    "collective switch all_reduce 64MiB --chips 16 --flows",
    "collective fat-tree all_reduce 1MiB --exact",
    "collective mesh-2d all_gather 1MiB --chips 16",
    "collective dgx-h100x8 all_reduce 64MiB",
    "plan dgx-h100 llama3-8b --set workload.phase=training --set workload.batch=8",
    "plan dgx-h100x8 mixtral-8x7b --set workload.phase=decode --set workload.batch=64",
    "plan dgx-h100 mixtral-8x7b --set workload.model.num_local_experts=16 --set workload.layers=2 "
    "--set workload.batch=8 --set plan.expert=4 --set plan.expert_routing=picks.csv",
    "dram hbm2 trace.csv",
    "dram hbm2 trace.csv --exact",
    "dram hbm2 trace.csv --commands c.csv",
    "reproduce exflow",
    "reproduce gpipe",
    "reproduce skippipe",
]
SEEN = """\
import sys
from siliconloom.arch.kernels import KERNELS
from siliconloom.cli import main
from siliconloom.commands.warming import warm_up

def seen():
    return {(name, str(s)) for name, each in KERNELS.items() for s in getattr(each, "signatures", ())}

warm_up(PARTS)
known = seen()
for line in open("commands"):
    status = main(line.split())
    new = seen() - known
    if status or new:
        print("FOUND", status, line.strip(), sorted(new))
    known |= new
"""


def run(code, folder, **environment):
    made = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment},
    )
    assert made.returncode == 0, made.stderr
    return made


@pytest.mark.slow(seconds=1)
def test_the_warm_up_compiles_modules_where_python_does_not():
    """Of an installation in place each process would compile over a hundred of them anew."""
    code = """
import os, sys
from siliconloom.commands.warming import _bytecode
modules = [m for name, m in sys.modules.items() if name.startswith("siliconloom") and m.__cached__]
for each in modules[:5]:
    if os.path.exists(each.__cached__):
        os.unlink(each.__cached__)
_bytecode()
assert len(modules) > 50 and not [m.__name__ for m in modules if not os.path.exists(m.__cached__)]
"""
    run(code, ".", PYTHONDONTWRITEBYTECODE="1")


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize(
    ("parts", "begins"),
    [
        (None, ("",)),
        (("chips",), ("sim npu-edge-int8", "map")),
        (("memories",), ("dram",)),
        (("gpus",), ("sim h100", "gpu")),
        (("networks",), ("collective ring", "collective torus-2d", "collective fat-tree", "collective mesh-2d")),
    ],
)
def test_after_the_warm_up_no_command_compiles_anything(parts, begins, tmp_path):
    """Every kernel that a command uses, with the types it uses it with, was used by the warm-up in the same process."""
    for name, text in {
        "gemms.yaml": GEMMS,
        "trace.csv": TRACE,
        "square.csv": SQUARE,
        "program.yaml": PROGRAM,
        "events.yaml": PROGRAM + EVENTS,
        "commands": "\n".join(each for each in COMMANDS if each.startswith(begins)),
        "picks.csv": "".join(f"{n % 16},{(n + 3) % 16},{n * n % 7},{9 + n % 5}\n" for n in range(99)),
        "ops.csv": "op,dtype,m,n,k\ngemm,bf16,64,64,64\n",
    }.items():
        (tmp_path / name).write_text(text)
    out = run(f"PARTS = {parts!r}\n{SEEN}", tmp_path).stdout
    assert [line for line in out.splitlines() if line.startswith("FOUND")] == []


def test_every_kernel_is_made_in_one_place():
    found = set()
    sources = [Path(at) / name for at, _, names in os.walk(PACKAGE, followlinks=True) for name in names]
    texts = {path: path.read_text(encoding="utf-8") for path in sources if path.suffix == ".py"}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "numba" in text else ():
            names = [n.name for n in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            if any(name.partition(".")[0] == "numba" for name in names):
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == {"arch/kernels.py", "arch/machine_code.py"}


SMALL = "from siliconloom.mapper.experts.assignment import best_assignment as f; import numpy as np; f(np.eye(3))"


@pytest.mark.slow(seconds=5)
def test_compiling_announces_itself_and_leaves_others_files_alone(tmp_path):
    others = [tmp_path / "other" / name for name in ("kernel.mine-3.py311.nbi", "streams.x-9.py311.1.nbc")]
    others[0].parent.mkdir()
    for path in others:
        path.write_text("somebody else's")
    first = run(SMALL, tmp_path, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.stderr == "compiling mapper.experts.assignment.assign, once per installation ...\n"
    assert run(SMALL, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).stderr == ""
    assert all(path.read_text() == "somebody else's" for path in others)
    for path in (*tmp_path.rglob("assignment*.nb?"), *tmp_path.rglob("assignment*.so")):
        path.write_bytes(b"damaged")
    assert run(SMALL, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).stderr == first.stderr


@pytest.mark.slow(seconds=2)
def test_a_full_disk_under_the_cache_does_no_harm(tmp_path):
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); " + SMALL
    assert run(full, tmp_path, NUMBA_CACHE_DIR=str(tmp_path)).stderr.startswith("compiling")
    assert not list(tmp_path.rglob("*.nb?"))


NAMED = 3


def inner(x):
    return x + NAMED


def outer(x):
    return [inner(each) for each in x]


@pytest.mark.parametrize("change", [3, 4])
def test_machine_code_is_fresh_while_all_that_went_into_it_is(monkeypatch, change):
    monkeypatch.setattr(inner, "__module__", "siliconloom.sim.made")
    before = kernel_digest.__wrapped__(outer)
    monkeypatch.setitem(globals(), "NAMED", change)
    assert (kernel_digest.__wrapped__(outer) == before) == (change == 3)


def test_whether_a_part_is_put_inside_its_callers_belongs_to_their_machine_code(monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", {})
    digests, function = set(), inner
    for inside in (True, False):
        monkeypatch.setitem(globals(), "inner", part(inside=inside)(function))
        digests.add(kernel_digest.__wrapped__(outer))
    assert len(digests) == 2
    assert outer([1]) == [4], "called by Python a part runs as it stands"
