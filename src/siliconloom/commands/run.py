"""``loom run``."""

from __future__ import annotations

from typing import Annotated

import typer

from siliconloom.commands.options import Chip, Json, Set, Workload

EXAMPLES = (
    "loom run npu-edge gpt2 --set workload.layers=1 --set workload.sequence=8",
    'loom run npu-edge smollm2-135m --prompt "Hello" --tokens 12',
)
"""Shown below the command's help."""


def command(
    chip: Chip,
    model: Workload,
    sets: Set = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", metavar="TEXT", help="What the model is asked; it answers, token by token."),
    ] = None,
    system: Annotated[
        str | None,
        typer.Option("--system", metavar="TEXT", help="Said before the prompt, in the model's chat template."),
    ] = None,
    on: Annotated[str, typer.Option("--on", help="golden, or rtl: the same on the generated Verilog, too.")] = "golden",
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="FILE",
            help="safetensors, npz, GGUF or a folder; else the model's, or random by --seed.",
        ),
    ] = None,
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="TOKENS",
            help="1,2,3 or a file of such numbers; else random ones. With --prompt: how many to answer with at most.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, show_default="0", help="Seed of random weights and tokens.")
    ] = None,
    rope_base: Annotated[
        float | None, typer.Option("--rope-base", min=1.0, help="Base of rotary angles, in place of the model's own.")
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", min=0.0, help="Of norms in float64, in place of the model's own.")
    ] = None,
    simulator: Annotated[
        str | None, typer.Option("--simulator", show_default="verilator", help="icarus or verilator, with --on rtl.")
    ] = None,
    mapping: Annotated[
        str | None, typer.Option("--mapping", metavar="FILE", help="Of the model, as loom map -o writes it.")
    ] = None,
    dump: Annotated[
        str | None, typer.Option("--dump", metavar="FILE", help="Write every operator's result as a NumPy archive.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Run a model's values on the program that loom sim times.

    Beside float64, or with --prompt from words to words.
    """
    from siliconloom.arch import LoomError
    from siliconloom.arch.document import parse_assignments
    from siliconloom.commands.prompting import PromptAsked, run_prompt
    from siliconloom.render.output import check_outputs

    if simulator is not None and on == "golden":
        raise LoomError("--simulator: nothing is simulated from Verilog without --on rtl")
    simulator = simulator or "verilator"
    _check_choices({"--on": (on, ("golden", "rtl")), "--simulator": (simulator, ("icarus", "verilator"))})
    if dump == "-":
        raise LoomError("--dump: an archive goes to a file, not to standard output")
    inputs = tuple(name for name in (chip, model, weights, tokens, mapping) if name)
    check_outputs({"--dump": dump, "--json": json_file}, inputs)
    assignments = parse_assignments(sets or [])
    if prompt is not None:
        other = next((name for name, value in (("--dump", dump), ("--mapping", mapping)) if value is not None), None)
        if other is not None:
            raise LoomError(f"{other}: is of one program, and --prompt runs one for the prompt and one for every token")
        if seed is not None:
            raise LoomError("--seed: nothing is random where a --prompt is answered")
        asked = PromptAsked(
            chip,
            model,
            tuple(assignments),
            prompt,
            system,
            tokens,
            on,
            weights,
            rope_base,
            epsilon,
            simulator,
            json_file,
        )
        run_prompt(asked)
        return
    if system is not None:
        raise LoomError("--system: is said before a --prompt, and there is none")
    _values(
        chip,
        model,
        assignments,
        on,
        weights,
        tokens,
        seed or 0,
        rope_base,
        epsilon,
        simulator,
        mapping,
        dump,
        json_file,
    )


def _check_choices(choices: dict[str, tuple[str, tuple[str, ...]]]) -> None:
    from siliconloom.arch.errors import require_name

    for option, (value, valid) in choices.items():
        require_name(option, value, valid)


def _earlier(assignments: list[tuple[str, str]]) -> int:
    """Tokens of a prompt that lie in the cache already; what is no number is refused where it is read."""
    said = dict(assignments).get("workload.context", "0")
    return int(said) if said.isascii() and said.isdigit() else 0


def _values(
    chip: str,
    model: str,
    assignments: list[tuple[str, str]],
    on: str,
    weights: str | None,
    tokens: str | None,
    seed: int,
    rope_base: float | None,
    epsilon: float | None,
    simulator: str,
    mapping: str | None,
    dump: str | None,
    json_file: str | None,
) -> None:
    """One program's values beside those of float64 and of the exact reading."""
    from siliconloom.arch import CheckFailed, NotSupported, load_chip, machine_kind
    from siliconloom.arch.document import Document
    from siliconloom.arch.overrides import split_overrides
    from siliconloom.evaluate.chip import check_length
    from siliconloom.evaluate.mapping import load_plan
    from siliconloom.execution.constants import epsilon_of, rope_base_of
    from siliconloom.execution.files import FileWeights
    from siliconloom.execution.image import refuse, room_of
    from siliconloom.execution.record import run_record, write_tensors
    from siliconloom.execution.run import lengths, run_model, vocabulary
    from siliconloom.execution.tokens import arranged, random_tokens, read_tokens
    from siliconloom.execution.walk import GraphWalk
    from siliconloom.execution.weights import RandomWeights, Weights
    from siliconloom.mapper.chip.tasks import refuse_training
    from siliconloom.models.source import own_weights
    from siliconloom.render.output import write_json
    from siliconloom.render.running import run_table
    from siliconloom.render.tables import Terminal, console
    from siliconloom.rtl.bench.runner import Spent
    from siliconloom.verification.filling import refuse_large
    from siliconloom.verification.model import rtl_section, run_rtl
    from siliconloom.verification.workload import refuse as refuse_rtl
    from siliconloom.workloads import load_workload
    from siliconloom.workloads.load import workload_document

    if workload_document(model)[0].data.get("kind") == "onnx":
        raise NotSupported(f"values of ONNX models ({model}); loom sim, loom map and loom compare take them")
    given = None if tokens is None else read_tokens(tokens)
    if given is not None:  # as long as the tokens, where nothing else is said
        decodes = ("workload.phase", "decode") in assignments
        length = "workload.context" if decodes else "workload.sequence"
        if not any(path in (length, "workload.batch") for path, _ in assignments):
            before = 0 if decodes else _earlier(assignments)
            assignments = [*assignments, (length, str(max(len(given) - before, 1)))]
    if machine_kind(chip) == "system":
        raise NotSupported(f"values on a system ({chip}); name one of its chips")
    graph = load_workload(model, split_overrides(assignments)[1])
    base = rope_base_of(model) if rope_base is None else rope_base
    refuse_training(load_chip(chip, split_overrides(assignments)[0]), graph)
    GraphWalk(graph)  # what nothing here can read is refused before anything takes time
    batch, count, _ = lengths(graph)
    if given is None:
        chosen = random_tokens(seed, batch, count, vocabulary(graph))
    else:
        chosen = arranged(given, graph.name, batch, count)
    weights = own_weights(model) if weights is None else weights
    found: Weights = RandomWeights(graph, seed) if weights is None else FileWeights(graph, weights)
    given_mapping = None if mapping is None else Document.load(mapping)
    mapped, _ = load_plan(chip, model, assignments, given_mapping, alone="values of a model")
    refuse(mapped)
    added = epsilon_of(graph, epsilon, mapped.chip)
    check_length(mapped.chip, mapped.program)
    if on == "rtl":
        refuse_rtl(mapped.chip, mapped)
        refuse_large(mapped, room_of(mapped)[1])
    watcher = Terminal(json_file != "-")
    made = run_model(mapped, found, chosen, base=base, epsilon=added, watcher=watcher, keep=dump is not None)
    parity = None
    if on == "rtl":
        with watcher.stage(f"{mapped.graph.name} on the RTL") as tell:
            parity = run_rtl(made, simulator=simulator, spent=Spent(tell=tell))
    rtl = None if parity is None else rtl_section(parity)
    where = f"random, seed {seed}" if weights is None else weights
    record = run_record(made, weights=where, base=base, epsilon=added, rtl=rtl)
    if dump is not None:
        write_tensors(dump, made)
    if json_file is not None:
        write_json(json_file, record)
    if json_file != "-":
        run_table(record, dict(assignments), console())
    if made.differing or (parity is not None and not parity.passed):
        raise CheckFailed(f"{mapped.graph.name} on {mapped.chip.name}: values differ, see the table (seed {seed})")
