"""Units that the instruction set keeps codes for, and that no tile has yet."""

from siliconloom.arch.isa import transfer_operands
from siliconloom.arch.opcodes import Format, OpcodeSpec, UnitSpec, register_unit

register_unit(
    UnitSpec(
        name="link",
        code=6,
        circuit=False,
        opcodes=tuple(
            OpcodeSpec(
                name=name,
                code=code,
                format=Format.TRANSFER,
                sizes=("m", "n"),
                operands=transfer_operands,
                result=f"m rows of n bytes {way} another chip",
            )
            for name, code, way in (("send", 9, "to"), ("receive", 10, "from"))
        ),
    )
)
