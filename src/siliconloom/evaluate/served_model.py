"""A model that is served: its graph for any step, a chip's part of it, and what of that lies where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from siliconloom.arch import LoomError, NotSupported
from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError
from siliconloom.arch.quantity import format_bytes
from siliconloom.arch.serving import MOST_BLOCK, ServeSettings
from siliconloom.evaluate.step_costs import Ask
from siliconloom.mapper.system.cluster import Cluster
from siliconloom.mapper.system.inference import Server
from siliconloom.mapper.system.plan import Plan
from siliconloom.sim.service.offload import ExpertRouting
from siliconloom.workloads import Attention, Gemm, Graph, load_workload
from siliconloom.workloads.architecture import MixtureOfExperts
from siliconloom.workloads.load import load_mixtures, workload_document
from siliconloom.workloads.popularity import chances_of
from siliconloom.workloads.roles import EXPERTS, Role

Sets = Sequence[tuple[str, str]]
OF_STEPS = ("phase", "batch", "sequence", "context", "requests", "training_batch", "cache_length")
"""Keys of a workload that the requests say."""


class ServedModel(Struct, frozen=True):
    """A model that requests are answered by: its name, and its graph for any step."""

    name: str
    ask: Ask
    mixtures: Callable[[], list[MixtureOfExperts]] = list
    """Those of its layers, first to last."""

    @property
    def token(self) -> Graph:
        """One next token of one request."""
        return self.ask([("phase", "decode"), ("batch", "1"), ("context", "1")])

    @property
    def vocabulary(self) -> int | None:
        """Tokens that its head tells apart."""
        return next((o.n for o in self.token.operators() if isinstance(o, Gemm) and o.role is Role.HEAD), None)

    def last_token(self, length: int) -> Graph:
        """The last token of a request of so many."""
        return self.ask([("phase", "decode"), ("batch", "1"), ("context", str(length))])


def read_model(name: str | Document, sets: Sets) -> ServedModel:
    """A model by file or library name, or as a document; ``sets`` are overrides of its workload without ``workload.``.

    Raises
    ------
    LoomError
        For keys that the requests say.
    NotSupported
        For models that make no tokens one after the other over a cache.
    """
    for path, value in sets:
        if path.partition(".")[0].partition("[")[0] in OF_STEPS:
            raise LoomError(f"--set workload.{path}={value}: the requests say this of every step")
    given = list(sets)

    def ask(step: Sets) -> Graph:
        try:
            return load_workload(name, [*given, *step])
        except NotSupported:
            raise
        except LoomError as error:
            _, told, why = str(error).partition("not supported: ")
            if told:  # of keys that nobody gave: a step's own
                raise NotSupported(f"serving {name}: {why}") from None
            if isinstance(error, DescriptionError) and error.position.source.startswith(_given_by(step)):
                raise LoomError(error.rule) from None
            raise

    kind = workload_document(name)[0].data.get("kind")
    if kind is not None and kind != "transformer":
        raise LoomError(f"serving {name}: requests are answered by language models (kind: transformer), not by {kind}")
    model = ServedModel(str(name), ask, partial(load_mixtures, name, given))
    graph = ask([("requests", "[{new: 1, context: 1}]")])
    if not any(isinstance(o, Attention) for o in graph.operators()):
        raise NotSupported(f"serving {name}: it has no attention, and no cache")
    return model


def _given_by(step: Sets) -> tuple[str, ...]:
    """How errors begin that point at a step's own keys, which nobody gave."""
    return tuple(f"--set workload.{key}=" for key, _ in step)


def part_of(cluster: Cluster, model: ServedModel, plan: Plan, sets: Sets = ()) -> Graph:
    """One chip's part of a step under a plan; raises `LoomError` where the model cannot be shared so."""
    server = Server(cluster.part(plan.chips), model.ask(sets) if sets else model.token)
    server.check(plan)
    return server.layers.part(plan, server.batch)


def page_tokens(part: Graph, model: ServedModel, page: int) -> int:
    """Tokens whose keys, or values, of a layer a page of a chip's memory holds; ``part`` is a chip's.

    Raises
    ------
    LoomError
        Where a page has no room for one, or for more than a block may have.
    NotSupported
        Where layers keep rows of different widths.
    """
    rows = cache_rows(part)
    if len(set(rows)) > 1:
        raise NotSupported(f"serve.page of {model.name}, whose layers keep rows of {min(rows)} and {max(rows)} bytes")
    tokens = page // rows[0]
    if not 1 <= tokens <= MOST_BLOCK:
        raise LoomError(
            f"serve.page {format_bytes(page)}: a token's keys of a layer of {model.name} take {rows[0]:,} bytes of a "
            f"chip, and a page holds 1 to {MOST_BLOCK:,} of them"
        )
    return tokens


def cache_rows(part: Graph) -> list[int]:
    """Bytes of a token's keys, and of its values, in each layer of a chip's part that keeps them; a latent is one."""
    found = []
    for append, attention in part.caches():
        halves = 1 if attention.values_in_keys else 2
        found += [append.row_bytes // halves] * (halves * append.repeat)
    return found


def offloaded_bytes(part: Graph, model: ServedModel, settings: ServeSettings) -> float:
    """Bytes of a chip's part of the weights that lie in the host's memory: experts beyond `ServeSettings.expert_slots`.

    Raises
    ------
    LoomError
        Where all of a layer's experts would be on the chips, or the model has none.
    NotSupported
        Where layers have different experts.
    """
    if settings.expert_slots is None:
        return 0.0
    mixture, _ = routed(model)
    if settings.expert_slots >= mixture.experts:
        raise LoomError(
            f"serve.expert_slots {settings.expert_slots}: changes nothing: a layer of {model.name} has "
            f"{mixture.experts} experts"
        )
    return expert_bytes(part) * (1 - settings.expert_slots / mixture.experts)


def expert_bytes(part: Graph) -> float:
    """Bytes of all layers' experts."""
    return float(sum(o.weight_bytes * o.repeat for o in part.operators() if o.role in EXPERTS))


def routed(model: ServedModel) -> tuple[MixtureOfExperts, int]:
    """The mixture of experts that layers have, and how many have it; raises as `offloaded_bytes`."""
    mixtures = model.mixtures()
    if not mixtures:
        raise LoomError(f"serve.expert_slots: no layer of {model.name} that runs has experts")
    if len({(each.experts, each.top_k, each.intermediate, each.popularity) for each in mixtures}) > 1:
        raise NotSupported(f"serve.expert_slots of {model.name}, whose layers have different experts")
    return mixtures[0], len(mixtures)


def routing_of(cluster: Cluster, model: ServedModel, plan: Plan, settings: ServeSettings) -> ExpertRouting | None:
    """Experts of which a replica's chips have some, and what bringing another one takes; none where all are there."""
    if settings.expert_slots is None:
        return None
    assert settings.expert_bandwidth is not None
    mixture, layers = routed(model)
    if settings.expert_ahead and layers == 1:
        raise LoomError(
            "serve.expert_ahead true: changes nothing: no layer with experts is before the one that has them"
        )
    used = mixture.experts if mixture.dense else mixture.top_k
    chances = chances_of(mixture.popularity or (1.0,) * mixture.experts, used)
    whole = expert_bytes(part_of(cluster, model, plan)) * plan.chips
    load_s = whole / (layers * mixture.experts) / settings.expert_bandwidth
    return ExpertRouting(layers, tuple(chances), settings.expert_slots, load_s, settings.expert_ahead)


__all__ = [
    "OF_STEPS",
    "ServedModel",
    "cache_rows",
    "offloaded_bytes",
    "page_tokens",
    "part_of",
    "read_model",
    "routed",
    "routing_of",
]
