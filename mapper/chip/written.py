"""Mappings as descriptions: what is decided about a workload on a chip, written as YAML (`described` reads it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from msgspec.structs import asdict

from siliconloom.arch.tile import NpuTile
from siliconloom.mapper.chip.attention_cost import AttentionTiling
from siliconloom.mapper.chip.banked import refuse_banked
from siliconloom.mapper.chip.chosen import Chosen, Part, Tiling
from siliconloom.mapper.chip.layout import Layout, banks_of
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.mapper.chip.sharing import CUT_DIMENSIONS
from siliconloom.mapper.chip.tasks import Task
from siliconloom.mapper.chip.tiling import GemmTiling
from siliconloom.mapper.chip.vector_cost import VectorTiling
from siliconloom.workloads import Gemm


def mapping_text(mapped: MappedWorkload, *, joined: bool = False) -> str:
    """The description of a mapping, as YAML.

    Parameters
    ----------
    mapped
        From `map_workload` or `program.lower`.
    joined
        The chip's tiles work side by side as one.
    """
    assert mapped.mapping is not None
    refuse_banked(mapped.chip, mapped.graph, "a mapping file")
    parts, (layout, chosen) = mapped.mapping.parts, mapped.mapping.choice
    data: dict[str, Any] = {"kind": "mapping"} | ({"joined": True} if joined else {})
    assert isinstance(mapped.chip.tile, NpuTile)
    if banks_of(mapped.chip.tile, layout) > mapped.chip.tile.scratchpad.banks:
        data["banked"] = False
    data |= {"layout": _rings(layout), "tasks": _tasks(parts, chosen)}
    if mapped.placement is not None:
        data["placement"] = [
            {"operator": operator, "role": role, "levels": {home.level: home.count for home in homes if home.count}}
            for (operator, role), homes in mapped.placement.homes.items()
            if any(home.count for home in homes)
        ]
    lines = [f"# {mapped.graph.name}, {mapped.graph.phase.value}, on {mapped.chip.name}"]
    for key, value in data.items():
        rows = value if isinstance(value, list) else None
        lines += [f"{key}: {_line(value)}"] if rows is None else [f"{key}:", *(f"  - {_line(row)}" for row in rows)]
    return "\n".join(lines) + "\n"


def _rings(layout: Layout) -> dict[str, str]:
    """Bytes of a slot of each ring that there is."""
    return {ring: f"{size} B" for ring, size in asdict(layout).items() if size}


def _line(value: object) -> str:
    """YAML on one line."""
    text = yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=2**20)
    return text.removesuffix("...\n").strip()


def _tasks(parts: Sequence[Part], chosen: Sequence[Mapping[str, Chosen]]) -> list[dict[str, Any]]:
    """Every operator once, and again where its block goes on in another way."""
    rows: list[dict[str, Any]] = []
    last: dict[str, dict[str, Any]] = {}
    for part, made in zip(parts, chosen, strict=True):
        for task in part.tasks:
            name, kind = task.operator.name, task.operator.kind
            choice = made[name]
            cut = {n: p for n, p in zip(CUT_DIMENSIONS[kind], choice.share.cut, strict=True) if p > 1}
            fused = {"fused": [v.name for v in task.fused]} if isinstance(task.operator, Gemm) else {}
            block = {"block": task.block} if task.block else {}
            early = ahead_of(part, task, choice)
            loads = ({"ahead": early} if early else {}) | ({"chunk": f"{choice.chunk} B"} if choice.chunk else {})
            divided = {"layout": _rings(choice.divided)} if choice.divided is not None else {}
            decided = fused | ({"cut": cut} if cut else {}) | divided | {kind: _sizes(choice.tiling) | block | loads}
            if last.get(name) != decided:
                rows.append({"operator": name} | ({"repetition": part.first} if part.first else {}) | decided)
            last[name] = decided
    return rows


def ahead_of(part: Part, task: Task, chosen: Chosen) -> dict[str, str]:
    """Before which task's loads that wait for results the first weights of a product are loaded, by their ring."""
    names = [each.operator.name for each in part.tasks]
    own = names.index(task.operator.name)
    return {ring: names[own + 1 - reach] for ring, reach in asdict(chosen.ahead).items() if reach}


def _sizes(tiling: Tiling) -> dict[str, Any]:
    if isinstance(tiling, GemmTiling):
        sizes = {"m": tiling.m, "n": tiling.n, "k": tiling.k, "order": tiling.order}
        sizes |= {"resident": True} if tiling.resident else {}
        sizes |= {"held": tiling.held} if tiling.held else {}
        return sizes | ({"sequence": list(tiling.sequence)} if tiling.sequence else {})
    if isinstance(tiling, AttentionTiling):
        sizes = {"queries": tiling.queries, "keys": tiling.keys, "heads": tiling.heads}
        whole = {"whole": True} if tiling.whole else {}
        return sizes | whole | ({"resident": True} if tiling.resident else {})
    assert isinstance(tiling, VectorTiling)
    return {"rows": tiling.rows, "cols": tiling.cols}


__all__ = ["ahead_of", "mapping_text"]
