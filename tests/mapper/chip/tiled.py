"""Workloads whose attention has tiles that a test chooses: the search's mapping, written, changed and read again."""

import yaml

from siliconloom.arch.document import Document
from siliconloom.mapper.chip.choice import choose_layouts
from siliconloom.mapper.chip.described import mapping_of
from siliconloom.mapper.chip.mapping import fit_precision, map_workload
from siliconloom.mapper.chip.program import Mapping, blocks_of, lower
from siliconloom.mapper.chip.written import mapping_text


def in_blocks(chip, graph, blocks):
    """The workload as it is mapped by estimates, with rows of its products in blocks of so many, by their names."""
    graph, notes = fit_precision(chip, graph)
    parts = blocks_of(chip, graph, None, rows=blocks)
    choices, _, _ = choose_layouts(chip, chip.tile, graph, parts, None)
    return lower(chip, graph, Mapping(parts, choices[0], None), notes)


def tiled(chip, graph, queries, keys, heads=1, apart=False, resident=False, whole=False):
    """The workload's program with attention in so many queries, keys and heads at a time; rows may be whole.

    Values have a ring of their own where they lie ``apart``, half of what they share with keys elsewhere. Keys and
    values stay while tiles of queries pass where they are ``resident``.
    """
    graph, _ = fit_precision(chip, graph)
    described = yaml.safe_load(mapping_text(map_workload(chip, graph)))
    layout = described["layout"]
    weights = int(layout["weights"].split()[0]) + int(layout.pop("values", "0 B").split()[0])
    half = weights // 2 // 64 * 64
    layout |= {"weights": f"{half} B", "values": f"{half} B"} if apart else {"weights": f"{weights} B"}
    for task in described["tasks"]:
        if "attention" in task:
            task["attention"] = {"queries": queries, "keys": keys, "heads": heads, "resident": resident}
            task["attention"] |= {"whole": True} if whole else {}
    return lower(chip, graph, mapping_of(Document.parse(yaml.safe_dump(described)), chip, graph))
