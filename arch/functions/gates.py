"""Gates that have a duration and no circuit.

A cycle of a lane is one power of two of a sum or a product, or one product with a sum (`arch.functions.state_space`).
A sigmoid is a power and a quotient, for which the activations with a circuit have one cycle; bounds are one each.
"""

from siliconloom.arch.vector import FunctionSpec, register_function

register_function(FunctionSpec(name="sigmoid", code=37, circuit=False, result="s(a) = 1 / (1 + e^−a)"))
register_function(FunctionSpec(name="gated_sigmoid", code=38, second=1, circuit=False, result="s(a) · b"))
register_function(
    FunctionSpec(
        name="clamped_swiglu",
        code=39,
        passes=4,
        second=1,
        circuit=False,
        result="a · s(1.702 · a) · (b + 1), a and b cut off at a limit (gpt-oss)",
    )
)
