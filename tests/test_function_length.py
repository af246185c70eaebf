"""Functions are short: what is longer than `LONGEST` lines is named here, with the reason."""

import ast

import pytest

from tests.test_layering import MODULES

LONGEST = 120
"""Lines of a function, decorators and docstring included."""
LONGER: dict[str, str] = {}
"""By name, why a function may be longer: a measurement of how much slower its parts are. None is."""
MOST_ARGUMENTS = 16
"""Of a kernel, or of a part of one: what belongs together comes as a named tuple."""


def long_functions(source):
    """Names of the functions of ``source`` that are longer than `LONGEST` lines."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {
        function.name
        for function in functions
        if function.end_lineno - min(n.lineno for n in [function, *function.decorator_list]) >= LONGEST
    }


def kernels(source):
    """Functions of ``source`` that are compiled."""
    for node in ast.walk(ast.parse(source)) if "@" in source and ("kernel" in source or "part" in source) else ():
        for each in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(each, ast.Call) and getattr(each.func, "id", "") in ("kernel", "part"):
                yield node


def test_what_is_long_says_why():
    found = {f"{module}.{name}" for module, path in MODULES.items() for name in long_functions(path.read_text())}
    assert found == set(LONGER)


@pytest.mark.slow(seconds=1)
def test_kernels_take_few_arguments():
    found = {
        f"{module}.{function.name}": len(function.args.args)
        for module, path in MODULES.items()
        for function in kernels(path.read_text())
    }
    assert len(found) > 80
    assert {name: count for name, count in found.items() if count > MOST_ARGUMENTS} == {}


@pytest.mark.parametrize(("lines", "long"), [(LONGEST - 1, set()), (LONGEST, {"f"})])
def test_a_planted_long_function_is_found(lines, long):
    assert long_functions("def f():\n" + "    pass\n" * lines) == long
