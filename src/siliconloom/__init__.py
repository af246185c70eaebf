"""One description of an AI accelerator: Verilog, a cycle simulator, and the proof that the two agree.

The public names are those of ``__all__``; each is imported when it is first asked for, so that ``import siliconloom``
takes a few milliseconds. They follow semantic versioning; other names of the package do not.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siliconloom.api.inputs import load_chip as load_chip
    from siliconloom.api.inputs import load_workload as load_workload
    from siliconloom.api.questions import compare as compare
    from siliconloom.api.questions import generate_rtl as generate_rtl
    from siliconloom.api.questions import plan as plan
    from siliconloom.api.questions import serve as serve
    from siliconloom.api.questions import simulate as simulate
    from siliconloom.api.questions import sweep as sweep
    from siliconloom.api.questions import verify as verify
    from siliconloom.api.result import Result as Result
    from siliconloom.arch.errors import LoomError as LoomError
    from siliconloom.arch.errors import NotSupported as NotSupported

__version__ = "0.1.0"

BEGAN = time.time_ns()
"""When this process began to read the package's code, in nanoseconds, for `arch.memo`."""

_PUBLIC = {
    "simulate": "siliconloom.api.questions",
    "plan": "siliconloom.api.questions",
    "compare": "siliconloom.api.questions",
    "verify": "siliconloom.api.questions",
    "generate_rtl": "siliconloom.api.questions",
    "serve": "siliconloom.api.questions",
    "sweep": "siliconloom.api.questions",
    "load_chip": "siliconloom.api.inputs",
    "load_workload": "siliconloom.api.inputs",
    "Result": "siliconloom.api.result",
    "LoomError": "siliconloom.arch.errors",
    "NotSupported": "siliconloom.arch.errors",
}
"""The module of each public name."""

__all__ = [
    "simulate",
    "plan",
    "compare",
    "verify",
    "generate_rtl",
    "serve",
    "sweep",
    "load_chip",
    "load_workload",
    "Result",
    "LoomError",
    "NotSupported",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
