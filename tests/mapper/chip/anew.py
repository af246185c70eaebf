"""Mappings whose buffers are divided anew for tasks of chance."""

from msgspec.structs import replace

from siliconloom.mapper.chip.divided import taking, ways_alone
from siliconloom.mapper.chip.objective import ESTIMATED
from siliconloom.mapper.chip.program import lower
from siliconloom.workloads import Attention, Gemm


def divided_by_chance(plan, r, share=0.7):
    """The same mapping with a division of their own for products and attention, for so many of them.

    Nothing that goes ahead goes over these.
    """
    mapping = plan.mapping
    for number, part in enumerate(mapping.parts):
        for place, task in enumerate(part.tasks):
            if isinstance(task.operator, Gemm | Attention) and r.random() < share:
                found = ways_alone(plan.chip, plan.graph, part, place, ESTIMATED)
                if found:
                    choice = taking(mapping.parts, mapping.choice, (number, place), r.choice(found))
                    mapping = replace(mapping, choice=choice)
    return lower(plan.chip, plan.graph, mapping)
