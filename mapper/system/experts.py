"""The load of experts' chips under a plan, from a trace of where tokens go.

All chips wait for the one that has most rows, in every layer anew, so what counts of a layer is its fullest chip's load
over the mean. A plan's layers are repetitions of one block, which take as long as each other; they are done one after
the other, and a product's time follows its rows. So a block's load is the mean over the layers of each layer's own. The
worst layer's would have all layers wait as long as it does. What is lost is where a stage's layers are worse than
another's, and that a product's time goes in steps.

Tokens go out from their own chip and come back after every layer, and are sent once for each of their experts, so it
changes nothing which experts of different layers, or of a token, lie on one chip: a placement changes loads alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from siliconloom.mapper.experts import Copies, ModelRouting, Placement, RoutingTrace, place_loads, read_trace
from siliconloom.mapper.system.plan import Plan, refuse_expert_keys
from siliconloom.workloads import Gemm, Graph
from siliconloom.workloads.roles import Pass, Role

KEYS = ("expert_routing", "expert_placement")
"""Keys of a plan that say how its load is found."""
PLACES = 12
"""Decimals of a load: ``plan.expert_load`` may be given as it was found."""


def routing_of_model(graph: Graph) -> ModelRouting:
    """Layers with experts, how many, and how many a token uses; 1 expert where there are none."""
    forward = [o for o in graph.operators() if isinstance(o, Gemm) and o.place.step is Pass.FORWARD]
    found = [o for o in forward if o.chosen is not None and o.role is Role.EXPERT_ROW]
    if not found:
        return ModelRouting(graph.name, 0, 1, 1)
    first = found[0]
    # of a layer the first product says how many experts a token uses; those of other rows have further ones
    stored = sum(o.stored or o.batch for o in found if (o.block, o.place.layer) == (first.block, first.place.layer))
    return ModelRouting(graph.name, sum(o.repeat for o in found if o.chosen), stored, first.chosen or 1)


class PlacedExperts(Struct, frozen=True, eq=False):
    """Experts on the chips of a plan.

    Parameters
    ----------
    holds
        Which chip holds which.
    layers
        [layers]: rows of the fullest chip over the mean.
    """

    holds: Copies
    layers: NDArray[np.float64]

    @property
    def load(self) -> float:
        """``Plan.expert_load``: the mean over the layers."""
        return max(round(float(self.layers.mean()), PLACES), 1.0)


class RoutedExperts:
    """Loads that a trace gives to the chips of any plan; what was found is kept."""

    def __init__(self, trace: RoutingTrace, placement: Placement) -> None:
        self.trace, self.placement = trace, placement
        self._found: dict[tuple[Placement, int, int], PlacedExperts | None] = {}

    def placed(self, plan: Plan, placement: Placement | None = None) -> PlacedExperts | None:
        """Where the experts lie, as asked or by another ``placement``; nothing where they do not divide."""
        key = way, chips, copies = placement or self.placement, plan.expert, plan.expert_copies
        if key not in self._found:
            loads, experts = self.trace.loads, self.trace.loads.shape[1]
            self._found[key] = None
            if experts % chips == 0 and experts // chips + copies <= experts:
                holds = place_loads(loads, chips, way, copies)
                self._found[key] = PlacedExperts(holds, holds.imbalances(loads))
        return self._found[key]

    def load(self, plan: Plan, placement: Placement | None = None) -> float:
        """``Plan.expert_load`` of a plan; 1 where its experts do not divide, which whoever shares them refuses."""
        found = self.placed(plan, placement)
        return 1.0 if found is None else found.load

    def result(self, plan: Plan, *, chips: bool = False) -> dict[str, Any]:
        """What a result says of it (`arch.result.ExpertsResult`); with ``chips`` which chip holds which experts."""
        placed = self.placed(plan)
        assert placed is not None
        found: dict[str, Any] = {
            "routing": self.trace.source,
            "routing_digest": self.trace.digest,
            "tokens": self.trace.tokens,
            "placement": self.placement,
            "load": placed.load,
            "in_order_load": self.load(plan, "in_order"),
            "layer_loads": placed.layers.tolist(),
        }
        if chips:
            held = placed.holds.holds.transpose(0, 2, 1)
            found["chips"] = [[np.flatnonzero(chip).tolist() for chip in layer] for layer in held]
        return found

    def note(self, plan: Plan) -> str:
        """One line for readers."""
        said = f"experts: load {self.load(plan):.4g} by {self.trace.source} ({self.trace.tokens:,} tokens), "
        if self.placement == "in_order":
            return f"{said}in order"
        return f"{said}balanced; in order it is {self.load(plan, 'in_order'):.4g}"


def read_routed(given: Mapping[str, Any], graph: Graph, *, whole: bool = False) -> RoutedExperts | None:
    """Loads from the trace that a plan's keys name; nothing where they name none.

    ``whole`` tells that the keys are of one plan, of which nothing is searched.

    Raises
    ------
    LoomError
        For keys that change nothing, and for a trace that cannot be read or is not the model's.
    """
    model = routing_of_model(graph)
    refuse_expert_keys(given, model.experts, given.get("expert", 1 if whole else None))
    if "expert_routing" not in given:
        return None
    return RoutedExperts(read_trace(given["expert_routing"], model), given.get("expert_placement", "balanced"))


def degrees(given: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a plan without those that say how its load is found."""
    return {key: value for key, value in given.items() if key not in KEYS}
