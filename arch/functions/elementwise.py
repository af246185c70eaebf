"""Functions of one element, or of one element of each of two operands."""

from siliconloom.arch.vector import FunctionSpec, Parameters, register_function

register_function(FunctionSpec(name="copy", floats="a", code=0, result="a"))
register_function(
    FunctionSpec(
        name="add",
        floats="a · m0 + b · m1",
        code=1,
        second=1,
        parameters=(Parameters.SCALARS,),
        result="(a · m0 + b · m1) / 2^shift, for residuals",
    )
)
register_function(
    FunctionSpec(
        name="multiply",
        floats="a · b · m0",
        code=2,
        second=1,
        parameters=(Parameters.SCALARS,),
        result="a · b · m0 / 2^shift",
    )
)
register_function(
    FunctionSpec(name="relu", floats="a, or 0 where it has a sign and is a number", code=3, result="max(a, 0)")
)
register_function(
    FunctionSpec(
        name="requantize",
        floats="a · multiplier + bias per column; a is a sum",
        code=8,
        parameters=(Parameters.COLUMNS,),
        from_sums=True,
        result="(a + bias) · multiplier / 2^shift per column; a is a sum of 32 bits",
    )
)
register_function(
    FunctionSpec(
        name="kv_append",
        floats="a, into the cache of keys and values",
        code=15,
        keeps=True,
        result="a, into the cache of keys and values",
    )
)
