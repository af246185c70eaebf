"""What benches compared, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from siliconloom.arch.pim import MacroKind
from siliconloom.render.tables import bold, table


def verification_tables(result: dict[str, Any], out: Console) -> None:
    """Print the parity table."""
    if result.get("tile") == "ring":
        ring_tables(result, out)
        return
    if result.get("tile") == "pim":
        pim_tables(result, out)
        return
    if "programs" in result:
        parity_tables(result, out)
        return
    out.print(
        f"{bold(result['chip'])}: {result['rows']} x {result['cols']} {result['dataflow'].replace('_', ' ')}, "
        f"{result['simulator']}, seed {result['seed']}, {result['wall_s']:.1f} s"
    )
    out.print(f"  verified: {result['verified']}", soft_wrap=True)
    out.print()
    rows = []
    for case in result["cases"]:
        shapes = ", ".join(f"{g['m']}x{g['n']}x{g['k']}" for g in case["gemms"])
        stalled = "random" if case["stall"] else "none"
        model = "-" if case["model_cycles"] is None else f"{case['model_cycles']:,}"
        difference = "-" if case["difference"] is None else f"{case['difference']:+d}" if case["difference"] else "0"
        rows.append(
            (
                shapes,
                f"int{case['operand_bits']}",
                str(case["folds"]),
                stalled,
                f"{case['rtl_cycles']:,}",
                model,
                difference,
                "equal" if case["values_equal"] else "DIFFER",
            )
        )
    columns = [
        ("GEMMs (m x n x k)", "left"),
        ("values", "left"),
        ("folds", "right"),
        ("stalls", "left"),
        ("RTL cycles", "right"),
        ("model cycles", "right"),
        ("difference", "right"),
        ("results", "left"),
    ]
    out.print(table("RTL against NumPy and against the simulator", columns, rows))
    for case in result["cases"]:
        for error in case["errors"]:
            out.print(f"  {error}", soft_wrap=True, style="red")
    compared = sum(c["folds"] for c in result["cases"] if not c["stall"])
    out.print()
    if result["passed"]:
        out.print(
            f"passed: every value equal; {compared} folds without stalls, 0 cycles of difference in each", style="green"
        )
    else:
        out.print("FAILED", style="bold red")


def parity_tables(result: dict[str, Any], out: Console) -> None:
    """Print the parity table of programs."""
    out.print(f"{bold(result['chip'])}: {result['simulator']}, seed {result['seed']}, {result['wall_s']:.1f} s")
    out.print(f"  verified: {result['verified']}", soft_wrap=True)
    out.print()
    columns = [
        ("program", "left"),
        ("words", "right"),
        ("executed", "right"),
        ("memory", "left"),
        ("RTL", "right"),
        ("model", "right"),
        ("difference", "right"),
        ("values", "left"),
    ]
    rows = []
    for each in result["programs"]:
        compared = not each["memory_stalls"]
        rows.append(
            (
                each["name"],
                str(each["instructions"]),
                f"{each['executed']:,}",
                "fixed" if compared else "random",
                f"{each['rtl_cycles']:,}",
                f"{each['model_cycles']:,}" if compared else "-",
                f"{each['difference']:+d}" if each["difference"] else "0" if compared else "-",
                "equal" if each["values_equal"] else "DIFFER",
            )
        )
    out.print(table("Cycles and values of programs: RTL, simulator, golden model", columns, rows))
    for each in result["programs"]:
        if each["errors"]:
            out.print(f"  {each['name']}:", style="red")
        for error in each["errors"]:
            out.print(f"    {error}", soft_wrap=True, style="red", highlight=False)
    out.print()
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow", soft_wrap=True, markup=False)
    timed = [p for p in result["programs"] if not p["memory_stalls"]]
    if result["passed"]:
        out.print(
            f"passed: every byte of memory equal; start and end of {sum(p['executed'] for p in timed):,} instructions, "
            "0 cycles of difference in each",
            style="green",
            soft_wrap=True,
        )
    else:
        out.print("FAILED", style="bold red")


def pim_tables(result: dict[str, Any], out: Console) -> None:
    """Print the parity table of macros."""
    out.print(f"{bold(result['chip'])}: {result['simulator']}, seed {result['seed']}, {result['wall_s']:.1f} s")
    out.print(f"  verified: {result['verified']}", soft_wrap=True)
    out.print()
    columns = [
        ("case", "left"),
        ("GEMVs", "right"),
        ("transfers", "right"),
        ("commands", "right"),
        ("RTL", "right"),
        ("model", "right"),
        ("difference", "right"),
        ("values", "left"),
    ]
    rows = []
    for case in result["cases"]:
        kinds = [macro["kind"] for macro in case["macros"]]
        moves = sum(kind in (MacroKind.READ.name.lower(), MacroKind.WRITE.name.lower()) for kind in kinds)
        rows.append(
            (
                case["name"],
                str(kinds.count("gemv")),
                str(moves),
                f"{case['commands']:,}",
                f"{case['rtl_cycles']:,}",
                f"{case['model_cycles']:,}",
                f"{case['difference']:+d}" if case["difference"] else "0",
                "equal" if case["values_equal"] else "DIFFER",
            )
        )
    out.print(table("Commands and values of macros: RTL, simulator, golden model", columns, rows))
    for case in result["cases"]:
        for error in case["errors"]:
            out.print(f"  {case['name']}: {error}", soft_wrap=True, style="red", highlight=False)
    out.print()
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow", soft_wrap=True, markup=False)
    if result["passed"]:
        commands = sum(case["commands"] for case in result["cases"])
        out.print(
            f"passed: every value equal; {commands:,} DRAM commands, each in the cycle and at the place that the model "
            "says",
            style="green",
            soft_wrap=True,
        )
    else:
        out.print("FAILED", style="bold red")


def ring_tables(result: dict[str, Any], out: Console) -> None:
    """Print the parity table."""
    block = result["block"]
    out.print(
        f"{bold(result['system'])}: {result['chips']} chips, {result['simulator']}, seed {result['seed']}, "
        f"{result['wall_s']:.1f} s"
    )
    out.print(f"  RTL:         {result['verified']}", soft_wrap=True)
    out.print(f"  behavioural: {result['behavioural']}", soft_wrap=True)
    out.print(
        f"  MLP block:   {block['tokens']} tokens, {block['hidden']} columns, {block['inner']} hidden units, int8"
    )
    out.print()
    rows = []
    for case in result["cases"]:
        difference = case["difference"]
        rows.append(
            (
                case["name"],
                str(case["faults"]),
                str(case["retries"]),
                f"{case['rtl_cycles']:,}",
                f"{case['model_cycles']:,}",
                f"{difference:+d}" if difference else "0",
                f"{case['compared']:,}",
                "equal" if case["cycles_equal"] else "DIFFER",
                "equal" if case["values_equal"] else "DIFFER",
            )
        )
    columns = [
        ("case", "left"),
        ("wrong bits", "right"),
        ("retries", "right"),
        ("RTL", "right"),
        ("model", "right"),
        ("difference", "right"),
        ("times", "right"),
        ("each of them", "left"),
        ("values", "left"),
    ]
    out.print(table("Cycles and values: RTL, cycle models, NumPy", columns, rows))
    for case in result["cases"]:
        for error in case["errors"]:
            out.print(f"  {case['name']}: {error}", soft_wrap=True, style="red")
        if case["kind"] == "mlp":
            out.print(
                f"  {case['name']}: {case['model_cycles']:,} cycles, tiles {case['tile_cycles']:,}; "
                f"collective after the last store instead of chunk by chunk: {case['sequential_cycles']:,}"
            )
    out.print()
    if result["passed"]:
        compared = sum(case["compared"] for case in result["cases"])
        out.print(
            f"passed: every value equal; {compared:,} times compared, 0 cycles of difference in each", style="green"
        )
    else:
        out.print("FAILED", style="bold red")
