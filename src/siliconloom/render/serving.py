"""A served trace as tables."""

from __future__ import annotations

from itertools import accumulate
from operator import mul
from typing import Any

from rich.console import Console

from siliconloom.arch.quantity import format_bytes, format_si, four_digits
from siliconloom.render.plan import long_time
from siliconloom.render.tables import Row, bold, print_overrides, table

TIMES = (
    ("ttft_s", "time to first token"),
    ("tpot_s", "time per further token"),
    ("itl_s", "between two tokens"),
    ("e2e_s", "whole answer"),
    ("queue_s", "of which in the queue"),
)
SHOWN = ("mean", "p50", "p90", "p99", "max")


def headline(result: dict[str, Any]) -> str:
    """What a run came to, in a sentence."""
    asked, requests = result["asked"], result["requests"]
    each = "" if result["chips"] == 1 else f" with {asked['plan']['data']} x {asked['plan']['tensor']} chips"
    first, further = (format_si(result[name]["mean"], "s") for name in ("ttft_s", "tpot_s"))
    return (
        f"{asked['machine']}{each} answers {requests['finished']:,} requests of {asked['trace']} in "
        f"{long_time(result['duration_s'])}: the first token after {first}, each further one after {further}."
    )


def limits_text(slo: dict[str, Any]) -> str:
    """What requests should keep to, such as ``ttft 2 s, tpot 50 ms``; empty where nothing was asked."""
    given = (name for name in ("ttft_s", "tpot_s", "e2e_s") if slo.get(name) is not None)
    return ", ".join(f"{name.removesuffix('_s')} {format_si(slo[name], 's')}" for name in given)


def serving_tables(result: dict[str, Any], out: Console) -> None:
    """Print what requests waited for, what the machine did, and what it cost."""
    asked, requests, cost = result["asked"], result["requests"], result["cost"]
    out.print(f"{bold(asked['workload'])} on {bold(asked['machine'])}, requests of {bold(asked['trace'])}")
    print_overrides(result, out)
    for note in result["notes"]:
        out.print(f"note: {note}", style="yellow")
    rows: list[Row] = [(words, *(format_si(result[name][column], "s") for column in SHOWN)) for name, words in TIMES]
    out.print(table("times", [("", "left"), *((name, "right") for name in SHOWN)], rows))
    out.print()
    rate = "at once" if requests["rate"] is None else f"{requests['rate']:.4g} a second"
    limits = limits_text(result["slo"])
    found = result.get("found")
    money = "no price of chips (serve.price)"
    if cost["electricity_usd"] is not None:
        money = f"{four_digits(cost['electricity_usd'])} $ of electricity, {money}"
    if cost["usd"] is not None:
        money = f"{four_digits(cost['usd'])} $, {four_digits(cost['usd_per_million_tokens'])} $ a million output tokens"
    audit = result["costs"]["audit_max"]
    told: list[Row] = [
        *(
            [(f"found: {found['what']}", f"{found_text(result)} ({found['attain']:.0%} keep to the limits)")]
            if found
            else []
        ),
        ("replicas", "; ".join(_group(group) for group in result["groups"])),
        (
            "requests",
            f"{requests['finished']:,} of {requests['count']:,}, {rate}, in {long_time(result['duration_s'])}",
        ),
        (
            "throughput",
            f"{four_digits(result['tokens_per_s'])} tokens/s of answers, "
            f"{four_digits(result['prompt_tokens_per_s'])} of prompts",
        ),
        *(
            [("goodput", f"{result['goodput']:.4g} a second ({result['slo']['attained']:.1%}: {limits})")]
            if limits
            else []
        ),
        *([("guesses", _guesses(result))] if result.get("accepted") is not None else []),
        *([("scaled", _scaled(result))] if result.get("scaling") else []),
        *([("moved", _moved(result["migration"]))] if result.get("migration") else []),
        *([("power", _limited(result))] if result.get("power") else []),
        ("busy", f"{result['busy']:.1%} of the time, {result['batch']:.3g} requests in a step"),
        (
            "cache",
            f"{'; '.join(_room(group, many=len(result['groups']) > 1) for group in result['groups'])}, at most "
            f"{max(r['cache_used'] for r in result['replicas']):.1%} used; {result['preempted']:,} preempted"
            + (f"; {result['cached_share']:.1%} of prompts were cached" if result["cached_share"] else ""),
        ),
        *([("models", _models(result))] if result["asked"]["settings"]["model_slots"] else []),
        *([("trained", _trained(result["tuning"]))] if result.get("tuning") else []),
        *([("experts", _experts(result))] if result.get("experts") else []),
        *([("spill", _brought(result["spill"]))] if result.get("spill") else []),
        ("energy", _energy(result)),
        ("cost", f"{four_digits(cost['chip_hours'])} chip hours; {money}"),
        *(
            [("steps", f"{result['costs']['audited']} asked in full differ by at most {audit:.2%}")]
            if audit is not None
            else []
        ),
    ]
    out.print(table("run", [("", "left"), ("", "left")], told))
    if len(result["replicas"]) > 1:
        out.print()
        out.print(
            table("replicas", [(name, "right" if at else "left") for at, name in enumerate(COLUMNS)], _replicas(result))
        )


def found_text(result: dict[str, Any]) -> str:
    """What a search found, in words."""
    found = result["found"]
    if found["what"] == "fleet":
        counts = filter(None, found["machines"])
        machines = (f"{n} x {group['machine']}" for n, group in zip(counts, result["groups"], strict=True))
        return f"{found['value']:.4g} $ an hour, {', '.join(machines)}"
    return f"{found['value']:.4g}"


def _room(group: dict[str, Any], *, many: bool) -> str:
    """Room for keys and values of a replica."""
    memory = group["memory"]
    room = f"{memory['cache_tokens']:,} tokens of {format_bytes(memory['kv_bytes_per_token'])} each"
    return f"{group['machine']} {room}" if many else room


def _energy(result: dict[str, Any]) -> str:
    if result["energy_j"] is None:
        return "not known"
    total, each, power = (result[name] for name in ("energy_j", "joules_per_token", "power_w"))
    return f"{format_si(total, 'J')}, {format_si(each, 'J')} a token, {format_si(power, 'W')}"


def _guesses(result: dict[str, Any]) -> str:
    """How many guesses were right, in words."""
    tree = result["asked"]["settings"]["speculate"]
    nodes = sum(accumulate(tree, mul)) if isinstance(tree, list) else tree
    share = result["accepted"]
    ahead = f"; {result['ready']:.1%} of checks had theirs ready" if result.get("ready") is not None else ""
    return f"{share:.1%} of the guessed tokens were right, {share * nodes:.3g} of {nodes:,} a step{ahead}"


def _scaled(result: dict[str, Any]) -> str:
    """How many replicas there were, in words."""
    scaling = result["scaling"]
    lost = f"; {scaling['lost']:,} lost, {scaling['remade']:,} requests made anew" if scaling["lost"] else ""
    return f"{scaling['mean']:.3g} replicas in the mean; {scaling['started']:,} started{lost}"


def _moved(migration: dict[str, Any]) -> str:
    """Requests that moved between replicas, in words."""
    stood = f", {format_si(migration['apart_s'], 's')} between two" if migration["moved"] else ""
    given_up = f"; {migration['given_up']:,} moves given up" if migration["given_up"] else ""
    return f"{migration['moved']:,} times to another replica{stood}{given_up}"


def _brought(tiers: list[dict[str, Any]]) -> str:
    """What came from slower memories, in words."""
    return ", ".join(f"{tier['brought_tokens']:,} tokens from {tier['name']}" for tier in tiers)


def _trained(tuning: dict[str, Any]) -> str:
    """What was trained beside the requests, in words."""
    pace = four_digits(tuning["tokens_per_s"])
    return f"{tuning['tokens']:,} tokens, {pace} a second; {tuning['sequences']:,} sequences"


def _experts(result: dict[str, Any]) -> str:
    """How often experts came from the host, in words."""
    experts, busy = result["experts"], sum(each["busy"] for each in result["replicas"]) * result["duration_s"]
    share = experts["waited_s"] / busy if busy else 0.0
    return (
        f"{experts['loads'] / max(experts['used'], 1):.1%} of {experts['used']:,} uses came from the host, "
        f"{format_si(experts['load_s'], 's')} each; {share:.1%} of the work was waiting for them"
    )


def _models(result: dict[str, Any]) -> str:
    """How models share the replicas, in words."""
    settings, memory = result["asked"]["settings"], result["memory"]
    loads, each = sum(row["model_loads"] for row in result["replicas"]), memory["weight_bytes"] / memory["models"]
    seconds = format_si(each / settings["model_bandwidth"], "s")
    return f"{memory['models']} of {format_bytes(each)} at once; another one brought {loads:,} times, in {seconds} each"


def _limited(result: dict[str, Any]) -> str:
    """What was drawn under a limit, in words."""
    power, seconds = result["power"], result["duration_s"]
    share = power["capped_s"] / seconds if seconds else 0.0
    lowered = f"; clocks lowered {share:.1%} of the time, to {power['least_clock']:.0%}" if power["capped_s"] else ""
    return (
        f"at most {format_si(power['peak_w'], 'W')} of {format_si(power['limit_w'], 'W')}, above in "
        f"{power['over']:.1%} of the time{lowered}"
    )


def _group(group: dict[str, Any]) -> str:
    """A group of replicas in words."""
    stages = f" in {group['plan']['pipeline']} stages" if group["plan"]["pipeline"] > 1 else ""
    each = f"{group['replicas']} of {group['chips']} chip{'s' * (group['chips'] > 1)}{stages}"
    does = "" if group["role"] == "whole" else f" for {group['role']}"
    return f"{each} on {group['machine']}{does}, software {group['stack']}"


COLUMNS = ("replica", "requests", "steps", "prompt tokens", "tokens", "busy", "batch", "cache")
MOST_REPLICAS = 16


def _replicas(result: dict[str, Any]) -> list[Row]:
    found: list[Row] = []
    for number, each in enumerate(result["replicas"][:MOST_REPLICAS]):
        name = f"{number}" if each["kind"] == "whole" else f"{number} ({each['kind']})"
        counts = (f"{each[key]:,}" for key in ("requests", "steps", "prompt_tokens", "output_tokens"))
        found.append((name, *counts, f"{each['busy']:.1%}", f"{each['batch']:.3g}", f"{each['cache_used']:.1%}"))
    if len(result["replicas"]) > MOST_REPLICAS:
        found.append((f"{len(result['replicas']) - MOST_REPLICAS} more", *[""] * (len(COLUMNS) - 1)))
    return found


__all__ = ["found_text", "headline", "limits_text", "serving_tables"]
