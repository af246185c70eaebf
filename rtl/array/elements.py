"""Which numbers the elements of an array compute with, by what its description says of them."""

from __future__ import annotations

from siliconloom.arch.array import SystolicArray
from siliconloom.rtl.array.arithmetic import Arithmetic, FloatArithmetic, IntegerArithmetic, operand_type
from siliconloom.rtl.array.carry_save import CarrySaveArithmetic, CompressorArithmetic, DigitArithmetic

WITHOUT_ADDER = {"carry_save": CarrySaveArithmetic, "compressor": CompressorArithmetic, "digit_serial": DigitArithmetic}
"""Elements that keep sums as several numbers."""


def arithmetic_of(array: SystolicArray) -> Arithmetic:
    """The numbers of the circuit of ``array``; raises `NotSupported` as `operand_type` does."""
    dtype = operand_type(array)
    kind = WITHOUT_ADDER.get(array.element, IntegerArithmetic if dtype.is_integer else FloatArithmetic)
    return kind(dtype, array.multiply_stages, array.add_stages, array.depth)


__all__ = ["arithmetic_of"]
