"""Functions that turn on the places of elements."""

from siliconloom.arch.vector import FunctionSpec, register_function

register_function(
    FunctionSpec(
        name="rope",
        floats=True,
        code=14,
        passes=2,
        second=2,
        result="neighbours turned by the angles in b: cosines at even columns, sines at odd ones, in 1/2^15; "
        "per block a line of low bytes, then one of high bytes; in floating point of low and of high parts of fp32 or "
        "bf16 numbers",
    )
)
register_function(
    FunctionSpec(
        name="transpose",
        floats=True,
        code=19,
        transposes=True,
        result="element (r, c) at row c, column r; rows of c have ceil(m / lanes) lines",
    )
)
