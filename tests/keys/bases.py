"""Commands that the walk over all keys runs, small and sensitive, and what of their results counts."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from siliconloom.arch import load_chip, load_system
from siliconloom.cli import main
from siliconloom.evaluate.system import load_machine, system_step
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.pim.geometry import pim_geometry
from siliconloom.verification.link_cases import (
    modelled_link,
    modelled_ring,
    random_link_case,
    random_ring_case,
    ring_memories,
)
from siliconloom.workloads import load_workload

Sets = list[tuple[str, str]]
NOISE = {"simulator", "asked", "chip_digest", "version", "wall_s", "search", "plan", "plan_text", "experts"}
"""Keys of results that differ from run to run, or that only repeat what was asked."""

FILES = {
    "fleet.yaml": """
kind: fleet
name: fleet
groups:
  - {machine: h100, role: prompts}
  - {machine: dgx-a100, role: answers, plan: {tensor: 1, data: 2}}
link: {bandwidth: 25 GB/s, latency: 5 us}
""",
    "busy.csv": "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens,priority,client\n"
    + "".join(
        f"{n // 4 * 0.2:.1f},{90 + n * 37 % 700},{1 + n * 11 % 60},{'ab'[n % 2]},80,{n % 3},{'xy'[n % 5 == 0]}\n"
        for n in range(48)
    ),
    "alike.csv": "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens\n"
    + "".join(f"{n * 0.001:.3f},4128,20,p,4096\n" for n in range(32)),
    "adapted.csv": "arrival_s,prompt_tokens,output_tokens,adapter\n"
    + "".join(f"{n * 0.05:.2f},100,20,{'' if n % 4 == 0 else n % 4}\n" for n in range(24)),
    "models.csv": "arrival_s,prompt_tokens,output_tokens,model\n"
    + "".join(f"{n * 0.3:.1f},100,20,{'abc'[n * 7 % 3]}\n" for n in range(12)),
    "tiers.yaml": """
kind: chip
name: tiers
clock: 1 GHz
tile:
  kind: npu
  array: {rows: 16, cols: 16, dataflow: weight_stationary, operands: [int8], load_rows: 4}
  scratchpad: {capacity: 256 KiB, banks: 16}
  accumulator: {capacity: 64 KiB}
  vector: {lanes: 16}
tile_count: 2
memory:
  near: {kind: lpddr5, capacity: 128 KiB, bandwidth: 51.2 GB/s, latency: 100 ns}
  far: {kind: cxl, capacity: 4 GiB, bandwidth: 10 GB/s, latency: 250 ns, devices: 2, ports: 2, interleave: 4 KiB}
""",
    "rows.yaml": """
kind: chip
name: rows
clock: 1 GHz
tile:
  kind: npu
  array: {rows: 16, cols: 16, dataflow: weight_stationary, operands: [int8], load_rows: 4}
  scratchpad: {capacity: 256 KiB, banks: 16}
  accumulator: {capacity: 64 KiB}
  vector: {lanes: 16}
memory: {dram: {kind: hbm2, capacity: 1 GiB, latency: 100 ns, dram: hbm2}}
""",
    "gemms.yaml": """
kind: gemms
name: some
precision: int8
gemms:
  - {name: first, m: 64, n: 96, k: 80}
  - {name: second, m: 32, n: 64, k: 128, batch: 2}
""",
    "few.yaml": """
kind: gemms
name: few
precision: int8
gemms:
  - {name: only, m: 24, n: 48, k: 64}
""",
    "images.yaml": """
kind: convolutions
name: images
precision: int8
batch: 2
convolutions:
  - {name: first, in_channels: 8, out_channels: 16, height: 15, width: 15, kernel: 3, padding: 1}
""",
    "operators.yaml": """
kind: operators
name: operators
precision: int8
batch: 2
operators:
  - {name: pixels, kind: convolution, in_channels: 8, out_channels: 16, height: 15, width: 15, kernel: 3, padding: 1}
  - {name: largest, kind: max_pool, channels: 16, height: 15, width: 15, kernel: 3, padding: 1, reads: [pixels]}
  - {name: product, kind: gemm, m: 16, n: 24, k: 40}
  - {name: joined, kind: add, rows: 16, cols: 24}
  - {name: chances, kind: softmax, rows: 16, cols: 24, reads: [joined]}
""",
    "attention.yaml": """
kind: operators
name: attention
precision: int8
operators:
  - {name: attention, kind: attention, heads: 4, kv_heads: 2, queries: 16, keys: 16, head_dim: 8}
""",
    "exported.yaml": """
kind: onnx
name: exported
file: small.onnx
batch: 2
sequence: 8
dimensions: {heads: 3}
""",
    "model.yaml": """
kind: transformer
name: small
batch: 2
training_batch: 4
sequence: 64
context: 96
model: {model_type: gpt2, n_embd: 128, n_head: 4, n_layer: 2, n_positions: 256, vocab_size: 512}
""",
    "operations.csv": "op,dtype,m,n,k,batch,heads,kv_heads,head_dim,q_len,kv_len,bytes,gpus,weights,group,sparsity\n"
    "gemm,bf16,4096,4096,4096,,,,,,,,,int4,128,2of4\n"
    "gemm,bf16,4096,4096,4096,,,,,,,,,,,\n"
    "gemm,bf16,64,4096,4096,,,,,,,,,,,\n"
    "gemm,int8,4096,4096,4096,,,,,,,,,,,\n"
    "gemm,fp32,512,512,512,,,,,,,,,,,\n"
    "attention_prefill,bf16,,,,1,32,8,128,2048,2048,,,,,\n"
    "attention_decode,bf16,,,,16,32,8,128,1,4096,,,,,\n"
    "rmsnorm,bf16,4096,4096,,,,,,,,,,,,\n"
    "all_reduce,bf16,,,,,,,,,,67108864,8,,,\n"
    "all_reduce,bf16,,,,,,,,,,67108864,32,,,\n",
    "requests.csv": "cycle,op,address\n"
    + "".join(f"{2 * n},{'RRW'[n % 3]},{(n * 7919 * 64) % 2**26 if n % 4 else n * 64}\n" for n in range(6000)),
    # Two layers with two experts of a token, some more popular than others.
    "routing.csv": "".join(f"{n % 3},{3 + n % 5},{(n * n) % 4},{4 + n % 3}\n" for n in range(60)),
    "program.yaml": """
kind: communication
name: some
groups: {few: [0, 1, 2]}
splits: {tensor: {size: 4}}
program:
  - repeat: 2
    do:
      - compute: {time: 50 us}
      - all_reduce: {group: tensor, bytes: 4 MiB}
  - ranks: 0-3
    do:
      - together:
          - send: {to: rank+4, bytes: 1 MiB}
          - receive: {from: rank+4, bytes: 1 MiB}
  - ranks: 4-7
    do:
      - together:
          - send: {to: rank-4, bytes: 1 MiB}
          - receive: {from: rank-4, bytes: 1 MiB}
  - do:
      - all_gather: {bytes: 2 MiB}
      - reduce_scatter: {bytes: 2 MiB}
      - all_to_all: {bytes: 2 MiB}
      - broadcast: {bytes: 2 MiB}
      - barrier: {}
  - {ranks: 0-2, stream: beside, do: [compute: {time: 1 ms}, all_reduce: {group: few, bytes: 1 MiB}]}
  - {ranks: 0-1, stream: more, do: [compute: {time: 5 ms}]}
events:
  - {at: 10 us, chip: 3, factor: 1.5}
  - {at: 20 us, between: [2, 3], bandwidth: 1 GB/s}
  - {at: 70 us, between: [0, 1], failed: true}
  - {at: 900 us, between: [0, 1], failed: false}
timeout: 20 us
""",
    "edges.yaml": """
kind: network
name: edges
chips: 3
topology:
  kind: edges
  switches: 1
  edges: [{between: [0, 3]}, {between: [1, 3]}, {between: [2, 3]}, {between: [0, 1]}]
link: {bandwidth: 10 GB/s, latency: 500 ns}
""",
}


class Refused(Exception):
    """A command that ended with exit status 2, and what it said."""


def command(line: str) -> Callable[[Sets], Any]:
    """What runs a command line with overrides and returns its result."""

    def run(sets: Sets) -> Any:
        words = [*line.split(), *(word for path, value in sets for word in ("--set", f"{path}={value}"))]
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            status = main([*words, "--json", "result.json"])
        if status:
            raise Refused(f"{status}: {errors.getvalue().strip()}")
        return json.loads(Path("result.json").read_text())

    return run


def _communicate(sets: Sets) -> Any:
    """A program has no ``--set``: its file is written with the changes."""
    import yaml

    document: Any = yaml.safe_load(FILES["program.yaml"])
    for path, value in sets:
        here: Any = document
        *parents, last = (int(word) if word.isdigit() else word for word in path.split("."))
        for key in parents:
            here = here[key]
        here[last] = yaml.safe_load(value)
    Path("changed.yaml").write_text(yaml.safe_dump(document))
    return command("collective torus-2d changed.yaml --chips 8")([])


def _mapped(chip: str, words: str) -> Callable[[Sets], Any]:
    """A mapping has no ``--set``: the mapper's own is written with the changes, and lowered."""

    @cache
    def found() -> str:
        command(f"map {chip} {words} -o mapping.yaml")([])
        return Path("mapping.yaml").read_text()

    def run(sets: Sets) -> Any:
        import yaml

        document: Any = yaml.safe_load(found())
        for path, value in sets:
            here: Any = document
            *parents, last = (int(word) if word.isdigit() else word for word in path.split("."))
            for key in parents:
                here = here.setdefault(key, {}) if isinstance(here, dict) else here[key]
            here[last] = yaml.safe_load(value)
        Path("mapping.yaml").write_text(yaml.safe_dump(document))
        return command(f"map {chip} {words} --mapping mapping.yaml")([])

    return run


def _unequal(sets: Sets) -> Any:
    """Sequences of unequal lengths, which no command line can say."""
    system, chip = load_machine("neupims", [("policy.tensor", "1"), ("policy.pipeline", "1"), *sets])
    graph = load_workload("gpt3-7b", [("phase", "decode"), ("batch", "48"), ("layers", "2")])
    lengths = [40 + (n * 997) % 900 for n in range(48)]
    return system_step(system, graph, chip=chip, contexts=lengths)


def _linked(sets: Sets) -> Any:
    protocol = load_system("npu-x4-ring", sets).protocol
    assert protocol is not None
    return repr(modelled_link(protocol, random_link_case(protocol, 3, 0.03, 400)))


def _ring(sets: Sets) -> Any:
    system = load_system("npu-x4-ring", sets)
    assert system.protocol is not None
    assert system.ring is not None
    case = random_ring_case(system.ring, system.protocol, 4, 5, 0.0)
    runs = modelled_ring(system.ring, system.protocol, case)
    return repr((runs, ring_memories(system.ring, system.protocol, case)))


EDGE = "sim npu-edge-int8 model.yaml --set workload.layers=1 --set workload.batch=1 --set workload.sequence=32"
NEUPIMS = "sim neupims gpt3-7b --set workload.phase=decode --set workload.batch=16 --set workload.layers=4"
TRAINING = "plan dgx-h100 gpt2-medium --set workload.phase=training --set workload.batch=16 --set workload.layers=8"
PLAN = f"{TRAINING} --set plan.data=2 --set plan.tensor=2 --set plan.pipeline=2 --set plan.microbatch=1"
SPILL = "[{name: host, capacity: 1 GiB, bandwidth: 100 GB/s}]"
HOSTED = f"{PLAN} --set plan.offload=optimizer --set plan.host_bandwidth=25GB/s --set plan.host_memory_bandwidth=50GB/s"
PREFILL = (
    "plan dgx-h100 mixtral-8x7b --set workload.batch=4 --set workload.layers=2 --set plan.tensor=2 --set plan.data=4 "
    "--set plan.pipeline=1 --set plan.microbatch=1"
)
BASES: dict[str, Callable[[Sets], Any]] = {
    "fleet": command("serve fleet.yaml llama3-8b busy.csv"),
    "served": command("serve h100 llama3-8b busy.csv --set serve.cache_tokens=1600"),
    "served adapters": command(
        "serve h100 llama3-8b adapted.csv --set serve.adapter_rank=16 --set serve.host_bandwidth=20GB/s"
    ),
    "served offloaded": command(
        "serve h100 mixtral-8x7b 64x8 --set serve.requests=4 --set workload.layers=2 --set plan.tensor=1 "
        "--set serve.expert_slots=6 --set serve.expert_bandwidth=50GB/s"
    ),
    "served storing": lambda sets: command(
        "serve dgx-h100 llama3-8b busy.csv --set plan.tensor=1 --set plan.data=3 --set serve.cache_tokens=1600"
    )([("serve.spill", SPILL), *sets]),
    "served models": command(
        "serve dgx-h100 llama3-8b models.csv --set plan.tensor=1 --set plan.data=2 --set serve.model_slots=2 "
        "--set serve.model_bandwidth=20GB/s --set serve.router=least_loaded"
    ),
    "served tuning": command(
        "serve h100 llama3-8b busy.csv --set serve.tune_sequence=512 --set serve.tune_rank=16 "
        "--set serve.tune_step_s=0.05"
    ),
    "served alike": command("serve h100 llama3-8b alike.csv"),
    "served guessing": command(
        "serve h100 llama3-8b busy.csv --set serve.speculate=2 --set serve.acceptance=0.6 --set serve.draft=llama3-8b "
        "--set serve.draft_on=dgx-h100 --set serve.draft_latency_s=0"
    ),
    "served roomy": command("serve h100 llama3-8b busy.csv"),
    "served many": command("serve dgx-h100 llama3-8b busy.csv --set plan.tensor=1 --set plan.data=4"),
    "served scaled": command(
        "serve dgx-h100 llama3-8b busy.csv --set plan.tensor=1 --set plan.data=4 --set serve.replicas_least=1 "
        "--set serve.scale_at=900 --set serve.start_s=0.1"
    ),
    "served spilling": lambda sets: command("serve h100 llama3-8b busy.csv --set serve.cache_tokens=1024")(
        [*(() if any(key == "serve.spill" for key, _ in sets) else [("serve.spill", SPILL)]), *sets]
    ),
    "served capped": command(
        "serve h100 llama3-8b busy.csv --set serve.power_limit=300 --set serve.capped_clock=0.6 "
        "--set serve.power_every=0.05"
    ),
    "served moving": command(
        "serve dgx-h100 llama3-8b busy.csv --set plan.tensor=1 --set plan.data=4 --set serve.cache_tokens=1200 "
        "--set serve.migrate_below=150 --set serve.migrate_every=0.05"
    ),
    "edge": command(EDGE),
    "mapped sums": _mapped(
        "npu-edge-int8 --set tile.array.dataflow=output_stationary --set tile.array.load_rows=1",
        "gpt2 --set workload.layers=1 --set workload.sequence=32",
    ),
    "mapped": _mapped("npu-edge-int8", "gpt2 --set workload.layers=1 --set workload.sequence=32 --set tile_count=4"),
    "placed": _mapped("tiers.yaml", "gpt2 --set workload.layers=2 --set workload.sequence=32"),
    "array": command("sim systolic-ws-8 gemms.yaml"),
    "kept sums": command("sim systolic-os-8 few.yaml"),
    "tiers": command("sim tiers.yaml model.yaml --set workload.layers=1 --set workload.sequence=32"),
    "rows": command("sim rows.yaml gemms.yaml"),
    "joined": command("sim neupims-device few.yaml --set workload.precision=fp16"),
    "packed": command("sim npu-edge few.yaml --set workload.precision=w4a16 --set workload.weight_group=16"),
    "packed elements": command(
        "sim npu-edge few.yaml --set tile.array.cache=[] --set workload.precision=w4a16 --set workload.weight_group=16"
    ),
    "kept": command(
        "sim npu-edge gpt2 --set workload.layers=1 --set workload.phase=decode --set workload.cache_precision=fp8_e4m3"
    ),
    "compressed": command(
        "sim npu-edge-int8 few.yaml --set tile.dma.decompression=32 --set workload.weight_compression=0.7"
    ),
    "sparse": command(
        "sim npu-edge-int8 few.yaml --set tile.array.sparsity.patterns=2of4 --set workload.weight_sparsity=2of4"
    ),
    "own energy": command(
        "sim npu-edge-int8 few.yaml --set tile.array.energy.product=1pJ --set tile.array.energy.clock=1pJ"
    ),
    "packed rtl": lambda sets: repr(geometry_of(load_chip("npu-edge", sets))),
    "npu rtl": lambda sets: repr(geometry_of(load_chip("npu-edge-int8", sets))),
    "pim rtl": lambda sets: repr(pim_geometry(load_chip("pim-hbm", sets))),
    "pim": command("sim pim-hbm gemms.yaml --set workload.precision=bf16"),
    "beside": command(
        "sim npu-pim-edge gpt2 --set attention=channel --set workload.layers=1 --set workload.phase=decode "
        "--set workload.context=48"
    ),
    "neupims": command(NEUPIMS),
    "neupims many": command(NEUPIMS.replace("batch=16", "batch=512")),
    "unequal": _unequal,
    "link": _linked,
    "ring engine": _ring,
    "system": command("collective npu-x4-ring all_reduce 1MiB"),
    "network": command("collective torus-2d all_reduce 1MiB --chips 16"),
    "exchange": command("collective torus-2d all_to_all 1MiB --chips 16"),
    "own chips": command("collective ring all_reduce 1MiB"),
    "fat": command("collective fat-tree all_to_all 1MiB --chips 64"),
    "dragonfly": command("collective dragonfly all_to_all 1MiB --chips 32"),
    "nodes": command("collective edges.yaml all_to_all 1MiB"),
    "program": _communicate,
    "gpu": command("gpu h100 operations.csv"),
    "gpus": command("collective dgx-h100 all_reduce 64MiB"),
    "known gpu": command("gpu h100"),
    "dram": command("dram hbm2 requests.csv"),
    "gemms": command("workload gemms.yaml"),
    "images": command("workload images.yaml"),
    "operators": command("workload operators.yaml"),
    "attention": command("workload attention.yaml"),
    "operators run": command("sim npu-edge-int8 operators.yaml"),
    "prefill": command("workload model.yaml"),
    "mixture": command("workload mixtral-8x7b --set workload.layers=1"),
    "decode": command("workload model.yaml --set workload.phase=decode"),
    "training": command("workload model.yaml --set workload.phase=training"),
    "exported": command("workload exported.yaml"),
    "translator": command("workload t5-base"),
    "translated": command("workload t5-base --set workload.phase=decode"),
    "heard": command("workload whisper-small"),
    "plan": command(PLAN),
    "hosted plan": command(HOSTED),
    "experts": command(PREFILL),
    "run": command(f"{PLAN} --set run.steps=2000 --set run.mtbf=4000s --set run.checkpoint=10s --set run.restart=600s"),
    "stored": command(f"{PLAN} --set run.steps=2000 --set run.mtbf=2h --set run.storage=9GB/s"),
    "context": command(
        PLAN.replace("plan.data=2", "plan.data=1")
        .replace("plan.pipeline=2", "plan.context=4")
        .replace("plan.tensor=2", "plan.tensor=2 --set plan.pipeline=1")
    ),
    "apart": command(
        "plan dgx-h100 llama3-8b --set workload.batch=16 --set workload.layers=4 "
        "--set plan.data=8 --set plan.tensor=1 --set plan.pipeline=1 --set plan.microbatch=1"
    ),
    "slow link": command(
        f"{PLAN.replace('pipeline=2', 'pipeline=4').replace('data=2', 'data=1')} --set slow.link=0 --set slow.factor=2"
    ),
    "slow": command(f"{PLAN} --set slow.stage=1 --set slow.factor=2"),
}


def kept(result: Any) -> Any:
    """A result without what is not an answer."""
    if isinstance(result, dict):
        return {key: kept(value) for key, value in result.items() if key not in NOISE}
    return [kept(value) for value in result] if isinstance(result, list) else result
