"""Writes a chip's RTL as a folder: Verilog, and what other people's tools need beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from siliconloom.arch.description import Chip
from siliconloom.arch.errors import NotSupported
from siliconloom.arch.memo import compiled_memo, key_of
from siliconloom.arch.pim import PimTile
from siliconloom.rtl.array.design import systolic_design
from siliconloom.rtl.cells.sram import SramWrapper
from siliconloom.rtl.flows.constraints import constraints
from siliconloom.rtl.flows.core import core_file
from siliconloom.rtl.flows.design import Design
from siliconloom.rtl.flows.guide import guide
from siliconloom.rtl.flows.proofs import proof_files, proof_lines
from siliconloom.rtl.flows.registers import registers_header, registers_json, registers_markdown
from siliconloom.rtl.flows.testbench import bench_files
from siliconloom.rtl.folder import SCHEMA, SIDECAR, as_text, sealed, write_folder
from siliconloom.rtl.fpga import FpgaTop, Message, byte_beats
from siliconloom.rtl.integration.flows import Emission, flow_files, refuse_flows
from siliconloom.rtl.integration.guide import guide_lines
from siliconloom.rtl.library import Library, ResetStyle
from siliconloom.rtl.names import module_prefix
from siliconloom.rtl.npu.circuits import UNIT_CIRCUITS
from siliconloom.rtl.npu.design import npu_design
from siliconloom.rtl.npu.float_ways import only_own_floats
from siliconloom.rtl.npu.geometry import without_circuit
from siliconloom.rtl.npu.testbench import ProgramVectors
from siliconloom.rtl.npu.ways import only_own
from siliconloom.rtl.pim.design import pim_design
from siliconloom.rtl.writing import writers


class Bundle(Struct, frozen=True):
    """A generated design: text by file name (with folders), the top module, and the sidecar's content."""

    files: dict[str, str]
    top: str
    sidecar: dict[str, Any]

    @property
    def ports(self) -> list[str]:
        """Names of the top module's ports."""
        return [port["name"] for port in self.sidecar["ports"]]

    @property
    def runs_programs(self) -> bool:
        """Whether it is a whole npu tile, which is synthesized module by module."""
        return "program_words" in self.sidecar["parameters"]

    def write(self, folder: Path) -> list[Path]:
        """Write all files to ``folder`` in one step; returns the paths of the Verilog files, in file-list order.

        Raises
        ------
        LoomError
            When the folder holds something else, or cannot be written (`siliconloom.rtl.folder`).
        """
        write_folder(folder, self.files, self.sidecar["chip"])
        return [folder / name for name in self.sidecar["verilog"]]


class WrittenModules(Struct, frozen=True):
    """The modules of a design as they were written.

    Parameters
    ----------
    modules, fpga
        Verilog by name: of the design, and of its top for FPGAs.
    memories
        Wrappers that an SRAM macro may replace, as the sidecar lists them.
    """

    modules: dict[str, str]
    fpga: dict[str, str]
    memories: list[dict[str, Any]]


def build_rtl(
    chip: Chip,
    *,
    reset: ResetStyle = "sync",
    vectors: Sequence[ProgramVectors] = (),
    flows: Sequence[str] = (),
    predicted_cycles: int | None = None,
    remembered: bool = False,
    written: WrittenModules | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """Generate the Verilog of ``chip`` and the files that go with it.

    Parameters
    ----------
    chip
        The description.
    reset
        How registers are reset.
    vectors
        Runs of programs for the bench of a whole npu tile, which has no bench without any.
    flows
        Other people's tools for which files are written (`siliconloom.rtl.integration.flows`).
    predicted_cycles
        Of the example's product in the simulator, which some of them check; ``None`` for a tile without example.
    remembered
        The modules are read from the memo (`arch.memo`) where this version has written them before, which takes a
        tenth of a second; those of units and functions from elsewhere are written each time.
    written
        What `modules_of` returned for the chip and reset; ``None`` where it was not asked.
    told
        Called with the number of circuits that are converted, as it grows.

    Raises
    ------
    NotSupported
        For tiles and operand formats that have no RTL, and for designs that a tool has no use for.
    """
    design = design_of(chip, reset, vectors)
    if written is None and remembered:
        written = _remembered(chip, design, told)
    return package(chip, design, flows, predicted_cycles, written, told)


def modules_of(chip: Chip, reset: ResetStyle, told: Callable[[int], None]) -> WrittenModules:
    """The modules of ``chip`` by themselves, from the memo where they are; raises as `build_rtl` does."""
    return _remembered(chip, design_of(chip, reset), told)


def design_of(chip: Chip, reset: ResetStyle = "sync", vectors: Sequence[ProgramVectors] = ()) -> Design:
    """The top circuit of ``chip`` and what is said about it; raises `NotSupported` where there is no RTL."""
    if (part := without_circuit(chip)) is not None:
        raise NotSupported(f"RTL of {chip.name} with {part}")
    tile = chip.tile
    if chip.tile_count > 1:
        raise NotSupported(
            f"RTL of a chip of several tiles (tile_count of {chip.name}: {chip.tile_count}), so nothing is written; "
            f"--set tile_count=1{' --set tiles_join=false' if chip.tiles_join else ''} writes one of them, alone, with "
            "the memory's whole bandwidth"
        )
    name = module_prefix(chip.name)
    if isinstance(tile, PimTile):
        return pim_design(Library(name, reset), chip)
    if tile.kind == "systolic":
        return systolic_design(Library(name, reset), tile.array, "the whole tile")
    try:
        return npu_design(Library(name, reset), chip, vectors)
    except NotSupported as reason:
        contains = f"the systolic array of the tile alone; {reason}"
        return replace(systolic_design(Library(f"{name}_array", reset), tile.array, contains), fallback=str(reason))


def only_own_circuits() -> bool:
    """Whether every unit and function of npu tiles is this package's, so that its code says what is written of them."""
    units = all(each.make.__module__.startswith("siliconloom.") for each in UNIT_CIRCUITS.values())
    return units and only_own() and only_own_floats()


def write_modules(design: Design, told: Callable[[int], None] = lambda _: None) -> WrittenModules:
    """The design's circuits, elaborated and turned into Verilog."""
    top, fpga = design.top, _fpga_top(design)
    return WrittenModules(top.library.verilog(top, told), fpga.library.verilog(fpga), _memories(top.library))


def _remembered(chip: Chip, design: Design, told: Callable[[int], None]) -> WrittenModules:
    """`write_modules` of the design of ``chip``, or what it returned before; runs of programs change nothing of it."""
    if not only_own_circuits():
        return write_modules(design, told)

    def written() -> dict[str, str]:
        made = write_modules(design, told)
        return {"written": json.dumps([made.modules, made.fpga, made.memories])}

    top = design.top
    key = key_of("modules", chip.digest, top.library.prefix, top.library.reset, top.module_name, *writers())
    return WrittenModules(*json.loads(str(compiled_memo().recall(key, written, large=True)["written"])))


def _fpga_top(design: Design) -> FpgaTop:
    """The design's top for FPGAs, in a library of its own: the design's text does not depend on what is around it."""
    library = design.top.library
    return FpgaTop(Library(library.prefix, library.reset), design.top)


def package(
    chip: Chip,
    design: Design,
    flows: Sequence[str] = (),
    predicted_cycles: int | None = None,
    written: WrittenModules | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> Bundle:
    """Everything that is written for a design, and for other people's tools where some are named.

    Its modules are those that were ``written``, where they were.
    """
    refuse_flows(flows, chip, design)
    top, library, fpga = design.top, design.top.library, _fpga_top(design)
    written = written or write_modules(design, told)
    modules, memories = written.modules | written.fpga, written.memories
    header = (
        f"// Generated by siliconloom {_version()} from the description '{chip.name}'.\n"
        f"// Description digest: {chip.digest}\n"
        "// This file belongs to you; no licence of siliconloom's attaches to it.\n"
        "`default_nettype none\n"
    )
    texts = {name: f"{header}{text}`default_nettype wire\n" for name, text in modules.items()}
    order = [top.module_name, *(name for name in modules if name not in (top.module_name, fpga.module_name))]
    files = {f"{name}.v": texts[name] for name in order}
    verilog = list(files)
    fpga_file = f"fpga/{fpga.module_name}.v"
    files[fpga_file] = texts[fpga.module_name]
    bench, fpga_bench = _benches(design, fpga)
    sdc = f"{top.module_name}.sdc"
    sidecar = {
        "schema": SCHEMA,
        "generator": f"siliconloom {_version()}",
        "chip": chip.name,
        "description_digest": chip.digest,
        "contains": design.contains,
        "array_only": bool(design.fallback),
        "not_emitted": design.fallback or None,
        "top": top.module_name,
        "reset": library.reset,
        "clock_hz": chip.clock,
        "parameters": dict(design.parameters),
        "timing": dict(design.timing),
        "ports": _ports(design),
        "memories": memories,
        "verilog": verilog,
        "fpga": {
            "top": fpga.module_name,
            "verilog": [fpga_file],
            "messages_in": [_message(m) for m in fpga.protocol.inbound],
            "messages_out": [_message(m) for m in fpga.protocol.outbound],
        },
        "bench": [name for name in bench | fpga_bench if name.endswith(".v")],
    }
    files |= bench | fpga_bench
    files[f"{top.module_name}.f"] = "".join(f"{name}\n" for name in verilog)
    files[sdc] = constraints(top, chip.clock)
    waivers = [name for name in design.files if name.endswith(".vlt")]
    files[f"{top.module_name}.core"] = core_file(
        top.module_name,
        _version(),
        f"{chip.name}: {design.contains}",
        verilog=verilog,
        constraints=sdc,
        fpga=[fpga_file],
        bench=[name for name in bench if name.endswith(".v")],
        vectors=[name for name in bench if not name.endswith(".v")],
        waivers=waivers,
    )
    if design.registers is not None:
        name = design.registers.name
        files[f"software/{name}_registers.h"] = registers_header(design.registers, chip.digest)
        files[f"software/{name}_registers.json"] = registers_json(design.registers, chip.digest)
        files[f"software/{name}_registers.md"] = registers_markdown(design.registers, chip.digest)
    files |= design.files
    files |= proof_files(top.module_name, design.proofs, {name: modules[name] for name in order}, waivers)
    if flows:
        sidecar["flows"] = list(flows)
        made = Emission(chip, design, verilog, memories, predicted_cycles)
        files |= flow_files(flows, made)
    proofs, tools = proof_lines(design.proofs), guide_lines(flows, files, top.module_name, memories)
    files["README.md"] = guide(chip, sidecar, sorted(files), proofs + tools)
    sidecar = sealed(sidecar, files)
    files[SIDECAR] = as_text(sidecar)
    return Bundle(files, top.module_name, sidecar)


def _benches(design: Design, fpga: FpgaTop) -> tuple[dict[str, str], dict[str, str]]:
    """Testbenches and vectors of the top and, for a design of streams, of its FPGA top."""
    if design.beats is None:
        return dict(design.bench), {}
    bench = bench_files(design.top, design.beats)
    if len(fpga.interface.outputs) != 1:
        return bench, {}  # results of several channels leave in an order that depends on the waits
    results = [(channel.name, beat) for channel in fpga.interface.outputs for beat in design.beats[channel.name]]
    return bench, bench_files(fpga, byte_beats(fpga.protocol, design.ordered, results), stall=0.1)


def _version() -> str:
    try:
        return version("siliconloom")
    except PackageNotFoundError:
        return "unknown"


def _ports(design: Design) -> list[dict[str, Any]]:
    ports = []
    for name, port in design.top.ports().items():
        meaning = design.meanings.get(name) or design.meanings[name.rpartition("_")[2]]
        ports.append(
            {"name": name, "direction": "input" if port.is_input else "output", "width": port.width, "meaning": meaning}
        )
    return ports


def _memories(library: Library) -> list[dict[str, Any]]:
    """Wrappers that an SRAM macro may replace."""
    wrappers = [c for c in library.circuits.values() if isinstance(c, SramWrapper)]
    return [
        {
            "module": c.module_name,
            "file": f"{c.module_name}.v",
            "width": c.width,
            "depth": c.depth,
            "write_granularity": c.write_granularity,
        }
        for c in sorted(wrappers, key=lambda c: c.module_name)
    ]


def _message(message: Message) -> dict[str, Any]:
    return {
        "number": message.number,
        "name": message.name,
        "bytes": message.bytes,
        "ports": [{"name": port.name, "width": port.width} for port in message.ports],
    }
