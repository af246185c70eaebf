"""``loom compare``: one workload on one of our chips and on GPUs, operator by operator.

Every machine's figures are those of its own result, the one that `loom sim` has; they are put side by side here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from siliconloom import __version__
from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.compared import COMPARE_SCHEMA
from siliconloom.arch.document import Document
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.gpu import Gpu
from siliconloom.arch.progress import NOBODY, Watcher
from siliconloom.arch.result import digest_of
from siliconloom.arch.system import Policy
from siliconloom.baselines.stacks import NO_STACK, Stack
from siliconloom.evaluate.gpus import gpus_of
from siliconloom.evaluate.machine import DescribedMachine, evaluate, read_machine
from siliconloom.evaluate.steps import ModelTooLarge
from siliconloom.sim.chip.energy import EXCLUDED_BY_BOARDS
from siliconloom.workloads import Graph, Phase

MOST_DOLLARS = 1_000_000_000
"""An hour, of any machine: more is a slip of the keyboard."""
KIND = {"chip": "chip", "pim_tile": "chip", "gpus": "gpu", "system": "system"}
"""Of a machine in a comparison, by the kind of its result."""
KERNEL = (
    *("name", "kind", "repeat", "seconds", "error", "error_90", "nearby", "bound", "fused"),
    *("measured_s", "measured_error", "measured_in"),
)
"""What a comparison takes over of a GPU's kernel, as far as the result has it."""


def parse_prices(texts: list[str], known: list[str]) -> dict[str, float]:
    """Prices in dollars an hour from texts such as ``h100=2.5``; a system's is that of all its chips."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = float("nan")
        if not equals or not np.isfinite(price) or price < 0:
            raise LoomError(f"--price {text}: must look like NAME=DOLLARS_PER_HOUR, such as h100=2.5")
        if price > MOST_DOLLARS:
            raise LoomError(f"--price {text}: must be at most {MOST_DOLLARS:,} dollars an hour")
        names = {n.lower(): n for n in known}
        if name.lower() not in names:
            near = nearest_name(name, known)
            raise LoomError(
                f"--price {text}: '{name}' is not compared here; "
                + (f"did you mean '{near}'?" if near else "compared are " + ", ".join(known))
            )
        found[names[name.lower()]] = price
    return found


def compare_workload(
    name: str | Document,
    sets: list[tuple[str, str]],
    graph: Graph,
    gpus: list[Gpu],
    *,
    tensor: int = 1,
    sustained: bool = False,
    stack: Stack = NO_STACK,
    prices: Sequence[str] = (),
    watcher: Watcher = NOBODY,
    overrides: Iterable[tuple[str, str]] = (),
) -> dict[str, Any]:
    """Evaluate ``graph`` on a chip or system and on the GPUs, and put all side by side (`arch.compared`)."""
    if graph.phase is Phase.TRAINING and stack != NO_STACK:
        raise LoomError(f"--stack {stack.name}: it serves prompts and tokens, and training is asked")
    machine = read_machine(name, sets)
    if machine.chip is not None and machine.system is None and machine.chip.tile.kind == "pim":
        raise NotSupported(f"compare of a bare pim tile ({machine.name}); name a system or a chip that has one")
    names = [machine.name, *(g.name for g in gpus)]
    if len(set(names)) < len(names):
        raise LoomError(f"--gpu: {', '.join(names[1:])}: each machine once, none of them {machine.name}")
    dollars = parse_prices(list(prices), names)
    theirs = [gpu_result(g, graph, tensor=tensor, sustained=sustained, stack=stack) for g in gpus]
    ours = evaluate(machine, graph, sets, watcher=watcher).result
    rows = {part: o["name"] for o in ours["operators"] for part in (o["name"], *_fused(o))}
    sides = [_machine(machine.name, ours, 1), *(_machine(g.name, r, tensor) for g, r in zip(gpus, theirs, strict=True))]
    asked = {
        **ours["asked"],
        "overrides": dict(overrides),
        "gpus": [{"name": g.name, "machine_digest": digest_of([g])} for g in gpus],
        "tensor": tensor,
        "sustained": sustained,
        "stack": stack.name,
        "prices": dollars,
    }
    for side in sides:
        price = dollars.get(side["name"])
        side["dollars_per_hour"] = price
        hourly = side["tokens_per_second"] * 3600
        side["dollars_per_million_tokens"] = None if price is None else price / hourly * 1e6
    for side in sides[1:]:
        _set_beside(side, sides[0])
    operators = [_operators(result, rows) for result in (ours, *theirs)]
    return {
        "schema": COMPARE_SCHEMA,
        "version": __version__,
        "asked": asked,
        "workload": graph.name,
        "phase": graph.phase.value,
        "precision": graph.formats,
        "batch": graph.batch,
        "tokens": graph.tokens,
        "notes": list(dict.fromkeys(note for result in (ours, *theirs) for note in result["notes"])),
        "machines": sides,
        "operators": [
            {"name": row, "machines": {n: found.get(row) for n, found in zip(names, operators, strict=True)}}
            for row in operators[0]
        ],
    }


def gpu_result(gpu: Gpu, graph: Graph, *, tensor: int, sustained: bool, stack: Stack) -> dict[str, Any]:
    """One step of ``graph`` on ``tensor`` GPUs that share every operator.

    Raises
    ------
    LoomError
        When the model does not fit the GPUs' memory, or cannot be shared evenly.
    """
    cluster = gpus_of(gpu, tensor, sustained=sustained)
    try:
        return evaluate(
            DescribedMachine(gpu.name, cluster=cluster, policy=Policy(tensor=tensor), stack=stack), graph
        ).result
    except ModelTooLarge as error:
        more = max(error.least, tensor + 1)
        raise LoomError(f"{error}; try --tensor {1 << (more - 1).bit_length()}") from None


def _fused(operator: dict[str, Any]) -> list[str]:
    """Operators that a chip does on the results of another one; of a GPU's kernel it is said whether it is one."""
    fused = operator.get("fused")
    return fused if isinstance(fused, list) else []


def _machine(name: str, result: dict[str, Any], count: int) -> dict[str, Any]:
    """Totals of a result."""
    system = result.get("system")
    return {
        "name": name,
        "kind": "system" if system and result["kind"] != "gpus" else KIND[result["kind"]],
        "energy_of": "boards" if result["energy_excludes"] == list(EXCLUDED_BY_BOARDS) else "chips",
        "count": count,
        "chips": system["chips"] if system else 1,
        "seconds": result["seconds"],
        "error": result.get("error", 0.0),
        "error_90": result.get("error_90", 0.0),
        "measured_share": result.get("measured_share"),
        "measured_s": result.get("measured_s"),
        "measured_error": result.get("measured_error"),
        "overhead_s": result.get("overhead_s", 0.0),
        "energy_j": result["energy_j"],
        "energy_excludes": result["energy_excludes"],
        "power_w": result["power_w"],
        "tokens_per_second": result["tokens_per_second"],
        "utilization": result["utilization"],
        "roofline_s": result["bound"]["lower_bound_s"],
        "achieved": result["bound"]["achieved"],
    }


def _set_beside(machine: dict[str, Any], ours: dict[str, Any]) -> None:
    """How a machine stands to ours; above 1 ours is faster, or needs less energy."""
    speedup = machine["seconds"] / ours["seconds"]
    machine["speedup"] = speedup
    machine["speedup_range"] = [speedup / (1 + machine["error"]), speedup * (1 + machine["error"])]
    machine["energy_ratio"] = machine["energy_j"] / ours["energy_j"] if ours["energy_j"] else None


def _operators(result: dict[str, Any], rows: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Operators of a result by the row that each belongs to: its own, or that of the one it is a part of, or follows.

    Those of a system are one chip's, all layers of its stage.
    """
    parts: dict[str, list[dict[str, Any]]] = {}
    for operator in result["operators"]:
        name = operator["name"]
        if name not in rows:
            name = name.removesuffix(".all_reduce").removesuffix(".all_gather")
        parts.setdefault(rows.get(name, name), []).append(operator)
    return {name: _row(result, operators) for name, operators in parts.items()}


def _row(result: dict[str, Any], operators: list[dict[str, Any]]) -> dict[str, Any]:
    """One row of a comparison from the operators that belong to it."""
    predicted = result["kind"] == "gpus"
    seconds = sum(o["seconds"] for o in operators)
    spread, spread_90 = (sum(o["seconds"] * o.get(bar, 0.0) for o in operators) for bar in ("error", "error_90"))
    known = [o for o in operators if "measured_s" in o]
    measured_s = sum(o.get("measured_s", o["seconds"]) for o in operators)
    measured_spread = sum(
        o.get("measured_s", o["seconds"]) * o.get("measured_error", o.get("error", 0.0)) for o in operators
    )
    energies = [o.get("energy_j") for o in operators]
    floors = [_floor(result, o) for o in operators]
    longest = max(operators, key=lambda o: o["seconds"])
    roofline = None if None in floors else sum(f for f in floors if f is not None)
    row = {
        "seconds": seconds,
        "error": spread / seconds if seconds else 0.0,
        "error_90": spread_90 / seconds if seconds else 0.0,
        "source": "modelled" if predicted else "simulated",
        "measured_s": measured_s if known else None,
        "measured_error": measured_spread / measured_s if known else None,
        "measured": "none" if not known else "all" if len(known) == len(operators) else "some",
        "energy_j": None if None in energies else sum(e for e in energies if e is not None),
        "flops": 2.0 * sum(o.get("macs", 0) for o in operators),
        "roofline_s": roofline,
        "achieved": roofline / seconds if roofline and seconds else None,
        "bound": longest.get("bound", longest.get("unit")),
    }
    if predicted:
        row["kernels"] = [{key: o[key] for key in KERNEL if key in o} for o in operators]
    return row


def _floor(result: dict[str, Any], operator: dict[str, Any]) -> float | None:
    if "roofline_s" in operator or "bound_cycles" not in operator:
        floor: float | None = operator.get("roofline_s")
        return floor
    return float(operator["bound_cycles"] / result["clock_hz"])
