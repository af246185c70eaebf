"""One record for the verification of any machine: every kind keeps it, and it cannot contradict itself."""

import io
import json
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from siliconloom.arch import load_chip
from siliconloom.arch.chip_ring import load_ring, ring_parts
from siliconloom.arch.result import digest_of
from siliconloom.arch.verified import SCHEMA, NpuCase, Seen, Verified, VerifiedNpu, read_verified, totals_of
from siliconloom.cli import main
from siliconloom.evaluate.machine import evaluate, read_machine
from siliconloom.render.tables import Screen
from siliconloom.render.verification import COLUMNS, verification_table
from siliconloom.rtl.bench.runner import simulator_path, tool_versions
from siliconloom.verification import link
from siliconloom.verification.parity import CONTEXT, ERRORS, Parity, ParityStream, instant, span
from siliconloom.workloads import load_workload
from tests.rtl.npu import SMALL as SMALL_NPU
from tests.rtl.test_pim import SMALL as SMALL_PIM

icarus = pytest.mark.skipif(shutil.which("iverilog") is None, reason="Icarus is not installed")
MACHINES = {
    "array": ("systolic-is-8", (("tile.array.rows", "3"), ("tile.array.cols", "2")), 4),
    "npu": ("npu-edge-int8", tuple(SMALL_NPU.items()), 4),
    "pim": ("pim-hbm", tuple(SMALL_PIM), 2),
    "link": ("npu-x4-ring", (("protocol.credits", "32"),), 2),
}
COUNTED = {"array": {"folds"}, "npu": {"instructions"}, "pim": {"commands"}, "link": {"messages"}}
COLUMNS_OF = {
    "array": ["case", "operands", "folds", "stalls"],
    "npu": ["case", "words", "executed", "stalls"],
    "pim": ["case", "GEMVs", "transfers", "commands"],
    "link": ["case", "messages", "faults", "retries"],
}
EVERY = ["RTL", "model", "difference", "times", "bytes"]


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """What ``loom verify`` writes and prints for a kind of machine, on Icarus; computed once each."""
    kept = {}

    def of(kind, capsys):
        if kind not in kept:
            name, sets, count = MACHINES[kind]
            path = tmp_path_factory.mktemp("verified") / f"{kind}.json"
            words = [word for key, value in sets for word in ("--set", f"{key}={value}")]
            words += ["--programs" if kind == "npu" else "--cases", str(count), "--seed", "2"]
            words += ["--simulator", simulator_of(kind)]
            with pytest.MonkeyPatch.context() as patch:
                without_blocks(patch)
                assert main(["verify", name, *words, "--json", str(path)]) == 0
            kept[kind] = json.loads(path.read_text()), capsys.readouterr().out
        return kept[kind]

    return of


def simulator_of(kind):
    """Icarus, but for tiles, of whose programs it runs a tenth as many in a second."""
    return "verilator" if kind == "npu" and simulator_path("verilator") else "icarus"


def without_blocks(patch):
    """Whole chips take minutes on Icarus: tests/rtl/test_ring_chips.py has them."""
    patch.setattr(link, "mlp_blocks", lambda *_: [])
    patch.setattr(link, "run_tile_cases", lambda *_, **__: [])


@icarus
@pytest.mark.rtl
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow(seconds=40 if kind == "npu" else 6)) for kind in MACHINES]
)
def test_every_machine_is_verified_in_one_record(kind, verified, capsys):
    written, _ = verified(kind, capsys)
    record = read_verified(written)
    assert record.as_dict() == written
    assert (record.schema_, record.kind, record.passed) == (SCHEMA, kind, True)
    assert set(written) >= {*map(key_of, Verified.model_fields.items())}
    name, sets, count = MACHINES[kind]
    asked = record.asked
    assert (asked.machine, asked.overrides, asked.seed, asked.simulator) == (name, dict(sets), 2, simulator_of(kind))
    assert (asked.cases, asked.programs) == ((None, count) if kind == "npu" else (count, None))
    assert {simulator_of(kind), "amaranth", "cocotb", "numpy", "python"} == set(asked.tools)
    assert all(version[0].isdigit() for version in asked.tools.values())
    described = [load_ring(name, list(sets))] if kind == "link" else [load_chip(name, list(sets))]
    described += [ring_parts(described[0])[0]] if kind == "link" else []
    assert asked.machine_digest == digest_of(described)
    counted = {key for key in ("folds", "instructions", "commands", "messages") if getattr(record.totals, key)}
    assert counted == COUNTED[kind]
    assert record.time.total_s > record.time.build_s + record.time.run_s > 0
    for case in record.cases:
        assert case.bytes_compared > 0
        assert case.rtl_cycles > 0
        assert (case.times_compared == 0) == case.stalled
    assert any(case.stalled for case in record.cases) == (kind in ("array", "npu"))


def key_of(field):
    name, info = field
    return info.alias or name


@pytest.mark.slow
@icarus
@pytest.mark.rtl
@pytest.mark.parametrize("kind", MACHINES)
def test_one_table_shows_what_a_kind_has(kind, verified, capsys):
    written, printed = verified(kind, capsys)
    heading = next(line for line in printed.splitlines() if line.startswith("case "))
    assert heading.split() == [*COLUMNS_OF[kind], *EVERY]
    for case in written["cases"]:
        row = next(line for line in printed.splitlines() if line.startswith(case["name"][:20]))
        cells = row.split()
        assert cells[-1] == f"{case['bytes_compared']:,}"
        assert cells[-3] == ("-" if case["stalled"] else "0")
    assert "passed: every value equal" in printed
    assert f"set: {MACHINES[kind][1][0][0]}=" in printed


@pytest.mark.slow
@icarus
@pytest.mark.rtl
def test_a_mismatch_on_a_ring_ends_the_command_with_status_one(monkeypatch, capsys, tmp_path):
    """Links with one more cycle of wire than their description says: late, but right."""
    without_blocks(monkeypatch)
    right = link.run_link_cases

    def longer(protocol, *rest, **options):
        return right(protocol.model_copy(update={"wire_cycles": protocol.wire_cycles + 1}), *rest, **options)

    monkeypatch.setattr(link, "run_link_cases", longer)
    path = tmp_path / "v.json"
    assert main(["verify", "npu-x4-ring", "--simulator", "icarus", "--cases", "2", "--json", str(path)]) == 1
    said = capsys.readouterr()
    assert "FAILED: 2 of 4 cases: link 0; link 1" in said.out
    assert "link 0: first difference: delivered flit " in said.out
    assert "RTL and model disagree" in said.err
    record = read_verified(json.loads(path.read_text()))
    assert not record.passed
    for case in record.cases:
        assert case.values_equal
        assert case.passed == (case.work == "collective")
        if case.divergence:
            here = next(m for m in case.divergence.around if m.number == case.divergence.number)
            assert here.rtl.cycle > here.model.cycle


@pytest.mark.parametrize("simulator", ["icarus", "verilator"])
def test_tools_have_versions(simulator):
    if simulator_path(simulator) is None:
        pytest.skip(f"{simulator} is not installed")
    assert re.fullmatch(r"\d+(\.\d+)+", tool_versions(simulator)[simulator])


@pytest.mark.parametrize(
    ("machine", "sets"), [("npu-edge-int8", [("tile.dma.outstanding", "2")]), ("systolic-ws-8", [])]
)
def test_a_machine_has_the_digest_that_its_results_have(machine, sets):
    graph = load_workload("gpt2-block-gemms" if sets == [] else "gpt2", [] if sets == [] else [("layers", "1")])
    result = evaluate(read_machine(machine, sets), graph).typed
    assert result.asked.machine_digest == digest_of([load_chip(machine, sets)])


# Properties ----------------------------------------------------------------------------------------------------------

cycles = st.integers(0, 10**9)
errors = st.lists(st.text("abc", min_size=1), max_size=ERRORS + 3)


@st.composite
def parities(draw):
    """A comparison as the kinds make them, in which anything may differ."""
    stalled = draw(st.booleans())
    parity = Parity(name=draw(st.text("abc, ", min_size=1, max_size=30)), stalled=stalled)
    rtl = draw(cycles)
    parity.cycles(rtl, rtl if draw(st.booleans()) else draw(cycles))
    parity.value_errors += draw(errors)
    if not stalled:
        events = draw(st.lists(cycles, max_size=12))
        parity.hold(
            [
                ParityStream(
                    "flit", events, draw(st.sampled_from([events, events[:-1], draw(st.lists(cycles))])), instant
                )
            ]
        )
        parity.count("retries", draw(st.integers(0, 2)), 1)
    return parity


def npu_case(parity):
    return NpuCase(**parity.common(), words=3, instructions=5)


def record_of(cases):
    asked = {
        "machine": "chip",
        "machine_digest": "0" * 64,
        "overrides": {},
        "seed": 0,
        "simulator": "icarus",
        "cases": None,
        "programs": len(cases),
        "tools": {},
    }
    return VerifiedNpu.model_validate(
        {
            "version": "1",
            "asked": asked,
            "verified": "the whole tile",
            "time": {"total_s": 1.0, "build_s": 0.5, "run_s": 0.2},
            "passed": all(c.passed for c in cases),
            "totals": totals_of(cases),
            "cases": tuple(cases),
            "notes": (),
        }
    )


records = st.lists(parities().map(npu_case), min_size=1, max_size=4).map(record_of)


@given(parities())
def test_a_case_says_whether_anything_differs_and_what(parity):
    case = npu_case(parity)
    assert case.passed == parity.passed == (not parity.errors)
    assert case.cycles_equal in (None, not parity.cycle_errors)
    told, rest = case.differences(), len(parity.value_errors) - ERRORS
    if rest > 0:
        assert told[ERRORS] == f"... and {rest} more"
        told[ERRORS : ERRORS + 1] = parity.value_errors[ERRORS:]
    assert told == parity.errors


@pytest.mark.slow(seconds=1)
@given(records)
def test_a_record_is_read_back_as_it_was_written(record):
    assert read_verified(json.loads(json.dumps(record.as_dict(), allow_nan=False))) == record


CONTRADICTIONS = ("passed", "totals", "difference", "cycles_equal", "values_equal", "model_cycles", "case", "stalled")


@given(records, st.sampled_from(CONTRADICTIONS), st.data())
def test_a_record_that_contradicts_itself_is_refused(record, what, data):
    written = record.as_dict()
    case = data.draw(st.sampled_from(written["cases"]))
    if what == "passed":
        written["passed"] = not written["passed"]
    elif what == "totals":
        name = data.draw(st.sampled_from(sorted(written["totals"])))
        written["totals"][name] = (written["totals"][name] or 0) + 1
    elif what == "difference":
        case["difference"] = (case["difference"] or 0) + 1
    elif what in ("cycles_equal", "values_equal", "stalled"):
        case[what] = not case[what]
    elif what == "model_cycles":
        case[what] = 1 + case["rtl_cycles"] if case[what] is None else None
    else:
        case["passed"] = not case["passed"]
    with pytest.raises(ValidationError):
        read_verified(written)


@pytest.mark.slow(seconds=1)
@settings(max_examples=40)
@given(records, st.data())
def test_the_schema_refuses_what_is_no_record(record, data):
    written = record.as_dict()
    keys = sorted(key_of(f) for f in VerifiedNpu.model_fields.items() if f[1].is_required())
    key = data.draw(st.sampled_from([*keys, "kind"]))
    with pytest.raises(ValidationError):
        read_verified({name: each for name, each in written.items() if name != key})
    with pytest.raises(ValidationError):
        read_verified({**written, "programmes": 1})
    with pytest.raises(ValidationError):
        read_verified({**written, "kind": data.draw(st.sampled_from(["array", "pim", "link", "gpu"]))})
    with pytest.raises(ValidationError):
        record.passed = True


@pytest.mark.slow(seconds=1)
@given(records)
def test_the_table_leaves_out_empty_columns_and_shows_every_difference(record):
    out = io.StringIO()
    screen = Screen(width=400)
    screen.file = out
    verification_table(record, screen)
    printed = out.getvalue()
    heading = next(line for line in printed.splitlines() if line.startswith("case "))
    cells = {name: [cell(case) for case in record.cases] for name, _, cell in COLUMNS}
    assert heading.split() == [name for name, each in cells.items() if any(c is not None for c in each)]
    assert ("passed: " in printed) == record.passed
    assert ("FAILED: " in printed) == (not record.passed)
    for case in record.cases:
        if case.divergence:
            assert f"first difference: flit {case.divergence.number}" in printed
            assert "<--" in printed
        assert all(line.rstrip() in printed for line in case.differences())


@given(st.lists(st.lists(cycles, max_size=20), min_size=1, max_size=4), st.data())
def test_the_earliest_event_that_differs_is_told_with_what_is_around_it(streams, data):
    """Wherever differences are planted."""
    streams = [sorted(each) for each in streams]
    planted, earliest = [list(each) for each in streams], {}
    for n, each in enumerate(planted):
        if each and data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(each) - 1))
            each[place] += data.draw(st.integers(1, 100))
            earliest[n] = streams[n][place], place
        elif data.draw(st.booleans()):
            extra = data.draw(cycles)
            each.append(extra)
            earliest[n] = extra, len(each) - 1
    parity = Parity("case")
    parity.cycles(5, 5)
    parity.hold(
        [
            ParityStream(f"stream {n}", model, rtl, instant)
            for n, (model, rtl) in enumerate(zip(streams, planted, strict=True))
        ]
    )
    assert parity.times_compared == sum(map(len, streams))
    assert parity.passed == (not earliest)
    if not earliest:
        return
    found = parity.divergence
    cycle = min(cycle for cycle, _ in earliest.values())
    stream = int(found.stream.split()[1])
    assert earliest[stream] == (cycle, found.number)
    shown = [m.number for m in found.around]
    most = max(len(streams[stream]), len(planted[stream]))
    assert shown == list(range(max(found.number - CONTEXT, 0), min(found.number + CONTEXT + 1, most)))
    assert sum("<--" in line for line in found.lines()) == 1
    others = {n for n in earliest if n != stream}
    assert all(any(f"stream {n}" in error for error in parity.cycle_errors) for n in others)


@given(st.binary(min_size=1, max_size=64), st.binary(max_size=8), st.data())
def test_wrong_bytes_are_counted_and_the_first_is_told(due, beyond, data):
    due = np.frombuffer(due, np.uint8)
    found = np.concatenate([due, np.frombuffer(beyond, np.uint8)])
    places = data.draw(st.sets(st.integers(0, len(due) - 1)))
    found[sorted(places)] ^= 1
    parity = Parity("case")
    parity.same_bytes("memory", found, due)
    assert parity.bytes_compared == len(due)
    assert parity.value_errors == (
        [f"{len(places)} bytes of memory differ, the first at {min(places):#x}"] if places else []
    )
    parity.same_bytes("memory", found[: len(due) - 1], due)
    assert f"{len(due) - 1} of {len(due)} bytes are there" in parity.value_errors[-1]
    assert parity.bytes_compared == len(due), "what is not there was not compared"


def test_half_an_execution_is_shown():
    assert span((3, 7)) == Seen(cycle=3, end=7)
    assert str(span((3, None))) == "3 (a begin without an end)"
    assert str(span((None, 7))) == "7 (an end without a begin)"


def test_the_schema_is_printed(capsys):
    assert main(["schema", "verification"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["title"] == SCHEMA
    assert printed["discriminator"]["mapping"].keys() == MACHINES.keys()
    for place in printed["discriminator"]["mapping"].values():
        found = printed["$defs"][place.rsplit("/", 1)[1]]
        assert set(found["required"]) == set(found["properties"]) >= {key_of(f) for f in Verified.model_fields.items()}
        assert found["additionalProperties"] is False
