"""Liberty files under any name, with what is no number or no text in them, without timing, and at any clock."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from siliconloom.arch import LoomError
from siliconloom.cli import main
from siliconloom.evaluate.synth import check_request
from siliconloom.rtl.synthesis import area as area_module
from siliconloom.rtl.synthesis.timing import StaticTiming, sta_command
from siliconloom.rtl.synthesis.yosys import YosysError
from tests.evaluate.test_synth import LIBERTY, SMALL, synth
from tests.tools import need_yosys

AREA = "area: a number from 0 on was expected"


@pytest.fixture
def timed(tmp_path):
    """A library of four cells that OpenSTA can analyse, too: it wants the model of delays to be named."""
    need_yosys()
    path, text = tmp_path / "timed.lib", (Path(__file__).parent / "energy.lib").read_text()
    path.write_text(text.replace("library (energy) {", "library (energy) { delay_model : table_lookup;"))
    return path


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            b"library (x) {\n  cell (A) { area : -288.5; } }",
            "x.lib:2: area: a number from 0 on was expected (got -288.5)",
        ),
        (
            b"library (x) {\n\n  cell (A) {\n area : banana ; } }",
            "x.lib:4: area: a number from 0 on was expected (got ban",
        ),
        (b'library (x) { cell (A) { area:"1e"; } }', "x.lib:1: area: a number from 0 on was expected (got 1e)"),
        (b"library (x) {\n\x00 }", "x.lib:2: no Liberty file: text was expected (got the byte 0x00)"),
        (bytes(range(128, 256)) + b"\n" + bytes(range(256)), "x.lib:2: no Liberty file: text was expected (got"),
    ],
)
def test_what_no_tool_can_read_has_its_line(content, line, tmp_path):
    path = tmp_path / "x.lib"
    path.write_bytes(content)
    with pytest.raises(LoomError, match=re.escape(line)):
        check_request(None, path)


def test_areas_of_every_notation_are_read(tmp_path):
    path = tmp_path / "x.lib"
    path.write_text(
        'library (\xb5) { /* area : banana;\n */ cell (A) { area : 0; }\n// area : none\n cell (B) { area : "1.5e3"; }'
        " cell (C) { area:.5; max_area : none; } wire_load (w) { area : 1.; } cell (D) { area : 4 } }",
        encoding="latin-1",
    )
    assert check_request(None, path) == "generic"


@pytest.mark.slow(seconds=1)
@pytest.mark.parametrize("command", ["synth", "verify"])
def test_a_file_of_no_known_letters_is_one_clear_line(command, tmp_path, capsys):
    need_yosys()
    path = tmp_path / "x.lib"
    path.write_bytes(bytes(range(128, 256)) * 8)
    assert main([command, *SMALL, "--liberty", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"loom: {path}: ")
    assert err.count("\n") == 1


@pytest.mark.slow(seconds=5)
def test_a_library_may_have_any_name(timed, tmp_path, capsys):
    path = tmp_path / "a 'b$\u00fc{;\".lib"
    path.write_text(timed.read_text())
    plain, named = (synth(capsys, *SMALL, "--liberty", str(each)) for each in (timed, path))
    assert named["area"] == plain["area"] | {"liberty": path.name}
    assert (named["cells"], named["fmax"], named["notes"]) == (plain["cells"], plain["fmax"], plain["notes"])
    if sta_command() is not None:
        assert named["fmax"] is not None


@pytest.mark.slow(seconds=5)
def test_the_slowest_clock_is_that_of_no_constraint(timed, capsys):
    slow, slowest = (
        synth(capsys, *SMALL, "--set", f"clock={clock}", "--liberty", str(timed)) for clock in ("1 MHz", "1 Hz")
    )
    assert (slow["area"], slow["cells"]) == (slowest["area"], slowest["cells"])
    if sta_command() is not None:
        assert slowest["fmax"]["max"] == pytest.approx(slow["fmax"]["max"], rel=1e-4)


@pytest.mark.slow(seconds=2)
def test_a_library_without_a_model_of_delays_has_a_note(capsys):
    need_yosys()
    if sta_command() is None:
        pytest.skip("OpenSTA is not installed")
    found = synth(capsys, *SMALL, "--liberty", str(Path(__file__).parent / "energy.lib"))
    assert "no Fmax: OpenSTA found no path in systolic_ws_8: the library names no delay_model" in found["notes"]


@pytest.mark.slow(seconds=2)
def test_a_library_without_timing_has_a_note(capsys, monkeypatch):
    need_yosys()
    monkeypatch.setattr("siliconloom.evaluate.synth.sta_command", lambda: "sta")
    found = synth(capsys, *SMALL, "--liberty", str(LIBERTY))
    assert (found["fmax"], found["notes"]) == (
        None,
        ["no Fmax: tiny.lib does not say how long its cells take (timing)"],
    )


def test_what_abc_stops_at_is_quoted(monkeypatch, tmp_path):
    printed = "ABC: + map\nABC: Error: too long.\nABC: ** cmd error: aborting\n"

    def stop(commands, folder):
        raise YosysError("Yosys stopped: Can't open ABC output file", printed)

    monkeypatch.setattr(area_module, "run_yosys", stop)
    with pytest.raises(LoomError, match=r"^cells.lib: ABC stopped: Error: too long\.$"):
        area_module._in_liberty(Path("cells.lib"), [], tmp_path)


@pytest.mark.slow(seconds=2)
def test_without_opensta_a_library_with_timing_has_a_note(timed, capsys, monkeypatch):
    for module in ("evaluate.synth", "rtl.synthesis.area"):
        monkeypatch.setattr(f"siliconloom.{module}.sta_command", lambda: None)
    found = synth(capsys, *SMALL, "--set", "clock=1 MHz", "--liberty", str(timed))
    assert found["area"]["mapped_for"] == "area"
    assert any(note.startswith("without OpenSTA the clock is compared with") for note in found["notes"])


@pytest.mark.parametrize(
    ("printed_ps", "slack_ns", "memories", "misses"),
    [
        (900, None, [], False),
        (1100, None, [], True),
        (900, -0.1, [], True),
        (1100, 0.1, [], False),
        (1100, 0.1, [{}], True),
        (900, 0.0, [{}], False),
    ],
)
def test_opensta_says_whether_the_clock_is_missed_but_for_memories(printed_ps, slack_ns, memories, misses):
    made = SimpleNamespace(sidecar={"clock_hz": 10**9, "memories": memories})
    timing = None if slack_ns is None else StaticTiming("x", 1.0, slack_ns, "a", "b", 1)
    assert area_module._misses(made, f"ABC: WireLoad = x Delay = {printed_ps}.00 ps\n", timing) == misses
