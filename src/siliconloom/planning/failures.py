"""A whole training run of a plan, with chips that fail: what ``run.`` of ``loom plan`` asks for."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal
from typing import Any

from pydantic_core import PydanticCustomError

from siliconloom.arch import LoomError
from siliconloom.arch.errors import nearest_name
from siliconloom.arch.quantity import parse
from siliconloom.planning.memory import Memory
from siliconloom.sim.failures import TrainingRun, expected_seconds, run_training

SECONDS = {"s": Decimal(1), "min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400), "y": Decimal(31557600)}
TIMES = {"mtbf": "mtbf_s", "checkpoint": "checkpoint_s", "restart": "restart_s", "repair": "repair_s"}
COUNTS = {"steps": "steps", "spares": "spares", "checkpoint_steps": "checkpoint_steps", "seed": "seed"}
STORAGE = 1e9
"""Bytes per second at which a chip writes its state to storage, unless ``run.checkpoint`` gives the time."""


def parse_run(assignments: list[tuple[str, str]]) -> dict[str, Any]:
    """Values of ``--set run.KEY=VALUE``: times with units (``50000 h``), counts.

    Raises
    ------
    LoomError
        For unknown keys and values that are no times or counts.
    """
    found: dict[str, Any] = {}
    for key, text in assignments:
        shown = f"--set run.{key}={text}"
        if key in TIMES:
            try:
                found[TIMES[key]] = float(parse(text, SECONDS, "50000 h"))
            except PydanticCustomError as error:
                raise LoomError(f"{shown}: {error.message()}") from None
        elif key in COUNTS:
            if not text.strip().isdigit():
                raise LoomError(f"{shown}: must be a whole number")
            found[COUNTS[key]] = int(text)
        else:
            known = (*COUNTS, *TIMES)
            near = nearest_name(key, known)
            raise LoomError(f"{shown}: unknown key; " + (f"did you mean '{near}'?" if near else ", ".join(known)))
    if found and "steps" not in found:
        raise LoomError("run.steps is missing: the training steps of the run")
    return found


def run_result(given: dict[str, Any], step_s: float, chips: int, memory: Memory) -> dict[str, Any]:
    """One run by its seed, event by event, and the mean over all (Daly, 2006)."""
    sets = dict(given)
    seed = int(sets.pop("seed", 0))
    sets.setdefault("checkpoint_s", (memory.weights + memory.optimizer) / STORAGE)
    run = TrainingRun(step_s=step_s, chips=chips, **sets)
    found = run_training(run, seed=seed)
    parts = {k: v for k, v in asdict(found).items() if k != "events"}
    kinds = [e.kind for e in found.events]
    return {
        **parts, "seed": seed, "goodput": found.goodput, "checkpoint_every_steps": run.stretch,
        "expected_s": expected_seconds(run), "without_failures_s": run.steps * step_s,
        "waits": kinds.count("waited"),
    }  # fmt: skip
