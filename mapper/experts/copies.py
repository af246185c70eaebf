"""Copies of hot experts: several GPUs do what would be too much for one.

An expert's tokens are split evenly over its copies, unless they already are where one lies.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.arch.errors import LoomError
from siliconloom.mapper.experts.routing import Routing

Float = NDArray[np.float64]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]


class Copies(Struct, frozen=True, eq=False):
    """Which GPU holds which experts, [layers, experts, GPUs]."""

    holds: Bool

    def loads(self, loads: Float) -> Float:
        """Load of each GPU, [layers, GPUs], when every expert's is split evenly over its copies."""
        found: Float = np.einsum("le,leg->lg", loads / self.holds.sum(axis=2), self.holds.astype(np.float64))
        return found

    def imbalances(self, loads: Float) -> Float:
        """Load of the fullest GPU over the mean, of each layer."""
        each = self.loads(loads)
        found: Float = each.max(axis=1) / each.mean(axis=1)
        return found

    def imbalance(self, loads: Float) -> float:
        """Load of the fullest GPU over the mean, in the worst layer."""
        return float(self.imbalances(loads).max())


def single(gpu: Int, gpus: int) -> Copies:
    """One copy of each expert, where a placement [layers, experts] has it."""
    return Copies(gpu[:, :, None] == np.arange(gpus))


def copy_hot(routing: Routing, gpu: Int, gpus: int, spare: int) -> Copies:
    """``spare`` further places on each GPU for copies: the expert with most tokens a copy goes to the emptiest GPU.

    Copies are added while they lower the load of the fullest GPU.
    """
    holds = single(gpu, gpus).holds.copy()
    for layer, load in enumerate(routing.loads):
        room = np.full(gpus, spare)
        while True:
            has = holds[layer]
            each = load / has.sum(axis=1)
            held = each @ has
            fullest = int(held.argmax())
            hot = max(np.flatnonzero(has[:, fullest]), key=lambda e: (each[e], -e))
            free = np.flatnonzero((room > 0) & ~has[hot])
            if not len(free):
                break
            target = int(free[held[free].argmin()])
            trial = has.copy()
            trial[hot, target] = True
            after = (load / trial.sum(axis=1)) @ trial
            if after.max() >= held.max() - 1e-12:
                break
            holds[layer] = trial
            room[target] -= 1
    return Copies(holds)


def balance_copies(routing: Routing, gpus: int, spare: int = 0) -> Copies:
    """Places for even loads alone: the hottest experts are copied, then the largest goes to the emptiest GPU.

    Raises
    ------
    LoomError
        When experts and spare places do not divide.
    """
    experts = routing.experts
    if experts % gpus:
        raise LoomError(f"experts: {experts} cannot lie on {gpus} GPUs, equally many on each")
    places = experts // gpus + spare
    holds = np.zeros((routing.layers, experts, gpus), bool)
    for layer, load in enumerate(routing.loads):
        copies = np.ones(experts, np.int64)
        for _ in range(spare * gpus):
            each = np.where(copies < gpus, load / copies, -1.0)
            if each.max() < 0:
                break
            copies[int(each.argmax())] += 1
        room, held = np.full(gpus, places), np.zeros(gpus)
        for expert in np.argsort(-load / copies, kind="stable").tolist():
            for _ in range(int(copies[expert])):
                free = np.flatnonzero((room > 0) & ~holds[layer, expert])
                if not len(free):
                    break  # there is room for the first of each, not always for every copy
                target = int(free[held[free].argmin()])
                holds[layer, expert, target] = True
                room[target] -= 1
                held[target] += load[expert] / copies[expert]
    return Copies(holds)


def expert_hops(routing: Routing, copies: Copies) -> tuple[float, Float]:
    """Hops of a token in all layers, and each GPU's tokens [layers, GPUs], with tokens that stay where they can.

    The next expert depends on the last one alone, as the counts of transitions have it.
    """
    holds = copies.holds.astype(np.float64)
    share = holds / holds.sum(axis=2, keepdims=True)
    mass = routing.loads[0][:, None] * share[0] / routing.loads[0].sum()
    hops, each = 0.0, [mass.sum(axis=0)]
    for layer, transition in enumerate(routing.transitions):
        leaving = transition.sum(axis=1, keepdims=True)
        arriving = (transition / np.where(leaving > 0, leaving, 1.0)).T @ mass  # [next expert, GPU that it comes from]
        stays = arriving * holds[layer + 1]
        moves = (arriving - stays).sum(axis=1)
        hops += float(moves.sum())
        mass = stays + moves[:, None] * share[layer + 1]
        each.append(mass.sum(axis=0))
    return hops, np.stack(each) * routing.loads.sum(axis=1, keepdims=True)
