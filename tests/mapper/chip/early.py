"""Mappings with weights loaded ahead, and in chunks, as far as chance has it."""

from math import lcm

from msgspec.structs import replace

from siliconloom.mapper.chip.ahead import NotAhead
from siliconloom.mapper.chip.chunks import longest_transfer
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.sooner import may_go_ahead


def chunked(plan, r, share=0.8):
    """What is chosen for every task, with chunks."""
    made = [dict(each) for each in plan.mapping.choice[1]]
    unit = lcm(plan.chip.tile.dma.bytes_per_cycle, max(each.access_bytes for each in plan.chip.memory.values()))
    for number, part in enumerate(plan.mapping.parts):
        for task in part.tasks:
            name = task.operator.name
            if may_go_ahead(plan.chip.tile, task) and r.random() <= share:
                most = (longest_transfer(plan.chip, task, made[number][name]) - 1) // unit
                made[number][name] = replace(made[number][name], chunk=unit * r.randint(1, most) if most > 0 else 0)
    return made


def loaded_early(plan, r, share=0.8):
    """The workload with first weights of products loaded before earlier tasks wait, where there are slots for them.

    And with as large a share of products' weights in chunks of any size.
    """
    layout, _ = plan.mapping.choice
    made = chunked(plan, r, share)
    for number, part in enumerate(plan.mapping.parts):
        for place, task in enumerate(part.tasks):
            name = task.operator.name
            for ring in ("weights", "values") if may_go_ahead(plan.chip.tile, task) else ():
                if r.random() > share:
                    continue
                for reach in r.sample(range(1, place + 2), place + 1):
                    before = made[number][name]
                    made[number][name] = before.ahead_by(ring, reach)
                    try:
                        plan = lower(plan.chip, plan.graph, replace(plan.mapping, choice=(layout, made)))
                        break
                    except NotAhead:
                        made[number][name] = before
    return lower(plan.chip, plan.graph, replace(plan.mapping, choice=(layout, made)))
