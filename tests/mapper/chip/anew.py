"""Mappings whose buffers are divided anew for tasks: those of chance, or products with tiles of given sizes."""

from msgspec.structs import replace

from siliconloom.mapper.chip.chosen import Chosen
from siliconloom.mapper.chip.divided import taking, ways_alone
from siliconloom.mapper.chip.divisions import least_of
from siliconloom.mapper.chip.gemm_layout import gemm_layout_of
from siliconloom.mapper.chip.gemm_moves import GemmMemories
from siliconloom.mapper.chip.layout import SHARES, layouts
from siliconloom.mapper.chip.objective import ESTIMATED
from siliconloom.mapper.chip.program import lower
from siliconloom.mapper.chip.sharing import Share
from siliconloom.mapper.chip.tasks import gemm_shape
from siliconloom.mapper.chip.tiling import gemm_tiling
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


def with_tiles(plan, sizes):
    """The same mapping with tiles of given sizes for products, by their names, each in buffers that just hold them.

    Sizes are rows, columns, depth and order of the outer loops; an operand stays where the tile has the whole depth.
    """
    mapping, tile = plan.mapping, plan.chip.tile
    for number, part in enumerate(mapping.parts):
        for place, task in enumerate(part.tasks):
            name = task.operator.name
            if name not in sizes:
                continue
            m, n, k, order = sizes[name]
            shape, memories = gemm_shape(task.operator, task), GemmMemories(*(plan.chip.nearest,) * 3)
            tiling = gemm_tiling(plan.chip, shape, memories, (m, n, k), order, k == shape.k, 0)
            least, needs = least_of([task], plan.chip, tile), gemm_layout_of(tile, shape).needs_in(order, m, n, k)
            room = {ring: max(least.get(ring, 0), needs.get(ring, 0)) for ring in {*least, *needs}}
            (layout, *_) = layouts(tile, [room["constants"]], room, SHARES[:1])
            share = Share(task.operator, 1, (1, 1, 1))
            chosen = Chosen(tiling, share, tiling.cycles, True, divided=layout)
            mapping = replace(mapping, choice=taking(mapping.parts, mapping.choice, (number, place), chosen))
    return lower(plan.chip, plan.graph, mapping)
