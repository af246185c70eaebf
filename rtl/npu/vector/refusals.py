"""Instructions that the vector unit does not run."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal

from siliconloom.arch.vector import COLUMN_LIMIT, INDEX_LIMIT, INPUT_LIMIT, ROW_LIMIT, Parameters
from siliconloom.rtl.npu.decoding import any_of, one_of
from siliconloom.rtl.npu.narrow import begins_within
from siliconloom.rtl.npu.vector.conditions import VectorConditions
from siliconloom.rtl.npu.vector.kept import refuses_kept, within_kept
from siliconloom.rtl.npu.vector.lines import LineMasks, parts_mask
from siliconloom.rtl.npu.vector.sums import sums_within
from siliconloom.rtl.npu.vector.unit import VectorUnitCircuit


def refuse(m: Module, unit: VectorUnitCircuit, what: VectorConditions, lines: LineMasks) -> Signal:
    """Instructions that the unit does not run; returns whether the one that is offered is a row function."""
    new, element, built = what.new, unit.geometry.element, what.built
    by_row = Signal(name="new_by_row")
    counted = built(lambda spec: spec.chooses or spec.weighs)
    weighs, indexes = built(lambda spec: spec.weighs), built(lambda spec: spec.indexes)
    wider = Signal(name="new_wider")
    within, short = sums_within(m, unit, new)
    m.d.comb += wider.eq(Mux(one_of(indexes, new), new.n > INDEX_LIMIT, new.n > COLUMN_LIMIT))
    m.d.comb += [
        by_row.eq(any_of(what.by_rows, new)),
        unit.illegal.eq(
            unit.taken
            & (
                (new.m == 0)
                | (new.n == 0)
                | ~any_of(what.functions, new)
                | (any_of(built(lambda spec: spec.uses_rows), new) & ((new.m > ROW_LIMIT) | wider))
                | (one_of(counted, new) & (new.k == 0))
                | (one_of(weighs, new) & (new.k > INPUT_LIMIT))
                | (any_of(what.from_sums, new) & short)
                | refuses_kept(m, unit, what)
            )
        ),
    ]
    masks = what.built(lambda spec: spec.masks)
    transposes = one_of(built(lambda spec: spec.transposes), new)
    setup = one_of(built(lambda spec: Parameters.COLUMNS in spec.parameters_in(what.dtype)), new)
    columns, parts = lines.line_columns, parts_mask(unit, new.narrow)
    held = {
        "b": Mux(one_of(weighs, new), lines.line_weights, columns),
        "c": Mux(transposes, lines.line_rows, Mux(one_of(indexes, new), parts, columns)),
        "d": Mux(setup, columns, ~Const(0, len(columns))),
    }
    inside = Cat(
        Mux(any_of(what.from_sums, new), within, begins_within(new.a, columns, element)),
        Mux(one_of(masks, new), 0, begins_within(new.b, held["b"], element)),
        within_kept(m, unit, what, held["c"], begins_within(new.c, held["c"], element)),
        begins_within(new.d, held["d"], element),
    )
    m.d.comb += unit.misaligned.eq(unit.taken & inside.any())
    return by_row


__all__ = ["refuse"]
