"""What a shell offers behind `loom COMMAND`: names of the library, and key paths behind ``--set``.

A shell asks a process of its own for every Tab, so names are those of files, and nothing is loaded for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

PLACES = ("chip", "system", "name", "memory")
"""Arguments of commands that name a machine."""
OF_PLANS = ("tensor", "pipeline", "data", "microbatch")


def chips(incomplete: str) -> list[str]:
    """Chips of the library."""
    from siliconloom.arch.names import chip_names

    return _begun(chip_names(), incomplete)


def machines(incomplete: str) -> list[str]:
    """Chips, systems and GPUs of the library."""
    from siliconloom.arch.names import chip_names, gpu_names, system_names

    return _begun([*chip_names(), *system_names(), *gpu_names()], incomplete)


def systems(incomplete: str) -> list[str]:
    """Systems and bare networks of the library."""
    from siliconloom.arch.names import network_names, system_names

    return _begun([*system_names(), *network_names()], incomplete)


def gpus(incomplete: str) -> list[str]:
    """GPUs of the library; of several, separated by commas, the last one is completed."""
    from siliconloom.arch.names import gpu_names

    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _begun(gpu_names(), last)]


def traces(incomplete: str) -> list[str]:
    """Traces of requests of the library."""
    from siliconloom.workloads.serving.names import trace_names

    return _begun(trace_names(), incomplete)


def workloads(incomplete: str) -> list[str]:
    """Workloads of the library."""
    from siliconloom.workloads.names import workload_names

    return _begun(workload_names(), incomplete)


def set_paths(context: typer.Context, incomplete: str) -> list[str]:
    """Key paths of the machine that the line names, and of workloads, each with its ``=``."""
    machine = next((context.params[name] for name in PLACES if context.params.get(name)), None) or _typed()
    return _begun([f"{path}=" for path in _paths(machine)], incomplete)


def _typed() -> str | None:
    """The first word behind the command, from the shell's own line: behind an option without its value none is read."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    return next((word for word in line.split()[2:] if not word.startswith("-")), None)


def _paths(machine: str | None) -> Iterator[str]:
    from siliconloom.arch.errors import LoomError

    try:
        if machine is not None:
            from siliconloom.arch.description import Chip
            from siliconloom.arch.gpu import Gpu
            from siliconloom.arch.kinds import machine_document
            from siliconloom.arch.schema_keys import key_paths
            from siliconloom.arch.system import System

            data = machine_document(machine).data
            kinds: dict[str, type[BaseModel]] = {"chip": Chip, "gpu": Gpu, "system": System}
            yield from key_paths(kinds[str(data.get("kind"))], data)
            if data["kind"] == "system":
                yield from (f"plan.{key}" for key in OF_PLANS)
    except (LoomError, KeyError):  # no such machine: the command says so
        pass
    from siliconloom.workloads.description import Transformer

    yield from (f"workload.{key}" for key in Transformer.model_fields if key not in ("kind", "name", "model"))


def _begun(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.lower().startswith(incomplete.lower())]


__all__ = ["chips", "gpus", "machines", "set_paths", "systems", "workloads"]
