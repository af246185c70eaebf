"""A plan of a model on a system as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.arch.timeline import Timeline
from siliconloom.render.page import BarPart, ChartData, PageBar, PageCell, PageColumn, PageTable, bars, colour, page
from siliconloom.render.page_tracks import MOST_SPANS, TICKS, passes_text, tracks_of
from siliconloom.render.plan import long_time
from siliconloom.render.report_network import step_links, step_links_text
from siliconloom.render.tables import asked_text

WITHIN = "kernels and sums within a stage"
"""What a step is spent on but for its pipeline and what comes after it."""
MEMORY = {
    "weights": "#2a6fbb",
    "gradients": "#d1742c",
    "optimizer": "#8b5fbf",
    "activations": "#2a9d5c",
    "cache": "#c9a227",
}
"""Colours of what a chip's memory holds."""


def plan_html(
    result: dict[str, Any], drawn: Timeline | None, messages: Mapping[str, Any] | None = None, untold: str = ""
) -> str:
    """The page of `loom plan`.

    Parameters
    ----------
    drawn
        The passes of the best plan's pipeline.
    messages, untold
        The step's messages over its links, or why there are none.
    """
    links = step_links(messages)
    pipeline, cut = tracks_of(drawn) if drawn is not None else (None, 0)
    plans = [result, *result["alternatives"]]
    held = _held(drawn) if drawn is not None else None
    parts = _parts(result)
    fullest = max(p["memory_bytes"] for p in plans) or 1
    slowest = max(p["step_s"] for p in plans) or 1
    looked = result["search"]
    return page(
        "plan",
        {name: each for name, each in (("pipeline", pipeline), ("held", held), ("links", links)) if each},
        {
            "parts": ChartData(("part", "seconds"), tuple(parts)),
            "memory": ChartData(
                ("plan", "what", "bytes"), tuple((p["plan_text"], w, b) for p in plans for w, b in p["memory"].items())
            ),
            "plans": ChartData(("plan", "step_s"), tuple((p["plan_text"], p["step_s"]) for p in plans)),
        },
        title=f"Plan: {result['workload']} on {result['system']}",
        headline=_headline(result),
        asked=asked_text({**result, "precision": result["asked"]["precision"]}),
        overrides=result["asked"]["overrides"],
        notes=result["notes"],
        tiles=_tiles(result),
        pipeline=pipeline,
        schedule_text="" if drawn is None else passes_text(drawn),
        cut=cut,
        held=held,
        links=links,
        links_text=step_links_text(messages, untold),
        part_bars=bars(
            [(n, s / result["step_s"], f"{s / result['step_s']:.1%}, {format_si(s, 's')}", n) for n, s in parts]
        ),
        memory_text="Of the plan, and of the next best ones." + _on_host(result),
        memory_bars=[
            PageBar(
                "the plan" if number == 0 else f"{number}. next",
                format_bytes(p["memory_bytes"]),
                tuple(
                    BarPart(b / fullest, MEMORY[w], f"{w} {format_bytes(b)}")
                    for w, b in p["memory"].items()
                    if w in MEMORY
                ),
            )
            for number, p in enumerate(plans)
        ],
        memory_legend=[(w, c) for w, c in MEMORY.items() if any(p["memory"][w] for p in plans)],
        search_text=f"{looked['simulated']} plans were simulated, {looked['pruned']} were slower by their bound, "
        f"{looked['too_large']} were too large.",
        plan_bars=[
            PageBar(
                "the plan" if number == 0 else f"{number}. next",
                format_si(p["step_s"], "s") + (f", +{p['slower_by']:.2%}" if number else ""),
                (BarPart(p["step_s"] / slowest, colour("busy" if number == 0 else "buffer"), p["plan_text"]),),
            )
            for number, p in enumerate(plans)
        ],
        plans=_plans(plans),
        extras=_extras(result),
        keys=_keys("plan-keys", "keys of the plan", {f"plan.{key}": str(v) for key, v in result["plan"].items()}),
        digest=result["asked"]["machine_digest"],
        version=result["version"],
    )


def _headline(result: dict[str, Any]) -> str:
    parts = [(n, s) for n, s in _parts(result) if n != WITHIN]
    text = (
        f"The fastest plan found is {result['plan_text']}: a step takes {format_si(result['step_s'], 's')}, of which "
        f"the arithmetic alone would need {result['utilization']:.1%}."
    )
    name, seconds = max(parts, key=lambda part: part[1], default=("", 0.0))
    if seconds:
        text += f" Beside {WITHIN}, most goes to {name} ({seconds / result['step_s']:.1%})."
    text += f" The fullest chip holds {format_bytes(result['memory_bytes'])}."
    if result["alternatives"]:
        other = result["alternatives"][0]
        text += f" The next best plan is {other['slower_by']:.2%} slower: it loses by {other['lost_by']}."
    return text


def _on_host(result: dict[str, Any]) -> str:
    size = result["memory"]["host"]
    return f" A chip of the plan has {format_bytes(size)} in the host's memory besides." if size else ""


def _parts(result: dict[str, Any]) -> list[tuple[str, float]]:
    """Seconds of a step by what they are spent on, as the search of plans tells them apart."""
    host = result["host_s"]
    pipeline = result["step_s"] - result["gradient_s"] - result["optimizer_s"] - host
    parts = {
        WITHIN: pipeline * (1 - result["bubble"]),
        "the bubble": pipeline * result["bubble"],
        "sums of gradients": result["gradient_s"],
        "the optimizer": result["optimizer_s"],
        "the host": host,
    }
    return [(name, seconds) for name, seconds in parts.items() if seconds > 0]


def _tiles(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (format_si(result["step_s"], "s"), f"a step; the arithmetic alone {format_si(result['lower_bound_s'], 's')}"),
        (f"{result['utilization']:.1%}", f"of the peak; {result['computed_tflops_per_chip']:.4g} TFLOP/s a chip"),
        (four_digits(result["tokens_per_second"]), "tokens per second"),
        (f"{result['bubble']:.1%}", "of the pipeline is bubble"),
        (format_si(result["exposed_comm_s"], "s"), "waiting for messages, the busiest chip"),
        (format_bytes(result["memory_bytes"]), "in the fullest chip"),
        (f"{result['microbatches']:,}", "microbatches"),
        (f"{result['parameters'] / 1e9:.4g} G", "parameters"),
    ]


def _plans(plans: list[dict[str, Any]]) -> PageTable:
    columns = [PageColumn("", True), PageColumn("plan", True), PageColumn("step"), PageColumn("slower")]
    columns += [PageColumn("of peak"), PageColumn("bubble"), PageColumn("memory"), PageColumn("loses by", True)]
    columns[0] = PageColumn("rank", True)
    rows = []
    for number, p in enumerate(plans):
        late = p.get("slower_by", 0.0)
        rows.append(
            (
                PageCell("the plan" if number == 0 else f"{number}. next", number),
                PageCell(p["plan_text"]),
                PageCell(format_si(p["step_s"], "s"), p["step_s"]),
                PageCell(f"+{late:.2%}" if number else "–", late),
                PageCell(f"{p['utilization']:.1%}", p["utilization"]),
                PageCell(f"{p['bubble']:.1%}", p["bubble"]),
                PageCell(format_bytes(p["memory_bytes"]), p["memory_bytes"]),
                PageCell(p.get("lost_by", "")),
            )
        )
    return PageTable("plans", "plans", tuple(columns), tuple(rows))


def _keys(id: str, title: str, values: dict[str, str]) -> PageTable:
    rows = tuple((PageCell(key), PageCell(value)) for key, value in values.items())
    return PageTable(id, title, (PageColumn("key", True), PageColumn("value", True)), rows)


def _extras(result: dict[str, Any]) -> list[tuple[str, PageTable]]:
    """What else was asked: next tokens, a straggler, a whole run with failures."""
    found = []
    if after := result.get("decode"):
        moved = f"{format_bytes(after['moved_bytes'])} of {format_bytes(after['cache_bytes'])}"
        values = {
            "plan": after["plan_text"],
            "step": format_si(after["step_s"], "s"),
            "tokens a second": four_digits(after["tokens_per_second"]),
            "memory": format_bytes(after["memory_bytes"]),
            "keys and values that change chips": f"{moved}, in {format_si(after['kv_transfer_s'], 's')}",
        }
        found.append(("Next tokens", _keys("decode", "next tokens", values)))
    if late := result.get("slow"):
        values = {"step": format_si(late["step_s"], "s"), "slower by": f"{late['slower_by']:.1%}"}
        found.append(("With the straggler", _keys("straggler", "with the straggler", values)))
    if run := result.get("run"):
        spread = run["seconds"]
        values = {
            "time": long_time(spread["mean"]),
            "time of eight runs in ten": f"{long_time(spread['p10'])} to {long_time(spread['p90'])}",
            "without failures": long_time(run["ideal_s"]),
            "failures": f"{run['failures']:.4g}",
            "steps between checkpoints": f"{run['checkpoint_steps']:,}",
            "lost steps": long_time(run["lost_s"]),
            "restarts": long_time(run["restart_s"]),
            "checkpoints": long_time(run["checkpoints_s"]),
            "waiting for chips": long_time(run["waiting_s"]),
            "goodput": f"{run['goodput']:.1%}",
        }
        found.append(("The whole run", _keys("run", "the whole run", values)))
    return found


def _held(drawn: Timeline) -> dict[str, Any] | None:
    """What the page's script draws of each stage's memory over the step: nothing where it is not known."""
    if not drawn.held or sum(len(steps) for _, steps in drawn.held.values()) > MOST_SPANS:
        return None
    end = max([span.end for span in drawn.spans] + [at for _, steps in drawn.held.values() for at, _ in steps[-1:]])
    size = max(end / TICKS, 1)
    return {
        "end": round(end / size),
        "tick": drawn.tick * size,
        "tracks": [drawn.tracks[track] for track in drawn.held],
        "always": [round(always) for always, _ in drawn.held.values()],
        "steps": [[[round(at / size), round(held)] for at, held in steps] for _, steps in drawn.held.values()],
    }


__all__ = ["plan_html"]
