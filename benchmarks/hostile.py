"""Hostile input: command lines and files that are wrong, strange or large, drawn from the schemas and the library.

``case(seed)`` is one command with its files, the same for the same seed. Three of four are near something valid, so
that what lies behind the first check is reached: a description or a configuration with a few nodes of its tree
changed, one value set, a table with a few cells changed. Used by `benchmarks.fuzz` and by ``tests/hostile``.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import siliconloom
from siliconloom.arch.serving import ServeSettings
from siliconloom.evaluate.schemas import KINDS, schema_of

PACKAGE = Path(siliconloom.__file__).parent
STRANGE = [
    "",
    " ",
    "null",
    "~",
    "true",
    "no",
    "0",
    "-1",
    "-0.0",
    "1.5",
    "1e309",
    ".nan",
    ".inf",
    "-.inf",
    "nan",
    "9" * 30,
    "9" * 5000,
    "1e-320",
    "0x10",
    "0o17",
    "0b_",
    "1_000",
    "1:30",
    "1:1:1:1:1:1:1",
    "2001-99-99",
    "2001-12-14t21:59:43.10-05:00",
    "[]",
    "{}",
    "[1, 2]",
    "[[[[]]]]",
    "{a: 1}",
    "{kind: chip}",
    '!!int ""',
    "!!bool maybe",
    "!!timestamp x",
    "!!binary x",
    "!!float ''",
    "!!python/object/apply:os.system [id]",
    "!x y",
    "&a [*a]",
    "*a",
    "<<",
    "? x",
    "- x",
    "a: b: c",
    "'",
    '"',
    "[",
    "}",
    "%TAG",
    "---",
    "a\nb",
    "a\r\nb",
    "\t",
    "x" * 5000,
    "[/foo]",
    "[bold]x[/bold]",
    "[link=javascript:1]x[/link]",
    "\x1b[31mred",
    "\x1b]0;t\x07",
    "\x00",
    "\x7f",
    "\x9b31m",
    "\u202eabc",
    "\u2028",
    "\ud7ff",
    "\ufeff",
    "\U0001f600",
    "é",
    "１２",
    "٣",
    "<script>",
    "${HOME}",
    "$(id)",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/null",
    "/",
    ".",
    "~root",
    "C:\\x",
    "module",
    "begin",
    "1 GB",
    "0 B",
    "1 B",
    "64 KiB",
    "1 PiB",
    "1e30 GiB",
    "-1 GiB",
    "1 parsec",
    "1 GHz",
    "0 Hz",
    "1e30 Hz",
    "1 ns",
    "0 s",
    "1e20 s",
    "1 GB/s",
    "0 B/s",
    "1 B/s",
    "1e20 GB/s",
    "50 %",
    "bf16",
    "int8",
    "fp8",
    "int4",
    "weight_stationary",
    "auto",
    "none",
    "all_reduce",
    "ring",
]
NUMBERS = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    12,
    16,
    31,
    32,
    63,
    64,
    100,
    127,
    128,
    255,
    256,
    1000,
    1023,
    1024,
    4096,
    65535,
    2**20,
    2**24,
    2**31 - 1,
    2**31,
    2**32,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -1,
    -(2**63),
    0.5,
    1e-9,
    1e18,
]
GEMMS: dict[str, Any] = {
    "kind": "gemms",
    "name": "made",
    "precision": "int8",
    "gemms": [
        {"name": "a", "m": 16, "n": 32, "k": 64},
        {"name": "b/c", "m": 7, "n": 9, "k": 65, "batch": 2, "repeat": 3, "bias": True},
    ],
}
MAPPING: dict[str, Any] = {
    "kind": "mapping",
    "layout": {"weights": "40000 B", "moving": "20000 B", "vector": "9 KiB", "results": "9 KiB", "constants": "1 KiB"}
    | {"partial": "32 KiB"},
    "tasks": [
        {"operator": "a", "fused": [], "gemm": {"m": 8, "n": 32, "k": 64, "order": "n_outer", "resident": True}},
        {"operator": "b/c", "gemm": {"m": 7, "n": 9, "k": 16, "order": "m_outer"}},
    ],
}
CONVOLUTIONS: dict[str, Any] = {
    "kind": "convolutions",
    "precision": "int8",
    "batch": 1,
    "convolutions": [
        {
            "name": "a",
            "in_channels": 8,
            "out_channels": 16,
            "height": 14,
            "width": 14,
            "kernel": 3,
            "stride": 2,
            "padding": 1,
        }
    ],
}
PROGRAM: dict[str, Any] = {
    "kind": "communication",
    "name": "made",
    "groups": {"left": "0-3"},
    "splits": {"tensor": {"size": 4}, "data": {"size": 2, "stride": 4}},
    "program": [
        {"repeat": 2, "do": [{"compute": {"time": "5 us"}}, {"all_reduce": {"group": "tensor", "bytes": "64 KiB"}}]},
        {
            "ranks": "0-3",
            "do": [{"together": [{"send": {"to": "rank+4", "bytes": "4 KiB"}}, {"receive": {"from": "rank+4"}}]}],
        },
        {
            "ranks": "4-7",
            "do": [{"together": [{"send": {"to": "rank-4", "bytes": "4 KiB"}}, {"receive": {"from": "rank-4"}}]}],
        },
        {"stream": "gradients", "do": [{"reduce_scatter": {"group": "data", "bytes": "1 MiB"}}]},
    ],
    "events": [
        {"at": "100 us", "chip": 3, "factor": 1.5},
        {"at": "1 us", "between": [0, 1], "failed": True},
        {"at": "9 us", "between": [0, 1], "failed": False},
    ],
    "timeout": "20 us",
}
OPERATIONS = (
    "op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,causal,dtype,gpus,bytes\n"
    "gemm,64,128,256,1,,,,,,,bf16,,\nattention_prefill,,,,2,128,128,8,8,64,1,bf16,,\nall_reduce,,,,,,,,,,,bf16,8,1048576\n"
)
SERVED = (
    "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens,session,priority,client\n"
    "0,40,5,a,16,,1,x\n0.1,33,1,a,16,s,0,y\n0.1,12,9,,,,2,x\n0.3,90,3,,,s,0,y\n7,8,8,,,,0,x\n"
)
FLEET = {
    "kind": "fleet",
    "name": "fleet",
    "groups": [
        {"machine": "h100", "role": "prompts", "price": 3},
        {"machine": "dgx-a100", "role": "answers", "plan": {"tensor": 2, "data": 2}},
    ],
    "link": {"bandwidth": "25 GB/s", "latency": "5 us"},
}
REQUESTS = "cycle,op,address\n0,R,0\n5,W,0x40\n9,R,4096\n9,R,128\n400,W,1048576\n"
SQUARE = "0,1000,20,3\n5,0,7,8\n9,10,0,12\n1,2,3,0\n"
OPS = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_receive"]


@dataclass
class Case:
    """A command, the files that are there when it runs, and its standard input."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    input: bytes = b""


class Draw(random.Random):
    """Draws of a seed."""

    def maybe(self, share: float) -> bool:
        """True in that share of all draws."""
        return self.random() < share

    def scalar(self) -> Any:
        """A strange text or number."""
        return self.choice(STRANGE) if self.maybe(0.5) else self.choice(NUMBERS)


@cache
def library(folder: str) -> dict[str, Any]:
    """Descriptions of a folder of the library as plain data, by name."""
    return {
        p.stem: yaml.safe_load(p.read_text(encoding="utf-8"))
        for p in sorted((PACKAGE / folder / "library").glob("*.yaml"))
    }


@cache
def part_of_library(folder: str) -> dict[str, Any]:
    """As `library`, of a folder inside the library of descriptions."""
    return {
        p.stem: yaml.safe_load(p.read_text(encoding="utf-8"))
        for p in sorted((PACKAGE / "arch" / "library" / folder).glob("*.yaml"))
    }


@cache
def words() -> list[str]:
    """Every key of every schema."""
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            found.update(node.get("properties", {}) if isinstance(node.get("properties"), dict) else ())
            for each in node.values():
                walk(each)
        elif isinstance(node, list):
            for each in node:
                walk(each)

    for kind in KINDS:
        walk(schema_of(kind))
    return sorted(found)


def paths(data: Any, above: str = "") -> list[str]:
    """Key paths of all values of a document."""
    if isinstance(data, dict):
        return [p for key, value in data.items() for p in ([f"{above}{key}", *paths(value, f"{above}{key}.")])]
    if isinstance(data, list):
        return [p for index, value in enumerate(data) for p in ([f"{above}{index}", *paths(value, f"{above}{index}.")])]
    return []


def changed(draw: Draw, data: Any) -> Any:
    """A copy of a tree with a few of its nodes changed."""
    data = json.loads(json.dumps(data, default=str))
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        _change(draw, data)
    return data


def _change(draw: Draw, here: Any) -> None:
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            if isinstance(here, dict):
                here[draw.choice(words())] = draw.scalar()
            return
        key = draw.choice(keys)
        if isinstance(here[key], dict | list) and draw.maybe(0.75):
            here = here[key]
            continue
        break
    kind = draw.randrange(8)
    if kind == 0:
        del here[key]
    elif kind == 1 and isinstance(here, dict):
        here[draw.choice(words()) if draw.maybe(0.7) else draw.choice(STRANGE)] = here.pop(key)
    elif kind == 2:
        here[key] = draw.choice([[here[key]], {"kind": here[key]}, [here[key]] * 50, None, {}, []])
    elif kind == 3 and isinstance(here, dict):
        here[draw.choice(words())] = draw.scalar()
    elif kind == 4 and isinstance(here[key], int | float):
        here[key] = draw.choice(
            [here[key] + 1, here[key] * 2, here[key] // 2, -here[key], here[key] * 1000, str(here[key])]
        )
    else:
        here[key] = draw.scalar()


def damaged(draw: Draw, text: str) -> bytes:
    """The text as bytes, now and then with some of them wrong."""
    raw = text.encode("utf-8", "surrogatepass")
    if draw.maybe(0.92):
        return raw
    kind = draw.randrange(8)
    place = draw.randrange(len(raw) + 1)
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + draw.choice(STRANGE).encode("utf-8", "surrogatepass") + raw[place:]
    if kind == 2:
        return raw[:place] + bytes([draw.randrange(256)]) + raw[place + 1 :]
    if kind == 3:
        return text.encode("utf-16")
    if kind == 4:
        return b"\xef\xbb\xbf" + raw.replace(b"\n", b"\r\n")
    if kind == 5:
        return raw + raw
    return raw.replace(b" ", b"\t", draw.randrange(4)) if kind == 6 else b""


def document(draw: Draw, data: Any) -> bytes:
    """A description as a file: most often one that was changed."""
    data = changed(draw, data) if draw.maybe(0.65) else data
    return damaged(draw, yaml.safe_dump(data, sort_keys=False, allow_unicode=draw.maybe(0.5)))


def table(draw: Draw, text: str) -> bytes:
    """A table as a file, with a few cells changed."""
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(draw.choice([0, 0, 1, 1, 2, 5])):
        row = draw.choice(rows)
        kind = draw.randrange(6)
        if kind == 0:
            row.append(str(draw.scalar()))
        elif kind == 1 and len(row) > 1:
            row.pop()
        elif kind == 2:
            rows.append(list(row))
        else:
            row[draw.randrange(len(row))] = str(draw.scalar())
    return damaged(draw, "\n".join(",".join(row) for row in rows) + "\n")


class Command:
    """A command that is put together: arguments, and files beside it."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.arguments, self.files = draw, list[str](), dict[str, bytes]()

    def file(self, name: str, content: bytes) -> str:
        """The name of a file that the command is given."""
        if name.endswith(".csv") and self.draw.maybe(0.1):
            name, content = name + ".gz", gzip.compress(content, mtime=0)[: self.draw.choice([10, 10**9])]
        self.files[name] = content
        return name

    def machine(self, names: list[str], folder: str = "arch") -> str:
        """A library name, a changed file, or something else."""
        if self.draw.maybe(0.45):
            found = {**library(folder)}[self.draw.choice(names)]
            return self.file("machine.yaml", document(self.draw, found))
        return self.draw.choice(names) if self.draw.maybe(0.97) else str(self.draw.scalar())

    def workload(self) -> str:
        """A list of products, a library's model, or a configuration."""
        kind = self.draw.randrange(6)
        if kind < 2:
            return self.file("work.yaml", document(self.draw, self.draw.choice([GEMMS, GEMMS, CONVOLUTIONS])))
        if kind == 2:
            config = json.loads((PACKAGE / "workloads" / "library" / "gpt2.config.json").read_text())
            name = self.file("config.json", damaged(self.draw, json.dumps(changed(self.draw, config))))
        elif kind == 3:
            name = self.file(
                "model.yaml",
                document(self.draw, library("workloads")[self.draw.choice(["gpt2", "llama3-8b", "mixtral-8x7b"])]),
            )
        else:
            name = self.draw.choice(["gpt2", "bert-base", "llama3-8b", "mixtral-8x7b", "deepseek-v3"])
        if self.draw.maybe(0.7):
            self.arguments += ["--set", "workload.precision=int8"]
        if kind >= 2:
            decode = self.draw.maybe(0.3)
            length = "context" if decode else "sequence"
            self.arguments += ["--set", "workload.layers=1", "--set", f"workload.{length}=16"]
            self.arguments += ["--set", "workload.phase=decode"] if decode else []
        return name

    def sets(self, data: Any, prefix: str = "") -> None:
        """Now and then, values set by key path."""
        while self.draw.maybe(0.2):
            known = paths(data)
            path = (
                self.draw.choice(known)
                if known and self.draw.maybe(0.8)
                else ".".join(self.draw.choices(words(), k=self.draw.choice([1, 1, 2, 3])))
            )
            self.arguments += ["--set", f"{prefix}{path}={self.draw.scalar()}"]

    def flags(self, *names: str, share: float = 0.15) -> None:
        """Now and then, options."""
        for name in names:
            if self.draw.maybe(share):
                self.arguments += name.split(" ")

    def option(self, name: str, value: object, share: float = 0.3) -> None:
        """Now and then, an option with a value, or with a strange one."""
        if self.draw.maybe(share):
            self.arguments += [name, str(self.draw.scalar() if self.draw.maybe(0.3) else value)]


CHIPS = [
    *["npu-edge-int8"] * 8,
    "npu-cxl",
    "gemmini-16",
    "tpu-v4",
    "sn40l",
    "systolic-ws-8",
    "pim-hbm",
    "neupims-device",
    "csd-flash",
    "pim-gpt",
]
SYSTEMS = ["npu-x4-ring", "neupims", "sn40l-node", "dgx-h100", "dgx-a100", "dgx-h100x8"]
NETWORKS = ["ring", "torus-2d", "switch", "fully-connected", "mesh-2d", "fat-tree"]


def _sim(c: Command) -> None:
    chip = c.draw.maybe(0.9)
    name = c.machine(CHIPS if chip else SYSTEMS)
    c.arguments = ["sim", name, c.workload(), *c.arguments]
    c.sets(library("arch")["npu-edge-int8" if chip else "npu-x4-ring"])
    c.sets(
        {"phase": 0, "batch": 0, "sequence": 0, "context": 0, "precision": 0, "layers": 0, "name": 0, "model": 0},
        "workload.",
    )
    c.sets({"plan": {"tensor": 0, "pipeline": 0, "expert": 0, "context": 0}})
    c.flags("--exact", "--trace t.json", "--csv c.csv", "--report r.html", "--search", share=0.08)
    c.option("--window", c.draw.choice(["0:100", "1us:2us", "5:1", "a:b"]), 0.04)


def _map(c: Command) -> None:
    if c.draw.maybe(0.4):
        files = [c.file("gemms.yaml", yaml.safe_dump(GEMMS).encode()), c.file("map.yaml", document(c.draw, MAPPING))]
        c.arguments = [c.draw.choice(["map", "sim"]), "npu-edge-int8", files[0], "--mapping", files[1]]
        c.option("-o", c.draw.choice(["-", "new.yaml", "map.yaml", "gemms.yaml"]), 0.2)
        return
    c.arguments = ["map", c.machine(CHIPS), c.workload(), *c.arguments]
    c.sets(library("arch")["npu-edge-int8"])
    c.flags("--program")


def _workload(c: Command) -> None:
    c.arguments = ["workload", c.workload(), *c.arguments]
    c.sets(library("workloads")["gpt2"])


def _gpu(c: Command) -> None:
    data = part_of_library("gpu")
    name = c.draw.choice(sorted(data))
    gpu = c.file("gpu.yaml", document(c.draw, data[name])) if c.draw.maybe(0.3) else name
    c.arguments = ["gpu", gpu, *([c.file("ops.csv", table(c.draw, OPERATIONS))] if c.draw.maybe(0.8) else [])]
    c.sets(data[name])
    c.flags("--sustained", "--no-cache-write")


def _compare(c: Command) -> None:
    c.arguments = ["compare", c.machine(["npu-edge-int8"]), c.workload(), *c.arguments]
    c.arguments += ["--gpu", c.draw.choice(["h100", "a100", "h100,a100", "h100,", ",", "b200", "nope"])]
    c.option("--price", c.draw.choice(["h100=2.5", "npu-edge-int8=1", "h100=1e308", "h100=nan", "x=1", "h100"]))
    c.option("--tensor", c.draw.choice([1, 2, 8, 0, 3]), 0.2)
    c.option("--stack", c.draw.choice(["vllm", "none", "vlm"]), 0.2)
    c.flags("--sustained", "--report r.html", share=0.1)


def _collective(c: Command) -> None:
    name = c.draw.choice(NETWORKS)
    data = part_of_library("network")[name]
    network = c.file("net.yaml", document(c.draw, data)) if c.draw.maybe(0.3) else name
    kind = c.draw.randrange(4)
    if kind == 0:
        c.arguments = ["collective", network, c.file("program.yaml", document(c.draw, PROGRAM)), "--chips", "8"]
    elif kind == 1:
        c.arguments = ["collective", network, "all_to_all", c.file("square.csv", table(c.draw, SQUARE))]
    else:
        size = c.draw.scalar() if c.draw.maybe(0.4) else c.draw.choice(["0", "1", "1 MiB", "64KiB", "1e6"])
        c.arguments = [
            "collective",
            network,
            c.draw.choice(OPS),
            str(size),
            "--chips",
            str(c.draw.choice([1, 2, 3, 4, 8, 9, 16, 0, -1])),
        ]
    c.sets(data)
    c.flags("--exact", "--flows", "--predicted")


ROOMY = (
    "memory.dram.capacity=16 GiB",
    "tile.scratchpad.capacity=1 MiB",
    "tile.accumulator.capacity=256 KiB",
    "tile.sequencer.program_words=8192",
)
"""What a tile of the small ring needs for two layers of either model."""


def _plan(c: Command) -> None:
    system = c.machine(["npu-x4-ring", "dgx-h100", "dgx-a100"])
    c.arguments = ["plan", system, c.draw.choice(["gpt2", "llama3-8b"])]
    trains = system.startswith("dgx")
    phase = c.draw.choice(["prefill", "decode", "x", "training", "training" if trains else "prefill"])
    for text in (f"phase={phase}", "batch=8", "layers=2"):
        c.arguments += ["--set", f"workload.{text}"]
    if not trains and c.draw.maybe(0.7):
        if phase == "prefill":
            c.arguments += ["--set", "workload.sequence=16"]
        for text in ROOMY if c.draw.maybe(0.8) else []:
            c.arguments += ["--set", f"chip.{text}"]
        c.sets(library("arch")["npu-edge-int8"], "chip.")
    keys = ("tensor", "pipeline", "data", "context", "microbatch", "schedule", "overlap", "attention")
    c.sets(dict.fromkeys(keys, 1), "plan.")
    c.sets(dict.fromkeys(("steps", "mtbf", "spares", "checkpoint"), 1), "run.")
    c.flags("--trace t.json", share=0.1)


def _dram(c: Command) -> None:
    data = part_of_library("dram")
    name = c.draw.choice(sorted(data))
    memory = c.file("memory.yaml", document(c.draw, data[name])) if c.draw.maybe(0.4) else name
    c.arguments = ["dram", memory, c.file("trace.csv", table(c.draw, REQUESTS))]
    c.sets(data[name])
    c.flags("--exact", "--commands c.csv")


def _rtl(c: Command) -> None:
    small = {**library("arch")["systolic-ws-8"]}
    small["tile"] = {**small["tile"], "array": {**small["tile"]["array"], "rows": 2, "cols": 2}}
    made = changed(c.draw, small)  # always changed: what is right takes seconds
    for path in (("tile", "array", "rows"), ("tile", "array", "cols")):
        made.setdefault("kind", "chips") if c.draw.maybe(0.5) else None
        inner = made
        for key in path[:-1]:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict) and isinstance(inner.get(path[-1]), int) and inner[path[-1]] > 4:
            inner[path[-1]] = -1
    out = c.draw.choice([".", "machine.yaml", "machine.yaml/x", "/proc/x", "/dev/null", "a\0b", "", "..", "x" * 300])
    c.arguments = ["rtl", c.file("machine.yaml", damaged(c.draw, yaml.safe_dump(made))), "-o", out]
    c.option("--reset", "async_low")


def _serve(c: Command) -> None:
    if c.draw.maybe(0.25):
        machine = c.file("fleet.yaml", document(c.draw, FLEET))
    else:
        machine = c.draw.choice(["h100", "dgx-a100", "npu-edge-int8", "rtx-pro-6000", str(c.draw.scalar())])
    trace = c.file("requests.csv", table(c.draw, SERVED)) if c.draw.maybe(0.7) else c.draw.choice(["64x8", "8x1"])
    c.arguments = ["serve", machine, c.draw.choice(["gpt2", "gpt2", "llama3-8b"]), trace]
    c.arguments += ["--set", "workload.layers=1", "--set", "serve.requests=4"]
    keys = ServeSettings.model_fields
    c.sets(dict.fromkeys(keys, 1), "serve.")
    c.sets(dict.fromkeys(("tensor", "data", "expert"), 1), "plan.")
    c.option("--slo", "ttft=1s")
    c.option("--find", "replicas", share=0.1)
    c.option("--stack", "none", share=0.1)
    c.option("--profile", "measured", share=0.1)
    c.flags("--csv r.csv", "--trace t.json", "--report r.html")


def _others(c: Command) -> None:
    c.arguments = c.draw.choice(
        [
            ["list"],
            ["schema", c.draw.choice([*KINDS, str(c.draw.scalar())])],
            ["reproduce", str(c.draw.scalar())],
            ["reproduce", "flat"],
            ["verify", c.file("machine.yaml", document(c.draw, library("workloads")["gpt2"]))],
            ["measure", "-o", str(c.draw.scalar())],
            ["synth", c.file("machine.yaml", document(c.draw, PROGRAM)), "--target", str(c.draw.scalar())],
            [str(c.draw.scalar())],
            ["sweep"],
            ["--version"],
            ["sim", *[str(c.draw.scalar()) for _ in range(c.draw.randrange(4))]],
            ["verify", "npu-edge-int8", "--cases", str(c.draw.scalar() or "x")],
            ["synth", "npu-edge-int8", "--liberty", "none.lib"],
            ["gpu", "h100", "-"],
            ["warmup", "x"],
        ]
    )
    if c.arguments[:2] in (["verify", "npu-edge-int8"],):
        c.arguments += ["--simulator", "icaruss"]


MAKERS: list[tuple[Callable[[Command], None], int]] = [
    (_sim, 34),
    (_map, 6),
    (_workload, 12),
    (_gpu, 10),
    (_compare, 5),
    (_collective, 14),
    (_plan, 3),
    (_serve, 5),
    (_dram, 7),
    (_rtl, 4),
    (_others, 5),
]


def case(seed: int) -> Case:
    """The command of a seed."""
    draw = Draw(seed)
    c = Command(draw)
    draw.choices([m for m, _ in MAKERS], [w for _, w in MAKERS])[0](c)
    if c.arguments[0] in (
        "sim",
        "map",
        "workload",
        "gpu",
        "compare",
        "collective",
        "plan",
        "serve",
        "dram",
    ) and draw.maybe(0.5):
        c.arguments += ["--json", "-" if draw.maybe(0.15) else "out.json"]
    if draw.maybe(0.02):
        c.arguments.insert(draw.randrange(len(c.arguments) + 1), str(draw.scalar()))
    stdin = table(draw, OPERATIONS) if draw.maybe(0.1) else b""
    return Case([a.replace("\0", "") if draw.maybe(0.9) else a for a in c.arguments], c.files, stdin)
