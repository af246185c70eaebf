"""Timing constraints in SDC, for the ASIC tools and for those of FPGAs that read it."""

from __future__ import annotations

from siliconloom.rtl.flows.channels import ChannelPort, interface_of
from siliconloom.rtl.library import Circuit

INPUT_FRACTION = 0.3
OUTPUT_FRACTION = 0.3
"""Parts of the clock period that logic outside the design takes before its inputs, after its outputs."""


def constraints(top: Circuit, clock_hz: int) -> str:
    """SDC of ``top``: one clock, delays outside it as parts of the period, no timing of an asynchronous reset.

    Parameters
    ----------
    top
        The circuit whose ports are constrained.
    clock_hz
        Frequency of the described clock.
    """
    interface = interface_of(top)
    inputs: list[ChannelPort] = []
    outputs: list[ChannelPort] = []
    for channel in interface.channels:
        driven = [
            ChannelPort(channel.valid, 1, channel.is_input),
            *channel.payload,
            ChannelPort(channel.ready, 1, not channel.is_input),
        ]
        for port in driven:
            (inputs if port.is_input else outputs).append(port)
    for port in interface.levels:
        (inputs if port.is_input else outputs).append(port)
    reset = top.library.reset_port
    if top.has_reset and top.library.reset == "sync":
        inputs.insert(0, ChannelPort(reset, 1, True))
    lines = [
        f"# Constraints of {top.module_name}; times in ns.",
        f"set period {1e9 / clock_hz:.4f}",
        f"set input_delay [expr {{{INPUT_FRACTION} * $period}}]",
        f"set output_delay [expr {{{OUTPUT_FRACTION} * $period}}]",
        "create_clock -name clk -period $period [get_ports clk]",
        *(f"set_input_delay $input_delay -clock clk [get_ports {{{_pattern(port)}}}]" for port in inputs),
        *(f"set_output_delay $output_delay -clock clk [get_ports {{{_pattern(port)}}}]" for port in outputs),
    ]
    if top.has_reset and top.library.reset == "async_low":
        lines += [
            "# asserted at any time; whoever releases it does so away from the clock's rising edge",
            f"set_false_path -from [get_ports {reset}]",
        ]
    return "\n".join(lines) + "\n"


def _pattern(port: ChannelPort) -> str:
    return port.name if port.width == 1 else f"{port.name}[*]"
