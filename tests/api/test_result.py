"""Results as objects: attributes of the schema, frames over Arrow's memory, pages and plots."""

import copy
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import siliconloom as sl
from siliconloom.api import frames
from siliconloom.api.frames import MissingExtra, arrow_table, data_frame
from siliconloom.arch.result import OperatorResult, StepResult

SMALL = {"workload.layers": 1, "workload.sequence": 16}


@pytest.fixture(scope="module")
def step():
    return sl.simulate("npu-edge", "gpt2", SMALL)


@pytest.fixture(scope="module")
def on_gpu():
    return sl.simulate("h100", "gpt2", {**SMALL, "workload.precision": "bf16"})


def test_every_key_of_the_schema_is_an_attribute(step):
    for name, field in StepResult.model_fields.items():
        if name != "operators":
            getattr(step, field.alias or name)
        assert (field.alias or name) in dir(step)
    assert step.seconds == step["seconds"] == step.to_dict()["seconds"]
    assert step.bound.achieved == step["bound"]["achieved"]
    assert step.schema == "siliconloom.result/2"


def test_what_is_not_there_is_told(step):
    with pytest.raises(AttributeError, match="no part of the name 'secnds'; did you mean 'seconds'"):
        _ = step.secnds
    with pytest.raises(sl.LoomError, match="no rows of the name 'seconds'"):
        step.frame("seconds")
    assert not hasattr(step, "alternatives")
    with pytest.raises(sl.LoomError, match="no key of the name 'secnds'; did you mean 'seconds'") as caught:
        _ = step["secnds"]
    assert isinstance(caught.value, KeyError)
    assert not str(caught.value).startswith(("'", '"'))


def test_a_result_without_operators_says_so():
    planned = sl.plan("dgx-h100", "gpt2", {"workload.batch": 8, "workload.sequence": 32})
    with pytest.raises(sl.LoomError, match=r"a result of siliconloom.plan/1 has no rows of the name 'operators'"):
        _ = planned.operators
    assert not hasattr(planned, "operators")


def test_changing_a_copy_changes_no_result(step):
    step.to_dict()["operators"].clear()
    assert len(step.operators) == len(step["operators"]) > 5


def test_frames_have_the_columns_of_the_schema_on_every_machine(step, on_gpu):
    flat = [n for n, f in OperatorResult.model_fields.items() if n not in ("shape", "energy", "busy_cycles")]
    for result in (step, on_gpu):
        frame = result.operators
        assert set(flat) <= set(frame.columns)
        assert next(iter(frame.columns)) == "name"
        assert list(frame.columns)[-1] == "energy_j"
        assert {"shape.m", "shape.n", "shape.k"} <= set(frame.columns)
        assert list(frame["seconds"]) == [each["seconds"] for each in result["operators"]]
    assert step.operators["energy.array"].sum() > 0
    typed = [n for n in flat if n not in ("fused", "measured_in")]
    assert dict(step.operators.dtypes[typed]) == dict(on_gpu.operators.dtypes[typed])


def test_parts_by_name_are_frames(step):
    units = step.frame("units")
    assert list(units["name"]) == list(step["units"])
    assert "stall_cycles.memory" in units.columns or any(c.startswith("stall_cycles.") for c in units.columns)


def test_a_part_is_one_table_and_frames_are_over_it(step):
    table = step.to_arrow()
    assert step.to_arrow("operators") is table
    assert step.to_arrow("units") is step.to_arrow("units")
    for frame in (step.operators, step.frame("operators")):
        for name in ("seconds", "cycles", "macs"):
            ours = frame[name].array._pa_array.chunk(0).buffers()[-1].address
            assert ours == table.column(name).chunk(0).buffers()[-1].address
    changed = step.operators
    changed.loc[0, "seconds"] = 0.0
    assert step.operators["seconds"][0] == step["operators"][0]["seconds"] > 0


def test_a_result_cannot_be_changed(step):
    before = step.cycles
    for name in ("cycles", "operators", "source", "nothing"):
        with pytest.raises(sl.LoomError, match=f"^{name}: a result cannot be changed"):
            setattr(step, name, 3)
    with pytest.raises(AttributeError, match="to_dict"):
        del step.cycles
    with pytest.raises(ValueError, match="frozen"):
        step.bound.achieved = 3
    assert step.cycles == before


def test_equal_runs_are_equal_results(step, on_gpu):
    again = sl.simulate("npu-edge", "gpt2", SMALL)
    assert again["simulator"] != step["simulator"]
    assert again == step
    assert len({again, step}) == 1
    other = sl.simulate("npu-edge", "gpt2", {**SMALL, "workload.sequence": 17})
    assert other != step != on_gpu
    assert step != step.to_dict()
    assert copy.deepcopy(step) == step


def test_a_frame_is_the_table_s_memory():
    table = arrow_table([{"name": f"operator {n}", "seconds": n / 7} for n in range(1000)])
    frame = data_frame(table)
    for name in table.column_names:
        theirs = table.column(name).chunk(0).buffers()[-1].address
        assert frame[name].array._pa_array.chunk(0).buffers()[-1].address == theirs


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abc"),
            st.one_of(
                st.none(),
                st.integers(),
                st.floats(allow_nan=False),
                st.booleans(),
                st.text(),
                st.dictionaries(st.sampled_from("xy"), st.integers(0, 9)),
                st.lists(st.text(max_size=2), max_size=2),
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_rows_become_a_table_of_as_many_rows(rows):
    table = arrow_table(rows)
    if table.num_columns:
        assert table.num_rows == len(rows)
    for name in table.column_names:
        assert any(_at(row, name.split(".")) is not None for row in rows)


def _at(row, path):
    for key in path:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def test_other_libraries_read_the_stream(step):
    import pyarrow

    assert pyarrow.table(step).equals(step.to_arrow())


def test_json_is_what_the_command_writes(step, tmp_path):
    step.to_json(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text()) == step.to_dict()


@pytest.mark.parametrize("kind", ["step", "on_gpu", "plan", "comparison"])
def test_pages_show_the_tables_of_the_terminal(kind, step, on_gpu):
    results = {
        "step": lambda: step,
        "on_gpu": lambda: on_gpu,
        "plan": lambda: sl.plan("dgx-h100", "llama3-8b", {"plan.tensor": 8, "plan.pipeline": 1, "plan.data": 1}),
        "comparison": lambda: sl.compare("npu-edge", "gpt2", "h100", SMALL),
    }
    result = results[kind]()
    page, text = result._repr_html_(), str(result)
    assert page.startswith("<pre")
    assert result["workload"] in page
    assert result["workload"] in text
    assert "<" not in text.replace("<=", "")
    assert repr(result).startswith("<Result siliconloom.")


def test_a_page_is_shown_once(step, monkeypatch):
    """Not line by line as well, as rich does where it finds that a notebook runs it."""
    import rich.console

    from siliconloom.render.tables import Screen

    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    assert not Screen().is_jupyter
    shown = []
    monkeypatch.setattr("rich.jupyter.display", lambda *a: shown.append(a))
    assert step._repr_html_()
    assert shown == []


def test_names_of_users_are_text_on_pages():
    graph = {"kind": "gemms", "name": "a /b", "precision": "int8", "gemms": [{"name": "x", "m": 8, "n": 8, "k": 8}]}
    result = sl.simulate("npu-edge-int8", graph)
    result._data["notes"] = ["<script>alert(1)</script>"]
    assert "<script>" not in result._repr_html_()


def test_plots_draw_every_operator(step, on_gpu):
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    axes = step.plot_operators(most=4)
    assert len(axes.patches) == 4
    assert max(p.get_width() for p in axes.patches) == max(o["seconds"] for o in step["operators"])
    roofs = step.plot_roofline()
    peak = step.peak_macs * step.clock_hz
    assert max(roofs.lines[0].get_ydata()) == peak
    inside = [c.get_offsets()[0] for c in roofs.collections]
    slope = next(iter(step["memory"]["levels"].values()))["bandwidth"]
    assert inside
    assert all(y <= min(peak, x * slope) * 1.001 for x, y in inside)
    drawn = pyplot.subplots()[1]
    assert on_gpu.plot_operators(drawn) is drawn
    with pytest.raises(sl.NotSupported, match="a roofline of a result without the traffic"):
        on_gpu.plot_roofline()
    pyplot.close("all")


def test_plots_of_a_service_are_its_percentiles_and_its_run():
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    served = sl.serve("h100", "gpt2", "64x16", {"serve.requests": 9, "serve.arrivals": "poisson", "serve.rate": 50})
    axes = served.plot_latency()
    assert [list(line.get_xdata()) for line in axes.lines] == [
        [served[name][key] for key in ("p50", "p90", "p95", "p99", "max")]
        for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")
    ]
    drawn = pyplot.subplots()[1]
    assert served.plot_timeline(drawn) is drawn
    assert list(drawn.lines[0].get_ydata()) == served["timeline"]["tokens_per_s"]
    pyplot.close("all")


@pytest.mark.parametrize(
    ("missing", "call", "extra"),
    [
        ("pandas", lambda r: r.operators, "frames"),
        ("pyarrow", lambda r: sl.Result(r.to_dict()).to_arrow(), "frames"),
        ("matplotlib", lambda r: r.plot_operators(), "plots"),
    ],
)
def test_a_missing_library_is_one_line_with_its_extra(missing, call, extra, step, monkeypatch):
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == missing else real(name, *a))
    with pytest.raises(MissingExtra, match=rf"needs {missing}.*pip install 'siliconloom\[{extra}\]'"):
        call(step)


@pytest.mark.slow(seconds=1)
def test_a_result_needs_no_library_of_an_extra():
    code = (
        "import sys; sys.modules.update(pandas=None, pyarrow=None, matplotlib=None); import siliconloom as sl; "
        f"r = sl.simulate('npu-edge', 'gpt2', {SMALL}); print(r.seconds, len(str(r)), len(r._repr_html_()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_types_of_a_column_hold_for_counts_over_64_bits():
    table = arrow_table([{"macs": 2**70}, {"macs": 1}], None)
    assert table.column("macs").to_pylist() == [float(2**70), 1.0]
    assert frames.arrow_table([{"name": "a", "kind": "b", "repeat": 1}], OperatorResult).num_rows == 1
