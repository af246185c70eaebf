"""One way to split a model over chips, and the model's figures that its costs follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.errors import nearest_name
from siliconloom.workloads import Attention, Gemm, Graph

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
Recompute = Literal["none", "selective", "full"]
AttentionKernel = Literal["flash", "unfused"]


@dataclass(frozen=True)
class Plan:
    """Degrees of parallelism and how a step is run.

    Parameters
    ----------
    data, tensor, pipeline
        Chips along each dimension; their product is all chips.
    microbatch
        Sequences that go through a pipeline together, per replica.
    schedule, chunks
        Order of the pipeline's passes; stages of each device, above 1 for interleaved only.
    zero
        What the data-parallel replicas share (Rajbhandari et al., SC 2020): 0 nothing, 1 the optimizer's state, 2 the
        gradients too, 3 the parameters too.
    recompute
        Activations computed again in the backward pass: none, those of attention, or all of a layer.
    sequence_parallel
        Norms and dropouts are shared over the tensor-parallel chips (Korthikanti et al., 2022).
    attention
        One fused kernel, or products with their scores in memory.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    microbatch: int = 1
    schedule: ScheduleName = "1f1b"
    chunks: int = 1
    zero: int = 0
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    attention: AttentionKernel = "flash"

    @property
    def chips(self) -> int:
        return self.data * self.tensor * self.pipeline

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def text(self) -> str:
        """``data 8, tensor 4, pipeline 2, microbatch 1, 1f1b``."""
        parts = [f"data {self.data}", f"tensor {self.tensor}", f"pipeline {self.pipeline}"]
        parts += [f"microbatch {self.microbatch}", self.schedule + (f" x{self.chunks}" if self.chunks > 1 else "")]
        if self.zero:
            parts.append(f"ZeRO-{self.zero}")
        if self.sequence_parallel:
            parts.append("sequence parallel")
        if self.recompute != "none":
            parts.append(f"recompute {self.recompute}")
        return ", ".join(parts)


_KEYS: dict[str, Any] = {
    "data": int, "tensor": int, "pipeline": int, "microbatch": int, "chunks": int, "zero": int,
    "sequence_parallel": bool, "schedule": get_args(ScheduleName), "recompute": get_args(Recompute),
    "attention": get_args(AttentionKernel),
}  # fmt: skip


def parse_plan(assignments: list[tuple[str, str]]) -> dict[str, Any]:
    """Values of ``--set plan.KEY=VALUE``; raises `LoomError` for unknown keys and values."""
    found: dict[str, Any] = {}
    for key, text in assignments:
        shown = f"--set plan.{key}={text}"
        kind = _KEYS.get(key)
        if kind is None:
            near = nearest_name(key, _KEYS)
            raise LoomError(f"{shown}: unknown key; " + (f"did you mean '{near}'?" if near else ", ".join(_KEYS)))
        if kind is int:
            low = 0 if key == "zero" else 1
            if not text.strip().isdigit() or int(text) < low or (key == "zero" and int(text) > 3):
                raise LoomError(f"{shown}: must be a whole number from {low}" + (" to 3" if key == "zero" else ""))
            found[key] = int(text)
        elif kind is bool:
            if text.strip().lower() not in ("true", "false"):
                raise LoomError(f"{shown}: must be true or false")
            found[key] = text.strip().lower() == "true"
        else:
            if text not in kind:
                near = nearest_name(text, kind)
                raise LoomError(
                    f"{shown}: must be one of {', '.join(kind)}" + (f"; did you mean '{near}'?" if near else "")
                )
            found[key] = text
    return found


@dataclass(frozen=True)
class Shape:
    """Figures of a transformer whose layers are alike.

    Parameters
    ----------
    hidden, inner, heads, kv_heads, head_dim, layers, vocabulary
        As usual; ``inner`` is the width between the feed-forward products.
    sequence
        Tokens of a sequence.
    layer_parameters, end_parameters
        Of one layer; of embedding and head together.
    element
        Bytes of a parameter in the forward pass.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocabulary: int
    sequence: int
    layer_parameters: int
    end_parameters: int
    element: float

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.end_parameters


def shape_of(graph: Graph) -> Shape:
    """Read the figures off a forward or training graph.

    Raises
    ------
    NotSupported
        For models whose layers differ, or mixtures of experts.
    """
    layers = [o for o in graph.operators() if o.block == "layer"]
    attentions = [o for o in layers if isinstance(o, Attention)]
    products = {o.name.rpartition(".")[2]: o for o in layers if isinstance(o, Gemm)}
    if len(attentions) != 1 or "down" not in products or "output" not in products:
        raise NotSupported(f"planning {graph.name}: its layers must be alike, each with one attention and a plain MLP")
    if any(o.batch > 1 for o in products.values()):
        raise NotSupported(f"planning {graph.name}: mixtures of experts")
    attention, down = attentions[0], products["down"]
    head = next(o for o in graph.operators() if o.name == "head")
    assert isinstance(head, Gemm)
    layer_parameters = sum(o.parameters for o in layers)
    ends = sum(o.parameters for o in graph.operators() if o.block in ("embedding", "head"))
    return Shape(
        hidden=down.n, inner=down.k, heads=attention.heads, kv_heads=attention.kv_heads, head_dim=attention.head_dim,
        layers=attention.repeat, vocabulary=head.n, sequence=attention.q_len, layer_parameters=layer_parameters,
        end_parameters=ends, element=graph.precision.size(1000) / 1000,
    )  # fmt: skip
