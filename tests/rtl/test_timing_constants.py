"""Latencies stand once: simulator, mapper and circuits read `arch.timing`, and a circuit that differs is refused."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import siliconloom
from siliconloom.arch import LoomError, timing
from siliconloom.arch.array import SystolicArray
from siliconloom.rtl.library import Library
from siliconloom.rtl.npu.geometry import geometry_of
from siliconloom.rtl.npu.tile import NpuTileCircuit
from tests.rtl.channel_tiles import small_channel
from tests.rtl.npu import small_chip

PACKAGE = Path(siliconloom.__file__).parent
CONSTANTS = sorted(name for name in vars(timing) if name.isupper())
FUNCTIONS = {"confirm", "sum_cycles", "vector_stages"}
DESCRIBED = {"VECTOR_STAGES", "MOST_SUM_STAGES", "ACCUMULATOR_WRITE", "OPERAND_LATENCY"}
"""Of what `vector.latency` may be at least, of what additions may take, and of `SystolicArray.accumulator_write` and
`operand_latency`."""
LATENCY = re.compile(r"(^|_)(LATENCY|WRITE|START|STAGES?|GAP|POP|REFILL|SLICE|BARRIER|CYCLES)$")
READERS = {"rtl": ("array", "npu"), "sim": ("chip", "timing"), "mapper": ("chip",)}
OTHERS = {"RESET_CYCLES", "QUIET_CYCLES", "LIMIT_CYCLES", "START", "SLICE"}
"""Names that match and are no latency: lengths of a bench, a bit of a register, steps between looks at the clock."""


pytestmark = pytest.mark.usefixtures("quiet_circuits")


def sources(*parts):
    return [path for part in parts for path in sorted((PACKAGE / part).rglob("*.py"))]


def elaborated(dataflow, channel=False, sum_stages=1):
    """Elaborate the circuits of a tile one by one, those of the array aside: no Verilog is written."""
    changes = {"dataflow": dataflow} | ({"load_rows": 1} if dataflow == "output_stationary" else {})
    changes |= {"operands": ["bf16"], "accumulate_stages": sum_stages} if sum_stages > 1 else {}
    chip = small_channel() if channel else small_chip()
    array = SystolicArray.model_validate(chip.tile.array.model_dump() | changes)
    vector = chip.tile.vector.model_copy(update={"sum_stages": sum_stages, "latency": 40})
    chip = chip.model_copy(update={"tile": chip.tile.model_copy(update={"array": array, "vector": vector})})
    library = Library("proof")
    done, waiting = set(), [NpuTileCircuit(library, geometry_of(chip))]
    while waiting:
        circuit = waiting.pop()
        if circuit.module_name in done or circuit.written() is not None:
            continue
        done.add(circuit.module_name)
        circuit.elaborate(None)
        waiting += library.circuits.values()
    return done


def test_the_constants_are_whole_positive_numbers_and_documented():
    text = inspect.getsource(timing)
    assert len(CONSTANTS) == 18
    for name in CONSTANTS:
        assert isinstance(getattr(timing, name), int)
        assert getattr(timing, name) >= 1
        assert re.search(rf'^{name} = \d+\n"""[A-Z].*\.', text, re.M), f"{name} says what it is"
    assert set(CONSTANTS) | FUNCTIONS == set(timing.__all__)


def test_no_module_of_the_simulator_or_the_rtl_has_a_latency_of_its_own():
    own = []
    for path in sources("rtl", "sim", "mapper"):
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            number = isinstance(getattr(node, "value", None), ast.Constant) and type(node.value.value) is int
            own += [f"{path.name}: {name}" for name in names if number and LATENCY.search(name) and name not in OTHERS]
    assert own == []


@pytest.mark.parametrize("part", READERS)
def test_every_part_reads_the_constants(part):
    read = set()
    for path in sources(*(f"{part}/{folder}" for folder in READERS[part])):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "siliconloom.arch.timing":
                read |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "timing":
                read.add(node.attr)
                assert node.attr in timing.__all__
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "confirm":
                read.add(node.args[0].value)
    read -= FUNCTIONS
    assert read <= set(CONSTANTS)
    if part == "rtl":
        assert read == set(CONSTANTS), "every latency is built or confirmed"
    if part == "sim":
        assert read == set(CONSTANTS) - DESCRIBED, "which a description's latencies are made of"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("channel", "sum_stages"), [(False, 1), (True, 1), (False, 2), (False, 4)])
@pytest.mark.parametrize("dataflow", ["weight_stationary", "output_stationary"])
def test_circuits_are_what_the_constants_say(dataflow, channel, sum_stages):
    assert len(elaborated(dataflow, channel, sum_stages)) > 20


@pytest.mark.slow(seconds=0.7)
@pytest.mark.parametrize("change", [1, -1])
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_that_the_circuit_is_not_built_for_is_refused(name, change, monkeypatch):
    monkeypatch.setattr(timing, name, getattr(timing, name) + change)
    with pytest.raises(LoomError, match=rf"{name} in arch/timing.py is {getattr(timing, name)}, but the circuit takes"):
        elaborated("weight_stationary", name.startswith("PIM_"), 2 if name == "MOST_SUM_STAGES" else 1)


def test_the_arrays_latency_and_the_packing_are_derived_in_one_place():
    """The formulas R + C - 1 + stages, and the beats of a fold, stand in `arch` alone."""
    latency = re.compile(r"rows \+ (\w+\.)*cols - 1")
    beats = re.compile(r"// (\w+\.)*load_rows")
    for path in sources("rtl", "sim", "mapper", "verification"):
        text = path.read_text()
        assert not latency.search(text), path.name
        if path.name != "floors.py":  # a lower bound of all tilings, whatever their folds
            assert not beats.search(text), path.name
