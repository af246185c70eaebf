"""What synthesis found, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from siliconloom.arch.quantity import format_si
from siliconloom.render.tables import bold, table


def synthesis_tables(result: dict[str, Any], out: Console) -> None:
    """Print what was found, within 80 columns."""
    out.print(f"{bold(result['chip'])}: {result['synthesized']}", soft_wrap=True)
    lines = [
        ("top module", result["top"]),
        ("target", f"{result['target']}, {result['tool']}, {result['seconds']:.1f} s"),
    ]
    if result["luts"] is not None:
        lines += [
            ("LUTs", f"{result['luts']:,}"),
            ("flip-flops", f"{result['flip_flops']:,}"),
            ("DSPs", f"{result['dsps']:,} MULT18X18D"),
            ("block RAMs", f"{result['block_rams']:,} DP16KD"),
        ]
    else:
        lines += [("gates", f"{result['logic_cells']:,}"), ("flip-flops", f"{result['flip_flops']:,}")]
    if result["area"] is not None:
        lines.append(("area", f"{result['area']['cells']:,.0f} in the unit of {result['area']['liberty']}"))
    if result["static_timing"] is not None:
        timed = result["static_timing"]
        lines += [
            ("Fmax", f"{result['fmax']['max']:.1f} MHz, {timed['tool']}: {timed['assumed']}"),
            ("slowest path", f"{timed['begins']} to {timed['ends']}, {timed['cells']} cells"),
        ]
    elif result["fmax"] is not None:
        fmax, run = result["fmax"], result["place_and_route"]
        seeds = f"{len(result['fmax_mhz'])} seed" + "s" * (len(result["fmax_mhz"]) > 1)
        lines += [
            ("Fmax", f"{fmax['median']:.1f} MHz; {fmax['min']:.1f} to {fmax['max']:.1f} over {seeds}"),
            ("", f"{run['tool']}, {run['device']}, {run['top']}"),
        ]
        if run["critical_path"]["through"]:
            lines.append(
                (
                    "slowest path",
                    f"{run['critical_path']['delay_ns']:.1f} ns: {_short(run['critical_path']['through'])}",
                )
            )
    if result["power"] is not None:
        lines += _power_lines(result["power"], result["fmax"])
    for label, text in lines:
        out.print(f"  {label:12s} {text}", soft_wrap=True)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow", soft_wrap=True, markup=False)
    if result["part"] is not None:
        out.print()
        out.print(_resources_table(result["part"]))
        if result["part"]["advice"] is not None:
            out.print(result["part"]["advice"], soft_wrap=True, markup=False, highlight=False)
    out.print()
    cells = [(name, f"{count:,}") for name, count in sorted(result["cells"].items(), key=lambda item: -item[1])]
    out.print(table("cells", [("type", "left"), ("number", "right")], cells))
    out.print()
    if result["modules"]:
        out.print(_modules_table(result))
        out.print()
    if result["power"] is not None:
        out.print(_power_table(result["power"]))
        out.print()
    if result["bounds"]:
        floors = [
            (b["name"], f"{b['floor']:,}", f"{b['found']:,}", "yes" if b["holds"] else "NO") for b in result["bounds"]
        ]
        columns = [("what the design needs", "left"), ("at least", "right"), ("found", "right"), ("holds", "left")]
        out.print(table("bounds", columns, floors))


def _power_lines(power: dict[str, Any], fmax: dict[str, float] | None) -> list[tuple[str, str]]:
    """A product's energy in a line, beside that of the table which ``loom sim`` counts with."""
    first, known = power["runs"][0], power["table"]
    above = "; a clock above Fmax" if fmax is not None and power["clock_hz"] > 1e6 * fmax["max"] else ""
    found, own = first["joules_per_mac"]["total"], known["joules_per_mac"]
    return [
        ("energy", f"{found * 1e12:.3g} pJ a product of {power['operands']}, {first['values']} operands"),
        ("", f"{power['library']}, {power['volts']:g} V; {power['assumed']}"),
        ("", f"loom sim counts {own * 1e12:.3g} pJ ({known['technology']}) and a third for the clock; or these:"),
        ("", " ".join(f"--set {key}={value * 1e12:.3g}pJ" for key, value in power["description"].items())),
        (
            "power",
            f"{format_si(power['watts'], 'W')} at {format_si(power['clock_hz'], 'Hz')}, "
            f"{format_si(power['leakage_w'], 'W')} of it leaks{above}",
        ),
    ]


def _power_table(power: dict[str, Any]) -> Table:
    """What a product takes, by what takes it."""
    kinds, cycles = ("clock", "registers", "logic", "total"), [run["cycles"] for run in power["runs"]]
    long = f"{min(cycles):,}" + (f" to {max(cycles):,}" if max(cycles) > min(cycles) else "")
    rows = [
        (
            f"{run['values']}, {'with' if run['glitches'] else 'no'} glitches",
            *(f"{run['joules_per_mac'][kind] * 1e12:.3f}" for kind in kinds),
            f"{run['changes_per_mac']:.1f}",
        )
        for run in power["runs"]
    ]
    columns = [("pJ a product", "left"), *((kind, "right") for kind in kinds), ("changes", "right")]
    return table(f"{power['macs']:,} products in {long} cycles of the netlist", columns, rows)


def _resources_table(part: dict[str, Any]) -> Table:
    """What is used of an FPGA, and by how much too much it is."""
    rows = [
        (
            each["name"],
            f"{each['used']:,}",
            f"{each['available']:,}",
            f"{each['over']:,} too many" if each["over"] else "yes",
        )
        for each in part["resources"]
    ]
    columns = [("resource", "left"), ("used", "right"), ("available", "right"), ("fits", "left")]
    return table(f"{part['name']}, {part['device']}", columns, rows)


def _short(path: list[str]) -> str:
    """Both ends of a path, and how much lies between."""
    return path[0] if len(path) == 1 else f"{path[0]} to {path[-1]}, through {len(path)} signals"


def _modules_table(result: dict[str, Any]) -> Table:
    """Modules, each indented under the one that contains it, with all that they contain."""
    kinds = {"luts": "LUT", "flip_flops": "FF", "dsps": "DSP", "block_rams": "BRAM"}
    if result["luts"] is None:
        kinds = {"cells": "cells", "flip_flops": "FF"}
    rows = []
    for part in result["modules"]:
        depth, name = part["module"].count("/"), part["module"].rpartition("/")[2]
        rows.append((f"{'  ' * depth}{name}", f"{part['instances']:,}", *(f"{part[kind]:,}" for kind in kinds)))
    columns = [("module", "left"), ("instances", "right"), *((name, "right") for name in kinds.values())]
    return table("modules, each with what it contains", columns, rows)
