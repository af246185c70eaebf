"""How much time the mapper leaves on larger arrays that are slower: a search that nobody would wait for.

``python -m tests.mapper.chip.exhaustive SEED COUNT [CHANGE]`` makes the comparisons of `improvements` and looks again
where the better chip is more than 1 % slower: among many more divisions of the buffers, with more candidates of each
operator, all of which are simulated that could be faster. It prints the smaller chip's cycles, those of its own program
on the better one, what the mapper found there, what this search found, and the lower bound.
"""

import random
import sys
from unittest.mock import patch

from siliconloom.evaluate.chip import simulate
from siliconloom.mapper.chip import choice, layout, pool
from tests.mapper.chip.improvements import (
    IMPROVEMENTS,
    WITH_A_PRICE,
    comparisons,
    kept_seconds,
    made_chip,
    mapped,
    workload,
)

DIVISIONS = 60
"""Ways to divide the buffers beside those of the mapper."""


def divisions():
    """Shares of the scratchpad: the mapper's, and others from anywhere."""
    r = random.Random(1)
    return (*layout.SHARES, *(tuple(r.randint(4, 60) for _ in layout.SHARES[0]) for _ in range(DIVISIONS)))


def searched(chip, graph):
    """The workload with the best mapping that is found."""
    wide = {"MEASURED": 4000, "LEAST_KEPT": 24, "WORTH": 0.0, "FINALISTS": 12}
    hope = {"HOPE": 0.6, "ATTENTION_HOPE": 0.6}
    with patch.multiple(choice, **wide), patch.multiple(pool, **hope), patch.object(layout, "SHARES", divisions()):
        return simulate(made_chip(chip), graph, search=True)


def again(change, small, spec):
    """Cycles of the smaller chip, of its program on the better one, of the mapper's, of the search's; lower bound."""
    graph, better = workload(spec), IMPROVEMENTS[change](small)
    before, after, best = mapped(small, graph), mapped(better, graph), searched(better, graph)
    kept = round(kept_seconds(before, after) * after.chip.clock) if change in WITH_A_PRICE else 0
    least = after.plan.bound.lower_bound_cycles
    return before.run.cycles, kept, after.run.cycles, min(best.run.cycles, after.run.cycles), least


def main(seed, count, change="array doubled"):
    for found, name, small, spec in comparisons(int(seed), int(count)):
        if name == change and found > 1.01:
            before, kept, after, best, least = again(name, small, spec)
            price = best / max(before, kept)
            cycles = f"{before} cycles, kept {kept}, mapped {after}, searched {best}, bound {least}"
            print(f"{found:.4f}, searched {price:.4f}: {cycles}\n    {small} {spec}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
