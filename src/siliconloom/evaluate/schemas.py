"""JSON Schemas of the descriptions, of results, and of the record of a verification."""

from __future__ import annotations

from typing import Any

from siliconloom.arch import Chip, LoomError, System
from siliconloom.arch.errors import nearest_name

KINDS = (
    "chip",
    "system",
    "fleet",
    "gpu",
    "network",
    "communication",
    "mapping",
    "workload",
    "cascade",
    "result",
    "plan",
    "comparison",
    "serving",
    "verification",
    "sweep",
    "sweep-result",
)


def schema_of(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a description, of a result, or of a record of `loom verify`.

    Raises
    ------
    LoomError
        For anything else.
    """
    if kind == "chip":
        made = Chip.model_json_schema()
    elif kind == "system":
        made = System.model_json_schema()
    elif kind == "fleet":
        from siliconloom.arch.fleet import FleetDescription

        made = FleetDescription.model_json_schema()
    elif kind == "gpu":
        from siliconloom.arch.gpu import Gpu

        made = Gpu.model_json_schema()
    elif kind == "network":
        from siliconloom.arch.network import Network

        made = Network.model_json_schema()
    elif kind == "communication":
        from siliconloom.arch.communication import Communication

        made = Communication.model_json_schema()
    elif kind == "mapping":
        from siliconloom.arch.mapping import DescribedMapping

        made = DescribedMapping.model_json_schema()
    elif kind == "workload":
        from siliconloom.workloads import workload_schema

        made = workload_schema()
    elif kind == "cascade":
        from siliconloom.workloads.cascades.described import CascadeDescription

        made = CascadeDescription.model_json_schema()
    elif kind == "result":
        from siliconloom.arch.result import StepResult

        made = StepResult.model_json_schema(by_alias=True)
    elif kind == "plan":
        from siliconloom.arch.planned import PlanResult

        made = PlanResult.model_json_schema(by_alias=True)
    elif kind == "comparison":
        from siliconloom.arch.compared import Comparison

        made = Comparison.model_json_schema(by_alias=True)
    elif kind == "serving":
        from siliconloom.arch.served import ServingResult

        made = ServingResult.model_json_schema(by_alias=True)
    elif kind == "verification":
        from siliconloom.arch.verified import verified_schema

        made = verified_schema()
    elif kind == "sweep":
        from siliconloom.arch.sweep import Sweep

        made = Sweep.model_json_schema(by_alias=True)
    elif kind == "sweep-result":
        from siliconloom.arch.swept import swept_schema

        made = swept_schema()
    else:
        near = nearest_name(kind, KINDS)
        hint = f"; did you mean '{near}'?" if near else ""
        raise LoomError(f"schema: must be one of {', '.join(KINDS)} (got '{kind}'){hint}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
