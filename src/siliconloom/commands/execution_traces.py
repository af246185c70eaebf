"""Execution traces in files, a file for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from siliconloom.arch.execution_trace import ExecutionTrace
    from siliconloom.arch.timeline import Timeline
    from siliconloom.evaluate.machine import DescribedMachine, Evaluation
    from siliconloom.workloads import Graph


def check_step_outputs(outputs: Mapping[str, str | Path | None], inputs: Iterable[object]) -> None:
    """`check_outputs` where ``--trace`` may name an execution trace: of that the groups' file, and every rank's.

    How many ranks there are nobody knows yet, so no other output or input may be called as any rank's file.
    """
    from siliconloom.evaluate.chakra_files import is_execution_trace, is_rank_of, trace_files
    from siliconloom.render.output import check_outputs

    given, trace = tuple(inputs), outputs.get("--trace")
    named = dict(outputs)
    if trace is not None and is_execution_trace(str(trace)):
        del named["--trace"]
        others = [str(each) for each in (*named.values(), *given) if each is not None]
        ranks = list(dict.fromkeys(other for other in others if is_rank_of(other, str(trace))))
        own = {f"--trace {trace}": trace_files(str(trace), 0)[0]}
        own |= {f"--trace {trace} (a rank's file)" + " " * n: rank for n, rank in enumerate(ranks)}
        named = {**own, **named}
    check_outputs(named, given)


def write_step_trace(path: str | None, machine: DescribedMachine, graph: Graph) -> None:
    """Write a step of a system as an execution trace, where a ``path`` is given."""
    if path is None:
        return
    from siliconloom.evaluate.machine import traced_step

    write_trace_files(path, traced_step(machine, graph))


def step_page(
    result: dict[str, Any],
    name: str,
    sets: list[tuple[str, str]],
    machine: DescribedMachine,
    graph: Graph,
    drawn: Sequence[Timeline] | None = None,
) -> str:
    """The page of a step: its timeline, and what its messages put on the links where it is one of a system."""
    from siliconloom.evaluate.machine import traced_step
    from siliconloom.evaluate.step_links import step_links
    from siliconloom.render.report_step import step_html

    timeline = next(iter(drawn or ()), None)
    if result.get("system", {}).get("chips", 1) < 2:
        return step_html(result, drawn=timeline)
    return step_html(result, *step_links(name, sets, lambda: traced_step(machine, graph)), timeline)


def chip_page(done: Evaluation) -> str:
    """The page of a run of one chip, with every execution of its instructions."""
    from siliconloom.evaluate.timeline import folded_run
    from siliconloom.render.report import report_html

    assert done.simulation is not None
    description = done.simulation.chip.model_dump_json(indent=2)
    return report_html(done.result, folded_run(done.simulation), description)


def write_trace_files(path: str, trace: ExecutionTrace) -> None:
    """Write ``NAME.{rank}.et`` for every rank, and ``NAME.json`` with the groups, where ``path`` is ``NAME.et``."""
    from siliconloom.evaluate.chakra_files import trace_bytes, trace_files
    from siliconloom.render.output import refuse_inputs, write_bytes

    files = trace_files(path, len(trace.ranks))
    refuse_inputs(files)
    contents = trace_bytes(trace)
    for file, content in zip(files, contents, strict=True):
        write_bytes(file, content)
