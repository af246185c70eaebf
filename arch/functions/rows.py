"""Functions of whole rows: two passes around a reduction.

A softmax whose columns come tile by tile is two functions: ``softmax_online`` of each tile, and ``requantize_rows`` of
what the products with all tiles add up to.
"""

from siliconloom.arch.vector import FunctionSpec, Parameters, register_function

NORMALISED = {
    "layer_norm": (9, "a less the mean of its row, over its deviation"),
    "rms_norm": (10, "a over the root mean square of its row"),
}
for _name, (_code, _z) in NORMALISED.items():
    register_function(
        FunctionSpec(
            name=_name,
            code=_code,
            passes=2,
            reductions=1,
            parameters=(Parameters.COLUMNS,),
            floats=f"z · multiplier + bias per column; z is {_z}, to whose square the bf16 number in k is added",
            epsilon=True,
            result=f"(z · multiplier + bias) / 2^shift per column; z is {_z}, in 1/256",
        )
    )
register_function(
    FunctionSpec(
        name="softmax",
        code=11,
        passes=2,
        reductions=1,
        parameters=(Parameters.SCALARS,),
        from_sums=True,
        masks=True,
        floats="2^(t − peak) / sum of the row, t = a · m0; a is a sum",
        result="127 · 2^(t − peak) / sum of the row, t = a · m0 / 2^shift in 1/256; a is a sum of 32 bits",
    )
)
register_function(
    FunctionSpec(
        name="softmax_rows",
        code=44,
        passes=2,
        reductions=1,
        parameters=(Parameters.SCALARS,),
        masks=True,
        floats="2^(t − peak) / sum of the row, t = a · m0",
        result="127 · 2^(t − peak) / sum of the row, t = a · m0 / 2^shift in 1/256",
    )
)
register_function(
    FunctionSpec(
        name="softmax_online",
        code=12,
        passes=2,
        reductions=1,
        parameters=(Parameters.SCALARS,),
        from_sums=True,
        masks=True,
        carries=True,
        floats="2^(t − peak), t as for softmax; peak and sum of the row go on from what they were where it adds",
        result="127 · 2^(t − peak), t as for softmax; peak and sum of the row go on from what they were where it adds",
    )
)
register_function(
    FunctionSpec(
        name="requantize_rows",
        code=22,
        parameters=(Parameters.COLUMNS,),
        from_sums=True,
        divides=True,
        floats="z · multiplier + bias per column; z is a over the sum of its row; a is a sum",
        result="(z · multiplier + bias) / 2^(shift + 7) per column; z is a over the sum of its row, in 1/128; "
        "a is a sum of 32 bits",
    )
)
