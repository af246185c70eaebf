"""Vector functions are found by registration: names, codes, documents; what does not fit together is refused."""

import ast
import copy
import pickle
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch import LoomError
from siliconloom.arch.datatype import DataType
from siliconloom.arch.isa import FUNCTIONS, Instruction, Opcode, decode, encode
from siliconloom.arch.vector import (
    BUILT,
    FUNCTION_BITS,
    FunctionSpec,
    Parameters,
    VectorFunction,
    function_table,
    register_function,
    remove_function,
)
from tests.test_layering import MODULES

DOCUMENT = Path(__file__).parents[2] / "docs" / "npu.md"
FREE = st.sampled_from(sorted(set(range(1 << FUNCTION_BITS)) - {function.code for function in VectorFunction}))


@contextmanager
def registered(spec):
    """A function that is there for a while."""
    function = register_function(spec)
    try:
        yield function
    finally:
        remove_function(function)


@pytest.mark.checkout
def test_the_document_shows_every_function():
    assert function_table() in DOCUMENT.read_text(encoding="utf-8"), f"docs/npu.md must show:\n{function_table()}"


@pytest.mark.slow(seconds=1)
def test_every_function_that_the_package_names_is_registered():
    texts = [path.read_text(encoding="utf-8") for path in MODULES.values()]
    named = {
        node.attr
        for text in texts
        if "VectorFunction" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "VectorFunction"
    }
    assert named - {function.name for function in VectorFunction} == set()
    assert "KV_APPEND" in named


def test_a_function_is_one_object_however_it_is_reached():
    for function in VectorFunction:
        same = [VectorFunction(function.value), getattr(VectorFunction, function.name), FUNCTIONS[function.code]]
        same += [pickle.loads(pickle.dumps(function)), copy.deepcopy(function)]
        assert all(each is function for each in same)
        assert function in VectorFunction
        assert f"{function}" == function == function.spec.name
    with pytest.raises(ValueError, match="'cosine' is not a vector function; there are"):
        VectorFunction("cosine")
    with pytest.raises(AttributeError, match="no vector function cosine is registered"):
        _ = VectorFunction.COSINE


@given(code=FREE, circuit=st.booleans())
def test_a_function_can_be_encoded_while_it_is_registered(code, circuit):
    spec = FunctionSpec(name="plugged", code=code, result="a", circuit=circuit)
    with registered(spec) as function:
        assert VectorFunction.PLUGGED is function
        assert (function in BUILT) is circuit
        assert list(VectorFunction) == sorted(VectorFunction, key=lambda each: each.code)
        word = encode(Instruction(opcode=Opcode.VECTOR, function=function, m=1, n=1))
        assert decode(word).function is function
        assert "| plugged |" in function_table()
    assert function not in BUILT
    assert "plugged" not in VectorFunction
    with pytest.raises(LoomError, match=f"vector: unknown function {code}"):
        decode(word)


@given(code=st.sampled_from([function.code for function in VectorFunction]))
def test_a_code_or_a_name_that_is_taken_is_refused(code):
    before = list(VectorFunction)
    with pytest.raises(LoomError, match=f"its code {code} is that of {FUNCTIONS[code].value}"):
        register_function(FunctionSpec(name="plugged", code=code, result="a"))
    with pytest.raises(LoomError, match=f"vector function {FUNCTIONS[code].value} is registered twice"):
        register_function(FunctionSpec(name=FUNCTIONS[code].value, code=code, result="a"))
    assert list(VectorFunction) == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "Big"}, "a lower-case identifier"),
        ({"name": "two words"}, "a lower-case identifier"),
        ({"code": 1 << FUNCTION_BITS}, "a code has 6 bits"),
        ({"code": -1}, "a code has 6 bits"),
        ({"parameters": (Parameters.TABLE, Parameters.SCALARS)}, "scalars before a table"),
        ({"parameters": (Parameters.COLUMNS, Parameters.SCALARS)}, "parameters are columns, or"),
        ({"float_parameters": (Parameters.COLUMNS, Parameters.SCALARS)}, "parameters are columns, or"),
        ({"epsilon": True, "weighs": True}, "k is an epsilon, or a count, or says that rows are masked"),
        ({"passes": 2}, "the unit's circuit makes 1 passes and 0 reductions"),
        ({"second": 2}, "the unit's circuit makes 2 passes and 0 reductions"),
        ({"second": 3, "passes": 3}, "at most 2 bytes for each element"),
        ({"passes": 3, "reductions": 2}, "the unit's circuit makes 2 passes and 1 reductions"),
        ({"chooses": True}, "reduces rows of bytes"),
        ({"indexes": True, "reductions": 1, "from_sums": True}, "reduces rows of bytes"),
        ({"indexes": True, "reductions": 1, "passes": 2}, "the unit's circuit makes 1 passes and 1 reductions"),
        ({"weighs": True, "second": 1}, "one byte of weight for each of them"),
        ({"weighs": True, "reductions": 1, "passes": 2}, "one byte of weight for each of them"),
    ],
)
def test_a_function_that_no_unit_can_run_is_refused(changed, message):
    with pytest.raises(LoomError, match=message):
        FunctionSpec(**{"name": "plugged", "code": 60, "result": "a"} | changed)


def test_parameters_depend_on_the_format():
    gelu, gated = VectorFunction.GELU.spec, VectorFunction.GATED_GELU.spec
    assert gelu.parameters_in(DataType.INT8) == (Parameters.TABLE,)
    assert gelu.parameters_in(DataType.BF16) == ()
    assert gated.parameters_in(DataType.FP8_E4M3) == (Parameters.SCALARS,)
    assert [gelu.cost_in(each).once_lines(16) for each in (DataType.INT4, DataType.INT8, DataType.BF16)] == [16, 16, 0]
    assert gated.cost_in(DataType.FP16).parameter_bytes(100, 16) == 16
    argmax = VectorFunction.ARGMAX.spec
    formats = DataType.INT8, DataType.FP8_E5M2, DataType.BF16
    assert [argmax.result_cols(100, each) for each in formats] == [4, 4, 2]
    assert [argmax.cost_in(each).index_lines(2) for each in formats] == [2, 2, 1]
    assert "| gelu | 4 | none | none | a · s(" in function_table(DataType.BF16)
    assert "| combine | 20 | 2 k B a row |" in function_table(DataType.BF16)
