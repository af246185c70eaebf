"""Functions that turn on the places of elements."""

from siliconloom.arch.vector import FunctionSpec, register_function

register_function(
    FunctionSpec(
        name="rope",
        floats="neighbours turned by the angles in b, numbers of two elements: cosines at even columns, sines at odd "
        "ones; per block a line of low parts, then one of high parts",
        code=14,
        passes=2,
        second=2,
        result="neighbours turned by the angles in b: cosines at even columns, sines at odd ones, in 1/2^15; "
        "per block a line of low bytes, then one of high bytes",
    )
)
register_function(
    FunctionSpec(
        name="transpose",
        floats="element (r, c) at row c, column r; rows of c have ceil(m / lanes) lines",
        code=19,
        transposes=True,
        keeps=True,
        result="element (r, c) at row c, column r; rows of c have ceil(m / lanes) lines",
    )
)
