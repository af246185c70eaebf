"""From circuits to Verilog text: replications, and Yosys where it cannot keep anything or is to stop."""

import os
import re
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.rtl import writing
from siliconloom.rtl.writing import VerilogWriter, _in_repeats

ITEMS = ("a", "a_1[3]", "a_1[31:0]", "a [3]", "\\$9 ", "\\$a$12 [3]", "\\a.b [1:0]", "1'h0", "32'd00000017", "4'bx")


@given(runs=st.lists(st.tuples(st.sampled_from(ITEMS), st.integers(1, 70)), min_size=1, max_size=6))
def test_a_replication_says_what_the_concatenation_said(runs):
    """As Yosys writes one, and the same once each replication is written out again; no run of three is left."""
    items = [item for item, count in runs for _ in range(count)]
    text = f"  assign x = {{ {', '.join(items)} }};\n"
    found = _in_repeats(text)
    inside = re.sub(r"\{(\d+)\{([^{}]*)\}\}", lambda each: ", ".join([each[2]] * int(each[1])), found)
    assert [each.strip() for each in inside.split("= ")[1].strip("{; \n}").split(",")] == [
        each.strip() for each in items
    ]
    kept = re.sub(r"\{\d+\{[^{}]*\}\}", "", found)
    assert all(f"{item}, {item}, {item}" not in kept for item in ITEMS)
    assert len(found) <= len(text)


def test_what_is_no_concatenation_stays():
    text = "  always @(posedge clk, negedge rst_n)\n  if (a == b, c) d <= e;\n  part p(.a(x), .b(x), .c(x));\n"
    assert _in_repeats(text) == text
    assert _in_repeats("{ a, a, b }, { a, a, a }") == "{ a, a, b }, {3{a}}"


@pytest.mark.slow(seconds=3)
@pytest.mark.parametrize("cache", ["/dev/null", "/proc/none"])
def test_yosys_runs_where_nothing_can_be_kept(cache, tmp_path):
    """wasmtime, which runs Amaranth's own Yosys, stops where it cannot make its cache."""
    words = ["rtl", "systolic-os-8", "--set", "tile.array.rows=2", "--set", "tile.array.cols=2", "-o", "rtl"]
    code = "import sys; from siliconloom.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": cache},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rtl" / "systolic_os_8.v").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sleep")
def test_what_still_runs_is_ended_with_a_block_that_is_left_early(monkeypatch):
    monkeypatch.setattr(writing, "_command", lambda: ["sleep", "60"])
    failed = []

    def ask():
        try:
            writer.modules({"a": "module \\a\nend\n"}, [])
        except writing.LoomError as error:
            failed.append(str(error))

    writer, threads = VerilogWriter(), [threading.Thread(target=ask) for _ in range(2)]

    def leave_early():
        with writer:
            for each in threads:
                each.start()
            while len(writer._running) < 2:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave_early()
    for each in threads:
        each.join()
    ask()
    assert len(failed) == 3  # one that slept to its end has no error, and no modules
    assert failed[2].endswith("it was to stop")
