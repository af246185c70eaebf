"""Mappings with weights loaded ahead, as far as chance has it."""

from msgspec.structs import replace

from siliconloom.mapper.chip.ahead import NotAhead
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.sooner import may_go_ahead


def loaded_early(plan, r, share=0.8):
    """The workload with first weights of products loaded before earlier tasks wait, where there are slots for them."""
    layout, tiled = plan.mapping.choice
    made = [dict(each) for each in tiled]
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
