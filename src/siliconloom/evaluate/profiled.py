"""Served by measured operators: a profile found for a machine and a model, held against them, and made into costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.serving import Batching
from siliconloom.baselines.machine import GpuMachine
from siliconloom.baselines.profile import ProfileCosts, profiled_layers
from siliconloom.baselines.profile_tables import (
    PROFILES,
    OperatorProfile,
    describe_profile,
    load_profile,
    profile_names,
)
from siliconloom.evaluate.serving import Served
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.layers import message_seconds
from siliconloom.workloads import Attention, Collective, Graph

MEASURED = "measured"
"""In place of a folder: the profile of the package for this GPU, model and number of GPUs."""


def profiled(served: Served, name: str) -> Served:
    """The same, whose steps take what a profile says: ``measured``, or a folder of tables.

    Raises
    ------
    LoomError
        Where no profile is of this GPU and model, and where steps would be larger than any that was timed.
    NotSupported
        For machines that are no GPUs, and models with what profiles lack.
    """
    machine = served.cluster.machine
    if not isinstance(machine, GpuMachine) or len(served.cluster.kinds) > 1:
        raise NotSupported(f"--profile on {served.machine}: profiles are of GPUs")
    if served.settings.batching is Batching.STATIC:
        raise NotSupported("--profile with serve.batching static, whose steps are larger than any profile's")
    if served.settings.power_limit is not None:
        raise NotSupported("--profile with serve.power_limit: nobody knows what measured operators draw")
    if served.settings.speculate is not None:
        raise NotSupported("--profile with serve.speculate: profiles have one token of each request")
    if served.settings.shared_attention:
        raise NotSupported("--profile with serve.shared_attention: profiles have every request's keys by themselves")
    if served.plan.pipeline > 1:
        raise NotSupported(f"--profile with plan.pipeline {served.plan.pipeline}: profiles have all layers on each GPU")
    if served.plan.sequence_parallel:
        raise NotSupported("--profile with plan.sequence_parallel: profiles have norms of all tokens")
    part = _part(served, [("phase", "decode"), ("batch", "1"), ("context", "1")])
    for each in part.operators():
        if isinstance(each, Attention) and (each.window or each.sinks or _rounded(each)):
            what = "attention to all tokens, whose keys and values are kept as they are"
            raise NotSupported(f"--profile with {served.model.name}: profiles are of {what}")
    profile = _measured(served, part) if name == MEASURED else load_profile(Path(name))
    if profile.described.gpu != machine.gpu.name or profile.described.tensor != served.plan.tensor:
        raise LoomError(
            f"--profile {name}: is of {profile.described.tensor} {profile.described.gpu}, a replica is "
            f"{served.plan.tensor} {machine.gpu.name} (plan.tensor)"
        )
    depth = sum(o.repeat for o in part.operators() if isinstance(o, Attention))
    costs = ProfileCosts(
        profile,
        profiled_layers(profile, part),
        depth=depth,
        stack=served.stack,
        most_requests=served.settings.max_sequences,
        messages=_messages(served),
    )
    _check_sizes(served, costs)
    return replace(served, profile=profile.described.name, costs=costs)


def _rounded(attention: Attention) -> bool:
    return attention.cached is not None and attention.cached.dtype is not attention.precision


def _part(served: Served, sets: list[tuple[str, str]]) -> Graph:
    server = Server(served.replica, served.model.ask(sets))
    return server.layers.part(served.plan, server.batch)


def _measured(served: Served, part: Graph) -> OperatorProfile:
    """The package's profile of this GPU, number of GPUs, and sizes."""
    machine = served.cluster.machine
    assert isinstance(machine, GpuMachine)
    of_gpu: list[str] = []
    for name in profile_names():
        described = describe_profile(PROFILES / name)
        if described.gpu != machine.gpu.name or described.tensor != served.plan.tensor:
            continue
        profile = load_profile(PROFILES / name)
        try:
            profiled_layers(profile, part)
        except LoomError as error:
            of_gpu.append(str(error))
            continue
        return profile
    if of_gpu:
        raise LoomError(f"--profile {MEASURED}: no profile of {served.model.name} on {machine.gpu.name}: {of_gpu[0]}")
    raise LoomError(
        f"--profile {MEASURED}: no profile of {served.plan.tensor} {machine.gpu.name}; there are "
        f"{', '.join(profile_names())}; a folder of one's own may be given"
    )


def _messages(served: Served) -> Callable[[int], float]:
    """Seconds of a step's messages by its tokens, from the links and not from the profile."""
    if served.plan.chips == 1:
        return lambda _: 0.0
    fabric, plan = served.cluster.fabrics[0], served.plan

    @cache
    def seconds(tokens: int) -> float:
        part = _part(served, [("phase", "prefill"), ("batch", "1"), ("sequence", str(tokens))])
        sent = [o for o in part.operators() if isinstance(o, Collective)]
        return sum(message_seconds(each, plan, fabric) * each.repeat for each in sent)

    return seconds


def _check_sizes(served: Served, costs: ProfileCosts) -> None:
    settings, name = served.settings, costs.profile.described.name
    longest = int((served.trace.prompt + served.trace.output).max())
    budget = settings.token_budget
    if settings.batching is Batching.PREFILL_FIRST:  # one prompt may be longer, and be made anew with its answer
        budget = max(budget, longest)
    most = min(settings.max_sequences, len(served.trace))
    for key, asked, timed, of in (
        ("serve.token_budget", budget, costs.most_tokens, "tokens"),
        ("serve.max_sequences", most, costs.most_sequences, "sequences"),
        ("the longest request", longest, costs.longest, "tokens"),
    ):
        if asked > timed:
            raise LoomError(f"--profile {name}: {key} {asked:,}: steps of at most {timed:,} {of} were timed")


__all__ = ["MEASURED", "profiled"]
