"""Mappings that were found before, by this process or an earlier one.

What is kept is what was decided (`mapper.chip.decided`), under a hash of the chip, the workload, what was asked and the
code of this package; the program is lowered from it anew, and timed like any other.
"""

from __future__ import annotations

from collections.abc import Callable

from siliconloom.arch.description import Chip
from siliconloom.arch.memo import key_of, shared_memo
from siliconloom.evaluate.asked import digests
from siliconloom.mapper.chip.decided import decision_of, mapped_as
from siliconloom.mapper.chip.mapping import fit_precision
from siliconloom.mapper.chip.program import MappedWorkload
from siliconloom.workloads import Graph

QUICK = 0.05
"""Seconds: a mapping that is found as soon is looked for again."""


def remembered(chip: Chip, graph: Graph, find: Callable[[], MappedWorkload], *asked: str) -> MappedWorkload:
    """What ``find`` returned before to a question about a workload on a chip, or returns now."""
    key, found = key_of("mapping", *digests(chip, graph), *asked), list[MappedWorkload]()

    def decide() -> dict[str, str]:
        found.append(find())
        return {"decision": decision_of(found[0]) or ""}

    known = shared_memo().recall(key, decide, quick=QUICK)["decision"]
    if found:
        return found[0]
    made = mapped_as(known, chip, fit_precision(chip, graph)[0]) if known else None
    return find() if made is None else made


__all__ = ["remembered"]
