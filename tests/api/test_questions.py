"""The Python API answers what the command line answers, and takes names, files, dictionaries and objects alike."""

import csv as csv_module
import json

import pandas
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import siliconloom as sl
from siliconloom.arch.document import Document
from siliconloom.arch.gpu import load_gpu
from siliconloom.arch.names import LIBRARY, chip_names, gpu_names, system_names
from siliconloom.arch.system import load_system
from siliconloom.cli import main

SMALL = {"workload.layers": 1, "workload.sequence": 16}
STEPS = [
    ("npu-edge", "gpt2", SMALL),
    ("npu-edge-int8", "gpt2", {**SMALL, "tile.array.rows": 8, "memory.dram.bandwidth": "10 GB/s"}),
    ("neupims", "gpt3-7b", {"workload.layers": 1, "workload.phase": "decode"}),
    ("pim-hbm", "gpt2-block-gemms", {"workload.precision": "int8"}),
    ("h100", "gpt2", {"workload.precision": "bf16"}),
    ("dgx-h100", "llama3-8b", {"plan.tensor": 4}),
]


def command_json(capsys, *words):
    assert main([*words, "--json", "-"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def without_wall(data):
    data = dict(data)
    data.pop("simulator", None)
    if "search" in data:
        data["search"] = {k: v for k, v in data["search"].items() if k != "wall_s"}
    return json.loads(json.dumps(data))


def set_words(sets):
    return [word for path, value in sets.items() for word in ("--set", f"{path}={value}")]


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize(("machine", "workload", "sets"), STEPS, ids=[s[0] for s in STEPS])
def test_a_step_is_what_loom_sim_writes(machine, workload, sets, capsys):
    theirs = command_json(capsys, "sim", machine, workload, *set_words(sets))
    assert without_wall(sl.simulate(machine, workload, sets).to_dict()) == without_wall(theirs)


@pytest.mark.slow(seconds=10)
def test_options_of_a_step_are_those_of_loom_sim(capsys, tmp_path):
    mapping = str(tmp_path / "m.yaml")
    assert main(["map", "npu-edge", "gpt2", *set_words(SMALL), "-o", mapping]) == 0
    capsys.readouterr()
    for words, options in (
        (["--exact", "--objective", "energy"], {"exact": True, "objective": "energy"}),
        (["--mapping", mapping], {"mapping": mapping}),
        (["--search", "--seed", "3"], {"search": True, "seed": 3}),
    ):
        theirs = command_json(capsys, "sim", "npu-edge", "gpt2", *set_words(SMALL), *words)
        assert without_wall(sl.simulate("npu-edge", "gpt2", SMALL, **options).to_dict()) == without_wall(theirs)
    as_dictionary = yaml.safe_load((tmp_path / "m.yaml").read_text())
    assert sl.simulate("npu-edge", "gpt2", SMALL, mapping=as_dictionary).cycles > 0


def test_a_plan_is_what_loom_plan_writes(capsys):
    sets = {"plan.pipeline": 1, "workload.batch": 8}
    theirs = command_json(capsys, "plan", "dgx-h100", "llama3-8b", *set_words(sets))
    ours = sl.plan("dgx-h100", "llama3-8b", sets)
    assert without_wall(ours.to_dict()) == without_wall(theirs)
    assert len(ours.frame("alternatives")) == len(ours.alternatives)


@pytest.mark.slow(seconds=1)
def test_a_comparison_is_what_loom_compare_writes(capsys):
    words = ["npu-edge", "gpt2", *set_words(SMALL), "--gpu", "h100,a100", "--price", "h100=2.5"]
    theirs = command_json(capsys, "compare", *words)
    ours = sl.compare("npu-edge", "gpt2", ["h100", "a100"], SMALL, prices={"h100": 2.5})
    assert without_wall(ours.to_dict()) == without_wall(theirs)
    frame = ours.operators
    assert set(frame["machine"]) == {"npu-edge", "h100", "a100"}
    assert list(frame.columns)[:3] == ["name", "machine", "seconds"]


SERVED = {"serve.requests": 20, "serve.arrivals": "poisson", "serve.rate": 5.0}


@pytest.mark.slow(seconds=1.5)
@pytest.mark.parametrize(
    ("machine", "words", "options"),
    [
        ("h100", [], {}),
        ("h100", ["--slo", "ttft=50ms,tpot=20ms"], {"slo": {"ttft": "50 ms", "tpot": 0.02}}),
        ("h100", ["--slo", "ttft=2ms", "--find", "rate"], {"slo": "ttft=2ms", "find": "rate"}),
        ("h100", ["--stack", "none"], {"stack": "none"}),
        ("npu-edge", [], {}),
    ],
)
def test_a_service_is_what_loom_serve_writes(machine, words, options, capsys, tmp_path):
    csv = tmp_path / "requests.csv"
    words = ["serve", machine, "gpt2", "64x16", *set_words(SERVED), *words, "--csv", str(csv)]
    ours = sl.serve(machine, "gpt2", "64x16", SERVED, **options)
    theirs = command_json(capsys, *words)
    assert ours.costs.asked >= theirs["costs"].pop("asked")  # what the first one was told is kept
    mine = without_wall(ours.to_dict())
    del mine["costs"]["asked"]
    assert mine == without_wall(theirs)
    rows = list(csv_module.DictReader(csv.read_text().splitlines()))
    frame = ours.frame("requests")
    assert list(frame.columns) == list(rows[0])
    for name in frame.columns:
        assert frame[name].to_list() == [float(row[name]) for row in rows]
    assert len(ours.frame("replicas")) == len(ours.replicas)
    assert sum(ours.frame("timeline")["tokens_per_s"]) > 0
    assert "time to first token" in str(ours)
    assert "time to first token" in ours._repr_html_()
    assert "gpt2" in repr(ours)


@pytest.mark.slow(seconds=1)
def test_a_trace_is_a_file_columns_or_a_data_frame(tmp_path):
    columns = {"arrival_s": [0, 0.25, 1.5], "prompt_tokens": [64, 3, 100], "output_tokens": [8, 1, 30]}
    columns["session"] = ["a", None, "a"]
    frame = pandas.DataFrame(columns)
    file = tmp_path / "trace.csv"
    frame.to_csv(file, index=False)
    stamped = frame.drop(columns="arrival_s").rename(columns={"prompt_tokens": "ContextTokens"})
    stamped["TIMESTAMP"] = pandas.Timestamp("2024-05-01 10:00") + pandas.to_timedelta(frame["arrival_s"], unit="s")
    typed = frame.convert_dtypes(dtype_backend="pyarrow")
    answers = [sl.serve("h100", "gpt2", each) for each in (file, str(file), columns, frame, typed, stamped)]
    for each in answers[1:]:
        assert each.asked.trace_digest == answers[0].asked.trace_digest
        assert each.frame("requests").equals(answers[0].frame("requests"))
    assert pandas.isna(answers[0].frame("requests")["tpot_s"][1])  # one token has no further one


LOADED = {
    **dict.fromkeys(chip_names(), sl.load_chip),
    **dict.fromkeys(system_names(), load_system),
    **dict.fromkeys(gpu_names(), load_gpu),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_description_that_was_read_says_the_same_again(name):
    """Read, given as an object, read again: the same description, to the last default and quantity."""
    from siliconloom.api.inputs import named_machine

    read = LOADED[name](name)
    again = named_machine(read)
    assert isinstance(again, Document)
    load = {"chip": sl.load_chip, "system": load_system, "gpu": load_gpu}[again.data["kind"]]
    other = sl.load_chip(read) if again.data["kind"] == "chip" else load(again)
    assert other == read
    assert other.model_dump_json() == read.model_dump_json()


@pytest.mark.slow(seconds=1)
def test_names_files_dictionaries_and_objects_are_one_question(tmp_path):
    path = LIBRARY / "npu-edge.yaml"
    copy = tmp_path / "copy.yaml"
    copy.write_text(path.read_text())
    data = yaml.safe_load(path.read_text())
    workload = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
    file = tmp_path / "workload.json"
    file.write_text(json.dumps(workload))
    sets = {"tile.array.rows": 8, "workload.sequence": 16}
    graph = sl.load_workload(workload, {"sequence": 16})
    answers = [
        sl.simulate("npu-edge", str(file), sets),
        sl.simulate(copy, file, sets),
        sl.simulate(data, workload, sets),
        sl.simulate(sl.load_chip("npu-edge"), workload, sets),
        sl.simulate("npu-edge", graph, {"tile.array.rows": 8}),
        sl.simulate(sl.load_chip(data, {"tile.array.rows": 8}), graph),
    ]
    for each in answers[1:]:
        assert each.operators.equals(answers[0].operators)
        assert each.asked.machine_digest == answers[0].asked.machine_digest
        assert each.asked.workload_digest == answers[0].asked.workload_digest


def test_the_dictionary_that_was_given_stays_as_it_was():
    data = yaml.safe_load((LIBRARY / "npu-edge.yaml").read_text())
    before = json.dumps(data)
    sl.load_chip(data, {"tile.array.rows": 4})
    assert json.dumps(data) == before


DATA = yaml.safe_load((LIBRARY / "npu-edge-int8.yaml").read_text())
BROKEN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just(()),
)


def leaves(data, path=()):
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*path, key))


@pytest.mark.slow(seconds=2)
@settings(max_examples=75, deadline=None)
@given(st.sampled_from([p for p in leaves(DATA) if p]), st.one_of(BROKEN, st.builds(object)))
def test_whatever_stands_in_a_dictionary_no_other_error_comes_out(path, value):
    data = json.loads(json.dumps(DATA))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    told = ""
    try:
        sl.load_chip(data)
    except sl.LoomError as error:
        told = str(error)
    assert "\n" not in told
    assert "pydantic" not in told


def circle():
    data = dict(DATA)
    data["tile"] = data
    return data


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sl.load_chip({"kind": "chip", "nam": "x"}), "chip: nam: unknown key 'nam'"),
        (lambda: sl.load_chip({**DATA, "clock": 7}), "chip: clock: has no unit"),
        (lambda: sl.load_chip(circle()), "nested more than"),
        (lambda: sl.load_chip(7), "chip: must be a name, a file, a dictionary"),
        (lambda: sl.load_chip("npu-edg"), "did you mean 'npu-edge'?"),
        (lambda: sl.simulate("npu-edge", "gpt2", ["a=b"]), "sets: must be a mapping"),
        (lambda: sl.simulate("npu-edge", "gpt2", {"tile.array.rows": object()}), "sets: tile.array.rows: must be text"),
        (lambda: sl.simulate("npu-edge", "gpt2", {"tile.array.rows": "x"}), "sets tile.array.rows=x"),
        (lambda: sl.simulate("npu-edge", sl.load_workload("gpt2"), {"workload.layers": 1}), "was read already"),
        (
            lambda: sl.simulate("h100", "gpt2", {"workload.precision": "bf16"}, search=True),
            "not supported: search for GPUs",
        ),
        (lambda: sl.compare("npu-edge", "gpt2", []), "name at least one"),
        (lambda: sl.compare("npu-edge", "gpt2", "h100", tensor=0), "tensor: must be a whole number"),
        (lambda: sl.plan("npu-edge", "gpt2"), "kind: must be one of system"),
        (lambda: sl.verify("npu-edge", simulator="veriloq"), "did you mean 'verilator'?"),
        (lambda: sl.generate_rtl("npu-edge", reset="none"), "reset: must be one of"),
        (lambda: sl.serve("dgx-h100", "gpt2", "trace.csv"), "trace.csv: no such file"),
        (lambda: sl.serve("h100", "gpt2", {"prompt_tokens": [1, 2], "output_tokens": [1]}), "prompt_tokens 2, output"),
        (
            lambda: sl.serve("h100", "gpt2", {"prompt_tokens": [1, 0.5], "output_tokens": [1, 1]}),
            "trace: request 2: pro",
        ),
        (
            lambda: sl.serve("h100", "gpt2", {"prompt_tokens": 3, "output_tokens": [1]}),
            "must be a value for each request",
        ),
        (lambda: sl.serve("h100", sl.load_workload("gpt2"), "8x8"), "model: must be a name, a file or a dictionary"),
        (lambda: sl.serve("h100", "gpt2", "8x8", slo={"ttft": None}), "slo: ttft: must be seconds"),
        (lambda: sl.serve("h100", "gpt2", "8x8", slo={"ttf": 1}), "did you mean 'ttft'?"),
        (lambda: sl.serve("h100", "gpt2", "8x8", {"serve.requests": 2}, find="rate"), "find rate: needs limits"),
    ],
)
def test_mistakes_are_one_line(call, told):
    with pytest.raises(sl.LoomError) as raised:
        call()
    assert told in str(raised.value)
    assert "--" not in str(raised.value).replace("--slo ttft=2s", "")
    assert "\n" not in str(raised.value)


@pytest.mark.slow(seconds=1)
def test_generated_verilog_is_that_of_loom_rtl(tmp_path, capsys):
    assert main(["rtl", "systolic-ws-8", "-o", str(tmp_path / "theirs"), "--json", "-"]) == 0
    sidecar = json.loads(capsys.readouterr().out)
    ours = sl.generate_rtl("systolic-ws-8", tmp_path / "ours")
    assert ours.to_dict() == sidecar
    written = {str(p.relative_to(tmp_path / "ours")) for p in (tmp_path / "ours").rglob("*") if p.is_file()}
    assert set(ours.source.files) <= written
    for name, text in ours.source.files.items():
        assert (tmp_path / "theirs" / name).read_text() == text
    assert "modules" in str(ours)


@pytest.mark.rtl
@pytest.mark.slow
def test_a_verification_is_that_of_loom_verify(capsys):
    theirs = command_json(capsys, "verify", "systolic-ws-8", "--cases", "1", "--seed", "2")
    ours = sl.verify("systolic-ws-8", cases=1, seed=2)
    assert ours.passed
    for data in (theirs, both := ours.to_dict()):
        data.pop("time")
    assert both == theirs
    assert len(ours.frame("cases")) == len(theirs["cases"])
    assert "passed" in str(ours)


def test_errors_name_arguments_and_no_options():
    with pytest.raises(sl.LoomError, match=r"^objective: must be"):
        sl.simulate("npu-edge", "gpt2", objective="speed")
    with pytest.raises(sl.LoomError, match=r"^search_time: a number of seconds"):
        sl.simulate("npu-edge", "gpt2", search_time=-1.0)
    with pytest.raises(sl.LoomError, match=r"^attain: "):
        sl.serve("h100", "gpt2", "8x8", {"serve.requests": 2}, slo={"ttft": 1}, find="rate", attain=7.0)
