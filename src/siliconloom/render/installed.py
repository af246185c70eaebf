"""What is installed, as lines for the terminal."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes
from siliconloom.render.tables import bold

GOOD, BAD = "ok", "--"


def doctor_lines(found: dict[str, Any], out: Console) -> None:
    """Print what `loom doctor` found: a line for each thing, and the commands that mend what is missing."""
    out.print(f"{bold('siliconloom')} {found['version']}, Python {found['python']}, {found['platform']}")
    broken = [each for each in found["core"] if each["state"] != "installed"]
    told = ", ".join(f"{each['name']} {each['state']} (needs {each['needs'] or 'any'})" for each in broken)
    names = "unknown, this is no installed package" if not found["core"] else f"{len(found['core'])} packages"
    _line(out, not broken, "core", told or names)
    for extra in found["extras"]:
        lacking = [each["name"] for each in extra["packages"] if each["state"] != "installed"]
        text = extra["for"] + (f"; missing {', '.join(lacking)}" if lacking else "")
        _line(out, extra["complete"], f"[{extra['name']}]", text)
    for tool in found["tools"]:
        there = tool["path"] is not None
        text = f"{tool['version'] or ''} {tool['path']}".strip() if there else f"not found; for {tool['for']}"
        _line(out, there, tool["name"], text)
    kernels = found["kernels"]
    text = kernels["why"] or ("compiled" if kernels["warm"] else "the next run compiles them; loom warmup does it now")
    _line(out, kernels["warm"], "kernels", text)
    for folder in found["folders"]:
        text = f"{format_bytes(folder['bytes'])} in {folder['path']}" + ("" if folder["writable"] else ", not writable")
        _line(out, folder["writable"], folder["name"], text)
    for model in found["models"]:
        _line(out, model["path"] is not None, model["name"], model["path"] or f"not here; {model['mend']}")
    machine = found["machine"]
    memory = "memory unknown" if (free := machine["free_memory_bytes"]) is None else f"{format_bytes(free)} free"
    out.print(f"   machine        {machine['cores']} cores, {memory}")
    for command in dict.fromkeys(found["mends"]):
        out.print(f"{bold('mend:')} {command}")


def _line(out: Console, good: bool, name: str, text: str) -> None:
    mark = GOOD if good else BAD
    first, *rest = textwrap.wrap(text, max(out.width - 18, 20), break_on_hyphens=False) or [""]
    out.print(f"{mark} {name:14s} {first}", style=None if good else "yellow", soft_wrap=True)
    for line in rest:
        out.print(f"{'':18s}{line}", style=None if good else "yellow", soft_wrap=True)


__all__ = ["doctor_lines"]
