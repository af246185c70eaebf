"""The ``loom`` command.

Every command imports what it needs when it runs, so that ``loom --help`` answers at once. Bad input ends in one line
on standard error and exit status 2, a failed check in exit status 1; ``--debug`` shows the traceback instead.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="loom",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="One description of an AI accelerator: Verilog, a cycle simulator, and the proof that the two agree.",
)

Chip = Annotated[str, typer.Argument(metavar="CHIP", help="Chip description: a YAML file or a library name.")]
Machine = Annotated[str, typer.Argument(metavar="CHIP", help="Chip or system: a YAML file or a library name.")]
Workload = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Workload YAML, Hugging Face config.json, or a library name.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override any value: tile.array.rows=32, workload.phase=decode. Repeatable."
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is standard output.")
]


def version(show: bool) -> None:
    """Print the version and stop."""
    if show:
        from siliconloom import __version__

        typer.echo(f"siliconloom {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback instead of one line on errors.")] = False,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory", metavar="SIZE", help="Memory that a command may take (2GiB); half of what is free by default."
        ),
    ] = None,
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every command."""
    del debug, show_version
    if memory is not None or "siliconloom.arch.budget" in sys.modules:
        from siliconloom.arch.budget import set_memory

        set_memory(memory)


@app.command()
def sim(
    chip: Machine,
    workload: Workload,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Run every event instead of jumping what repeats; the result is the same.")
    ] = False,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window", metavar="FROM:TO", help="Trace every event between two cycles or times (1ms:1.2ms), no jumps."
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    csv: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write the per-operator table as CSV.")
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Simulate every way to share out the buffers and take the fastest.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Map a workload to a chip, or a system of chips, and simulate it, cycle by cycle."""
    from siliconloom.arch import LoomError, load_chip, machine_kind
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json, write_text
    from siliconloom.overrides import split_overrides
    from siliconloom.simulate import simulate
    from siliconloom.tables import console, progress_bar, simulation_tables
    from siliconloom.trace import TRACE_LIMIT, parse_window, trace_text
    from siliconloom.workloads import load_workload

    if window is not None and trace is None:
        raise LoomError("--window chooses what goes into a trace; add --trace FILE")
    check_outputs({"--trace": trace, "--report": report, "--csv": csv, "--json": json_file}, (chip, workload))
    assignments = parse_assignments(sets or [])
    chip_sets, workload_sets = split_overrides(assignments)
    graph = load_workload(workload, workload_sets)
    options = {"--trace": trace, "--report": report, "--window": window, "--csv": csv, "--search": search or None}
    unsupported = [name for name, value in options.items() if value]
    system = machine_kind(chip) != "chip"
    described = None if system else load_chip(chip, chip_sets)
    if described is None or described.tile.kind == "pim" or (described.pim is not None and graph.phase == "decode"):
        from siliconloom.systems.command import simulate_and_print

        simulate_and_print(
            chip if described is None else described, chip_sets, graph, unsupported, exact, json_file, assignments
        )
        return
    seen = None if window is None else parse_window(window, described)
    wanted = TRACE_LIMIT if trace is not None else 0
    with progress_bar(json_file != "-", "simulating") as progress:
        simulation = simulate(
            described, graph, assignments, exact=exact, trace_limit=wanted, window=seen, progress=progress,
            search=search,
        )  # fmt: skip
    result = simulation.result()
    if trace is not None:
        write_text(trace, trace_text(simulation, seen))
    if report is not None:
        from siliconloom.report import report_html

        write_text(report, report_html(simulation, result))
    if csv is not None:
        from siliconloom.report import operators_csv

        write_text(csv, operators_csv(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (trace, report, csv, json_file):
        simulation_tables(result, console())


@app.command()
def workload(name: Workload, sets: Set = None, json_file: Json = None) -> None:
    """Say what a workload contains: parameters, FLOPs, weight and KV-cache bytes, operators."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json
    from siliconloom.overrides import split_overrides
    from siliconloom.tables import console, workload_tables
    from siliconloom.workloads import load_workload

    check_outputs({"--json": json_file}, (name,))
    chip_sets, workload_sets = split_overrides(parse_assignments(sets or []))
    summary = load_workload(name, workload_sets + chip_sets).summary()
    if json_file != "-":
        workload_tables(summary, console())
    if json_file is not None:
        write_json(json_file, summary)


@app.command(name="map")
def map_command(
    chip: Chip,
    workload: Workload,
    sets: Set = None,
    program: Annotated[bool, typer.Option("--program", help="Print the disassembled Program as well.")] = False,
    json_file: Json = None,
) -> None:
    """Show the mapping of a workload to a chip, how it was chosen, and its lower bound."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.mapping import load_plan, mapping_tables, plan_summary
    from siliconloom.output import check_outputs, write_json
    from siliconloom.tables import console

    check_outputs({"--json": json_file}, (chip, workload))
    plan = load_plan(chip, workload, parse_assignments(sets or []))
    if json_file != "-":
        mapping_tables(plan, console(), program=program)
    if json_file is not None:
        write_json(json_file, plan_summary(plan))


@app.command()
def rtl(
    chip: Machine,
    folder: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; made when missing.")],
    sets: Set = None,
    reset: Annotated[
        str,
        typer.Option(
            "--reset", metavar="STYLE", help="sync: rst, active high; async_low: rst_n, asynchronous, active low."
        ),
    ] = "sync",
    json_file: Json = None,
) -> None:
    """Write the Verilog of a chip, with project files, constraints, benches and an FPGA top."""
    from siliconloom.arch import LoomError, load_chip, machine_kind
    from siliconloom.arch.document import parse_assignments
    from siliconloom.emit import check_reset, emit
    from siliconloom.link_parity import load_ring
    from siliconloom.output import check_outputs

    style = check_reset(reset)
    check_outputs({"--json": json_file}, (chip,))
    if json_file not in (None, "-") and Path(json_file).resolve().is_relative_to(folder.resolve()):
        raise LoomError(f"--json {json_file} lies in {folder}, which -o writes; name a file elsewhere")
    assignments = parse_assignments(sets or [])
    described = load_ring(chip, assignments) if machine_kind(chip) == "system" else load_chip(chip, assignments)
    emit(described, folder, json_file, reset=style)


@app.command()
def synth(
    chip: Chip,
    sets: Set = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="TARGET", help="ecp5 (the default) or generic.")
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", min=0, max=100, help="Placements for Fmax, about a minute each; 0: cells only.")
    ] = 2,
    liberty: Annotated[
        Path | None, typer.Option("--liberty", metavar="FILE", help="Cell library to map to, for the area.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Synthesize a chip's RTL with Yosys, and with nextpnr for its clock frequency on an FPGA."""
    from siliconloom.arch import CheckFailed, load_chip
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json
    from siliconloom.synth import check_request, synthesis_tables
    from siliconloom.synth import synth as run_synthesis
    from siliconloom.tables import console

    chosen = check_request(target, liberty)
    check_outputs({"--json": json_file}, (chip, liberty))
    described = load_chip(chip, parse_assignments(sets or []))
    result = run_synthesis(described, target=chosen, liberty=liberty, seeds=seeds, progress=json_file != "-")
    if json_file != "-":
        synthesis_tables(result, console())
    if json_file is not None:
        write_json(json_file, result)
    broken = [bound["name"] for bound in result["bounds"] if not bound["holds"]]
    if broken:
        raise CheckFailed(f"{described.name}: fewer {' and '.join(broken)} than the array needs, see the bounds")


@app.command()
def verify(
    chip: Machine,
    sets: Set = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random shapes, values and stalls.")] = 0,
    simulator: Annotated[str, typer.Option("--simulator", help="icarus or verilator.")] = "verilator",
    cases: Annotated[
        int,
        typer.Option(
            "--cases", min=1, max=1000, help="Sequences of GEMMs, of macros on a pim tile, of packets on links."
        ),
    ] = 8,
    programs: Annotated[int, typer.Option("--programs", min=1, max=1000, help="Programs on an npu tile.")] = 8,
    json_file: Json = None,
) -> None:
    """Build the RTL of a chip, run random work on it, and print RTL cycles beside the model's."""
    from siliconloom.arch import CheckFailed, LoomError, load_chip, machine_kind
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.errors import nearest_name
    from siliconloom.link_parity import load_ring
    from siliconloom.output import check_outputs, write_json
    from siliconloom.tables import console
    from siliconloom.verify import verification_tables
    from siliconloom.verify import verify as run_verification

    simulators = ("icarus", "verilator")
    if simulator not in simulators:
        near = nearest_name(simulator, simulators)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"--simulator: must be one of {', '.join(simulators)} (got '{simulator}'){hint}")
    check_outputs({"--json": json_file}, (chip,))
    assignments = parse_assignments(sets or [])
    described = load_ring(chip, assignments) if machine_kind(chip) == "system" else load_chip(chip, assignments)
    result = run_verification(
        described, seed=seed, simulator=simulator, cases=cases, programs=programs, progress=json_file != "-"
    )
    if json_file != "-":
        verification_tables(result, console())
    if json_file is not None:
        write_json(json_file, result)
    if not result["passed"]:
        raise CheckFailed(f"{described.name}: RTL and model disagree, see the table (seed {seed}, {simulator})")


@app.command()
def gpu(
    name: Annotated[str, typer.Argument(metavar="GPU", help="GPU description: a YAML file or a library name.")],
    operations: Annotated[
        str | None,
        typer.Argument(
            metavar="[OPS.csv]", help="Operations to predict; - is standard input. Without: what the GPU is."
        ),
    ] = None,
    sets: Set = None,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="In a run of seconds, under the power limit, not in a short burst.")
    ] = False,
    cache_write: Annotated[
        bool, typer.Option(help="Prefill's attention writes its keys and values to the cache.")
    ] = True,
    json_file: Json = None,
) -> None:
    """Predict the time of every product, attention and collective of a list on a GPU."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.gpu import load_gpu
    from siliconloom.baselines.operations import read_operations
    from siliconloom.gpu import gpu_json, gpu_result, gpu_summary, gpu_tables, summary_tables
    from siliconloom.output import check_outputs, write_json, write_text
    from siliconloom.tables import console

    check_outputs({"--json": json_file}, (name, operations))
    described = load_gpu(name, parse_assignments(sets or []))
    if operations is None:
        if json_file is not None:
            write_json(json_file, gpu_summary(described))
        if json_file != "-":
            summary_tables(described, console())
        return
    rows = read_operations(operations)
    result = gpu_result(described, rows, sustained=sustained, cache_write=cache_write)
    if json_file is not None:
        write_text(json_file, gpu_json(result))
    if json_file != "-":
        gpu_tables(described, rows, result, console())


@app.command()
def compare(
    chip: Machine,
    workload: Workload,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="GPU[,GPU]", help="GPUs to compare with: library names or files.")
    ],
    sets: Set = None,
    tensor: Annotated[int, typer.Option("--tensor", min=1, max=1024, help="GPUs that share every operator.")] = 1,
    sustained: Annotated[
        bool, typer.Option("--sustained", help="GPUs in a run of seconds, under the power limit.")
    ] = False,
    stack: Annotated[
        str, typer.Option("--stack", help="Serving software on the GPUs: none, tensorrt-llm, vllm, deepspeed-mii.")
    ] = "none",
    price: Annotated[
        list[str] | None, typer.Option("--price", metavar="NAME=DOLLARS", help="Of a machine, an hour. Repeatable.")
    ] = None,
    report: Annotated[
        str | None, typer.Option("--report", metavar="FILE", help="Write a self-contained HTML report.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Put a workload on a chip and on GPUs side by side, operator by operator."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.gpu import load_gpu
    from siliconloom.baselines.stacks import find_stack
    from siliconloom.compare import compare_tables, compare_workload
    from siliconloom.output import check_outputs, write_json, write_text
    from siliconloom.overrides import split_overrides
    from siliconloom.tables import console
    from siliconloom.workloads import load_workload

    check_outputs({"--report": report, "--json": json_file}, (chip, workload, *gpu.split(",")))
    assignments = parse_assignments(sets or [])
    chip_sets, workload_sets = split_overrides(assignments)
    gpus = [load_gpu(name.strip()) for name in gpu.split(",")]
    software = find_stack(stack)
    graph = load_workload(workload, workload_sets)
    result = compare_workload(
        chip, chip_sets, graph, gpus, tensor=tensor, sustained=sustained, stack=software, prices=price or [],
        quiet=json_file == "-", overrides=assignments,
    )  # fmt: skip
    if report is not None:
        from siliconloom.report import compare_html

        write_text(report, compare_html(result))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (report, json_file):
        compare_tables(result, console())


@app.command(name="collective")
def collective_command(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="System or bare network: file or library name.")],
    operation: Annotated[
        str,
        typer.Argument(
            metavar="OP",
            help="all_reduce, all_gather, reduce_scatter, broadcast, all_to_all or send_receive; or a YAML file: a "
            "communication program.",
        ),
    ],
    size: Annotated[
        str,
        typer.Argument(
            metavar="BYTES",
            help="Of a chip's whole buffer: 67108864 or '64 MiB'; of all_to_all also a CSV file of bytes from each to "
            "each. A program has its own.",
        ),
    ] = "",
    chips: Annotated[int | None, typer.Option("--chips", min=1, max=2**20, help="Chips that take part.")] = None,
    sets: Set = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Keep a queue of events even where the order is known; same result.")
    ] = False,
    flows: Annotated[
        bool, typer.Option("--flows", help="Max-min fair flows instead of messages in queues: thousands of chips.")
    ] = False,
    predicted: Annotated[
        bool, typer.Option("--predicted", help="The model of NCCL, also where NCCL was measured on just these GPUs.")
    ] = False,
    json_file: Json = None,
) -> None:
    """Run a collective, or a program of them, over a system's links, message by message."""
    from siliconloom.arch import LoomError
    from siliconloom.arch.document import parse_assignments
    from siliconloom.collective import collective_result, collective_tables, load_any, parse_size
    from siliconloom.communication import communication_result, communication_tables, is_program
    from siliconloom.output import check_outputs, write_json
    from siliconloom.tables import console

    check_outputs({"--json": json_file}, (system, operation, size))
    if is_program(operation):
        if size:
            raise LoomError(f"BYTES: a program has its own (got '{size}')")
        described, count = load_any(system, parse_assignments(sets or []), chips)
        result = communication_result(described, operation, count, exact=exact, flows=flows)
        if json_file is not None:
            write_json(json_file, result)
        if json_file != "-":
            communication_tables(result, console())
        return
    parsed = parse_size(size)
    if chips is None and not isinstance(parsed, float):
        chips = len(parsed)
    described, count = load_any(system, parse_assignments(sets or []), chips)
    result = collective_result(described, operation, parsed, count, exact=exact, flows=flows, predicted=predicted)
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        collective_tables(result, console())


@app.command()
def plan(
    system: Annotated[str, typer.Argument(metavar="SYSTEM", help="System: a YAML file or a library name.")],
    model: Workload,
    sets: Set = None,
    trace: Annotated[str | None, typer.Option("--trace", metavar="FILE", help="Write a timeline for Perfetto.")] = None,
    json_file: Json = None,
) -> None:
    """Find the fastest way to split a model over a system; --set plan.tensor=8 and so on fix parts of it.

    --set workload.phase=training, prefill or decode; --set run.steps=... times a whole training run with failures.
    """
    from siliconloom.arch.document import parse_assignments
    from siliconloom.output import check_outputs, write_json
    from siliconloom.planning.command import plan_result, plan_tables, read_plan_input
    from siliconloom.simulate import asked
    from siliconloom.tables import console

    check_outputs({"--trace": trace, "--json": json_file}, (system, model))
    assignments = parse_assignments(sets or [])
    cluster, graph, fixed, troubles, decoding = read_plan_input(system, model, assignments)
    result = plan_result(cluster, graph, fixed, troubles, decoding, quiet=json_file == "-", trace=trace)
    result["asked"] = asked(graph, assignments)
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        plan_tables(result, console())


@app.command()
def schema(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="chip, system, gpu, network, communication or workload.")
    ] = "chip",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="File to write; - is standard output.")
    ] = "-",
) -> None:
    """Print the JSON Schema of a description, for editors."""
    from siliconloom.output import check_outputs, write_json
    from siliconloom.schemas import schema_of

    check_outputs({"-o": output})

    write_json(output, schema_of(kind))


@app.command(name="list")
def list_command(json_file: Json = None) -> None:
    """List the library: chips, systems, networks, GPUs and workloads."""
    from siliconloom.arch.names import chip_names, gpu_names, network_names, system_names
    from siliconloom.output import check_outputs, write_json
    from siliconloom.workloads.names import workload_names

    check_outputs({"--json": json_file})
    found = {
        "chips": chip_names(), "systems": system_names(), "networks": network_names(), "gpus": gpu_names(),
        "workloads": workload_names(),
    }  # fmt: skip
    if json_file is not None:
        write_json(json_file, {"schema": "siliconloom.library/1", **found})
        return
    for kind, names in found.items():
        typer.echo(f"{kind}: {', '.join(names)}")


@app.command()
def dram(
    memory: Annotated[str, typer.Argument(metavar="MEMORY", help="Memory description: a YAML file or a library name.")],
    trace: Annotated[Path, typer.Argument(metavar="TRACE", help="CSV of requests: cycle,op,address; op is R or W.")],
    sets: Set = None,
    commands: Annotated[
        str | None, typer.Option("--commands", metavar="FILE", help="Write every DRAM command as CSV.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Run every command; the result is the same.")] = False,
    json_file: Json = None,
) -> None:
    """Replay memory requests on a DRAM, command by command: when each is done."""
    from siliconloom.arch.document import parse_assignments
    from siliconloom.arch.dram import load_dram
    from siliconloom.dram import commands_csv, dram_result, dram_tables
    from siliconloom.output import check_outputs, write_json, write_text
    from siliconloom.tables import console

    check_outputs({"--commands": commands, "--json": json_file}, (memory, trace))
    described = load_dram(memory, parse_assignments(sets or []))
    result, found = dram_result(described, trace, commands=commands is not None, exact=exact)
    if commands is not None:
        write_text(commands, commands_csv(found))
    if json_file is not None:
        write_json(json_file, result)
    if "-" not in (commands, json_file):
        dram_tables(described, result, console())


@app.command()
def reproduce(
    cards: Annotated[
        list[str] | None, typer.Argument(metavar="[CARD]...", help="Published results; all of them if none.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Derive published results again: ours, published, the error, and the cause where it is too large."""
    from siliconloom.output import check_outputs
    from siliconloom.reproduce.command import reproduce_and_print

    check_outputs({"--json": json_file})
    reproduce_and_print([card.lower() for card in cards or []], json_file)


@app.command()
def measure(
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Baseline file to write: .csv or .csv.gz.")
    ] = "baseline.csv.gz",
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shapes", metavar="SHAPES", help="llama3-8b, llama3-70b or a CSV of operations. Repeatable."),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="LIST", help="Precisions of a model's operations, comma-separated.")
    ] = "bf16,fp8",
    quick: Annotated[bool, typer.Option("--quick", help="A few shapes, in short bursts.")] = False,
    json_file: Json = None,
) -> None:
    """Time this machine's GPU and write a baseline file (needs PyTorch)."""
    from siliconloom.measuring import measure_gpu, measurement_tables
    from siliconloom.output import check_outputs, write_json
    from siliconloom.tables import console

    check_outputs({"-o": output, "--json": json_file}, shapes or [])
    asked = shapes or ["llama3-8b", "llama3-70b"]
    result, made = measure_gpu(Path(output), asked, dtype, quick=quick, progress=json_file != "-")
    if json_file is not None:
        write_json(json_file, result)
    if json_file != "-":
        measurement_tables(result, made, console())


@app.command()
def warmup() -> None:
    """Compile the simulator's kernels now (once per installation), so that no later run waits for it."""
    from siliconloom.warming import warm_up

    warm_up()


PLANNED = {
    "serve": "request-level simulation",
    "sweep": "design-space exploration",
}
"""Commands whose names are taken and which are not built yet."""


def _planned(name: str, what: str) -> None:
    @app.command(name=name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def command() -> None:
        from siliconloom.arch import NotSupported

        raise NotSupported(f"loom {name} ({what}) is not built yet")


for _name, _what in PLANNED.items():
    _planned(_name, _what)


INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    from siliconloom import streams

    streams.prepare()
    debug = "--debug" in arguments
    if debug:  # accepted anywhere on the line
        arguments = ["--debug", *(a for a in arguments if a != "--debug")]
    arguments = _memory_first(arguments)
    try:
        status = app(arguments, prog_name="loom", standalone_mode=False) or 0
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except BrokenPipeError:
        status = streams.BROKEN_PIPE
    except SystemExit as end:  # typer's own answer to it
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        status = streams.BROKEN_PIPE
    except Exception as error:
        if debug:
            raise
        status = _explain(error)
    if status == INTERRUPTED:  # newer versions of typer return it, older ones raise
        print("loom: interrupted; nothing was left half written", file=sys.stderr)
    try:
        unwritten = streams.finish()
    except BrokenPipeError:
        return streams.BROKEN_PIPE
    if unwritten is not None and status == 0:
        print(f"loom: standard output: {unwritten}", file=sys.stderr)
        return 2
    return int(status)


def _memory_first(arguments: list[str]) -> list[str]:
    """``--memory SIZE`` is accepted anywhere on the line, too."""
    for place, word in enumerate(arguments):
        if word == "--":
            break
        if word == "--memory" and place + 1 < len(arguments):
            return [*arguments[place : place + 2], *arguments[:place], *arguments[place + 2 :]]
        if word.startswith("--memory="):
            return [word, *arguments[:place], *arguments[place + 1 :]]
    return arguments


def _explain(error: Exception) -> int:
    """One line for an error, and its exit status."""
    from siliconloom.arch.errors import MAX_MESSAGE, CheckFailed, LoomError, one_line, shortened

    if isinstance(error, LoomError):
        print(f"loom: {error}", file=sys.stderr)
        return 1 if isinstance(error, CheckFailed) else 2
    if hasattr(error, "format_message"):  # the command line itself is wrong
        wrong = str(error.format_message()).rstrip()
        usage = type(error).__name__ == "NoArgsIsHelpError"
        text = wrong if usage else f"loom: {shortened(one_line(wrong), MAX_MESSAGE - 30)} (see loom --help)"
        print(text, file=sys.stderr)
        return 2
    text = shortened(one_line(str(error)), MAX_MESSAGE)
    if isinstance(error, OSError):  # the machine, not the command
        named = shortened(one_line(str(error.filename)), 200)
        where = named if error.filename else "standard output or a temporary file"
        print(f"loom: {where}: {error.strerror or text}", file=sys.stderr)
        return 2
    if isinstance(error, MemoryError):
        print("loom: there is not enough memory for this", file=sys.stderr)
        return 2
    print(f"loom: internal error: {type(error).__name__}: {text} (--debug shows where)", file=sys.stderr)
    return 70


def entry() -> None:
    """Console script."""
    gc.set_threshold(50_000)  # a process that lives for seconds: collecting more often costs a sixth of its time
    sys.exit(main())
