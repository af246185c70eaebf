"""The public surface: names, signatures and members, as kept in ``surface.txt``; what changes there is told to users.

A name that goes, or a parameter that changes its meaning, is a new major version (before 1.0: a new minor one).
"""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import siliconloom as sl

KEPT = Path(__file__).parent / "surface.txt"


def surface():
    """Every public name with its signature, and every public member of its classes."""
    lines = []
    for name in sorted(sl.__all__):
        value = getattr(sl, name)
        if inspect.isclass(value) and value.__module__.startswith("siliconloom.api"):
            lines.append(f"class {name}{inspect.signature(value)}")
            for member, what in sorted(vars(value).items()):
                if isinstance(what, property):
                    lines.append(f"  {name}.{member} -> {what.fget.__annotations__['return']}")
                elif callable(what) and (not member.startswith("_") or member == "_repr_html_"):
                    lines.append(f"  {name}.{member}{inspect.signature(what)}")
        elif inspect.isclass(value):
            lines.append(f"class {name}({', '.join(base.__name__ for base in value.__bases__)})")
        elif callable(value):
            lines.append(f"{name}{inspect.signature(value)}")
        else:
            lines.append(f"{name}: {type(value).__name__}")
    return "\n".join(lines) + "\n"


def test_the_public_surface_is_the_one_that_is_kept():
    assert surface() == KEPT.read_text(), "write the new surface to tests/api/surface.txt, and tell it in CHANGELOG.md"


def test_every_public_name_is_documented():
    for name in sl.__all__:
        value = getattr(sl, name)
        if callable(value):
            assert len(inspect.getdoc(value) or "") > 30, name
    for member, what in vars(sl.Result).items():
        if not member.startswith("_"):
            assert inspect.getdoc(what), member


def test_other_names_are_refused():
    assert set(sl.__all__) <= set(dir(sl))
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = sl.simulat


def test_importing_the_package_imports_nothing_else():
    """So that it takes milliseconds."""
    code = "import sys; before = set(sys.modules); import siliconloom; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip  # one line of Python
    brought = [name for name in eval(done.stdout) if name.startswith(("siliconloom", "numpy", "pydantic", "msgspec"))]
    assert brought == ["siliconloom"]


@pytest.mark.slow(seconds=1)
def test_star_imports_bring_the_names():
    code = "from siliconloom import *; print(simulate.__name__, Result.__name__, load_chip('npu-edge').name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "simulate Result npu-edge\n"
