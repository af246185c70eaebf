"""``loom run --prompt``: a model's answer on a chip, token by token, with what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from siliconloom.arch.errors import CheckFailed, LoomError
from siliconloom.arch.progress import NOBODY, Watcher

if TYPE_CHECKING:
    from siliconloom.evaluate.generation import GenerationPlan, StepFigures
    from siliconloom.execution.generation import GeneratedStep, TileText

MOST_TOKENS = 32
"""Tokens of an answer, where nothing is said."""


class PromptAsked(Struct, frozen=True):
    """What was asked for on the command line."""

    chip: str
    model: str
    sets: tuple[tuple[str, str], ...]
    prompt: str
    system: str | None
    tokens: str | None
    on: str
    weights: str | None
    rope_base: float | None
    epsilon: float | None
    simulator: str
    json_file: str | None


class SpokenTo(NamedTuple):
    """Who follows a text: the prompt's progress, every token, and what the RTL has shown."""

    watcher: Watcher
    word: Callable[[int], None]
    rtl: list[dict[str, Any]]


def run_prompt(asked: PromptAsked) -> None:
    """Run the programs of a prompt and of every token behind it, print the text as it comes, then what it takes."""
    from siliconloom.arch.tile import NpuTile
    from siliconloom.evaluate.generation import plan_generation
    from siliconloom.execution.constants import ModelConstants, epsilon_of, rope_base_of
    from siliconloom.execution.files import FileWeights
    from siliconloom.execution.generation import RealText, TileText
    from siliconloom.execution.image import refuse
    from siliconloom.execution.text import text_record
    from siliconloom.models.chat import asked_text
    from siliconloom.models.source import needed_source
    from siliconloom.models.tokenizer import TokenStream, tokenizer_of
    from siliconloom.render.generation import Speech, text_table
    from siliconloom.render.output import write_json
    from siliconloom.render.tables import Terminal, console

    most = _count(asked.tokens)
    for option, words in (("--prompt", asked.prompt), ("--system", asked.system)):
        if words is not None and not words.isprintable() and words.encode("utf-8", "replace").decode() != words:
            raise LoomError(f"{option}: is no text in UTF-8")
    source = needed_source(asked.model)
    base = rope_base_of(asked.model) if asked.rope_base is None else asked.rope_base
    tokenizer = tokenizer_of(source)
    text, templated = asked_text(tokenizer, asked.prompt, asked.system)
    prompt = tokenizer.encode(text, templated=templated)
    if not prompt:
        raise LoomError("--prompt: no tokens are in it")
    plan = plan_generation(asked.chip, asked.model, list(asked.sets), prompt=len(prompt), most=most)
    watcher = Terminal(asked.json_file != "-")
    with watcher.stage(f"programs of {asked.model}"):
        first = plan.step("prefill", len(prompt))
    refuse(first.plan)
    constants = ModelConstants(base, epsilon_of(first.graph, asked.epsilon, first.plan.chip))
    weights = str(source.path) if asked.weights is None else asked.weights
    with watcher.stage(f"{first.graph.name} in float32"):
        real = RealText(first.graph, FileWeights(first.graph, weights), constants)
        spoken = list(real.text(prompt, most, tokenizer.ends))
        assert isinstance(plan.chip.tile, NpuTile)
        tile = TileText(plan.chip.tile, plan.kept, real)
    speech, stream, rtl = Speech(asked.json_file != "-", console()), TokenStream(tokenizer), list[dict[str, Any]]()
    speech.begin(f"{first.graph.name} on {plan.chip.name}", asked.prompt)
    told = SpokenTo(watcher, lambda token: speech.add(stream.add(token)), rtl)
    made = list(_steps(asked, plan, tile, prompt, tokenizer.ends, told))
    speech.end(stream.rest())
    record = text_record(
        tile,
        [step for step, _ in made],
        tokenizer,
        prompt=prompt,
        prompt_text=text,
        real=spoken,
        weights=weights,
        figures=[asdict(figures) for _, figures in made],
    )
    record |= {
        "asked": asked.prompt,
        "chip": plan.chip.name,
        "chip_digest": plan.chip.digest,
        "clock_hz": plan.chip.clock,
    }
    record |= {"cache_length": plan.room, "rtl": rtl}
    if asked.json_file is not None:
        write_json(asked.json_file, record)
    if asked.json_file != "-":
        text_table(record, dict(asked.sets), console())
    if record["differing"] or not all(each["passed"] for each in rtl):
        raise CheckFailed(f"{first.graph.name} on {plan.chip.name}: values differ, see the table")


def _steps(
    asked: PromptAsked, plan: GenerationPlan, tile: TileText, prompt: list[int], ends: frozenset[int], told: SpokenTo
) -> Iterator[tuple[GeneratedStep, StepFigures]]:
    """Every program's run with what it takes; on the RTL the last token of the prompt has a program of its own."""
    from siliconloom.evaluate.generation import figures

    alone = asked.on == "rtl" and len(prompt) > 1
    given, length = (prompt[:-1] if alone else prompt), 0
    most = plan.most + alone
    for number in range(most):
        length += len(given)
        simulation = plan.step("prefill", length) if number == 0 else plan.step("decode", length)
        keeps = asked.on == "rtl" and (number > 0 or not alone)
        # words follow one another on standard output: only the prompt, which has none yet, has a bar
        following = told.watcher if number == 0 else NOBODY
        with following.share(f"the prompt in {simulation.graph.name}") as share:
            step = tile.run(simulation.plan, given, share, keep=keeps)
        yield step, figures(simulation, context=length)
        if keeps:
            told.rtl.append(_on_rtl(asked, step))
        if number == 0 and alone:
            given = prompt[-1:]
            continue
        told.word(step.token)
        if step.token in ends:
            return
        given = [step.token]


def _on_rtl(asked: PromptAsked, step: GeneratedStep) -> dict[str, Any]:
    """The same program from the same memory on the generated Verilog."""
    from siliconloom.execution.image import room_of
    from siliconloom.rtl.bench.runner import Spent
    from siliconloom.verification.filling import refuse_large
    from siliconloom.verification.model import rtl_section, run_rtl
    from siliconloom.verification.workload import refuse

    refuse(step.mapped.chip, step.mapped)
    refuse_large(step.mapped, room_of(step.mapped)[1])
    parity = run_rtl(step.as_run(), simulator=asked.simulator, spent=Spent())
    step.made = None
    return {**rtl_section(parity), "passed": parity.passed}


def _count(tokens: str | None) -> int:
    """How many tokens an answer has at most."""
    if tokens is None:
        return MOST_TOKENS
    if not tokens.isdecimal() or not 1 <= int(tokens[:12]) < 2**24 or len(tokens) > 12:
        raise LoomError(f"--tokens: with --prompt the number of tokens to answer with, from 1 on (got '{tokens}')")
    return int(tokens)


__all__ = ["PromptAsked", "run_prompt"]
