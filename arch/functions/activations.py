"""Functions that are read from a table of 256 bytes, alone or times a second operand.

In floating point there is no table: they are computed, gelu in the form with a tanh.
"""

import math
from collections.abc import Callable

from siliconloom.arch.vector import FunctionSpec, Parameters, register_function


def gelu(x: float) -> float:
    """Gaussian error linear unit, x * Phi(x) (Hendrycks and Gimpel, arXiv:1606.08415, section 2)."""
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def silu(x: float) -> float:
    """Sigmoid linear unit, x * sigmoid(x) (Elfwing et al., arXiv:1702.03118, equation 4)."""
    return x / (1 + math.exp(-x)) if x > -700 else 0.0


def _register_alone(name: str, code: int, activation: Callable[[float], float], floats: str) -> None:
    register_function(
        FunctionSpec(
            name=name,
            code=code,
            parameters=(Parameters.TABLE,),
            activation=activation,
            floats=floats,
            float_parameters=(),
            result="table[a]",
        )
    )


def _register(name: str, code: int, activation: Callable[[float], float], floats: str) -> None:
    _register_alone(name, code, activation, floats)
    register_function(
        FunctionSpec(
            name=f"gated_{name}",
            code=code + 2,
            second=1,
            parameters=(Parameters.SCALARS, Parameters.TABLE),
            activation=activation,
            floats=f"{name}(a) · b · m0",
            float_parameters=(Parameters.SCALARS,),
            result="table[a] · b · m0 / 2^shift",
        )
    )


_register("gelu", 4, gelu, "a · s(1.5957691 · a · (1 + 0.044715 · a²)), s(u) = 1 / (1 + e^−u)")
_register("silu", 5, silu, "a · s(a), s(u) = 1 / (1 + e^−u)")
_register_alone("tanh", 24, math.tanh, "2 · s(2a) − 1, s(u) = 1 / (1 + e^−u); a where it is below 2^−5")
