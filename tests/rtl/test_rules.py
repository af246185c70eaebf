"""Every rule of the handshakes is broken once, alone, and found by its name; traffic that keeps all of them passes."""

import re
import shutil
import subprocess

import pytest

from siliconloom.rtl.flows.rules import PATIENCE, protocol_rules

pytestmark = pytest.mark.rtl

BROKEN = {
    "none": None,
    "read over a page": "axi4_read: read burst crosses 4 KiB",
    "read size": "axi4_read: read burst is no full-width INCR burst",
    "read fixed": "axi4_read: read burst is no full-width INCR burst",
    "read within a beat": "axi4_read: read burst begins within a beat",
    "ar withdrawn": "axi4_read.ar: valid was withdrawn before ready",
    "ar changed": "axi4_read.ar: the payload changed before ready",
    "ar unknown": "axi4_read.ar: the payload is unknown",
    "ar handshake unknown": "axi4_read.ar: the handshake is unknown",
    "ar in reset": "axi4_read.ar: valid in reset",
    "r unasked": "axi4_read: data that nobody asked for",
    "rlast early": "axi4_read: rlast out of place",
    "rlast late": "axi4_read: rlast out of place",
    "r exclusive": "axi4_read: exclusive answer to a plain read",
    "reads under way": "axi4_read: the run is over before its reads are",
    "write over a page": "axi4_write: write burst crosses 4 KiB",
    "write size": "axi4_write: write burst is no full-width INCR burst",
    "write wraps": "axi4_write: write burst is no full-width INCR burst",
    "write within a beat": "axi4_write: write burst begins within a beat",
    "w changed": "axi4_write.w: the payload changed before ready",
    "wlast early": "axi4_write: wlast out of place: 1 beats, not 2",
    "wlast late": "axi4_write: wlast out of place: a burst goes on",
    "wlast late, data first": "axi4_write: wlast out of place: 3 beats, not 2",
    "strobes": "axi4_write: the strobes are no run of bytes",
    "b unasked": "axi4_write: an answer to no burst",
    "b twice": "axi4_write: an answer to no burst",
    "b before its data": "axi4_write: an answer to no burst",
    "b before its address": "axi4_write: an answer to no burst",
    "b withdrawn": "axi4_write.b: valid was withdrawn before ready",
    "b exclusive": "axi4_write: exclusive answer to a plain write",
    "r of another": "axi4_read: data with another identifier than was asked with",
    "b of another": "axi4_write: an answer with another identifier than its burst's",
    "writes under way": "axi4_write: the run is over before its writes are",
    "lite b unasked": "axi_lite: an answer to no write",
    "lite r unasked": "axi_lite: data that nobody asked for",
    "lite b withdrawn": "axi_lite.b: valid was withdrawn before ready",
    "lite r changed": "axi_lite.r: the payload changed before ready",
    "lite exclusive": "axi_lite: AXI4-Lite has no exclusive answers",
    "lite silent": f"axi_lite: no answer for {PATIENCE} cycles",
    "lite read silent": f"axi_lite: no answer for {PATIENCE} cycles",
}
NUMBERS = {name: number for number, name in enumerate(BROKEN)}

SIGNALS = {
    "ar": ("araddr:48", "arlen:8", "arsize:3", "arburst:2", "arid:4"),
    "r": ("rdata:32", "rresp:2", "rlast:1", "rid:4"),
    "aw": ("awaddr:48", "awlen:8", "awsize:3", "awburst:2", "awid:4"),
    "w": ("wdata:32", "wstrb:4", "wlast:1"),
    "b": ("bresp:2", "bid:4"),
}
LITE = {
    "aw": ("awaddr:12",),
    "w": ("wdata:32", "wstrb:4"),
    "b": ("bresp:2",),
    "ar": ("araddr:12",),
    "r": ("rdata:32", "rresp:2"),
}


def declared(channels, prefix=""):
    """Registers of the channels' signals, and their connections by channel."""
    registers, wired = [], {}
    for channel, payload in channels.items():
        signals = [f"{channel}valid:1", f"{channel}ready:1", *payload]
        registers += [f"reg [{int(s.split(':')[1]) - 1}:0] {prefix}{s.split(':')[0]} = 0;" for s in signals]
        wired[channel] = ", ".join(f".{s.split(':')[0]}({prefix}{s.split(':')[0]})" for s in signals)
    return "\n".join(registers), wired


def script():
    """Legal traffic, in which ``bad`` names one thing that is done otherwise."""

    def is_(name):
        return f"bad == {NUMBERS[name]}"

    return f"""
    // a reset with everything low, unless planted
    if ({is_("ar in reset")}) arvalid = 1;
    repeat (4) @(negedge clk);
    arvalid = 0; reset = 0;
    // a read of two beats whose address waits a cycle
    arid = 5; awid = 3;
    araddr = {is_("read over a page")} ? 48'h10ffc : {is_("read within a beat")} ? 48'h10001 : 48'h10ff8;
    arlen = 1; arsize = {is_("read size")} ? 1 : 2; arburst = {is_("read fixed")} ? 0 : 1; arvalid = 1;
    if ({is_("ar unknown")}) arlen[1] = 1'bx;
    if ({is_("ar handshake unknown")}) arready = 1'bx;
    @(negedge clk);
    if ({is_("ar withdrawn")}) begin arvalid = 0; @(negedge clk); arvalid = 1; end
    if ({is_("ar changed")}) araddr = 48'h10f00;
    arready = 1; @(negedge clk); arvalid = 0; arready = 0;
    if ({is_("reads under way")}) begin over = 1; @(negedge clk); over = 0; end
    rid = {is_("r of another")} ? 2 : 5;
    rvalid = 1; rready = 1; rlast = {is_("rlast early")}; rresp = {is_("r exclusive")} ? 1 : 0; @(negedge clk);
    if (!rlast) begin rlast = {is_("rlast late")} ? 0 : 1; @(negedge clk); end
    if ({is_("r unasked")}) @(negedge clk);
    rvalid = 0; rready = 0;
    // a write of two beats, data before the address or after it, with partial strobes
    awaddr = {is_("write over a page")} ? 48'h20ffc : {is_("write within a beat")} ? 48'h20002 : 48'h20ff8;
    awlen = 1; awsize = {is_("write size")} ? 3 : 2; awburst = {is_("write wraps")} ? 2 : 1;
    if (!({is_("wlast late, data first")}) && !({is_("b before its address")})) begin
      awvalid = 1; awready = 1; @(negedge clk); awvalid = 0; awready = 0;
    end
    if ({is_("b before its data")}) begin bvalid = 1; bready = 1; @(negedge clk); bvalid = 0; end
    wvalid = 1; wstrb = {is_("strobes")} ? 4'b1011 : 4'b1110; wlast = {is_("wlast early")}; wdata = 5;
    @(negedge clk);
    if ({is_("w changed")}) wdata = 6;
    wready = 1; @(negedge clk);
    wstrb = 4'b0011;
    if ({is_("wlast late")} || {is_("wlast late, data first")}) @(negedge clk);
    if (!wlast) begin wlast = 1; @(negedge clk); end
    wvalid = 0; wready = 0;
    if ({is_("b before its address")}) begin bvalid = 1; bready = 1; @(negedge clk); bvalid = 0; end
    if ({is_("wlast late, data first")} || {is_("b before its address")}) begin
      awvalid = 1; awready = 1; @(negedge clk); awvalid = 0; awready = 0;
    end
    repeat (3) @(negedge clk);
    if ({is_("writes under way")}) begin over = 1; @(negedge clk); over = 0; end
    bid = {is_("b of another")} ? 1 : 3;
    bvalid = 1; bready = 0; bresp = {is_("b exclusive")} ? 1 : 2; @(negedge clk);
    if ({is_("b withdrawn")}) begin bvalid = 0; @(negedge clk); bvalid = 1; end
    bready = 1; @(negedge clk);
    if ({is_("b twice")}) @(negedge clk);
    bvalid = 0; bready = 0;
    if ({is_("b unasked")}) begin bvalid = 1; @(negedge clk); bvalid = 0; end
    over = 1; @(negedge clk); over = 0;
    // AXI4-Lite: a write whose data comes first, and a read, both answered late and taken late
    l_wvalid = 1; l_wready = 1; l_wstrb = 15; @(negedge clk); l_wvalid = 0; l_wready = 0;
    if ({is_("lite b unasked")}) begin l_bvalid = 1; l_bready = 1; @(negedge clk); l_bvalid = 0; end
    l_awvalid = 1; l_awready = 1; @(negedge clk); l_awvalid = 0; l_awready = 0;
    if ({is_("lite silent")}) repeat ({PATIENCE + 2}) @(negedge clk);
    l_bvalid = 1; l_bready = 0; l_bresp = {is_("lite exclusive")} ? 1 : 0; @(negedge clk);
    if ({is_("lite b withdrawn")}) begin l_bvalid = 0; @(negedge clk); l_bvalid = 1; end
    l_bready = 1; @(negedge clk); l_bvalid = 0; l_bready = 0;
    if ({is_("lite r unasked")}) begin l_rvalid = 1; l_rready = 1; @(negedge clk); l_rvalid = 0; end
    l_arvalid = 1; l_arready = 1; @(negedge clk); l_arvalid = 0; l_arready = 0;
    if ({is_("lite read silent")}) repeat ({PATIENCE + 2}) @(negedge clk);
    l_rvalid = 1; l_rdata = 7; l_rready = 0; @(negedge clk);
    if ({is_("lite r changed")}) l_rdata = 8;
    @(negedge clk);
    l_rready = 1; @(negedge clk); l_rvalid = 0; l_rready = 0;
    repeat (3) @(negedge clk);
    $display("END %b", broken);
    $finish;
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    if shutil.which("iverilog") is None:
        pytest.skip("icarus is not installed")
    folder = tmp_path_factory.mktemp("rules")
    registers, wired = declared(SIGNALS)
    lite_registers, lite_wired = declared(LITE, "l_")
    reads, writes = (", ".join(wired[c] for c in each) for each in (("ar", "r"), ("aw", "w", "b")))
    text = f"""
module bench;
reg clk = 0, reset = 1, over = 0;
wire [2:0] broken;
integer bad;
{registers}
{lite_registers}
rules_axi4_read_rules axi4_read (.clk(clk), .reset(reset), .over(over), {reads}, .broken(broken[0]));
rules_axi4_write_rules axi4_write (.clk(clk), .reset(reset), .over(over), {writes}, .broken(broken[1]));
rules_axi_lite_rules axi_lite (.clk(clk), .reset(reset), {", ".join(lite_wired.values())}, .broken(broken[2]));
always #5 clk = !clk;
initial begin
    if (!$value$plusargs("bad=%d", bad)) bad = 0;
{script()}
end
endmodule
"""
    (folder / "bench.v").write_text(text + protocol_rules("rules"), encoding="utf-8")
    built = subprocess.run(
        ["iverilog", "-g2012", "-Wall", "-Wno-timescale", "-s", "bench", "-o", "bench.vvp", "bench.v"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder


@pytest.mark.parametrize("bad", BROKEN)
def test_a_rule_that_is_broken_is_named_and_fails(bad, bench):
    done = subprocess.run(["vvp", "-n", "bench.vvp", f"+bad={NUMBERS[bad]}"], cwd=bench, capture_output=True, text=True)
    errors = re.findall(r"ERROR: bench\.(.*)", done.stdout)
    if BROKEN[bad] is None:
        assert errors == []
        assert "END 000" in done.stdout
    else:
        assert errors[0] == BROKEN[bad]
        assert "END 000" not in done.stdout
        assert "END" in done.stdout


def test_every_rule_is_broken_by_some_case():
    texts = re.findall(r'ERROR: %m: ([^"%]*)', protocol_rules("rules"))
    named = {text.strip() for text in texts}
    missing = {text for text in named if not any(text in (told or "") for told in BROKEN.values())}
    assert missing == set()
