"""Served runs: measured beside simulated, the fit of what vLLM's host adds, and how fast a service is simulated.

    python -m benchmarks.serving [--fit] [--skip speed]

The H100's runs are those of ``baselines/data/aiconfigurator-serving-h100`` by vLLM: so many clients, each with one
request in flight. The RTX PRO 6000's run is LLMServingSim's (KAIST): 300 requests of ShareGPT at 10 a second, by vLLM
0.19 (``baselines/data/served``).

``--fit`` finds the constants of `siliconloom.baselines.stacks` again and exits with status 1 where they are others.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import resource
import sys
import time
from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from siliconloom.baselines import tables
from siliconloom.baselines.operations import Op
from siliconloom.baselines.stacks import STACKS, Stack
from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.profiled import profiled
from siliconloom.evaluate.serving import Served
from siliconloom.evaluate.serving_run import serve
from siliconloom.sim.service.fleet import Fleet

Pairs = list[tuple[str, str]]

FP8 = [
    ("workload.precision", "bf16"),
    ("workload.operator_precision", '{"*.qkv": fp8, "*.output": fp8, "*.gate_up": fp8, "*.down": fp8}'),
]
"""A model in fp8 as vLLM has it: products of the layers in fp8, attention, its cache and the head in bf16."""
WAVES = 10
"""Requests of each client."""
FITTED = (1024, 1024)
"""Tokens of prompt and answer of the H100's runs that the stack is fitted to."""
STEPS = np.arange(0, 3.01, 0.05) * 1e-3
EACH = np.arange(0, 101, 5) * 1e-6
RUN = tables.DATA / "served" / "rtx-pro-6000-llama3-8b.csv.gz"
FITTED_REQUESTS = 100
"""First requests of the RTX PRO 6000's run, to whose time per token the stack is fitted."""


class ClientRun(Struct, frozen=True):
    """One measured run of clients."""

    prompt: int
    output: int
    tensor: int
    clients: int
    ttft_s: float
    tpot_s: float


@cache
def client_runs() -> tuple[ClientRun, ...]:
    """VLLM's runs of Llama-3.1-70B in fp8 on four H100."""
    table = tables.load("aiconfigurator-serving-h100")
    o = table.operations
    of_vllm = np.char.startswith(table.software.astype(str), "vllm")
    first: dict[tuple[int, int, int, int], float] = {}
    found: list[ClientRun] = []
    for op in (Op.SERVE_TTFT, Op.SERVE_TPOT):
        for i in np.flatnonzero(o.among(op) & of_vllm).tolist():
            lengths = int(table.input_tokens[i]), int(table.output_tokens[i])
            key = (*lengths, int(o.gpus[i]), int(o.batch[i]))
            seconds = float(table.time_us[i]) * 1e-6
            if op is Op.SERVE_TTFT:
                first[key] = seconds
            else:
                found.append(ClientRun(*key, first[key], seconds))
    return tuple(sorted(found, key=lambda r: (r.prompt, r.output, r.clients)))


@cache
def simulated(run: ClientRun, stack: Stack) -> tuple[float, float]:
    """Mean time to the first token and for each further one; a client asks when its last answer has come."""
    sets = [
        *FP8,
        ("plan.tensor", str(run.tensor)),
        ("plan.data", "1"),
        ("serve.requests", str(WAVES * run.clients)),
        ("serve.arrivals", "at_once"),
        ("serve.max_sequences", str(run.clients)),
        ("serve.prefix_cache", "false"),
    ]
    served = prepare_named("dgx-h100", "llama3-70b", f"{run.prompt}x{run.output}", sets, "none")
    kept: list[Fleet] = []
    result = serve(replace(served, stack=stack), audits=0, kept=kept)
    log = kept[0].log
    asked = np.concatenate([np.zeros(run.clients), np.sort(log.finished)[: -run.clients]])
    return float((log.first - asked).mean()), float(result["tpot_s"]["mean"])


def fit_clients() -> Stack:
    """Step and share of each request: least squares of time per token of the runs in `FITTED`, on a grid of 50 and 5 us.

    What a step takes is added to what it takes without a host, which ten waves of requests hardly move.
    """
    runs = [r for r in client_runs() if (r.prompt, r.output) == FITTED]
    bare = np.array([simulated(run, replace(STACKS["vllm"], step=0.0, sequence=0.0, shared=0.0))[1] for run in runs])
    measured = np.array([run.tpot_s for run in runs])
    clients = np.array([run.clients for run in runs])
    best = min(
        ((step, each) for step in STEPS.tolist() for each in EACH.tolist()),
        key=lambda p: float((((bare + p[0] + p[1] * clients) / measured - 1) ** 2).sum()),
    )
    return replace(STACKS["vllm"], step=best[0] - STACKS["vllm"].shared, sequence=best[1])


class MeasuredRequests(Struct, frozen=True):
    """The RTX PRO 6000's run: seconds of every request."""

    arrival_s: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    ttft_s: np.ndarray
    tpot_s: np.ndarray
    e2e_s: np.ndarray
    duration_s: float


def measured_requests() -> MeasuredRequests:
    """Times from a request's arrival; the server's clock is set to the client's by the shortest way into its queue."""
    with gzip.open(RUN, "rt") as file:
        rows = list(csv.DictReader(file))
    column = {name: np.array([row[name] for row in rows], float) for name in rows[0]}
    arrival = column["arrival_time"] + float((column["queued_ts"] - column["arrival_time"]).min())
    first, last, output = column["first_token_ts"], column["last_token_ts"], column["output_toks"]
    return MeasuredRequests(
        arrival,
        column["input_toks"].astype(int),
        output.astype(int),
        first - arrival,
        (last - first) / (output - 1),
        last - arrival,
        float(last.max() - arrival.min()),
    )


def simulated_requests(stack: Stack, profile: str | None) -> tuple[dict[str, object], Fleet]:
    """Our run of the same requests."""
    sets = [("serve.max_sequences", "128"), ("serve.token_budget", "2048")]
    served = replace(prepare_named("rtx-pro-6000", "llama3-8b", str(RUN), sets, "none"), stack=stack)
    if profile is not None:
        served = profiled(served, profile)
    kept: list[Fleet] = []
    return serve(served, audits=0, kept=kept), kept[0]


def fit_requests() -> Stack:
    """A step's time: mean time per token of the first requests, under measured operators, on a grid of 50 us."""
    wanted = float(measured_requests().tpot_s[:FITTED_REQUESTS].mean())

    def error(step: float) -> float:
        fleet = simulated_requests(Stack("vllm-async", step, 0.0), "measured")[1]
        return abs(float(columns(fleet)["tpot"][:FITTED_REQUESTS].mean()) / wanted - 1)

    return Stack("vllm-async", min(STEPS[:41].tolist(), key=error), 0.0)


def columns(fleet: Fleet) -> dict[str, np.ndarray]:
    """Times of every request of ours."""
    log, output = fleet.log, fleet.requests.output
    return {
        "ttft": log.first - log.arrival,
        "tpot": (log.finished - log.first) / (output - 1),
        "e2e": log.finished - log.arrival,
    }


def print_clients(stack: Stack) -> None:
    """Every run of clients, and the errors of those that were fitted to and of the others."""
    print("4 x H100, Llama-3.1-70B in fp8, vLLM: clients with one request in flight, error of TTFT and TPOT")
    errors: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for run in client_runs():
        first, further = simulated(run, stack)
        off = first / run.ttft_s - 1, further / run.tpot_s - 1
        errors[(run.prompt, run.output) == FITTED].append(off)
        print(
            f"  {run.prompt:5} x {run.output:5}, {run.clients:3} clients: "
            f"{first * 1e3:8.1f} ms {off[0]:+6.1%}  {further * 1e3:6.2f} ms {off[1]:+6.1%}"
        )
    for fitted, found in errors.items():
        mean = np.abs(np.array(found)).mean(axis=0)
        print(f"  {'fitted to' if fitted else 'left out'}: mean |error| TTFT {mean[0]:.1%}, TPOT {mean[1]:.1%}")


def print_requests() -> None:
    """The RTX PRO 6000's run by its operators and by the model, as a whole and of what was not fitted to."""
    measured = measured_requests()
    theirs = {"ttft": measured.ttft_s, "tpot": measured.tpot_s, "e2e": measured.e2e_s}
    rate = float(measured.output.sum()) / measured.duration_s
    print("RTX PRO 6000, Llama-3.1-8B, vLLM 0.19: 300 requests at 10 a second")
    means = ", ".join(f"{name} {values.mean():.4g} s" for name, values in theirs.items())
    print(f"  measured: {means}, {rate:,.0f} tokens/s")
    for profile in ("measured", None):
        for stack in ("none", "vllm-async"):
            result, fleet = simulated_requests(STACKS[stack], profile)
            ours = columns(fleet)
            told = [f"{name} {ours[name].mean() / theirs[name].mean() - 1:+.1%}" for name in theirs]
            rest = ours["tpot"][FITTED_REQUESTS:].mean() / theirs["tpot"][FITTED_REQUESTS:].mean() - 1
            tokens = float(result["tokens_per_s"]) / rate - 1  # type: ignore[arg-type]
            name = "by operators" if profile else "by the model"
            print(f"  {name}, {stack:10}: {', '.join(told)}, tokens/s {tokens:+.1%}; tpot of the last 200 {rest:+.1%}")


def _prepared(machine: str, model: str, trace: str, sets: Pairs, profile: str | None) -> Served:
    served = prepare_named(machine, model, trace, sets)
    return served if profile is None else profiled(served, profile)


def print_speed() -> None:
    """Seconds and memory of whole runs, the second time in a process."""
    small = [("rtx-pro-6000", "llama3-8b", str(RUN), [("serve.max_sequences", "128")], None)]
    runs: list[tuple[str, str, str, Pairs, str | None]] = [
        *small,
        (*small[0][:4], "measured"),
        ("dgx-h100", "llama3-70b", "azure-conv", [("serve.rate", "4")], None),
    ]
    for machine, model, trace, sets, profile in runs:
        seconds = []
        for _ in range(2):
            began = time.perf_counter()
            result = serve(_prepared(machine, model, trace, sets, profile), audits=0)
            seconds.append(time.perf_counter() - began)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"  {result['requests']['count']:6,} requests, {model} on {machine}"
            f"{', by operators' if profile else ''}: {seconds[0]:.2f} s, warm {seconds[1]:.2f} s, {peak:.0f} MB"
        )


def main() -> int:
    """Print it all, or fit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--skip", action="append", default=[], choices=["clients", "requests", "speed"])
    options = parser.parse_args()
    if options.fit:
        found = [fit_clients(), fit_requests()]
        differ = False
        for stack in found:
            stated = STACKS[stack.name]
            same = max(abs(stack.step - stated.step), abs(stack.sequence - stated.sequence)) < 1e-9
            differ |= not same
            print(f"{stack.name}: step {stack.step * 1e3:.2f} ms, each request {stack.sequence * 1e6:.0f} us", end="")
            print("" if same else f"; the package has {stated}")
        return int(differ)
    if "clients" not in options.skip:
        print_clients(STACKS["vllm"])
    if "requests" not in options.skip:
        print_requests()
    if "speed" not in options.skip:
        print("seconds of our runs")
        print_speed()
    return 0


if __name__ == "__main__":
    sys.exit(main())
