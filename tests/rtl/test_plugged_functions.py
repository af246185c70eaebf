"""Vector functions that only this file knows: assembled, timed, computed and run in the generated RTL."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
from amaranth import Mux

from siliconloom.arch import LoomError
from siliconloom.arch.assembler import assemble
from siliconloom.arch.faults import IllegalProgram
from siliconloom.arch.isa import Opcode, decode_program
from siliconloom.arch.vector import BUILT, FunctionSpec, Parameters, VectorFunction
from siliconloom.rtl.bench.programs import ProgramCase, run_programs
from siliconloom.rtl.bench.runner import simulator_path
from siliconloom.rtl.emit import build_rtl
from siliconloom.rtl.npu.functions.hooks import by_scalar
from siliconloom.rtl.npu.ways import CIRCUITS, WAYS, Way, register_circuit, register_way, when
from siliconloom.sim.chip.costs import cost_key
from siliconloom.sim.golden import functions
from siliconloom.sim.golden.npu import GoldenMachine
from siliconloom.sim.golden.vector import GOLDEN, golden
from siliconloom.verification import writer
from siliconloom.verification.npu import compare
from siliconloom.verification.programs import random_program
from siliconloom.verification.random_tiles import random_npu
from tests.arch.test_functions import registered

DISTANCE = FunctionSpec(
    name="distance", code=40, second=1, parameters=(Parameters.SCALARS,), result="|a - b| · m0 / 2^shift"
)
"""Needs something that no lane has."""
GATED_RELU = FunctionSpec(
    name="gated_relu", code=41, second=1, parameters=(Parameters.SCALARS,), result="max(a, 0) · b · m0 / 2^shift"
)
"""Is made of what every lane has."""


def distance(o):
    first, _, shift = o.scalars
    return functions.half_even(abs(o.first - o.second) * first, shift)


def gated_relu(o):
    first, _, shift = o.scalars
    return functions.scaled_product(np.maximum(o.first, 0), o.second, first, shift)


def difference(stage):
    apart = stage.value.as_signed() - stage.b.as_signed()
    return Mux(apart < 0, -apart, apart)


WAY = Way(
    name="distance",
    order=80,
    multiply=when(total=difference, factor=lambda stage: stage.m0.as_signed()),
    places=by_scalar,
)


@contextmanager
def plugged():
    """Both functions with all that belongs to them."""
    with ExitStack() as stack:
        register_way(WAY)
        stack.callback(WAYS.remove, WAY.name)
        for spec, value, ways in ((DISTANCE, distance, [WAY.name]), (GATED_RELU, gated_relu, ["relu", "product"])):
            function = stack.enter_context(registered(spec))
            golden(function)(value)
            stack.callback(GOLDEN.remove, function)
            register_circuit(function, *ways)
            stack.callback(CIRCUITS.remove, function)
        yield


def made_of(name, chip, count, seed, monkeypatch):
    """Of random programs whose element functions are all this one, those that store most different results of it."""
    monkeypatch.setattr(writer.Writer, "functions", [VectorFunction(name)])
    made = [random_program(chip, seed + number) for number in range(100)]
    made = [each for each in made if any(name == i.function for i in each.program.instructions)]
    return sorted(made, key=lambda each: -len(stored(chip, each, name)))[:count]


def stored(chip, made, name):
    """Different results that a function stored; none when nothing says what they are."""
    found = set()
    if name not in GOLDEN:
        return found

    class Watching(GoldenMachine):
        def execute(self, i, indices):
            super().execute(i, indices)
            if i.opcode == Opcode.VECTOR and i.function == name:
                first = i.c.at(indices)
                found.update(self.scratchpad[first : first + i.m * i.n].tolist())

    Watching(chip, made.memory.copy()).run(made.program)
    return found


def test_every_function_with_a_circuit_has_its_halves():
    assert set(GOLDEN) == set(CIRCUITS) == BUILT
    assert all(name in WAYS for circuit in CIRCUITS.values() for name in circuit.ways)
    assert {name for circuit in CIRCUITS.values() for name in circuit.ways} == set(WAYS)


@pytest.mark.rtl
@pytest.mark.slow
@pytest.mark.parametrize("tile", [0, 1])
def test_functions_that_only_a_test_knows_run_in_every_model(tile, seed, tmp_path, monkeypatch):
    if simulator_path("icarus") is None:
        pytest.skip("icarus is not installed")
    chip = random_npu(7000 * seed + tile)
    with plugged():
        assert set(GOLDEN) == set(CIRCUITS) == BUILT
        made = [each for spec in (DISTANCE, GATED_RELU) for each in made_of(spec.name, chip, 3, seed, monkeypatch)]
        for each in made:
            assert decode_program(assemble(each.program, chip)) == each.program.instructions
        for spec in (DISTANCE, GATED_RELU):
            assert len(set().union(*(stored(chip, each, spec.name) for each in made))) > 8
        bundle = build_rtl(chip)
        sources = bundle.write(tmp_path / "rtl")
        assert f"{bundle.top.upper()}_FUNCTION_DISTANCE = 40" in "".join(
            path.read_text() for path in (tmp_path / "rtl").rglob("*_program.h")
        )
        cases = [ProgramCase(each.program, each.memory, each.base) for each in made]
        found = run_programs(chip, sources, bundle.top, cases, folder=tmp_path / "bench", simulator="icarus")
        for each, outcome in zip(made, found, strict=True):
            parity = compare("plugged", chip, each, outcome)
            assert parity.passed, "\n".join(parity.errors)
            assert parity.times_compared > 0
        GOLDEN.remove(VectorFunction.DISTANCE)
        golden(VectorFunction.DISTANCE)(lambda o: distance(o) // 2)
        wrong = [compare("halved", chip, each, outcome) for each, outcome in zip(made, found, strict=True)]
        assert any(parity.value_errors for parity in wrong), "values are compared"
        GOLDEN.remove(VectorFunction.DISTANCE)
        golden(VectorFunction.DISTANCE)(distance)
    again = build_rtl(chip).files
    assert not any("distance" in text for text in again.values()), "what was taken back is not built"


def test_a_function_without_a_half_is_refused_where_that_is_needed():
    chip = random_npu(1)
    with registered(DISTANCE) as function, pytest.MonkeyPatch.context() as patch:
        (made, *_) = made_of(function.value, chip, 1, 0, patch)
        with pytest.raises(LoomError, match="values of the vector function distance"):
            GoldenMachine(chip, made.memory.copy()).run(made.program)
        with pytest.raises(LoomError, match="no circuit is registered for the vector function distance"):
            build_rtl(chip)
        register_circuit(function, "no such")
        try:
            with pytest.raises(LoomError, match="distance needs no such, which is no way of a lane"):
                build_rtl(chip)
        finally:
            CIRCUITS.remove(function)
        with pytest.raises(LoomError, match="its order 40 is that of add"):
            register_way(Way(name="another", order=40))
    timed = FunctionSpec(name="distance", code=40, result="timed only", circuit=False, passes=7)
    with registered(timed) as function, pytest.raises(IllegalProgram, match="no circuit for the vector function"):
        assemble(made.program, chip)


@pytest.mark.slow(seconds=1)
def test_a_duration_that_changes_is_not_remembered():
    """A function of somebody else's may cost something else tomorrow, and the package's code is the same."""
    chip, keys = random_npu(1), set()
    for passes in (1, 2):
        spec = FunctionSpec(name="distance", code=40, second=1, result="a", circuit=False, passes=passes)
        with registered(spec) as function, pytest.MonkeyPatch.context() as patch:
            (made, *_) = made_of(function.value, chip, 1, 0, patch)
            assert any(i.opcode == Opcode.VECTOR and i.function is function for i in made.program.instructions)
            keys.add(cost_key(made.program, chip))
    assert len(keys) == 2
