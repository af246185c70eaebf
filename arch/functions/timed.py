"""Functions that have a duration and no circuit yet."""

from siliconloom.arch.vector import FunctionSpec, register_function

register_function(
    FunctionSpec(
        name="softmax_merged",
        code=23,
        passes=4,
        reductions=2,
        circuit=False,
        result="maximum, power, sum; the factor by which rescale multiplies what was there",
    )
)
register_function(FunctionSpec(name="rescale", code=13, circuit=False, result="a times a factor of its row"))
register_function(
    FunctionSpec(
        name="gather",
        code=16,
        circuit=False,
        result="rows of a table by index; programs have the opcode gather and a copy in its place",
    )
)
register_function(
    FunctionSpec(
        name="optimizer", code=18, passes=8, circuit=False, result="one step of Adam on a weight, on GPUs alone"
    )
)
register_function(
    FunctionSpec(name="maximum", code=25, second=1, circuit=False, result="the larger of a and b, as in max pooling")
)
register_function(
    FunctionSpec(
        name="row_sum", code=26, reductions=1, reduces=True, circuit=False, result="the sum of each row, one element"
    )
)
register_function(
    FunctionSpec(
        name="row_max",
        code=27,
        reductions=1,
        reduces=True,
        circuit=False,
        result="the largest of each row, one element",
    )
)
