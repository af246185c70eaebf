"""A served trace as a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.render.page import BarPart, ChartData, PageBar, PageCell, PageColumn, PageTable, page
from siliconloom.render.plan import long_time
from siliconloom.render.serving import found_text, headline, limits_text

PERCENTILES = ("mean", "p50", "p90", "p95", "p99", "max")
LATENCIES = (
    ("ttft_s", "Time to first token", "From a request's arrival to its first token (TTFT)."),
    ("tpot_s", "Time per further token", "Of each request, from its first token to its last, for each (TPOT)."),
    ("itl_s", "Between two tokens", "Of every token, the time since the one before it (ITL)."),
    ("e2e_s", "Whole answer", "From a request's arrival to its last token."),
    ("queue_s", "Of which in the queue", "From a request's arrival until it is first worked on."),
)
WITHIN, BEYOND = "#2a6fbb", "#b0413e"
"""Colours of times that keep to a limit, and of those that do not."""
MEMORY = {
    "weights": "#2a6fbb",
    "activations": "#2a9d5c",
    "adapters": "#8d5fb8",
    "training": "#b5403a",
    "keys and values": "#c9a227",
    "left free": "#9a9a9a",
}
UNUSED = "#e3d6a6"
"""Colour of the part of a cache that is never in use."""
MOST_REPLICAS = 1000
"""Replicas in the table of a page."""
DIGITS = 6
"""Digits of a number in a chart over time."""


class LatencyChart(Struct, frozen=True):
    """Bars of one kind of waiting: its identity on the page, title, what it is, bars and legend."""

    id: str
    title: str
    text: str
    bars: tuple[PageBar, ...]
    legend: tuple[tuple[str, str], ...]


class ChartLine(Struct, frozen=True):
    """A line over time: its name, the unit of its values, and one value for every span."""

    name: str
    unit: str
    values: tuple[float, ...]


class ChartPanel(Struct, frozen=True):
    """Lines over time that share a scale: what they are, whether they are shares, and the lines."""

    title: str
    share: bool
    lines: tuple[ChartLine, ...]


def serving_html(result: dict[str, Any]) -> str:
    """The page of `loom serve`: a result of the schema ``siliconloom.serving/1``."""
    asked = result["asked"]
    charts = {
        name: ChartData(("percentile", "seconds"), tuple((each, result[name][each]) for each in PERCENTILES))
        for name, _, _ in LATENCIES
    }
    found = result.get("found")
    if found:
        charts["tried"] = ChartData(
            (found["what"], "attained", "goodput"),
            tuple((each["value"], each["attained"], each["goodput"]) for each in _tried(found)),
        )
    groups = _groups(result)
    slots = asked["settings"]["adapter_slots"]
    held = [(group["machine"], *each) for group, used in groups for each in _held(group, used, slots)]
    charts["memory"] = ChartData(("machine", "what", "bytes"), tuple(each[:3] for each in held))
    replicas = result["replicas"]
    cut = len(replicas) - MOST_REPLICAS
    return page(
        "serving",
        {"overtime": _over_time(result)},
        charts,
        title=f"Service: {asked['workload']} on {asked['machine']}, requests of {asked['trace']}",
        headline=_sentences(result),
        asked=_asked(result),
        overrides=asked["overrides"],
        notes=result["notes"],
        tiles=_tiles(result),
        over_time_text=f"Means over {len(result['timeline']['start_s'])} equal spans of the run. Requests are counted "
        "in the middle of a span, and of the cache the fullest moment is shown.",
        times=[_latency(result, *each) for each in LATENCIES],
        tried=_tried_table(found) if found else None,
        tried_bars=_tried_bars(found) if found else (),
        tried_legend=(("keeps to the limits", WITHIN), ("too few requests keep to them", BEYOND)),
        search_text=_search_text(found) if found else "",
        replicas=_replicas(replicas[:MOST_REPLICAS]),
        replicas_text=f"{cut:,} more are left out here; --json has all." if cut > 0 else "",
        memory_text=" ".join(_memory_text(group, many=len(groups) > 1) for group, _ in groups),
        memory_bars=[bar for group, used in groups for bar in _memory_bars(group, used, slots, many=len(groups) > 1)],
        memory_legend=[
            *((name, MEMORY[name]) for name in dict.fromkeys(row[1] for row in held)),
            ("room that is never in use", UNUSED),
        ],
        cost=_cost(result),
        keys=_rows("keys", "keys of the service", {f"serve.{k}": _value(v) for k, v in asked["settings"].items()}),
        digest=asked["machine_digest"],
        trace_digest=asked["trace_digest"],
        version=result["version"],
    )


def _chips(count: int) -> str:
    return "one chip" if count == 1 else f"{count} chips together"


FOUND = {
    "rate": ("The highest rate", "requests a second"),
    "replicas": ("The fewest replicas", "replicas"),
    "fleet": ("The cheapest machines", "dollars an hour"),
}
"""Of what is looked for, which one is found, and its unit."""


def _sentences(result: dict[str, Any]) -> str:
    text = headline(result)
    limits = limits_text(result["slo"])
    if limits:
        text += f" {result['slo']['attained']:.1%} of the requests keep to {limits}."
    found = result.get("found")
    if found:
        which, unit = FOUND[found["what"]]
        best = found_text(result) + (f" {unit}" if found["what"] != "fleet" else "")
        text += f" {which} at which {found['attain']:.0%} of them do: {best}."
    if result["preempted"]:
        text += f" Memory was short {result['preempted']:,} times, and a request went back to the queue."
    return text


def _asked(result: dict[str, Any]) -> str:
    asked, requests = result["asked"], result["requests"]
    plan = asked["plan"]
    come = "all at once" if requests["rate"] is None else f"{requests['rate']:.4g} a second"
    chips = plan["tensor"] * plan["pipeline"]
    stages = f" in {plan['pipeline']} stages" if plan["pipeline"] > 1 else ""
    software = "no software of the host" if asked["stack"] == "none" else f"software {asked['stack']}"
    return (
        f"{plan['data']} replica{'s' * (plan['data'] > 1)} of {chips} chip{'s' * (chips > 1)}{stages}; "
        f"{requests['count']:,} requests, {come}, with {requests['prompt_tokens']:,} tokens of prompts and "
        f"{requests['output_tokens']:,} of answers; {asked['settings']['batching']} batching; {software}"
    )


def _tiles(result: dict[str, Any]) -> list[tuple[str, str]]:
    cost, scaling, moves, power = result["cost"], *(result.get(name) for name in ("scaling", "migration", "power"))
    trained, slots = result.get("tuning"), result["asked"]["settings"]["model_slots"]
    loads = sum(each["model_loads"] for each in result["replicas"])
    experts = result.get("experts")
    brought = experts["loads"] / max(experts["used"], 1) if experts else 0.0
    tiles = [
        (format_si(result["ttft_s"]["p50"], "s"), f"to the first token, median; {_p99(result, 'ttft_s')}"),
        (format_si(result["tpot_s"]["p50"], "s"), f"for each further token, median; {_p99(result, 'tpot_s')}"),
        (four_digits(result["tokens_per_s"]), "tokens of answers a second"),
        (four_digits(result["prompt_tokens_per_s"]), "tokens of prompts a second"),
        (
            four_digits(result["goodput"]),
            "goodput: requests a second" + (" that keep to the limits" * bool(_limited(result))),
        ),
        (f"{result['busy']:.1%}", f"of the time at work, {result['batch']:.3g} requests in a step"),
        *([(f"{scaling['mean']:.3g}", "replicas in the mean")] if scaling else []),
        *([(f"{moves['moved']:,}", "moves to another replica")] if moves else []),
        *([(f"{power['peak_w'] / power['limit_w']:.1%}", "of the limit drawn at most")] if power else []),
        *([(four_digits(trained["tokens_per_s"]), "tokens trained a second")] if trained else []),
        *([(f"{brought:.1%}", "of the experts that steps used came from the host")] if experts else []),
        *([(f"{loads:,}", f"times that a model was brought, of which {slots} lie there at once")] if slots else []),
        (f"{_fullest(result):.1%}", f"of the cache in use at most; {result['preempted']:,} preempted"),
    ]
    if result["energy_j"] is not None:
        told = f"a token of answers; {format_si(result['power_w'], 'W')}"
        tiles.append((format_si(result["joules_per_token"], "J"), told))
    if cost["usd_per_million_tokens"] is not None:
        tiles.append((f"{four_digits(cost['usd_per_million_tokens'])} $", "a million tokens of answers"))
    return tiles


def _p99(result: dict[str, Any], name: str) -> str:
    return f"99 % within {format_si(result[name]['p99'], 's')}"


def _limited(result: dict[str, Any]) -> str:
    return limits_text(result["slo"])


def _fullest(result: dict[str, Any]) -> float:
    return float(max(each["cache_used"] for each in result["replicas"]))


def _over_time(result: dict[str, Any]) -> dict[str, Any]:
    """What the page's script draws over time."""
    timeline = result["timeline"]

    def line(name: str, unit: str, column: str) -> ChartLine:
        return ChartLine(name, unit, tuple(float(f"{value:.{DIGITS}g}") for value in timeline[column]))

    panels: tuple[ChartPanel, ...] = (
        ChartPanel("tokens of answers a second", False, (line("answers", "tokens/s", "tokens_per_s"),)),
        ChartPanel("tokens of prompts a second", False, (line("prompts", "tokens/s", "prompt_tokens_per_s"),)),
        ChartPanel("requests", False, (line("running", "requests", "running"), line("waiting", "requests", "waiting"))),
        ChartPanel("cache in use", True, (line("cache in use", "", "cache_used"),)),
    )
    if "replicas" in timeline:
        panels = (*panels, ChartPanel("replicas that can work", False, (line("replicas", "replicas", "replicas"),)))
    if result["energy_j"] is not None:
        drawn = line("power above idle", "W", "joules_per_s")
        panels = (*panels, ChartPanel("watts above those of idle chips", False, (drawn,)))
    spans = len(timeline["start_s"])
    return {
        "file": "over-time",
        "step_s": (result["duration_s"] or 1.0) / spans,
        "panels": [
            {
                "title": each.title,
                "share": each.share,
                "lines": [{"name": one.name, "unit": one.unit, "values": one.values} for one in each.lines],
            }
            for each in panels
        ],
    }


def _latency(result: dict[str, Any], name: str, title: str, text: str) -> LatencyChart:
    """Percentiles as bars; those beyond the limit of the objective are of another colour."""
    values, limit = result[name], result["slo"].get(name)
    longest = max(values.values()) or 1.0
    rows = []
    for each in PERCENTILES:
        told = format_si(values[each], "s")
        shade = BEYOND if limit is not None and values[each] > limit else WITHIN
        rows.append(PageBar(each, told, (BarPart(values[each] / longest, shade, f"{title}, {each}: {told}"),)))
    legend: tuple[tuple[str, str], ...] = ()
    if limit is not None:
        legend = ((f"within {format_si(limit, 's')}", WITHIN), ("beyond it", BEYOND))
    return LatencyChart(name, title, text, tuple(rows), legend)


def _tried(found: dict[str, Any]) -> list[dict[str, float]]:
    return sorted(found["tried"], key=lambda each: each["value"])


def _search_text(found: dict[str, Any]) -> str:
    what = FOUND[found["what"]][1]
    return (
        f"{what[0].upper()}{what[1:]} that were tried, and the share of the requests that keep to the limits; "
        f"{found['attain']:.0%} of them must (the mark)."
    )


def _tried_bars(found: dict[str, Any]) -> list[PageBar]:
    mark = (max(found["attain"] - 0.002, 0.0), min(found["attain"] + 0.002, 1.0))
    rows = []
    for each in _tried(found):
        shade = WITHIN if each["attained"] >= found["attain"] else BEYOND
        told = f"{each['attained']:.1%}"
        part = BarPart(each["attained"], shade, f"{each['value']:.4g}: {told}")
        rows.append(PageBar(f"{each['value']:.4g}", told, (part,), mark))
    return rows


def _tried_table(found: dict[str, Any]) -> PageTable:
    what = FOUND[found["what"]][1]
    groups = [name for name in found["tried"][0] if name.startswith("groups.")]
    names = (*(f"machines of {name}" for name in groups), what, "keep to the limits", "goodput, requests a second")
    rows = tuple(
        (
            *(PageCell(f"{each[name]:.0f}", each[name]) for name in groups),
            PageCell(f"{each['value']:.4g}", each["value"]),
            PageCell(f"{each['attained']:.1%}", each["attained"]),
            PageCell(f"{each['goodput']:.4g}", each["goodput"]),
        )
        for each in _tried(found)
    )
    return PageTable("tries", "what was tried", tuple(map(PageColumn, names)), rows)


def _replicas(replicas: list[dict[str, Any]]) -> PageTable:
    names = ("requests", "steps", "prompt tokens", "tokens", "busy", "batch", "cache at most")
    columns = (PageColumn("replica", True), PageColumn("does", True), *(PageColumn(name) for name in names))
    rows = []
    for number, each in enumerate(replicas):
        counts = (each[key] for key in ("requests", "steps", "prompt_tokens", "output_tokens"))
        rows.append(
            (
                PageCell(f"{number}", number),
                PageCell({"whole": "prompts and answers"}.get(each["kind"], each["kind"])),
                *(PageCell(f"{count:,}", count) for count in counts),
                PageCell(f"{each['busy']:.1%}", each["busy"]),
                PageCell(f"{each['batch']:.3g}", each["batch"]),
                PageCell(f"{each['cache_used']:.1%}", each["cache_used"]),
            )
        )
    return PageTable("replicas", "replicas", columns, tuple(rows))


def _groups(result: dict[str, Any]) -> list[tuple[dict[str, Any], float]]:
    """Replicas that are alike, and the share of the cache that the fullest of them has used; prompts' come first."""
    replicas, found = list(result["replicas"]), []
    for group in sorted(result["groups"], key=lambda each: each["role"] != "prompts"):
        mine, replicas = replicas[: group["replicas"]], replicas[group["replicas"] :]
        found.append((group, max((each["cache_used"] for each in mine), default=0.0)))
    return found


def _colours(held: Sequence[tuple[str, str, float, str]]) -> list[tuple[str, str]]:
    """Of what memory is for, the colour of each."""
    return [(name, MEMORY[name]) for name in dict.fromkeys(name for _, name, *_ in held)]


def _memory_text(group: dict[str, Any], *, many: bool) -> str:
    memory, plan = group["memory"], group["plan"]
    of = f"{_chips(plan['tensor'] * plan['pipeline'])}{' of ' + group['machine'] if many else ''}"
    usable, each = format_bytes(memory["usable_bytes"]), format_bytes(memory["kv_bytes_per_token"])
    hosted = f" {format_bytes(memory['hosted_bytes'])} of experts lie on the host." if memory["hosted_bytes"] else ""
    return (
        f"{format_bytes(memory['capacity_bytes'])} of {of}, of which {usable} may be used (serve.memory_share). A "
        f"token takes {each}; {memory['blocks']:,} blocks of {memory['block_tokens']} tokens.{hosted}"
    )


def _held(group: dict[str, Any], used: float, slots: int) -> list[tuple[str, float, str]]:
    """What a replica's memory is for, in bytes, with a word on each; ``slots`` are those for adapters."""
    memory = group["memory"]
    cache = memory["cache_tokens"] * memory["kv_bytes_per_token"]
    adapters, training = memory["adapter_bytes"] * slots, memory["tuning_bytes"]
    taken = memory["weight_bytes"] + memory["activation_bytes"] + adapters + training + cache
    models = f", of {memory['models']} models" if memory["models"] > 1 else ""
    return [
        ("weights", memory["weight_bytes"], models),
        ("activations", memory["activation_bytes"], ""),
        *([("adapters", adapters, f", room for {slots}")] if adapters else []),
        *([("training", training, "")] if training else []),
        ("keys and values", cache, f", {used:.1%} in use at most"),
        ("left free", max(memory["capacity_bytes"] - taken, 0.0), ""),
    ]


def _memory_bars(group: dict[str, Any], used: float, slots: int, *, many: bool) -> list[PageBar]:
    capacity = group["memory"]["capacity_bytes"] or 1.0
    rows = []
    for name, size, more in _held(group, used, slots):
        told, share = f"{format_bytes(size)}, {size / capacity:.1%}", size / capacity
        parts: tuple[BarPart, ...] = (BarPart(share, MEMORY[name], f"{name}: {told}{more}"),)
        if name == "keys and values":
            full = BarPart(share * used, MEMORY[name], f"in use at most: {used:.1%} of the room")
            parts = (full, BarPart(share * (1 - used), UNUSED, f"never in use: {1 - used:.1%} of the room"))
        rows.append(PageBar(f"{group['machine']}: {name}" if many else name, told, parts))
    return rows


def _cost(result: dict[str, Any]) -> PageTable:
    cost, costs, settings = result["cost"], result["costs"], result["asked"]["settings"]
    values = {
        "time": long_time(result["duration_s"]),
        "chips": f"{result['chips']:,}",
        "chip hours": f"{four_digits(cost['chip_hours'])}",
    }
    if result["energy_j"] is None:
        values["energy"] = "not known"
    else:
        values["energy, of chips that wait, too"] = format_si(result["energy_j"], "J")
        values["power"] = format_si(result["power_w"], "W")
        values["electricity"] = f"{four_digits(cost['electricity_usd'])} $ at {settings['electricity']:g} $/kWh"
    if cost["usd"] is None:
        values["chips' price"] = "is not said (serve.price)"
    else:
        prices = ", ".join(f"{each['price']:g}" for each in result["groups"])
        values["chips' price"] = f"{four_digits(cost['chips_usd'])} $ at {prices} $/h"
        values["together"] = f"{four_digits(cost['usd'])} $"
        values["a million tokens of answers"] = f"{four_digits(cost['usd_per_million_tokens'])} $"
    values["costs asked of the evaluator"] = f"{costs['asked']:,}"
    if costs["audit_max"] is not None:
        values[f"{costs['audited']} steps asked in full differ by"] = f"at most {costs['audit_max']:.2%}"
    return _rows("cost", "energy and money", values)


def _rows(id: str, title: str, values: dict[str, str]) -> PageTable:
    rows = tuple((PageCell(key), PageCell(value)) for key, value in values.items())
    return PageTable(id, title, (PageColumn("what", True), PageColumn("is", True)), rows)


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


__all__ = ["serving_html"]
