"""Mappings that were found before, by this process or an earlier one.

What is kept is what was decided (`mapper.chip.decided`), under a hash of the chip, the workload, what was asked and the
code of this package; the program is lowered from it anew, and timed like any other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

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
    memo, key = shared_memo(), key_of("mapping", *digests(chip, graph), *asked)
    known = memo.known(key)
    if known is not None:
        fitted, notes = fit_precision(chip, graph)
        made = mapped_as(known["decision"].tobytes().decode(), chip, fitted, notes)
        if made is not None:
            return made
    began = time.perf_counter()
    found = find()
    if time.perf_counter() - began >= QUICK:
        decision = decision_of(found, fit_precision(chip, graph)[1])
        if decision is not None:
            memo.keep(key, {"decision": np.frombuffer(decision.encode(), np.uint8)})
    return found


__all__ = ["remembered"]
