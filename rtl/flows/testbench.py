"""A testbench in plain Verilog for any design of streams: beats from files, random waits, every result compared.

It needs nothing but a Verilog simulator, so that the evidence travels with the Verilog.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import StrictUndefined, Template

from siliconloom.rtl.flows.channels import Channel, Interface, interface_of
from siliconloom.rtl.flows.rules import protocol_rules
from siliconloom.rtl.library import Circuit

FOLDER = "bench"
TEMPLATE = Path(__file__).parent / "testbench.v.j2"
WAIT_BITS = 8
RESET_CYCLES = 4
QUIET_CYCLES = 200
LIMIT_CYCLES = 20_000


def bench_files(
    top: Circuit, beats: Mapping[str, Sequence[int]], *, seed: int = 0, stall: float = 0.3
) -> dict[str, str]:
    """The testbench of ``top`` and its vectors, text by file name.

    Parameters
    ----------
    top
        A circuit whose inputs are channels, clock and reset.
    beats
        Packed beats by channel: what goes in, and what must come out.
    seed
        Of the waits.
    stall
        Probability of each further cycle of waiting before a beat.

    Raises
    ------
    ValueError
        When ``beats`` does not name the channels of ``top``, a beat does not fit, or an input belongs to no channel.
    """
    interface = interface_of(top)
    names = {channel.name for channel in interface.channels}
    if set(beats) != names:
        raise ValueError(f"{top.module_name}: beats for {sorted(beats)}, channels {sorted(names)}")
    for port in interface.levels:
        if port.is_input:
            raise ValueError(f"{top.module_name}: nothing drives {port.name}, which belongs to no channel")
    chance = random.Random(seed)
    files = {}
    for channel in interface.channels:
        for beat in beats[channel.name]:
            if not 0 <= beat < 1 << channel.width:
                raise ValueError(f"{channel.name}: a beat must fit in {channel.width} bits (got {beat:#x})")
        files[_file(top, channel, "beats")] = "".join(f"{beat:x}\n" for beat in beats[channel.name])
        waits = [_wait(chance, stall) for _ in beats[channel.name]]
        files[_file(top, channel, "waits")] = "".join(f"{wait:x}\n" for wait in waits)
    counts = {name: len(each) for name, each in beats.items()}
    return {f"{FOLDER}/tb_{top.module_name}.v": _testbench(top, interface, counts), **files}


def _wait(chance: random.Random, stall: float) -> int:
    cycles = 0
    while chance.random() < stall and cycles < (1 << WAIT_BITS) - 1:
        cycles += 1
    return cycles


def _file(top: Circuit, channel: Channel, what: str) -> str:
    return f"{FOLDER}/{top.module_name}_{channel.name}_{what}.hex"


def _testbench(top: Circuit, interface: Interface, counts: Mapping[str, int]) -> str:
    described, connections, flags = [], [], []
    for channel in interface.channels:
        described.append(
            {
                "name": channel.name,
                "is_input": channel.is_input,
                "width": channel.width,
                "range": _range(channel.width),
                "count": counts[channel.name],
                # data that is not valid may be anything; a mark of the last beat travels on its own
                "idle": ", ".join(
                    f"{port.width}'b{'0' if port.name.endswith('last') else 'x'}" for port in reversed(channel.payload)
                ),
                "beats": Path(_file(top, channel, "beats")).name,
                "waits": Path(_file(top, channel, "waits")).name,
            }
        )
        connections += [(channel.valid, f"{channel.name}_valid"), (channel.ready, f"{channel.name}_ready")]
        flags.append(f"{channel.name}_ready" if channel.is_input else f"{channel.name}_valid")
        low = 0
        for port in channel.payload:
            part = f"{channel.name}_beat" + (f"[{low + port.width - 1}:{low}]" if channel.width > 1 else "")
            connections.append((port.name, part))
            if not channel.is_input and port.name.endswith("last"):
                flags.append(part)
            low += port.width
    connections += [(port.name, port.name) for port in interface.levels]
    flag_bits = len(flags) + sum(port.width for port in interface.levels)
    flags += [port.name for port in interface.levels]
    template = Template(TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, undefined=StrictUndefined)
    text: str = template.render(
        name=top.module_name,
        folder=FOLDER,
        reset=top.library.reset_port,
        asynchronous=top.library.reset == "async_low",
        reset_cycles=RESET_CYCLES,
        channels=described,
        levels=[(_range(port.width), port.name) for port in interface.levels],
        connections=connections,
        flags=flags,
        flag_bits=flag_bits,
        quiet=QUIET_CYCLES,
        limit=LIMIT_CYCLES + 40 * sum(counts.values()),
        compared=sum(counts[channel.name] for channel in interface.outputs),
        wait_bits=WAIT_BITS,
    )
    return text + "\n" + protocol_rules(f"tb_{top.module_name}", axi=False)


def _range(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""
