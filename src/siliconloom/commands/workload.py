"""``loom workload``."""

from __future__ import annotations

from siliconloom.commands.options import Json, Set, Workload

EXAMPLES = ("loom workload llama3-8b", "loom workload gpt2 --set phase=decode --set context=1024")
"""Shown below the command's help."""


def command(name: Workload, sets: Set = None, json_file: Json = None) -> None:
    """Say what a workload contains: parameters, FLOPs, operators.

    Also bytes of its weights and of its cache of keys and values.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.render.output import check_outputs, write_json
    from siliconloom.render.tables import console, workload_tables
    from siliconloom.workloads import load_workload

    check_outputs({"--json": json_file}, (name,))
    chip_sets, workload_sets = split_overrides(parse_assignments(sets or []))
    summary = load_workload(name, workload_sets + chip_sets).summary()
    if json_file != "-":
        workload_tables(summary, console())
    if json_file is not None:
        write_json(json_file, summary)
