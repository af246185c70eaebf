"""Functions of one element, or of one element of each of two operands."""

from siliconloom.arch.vector import FunctionSpec, Parameters, register_function

register_function(FunctionSpec(name="copy", floats=True, code=0, result="a"))
register_function(
    FunctionSpec(
        name="add",
        floats=True,
        code=1,
        second=1,
        parameters=(Parameters.SCALARS,),
        result="(a · m0 + b · m1) / 2^shift, for residuals; in floating point without a shift",
    )
)
register_function(
    FunctionSpec(
        name="multiply",
        floats=True,
        code=2,
        second=1,
        parameters=(Parameters.SCALARS,),
        result="a · b · m0 / 2^shift; in floating point without a shift",
    )
)
register_function(FunctionSpec(name="relu", floats=True, code=3, result="max(a, 0)"))
register_function(
    FunctionSpec(
        name="requantize",
        floats=True,
        code=8,
        parameters=(Parameters.COLUMNS,),
        from_sums=True,
        result="(a + bias) · multiplier / 2^shift per column; a is a sum of 32 bits; in floating "
        "point a · multiplier + bias",
    )
)
register_function(FunctionSpec(name="kv_append", floats=True, code=15, result="a, into the cache of keys and values"))
