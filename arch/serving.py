"""How requests are served: scheduler, memory of keys and values, replicas, prices and objectives (``serve.`` keys).

Defaults are those of vLLM's v1 engine where it has them: 256 sequences, 2,048 tokens a step, chunked prompts, blocks of
16 tokens, nine tenths of the memory, cached prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from itertools import accumulate, pairwise
from operator import mul
from typing import Annotated

from pydantic import Field, model_validator

from siliconloom.arch.document import Description, Document, Name, rule_at
from siliconloom.arch.gpu import LEAST_CLOCK
from siliconloom.arch.quantity import Bandwidth, Bytes

PICOSECONDS = 1e12
"""Of a second."""
MOST_SEQUENCES = 65536
MOST_REQUESTS = 10_000_000
MOST_BLOCK = 65536
"""Tokens of a block of the cache."""


class Batching(StrEnum):
    """Which requests a step works on.

    ``continuous``: next tokens first, then prompts in chunks, up to a budget of tokens (Sarathi-Serve, SplitFuse, vLLM
    v1). ``prefill_first``: whole prompts as soon as there is room, next tokens only in steps without any (Orca, vLLM
    v0). ``static``: a batch begins when the one before has ended, and all its answers come at its end.
    """

    CONTINUOUS = "continuous"
    PREFILL_FIRST = "prefill_first"
    STATIC = "static"


class Order(StrEnum):
    """Which waiting request is next.

    By arrival, by priority (lower first), the shortest prompt, or one of the client that has had least so far, by the
    trace's ``client`` (Virtual Token Counter: tokens of answers count twice; Sheng et al., OSDI 2024).
    """

    FCFS = "fcfs"
    PRIORITY = "priority"
    SHORTEST = "shortest"
    FAIR = "fair"


class Preemption(StrEnum):
    """What becomes of a request's keys and values when memory is short: made anew, or moved to the host and back."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


class Router(StrEnum):
    """Which replica a request goes to.

    One after the other, where fewest tokens are due, where its prefix lies, or where its adapter or its model does.
    """

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    PREFIX = "prefix"
    RESIDENT = "resident"


class Arrivals(StrEnum):
    """When requests come: as the trace says, or by a process of the given rate."""

    TRACE = "trace"
    POISSON = "poisson"
    GAMMA = "gamma"
    UNIFORM = "uniform"
    AT_ONCE = "at_once"


Share = Annotated[float, Field(gt=0, le=1, strict=False)]
Whole = Annotated[int, Field(strict=True)]
MOST_PLACES = 64
"""Places behind a request's last token, or branches of one."""
MOST_GUESSES = 1024
"""Of a tree, in a step of one request."""
NOTHING_DRAWN = (
    "changes nothing: nothing is drawn (serve.arrivals poisson or gamma, serve.lost_every, serve.speculate, "
    "serve.expert_slots)"
)
NOT_BESIDE_TRAINING = (
    "speculate",
    "shared_attention",
    "model_slots",
    "replicas_least",
    "lost_every",
    "migrate_below",
    "power_limit",
)
"""Keys under which nothing is trained."""
Acceptances = Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1, max_length=64)]


class SpillTier(Description):
    """A slower memory, in which prefixes stay longer than in that of a replica's chips: of each, or shared by all."""

    name: Name = Field(description="as in host, cxl, ssd")
    capacity: Bytes = Field(description="of one replica, or of all where it is shared")
    bandwidth: Bandwidth = Field(description="to all chips of a replica together")
    shared: bool = Field(default=False, description="a store of all replicas, which find there what others computed")


class ServeSettings(Description):
    """Everything under ``serve.``; see `docs/serving.md`.

    Parameters
    ----------
    requests, skip
        How many requests of the trace are served, after so many others.
    rate, arrivals, burstiness, seed
        Requests a second: a trace's times are scaled to it, a process draws with it. ``burstiness`` is the coefficient
        of variation of gamma-distributed gaps (1 is Poisson).
    batching, max_sequences, token_budget, chunked, order, preemption
        The scheduler of one replica.
    block, page, memory_share, watermark, prefix_cache, shared_attention, cache_tokens, host_bandwidth
        Memory of keys and values: tokens of a block, or bytes of a page of the chip's memory where each request's keys,
        and values, of a layer lie at addresses in a row (vAttention, Prabhu et al., ASPLOS 2025), share of the chips'
        memory that may be used at all, share of the blocks that stays free when a request is admitted, whether next
        tokens attend together to cached blocks that their requests share (Hydragen, Juravsky et al., 2024), room in
        tokens in place of what memory leaves, and bandwidth to the host where requests are swapped.
    spill
        Slower memories for prefixes, the fastest first: host, CXL, SSD, a store of all replicas.
    adapter_rank, adapter_slots
        Rank of the LoRA adapters that the trace names, and how many of them a replica has room for; others are loaded
        from the host as their requests are taken up.
    model_slots, model_bandwidth
        Models of one architecture that the trace names and a replica serves: how many of them lie in its memory at
        once, and bytes a second at which another one is brought (composition of experts, Samba-CoE on SN40L).
    expert_slots, expert_bandwidth, expert_ahead
        Experts of each layer that lie on a replica's chips, bytes a second at which others come from the host, and
        whether the layer before says which are used (Pre-gated MoE, Hwang et al., ISCA 2024).
    tune_sequence, tune_rank, tune_step_s
        Training of a LoRA adapter in what steps leave over: tokens of a sequence, rank, and seconds that a step with a
        window of training may take (FlexLLM, Oliaro et al., 2024).
    speculate, acceptance, draft
        Tokens that are guessed for every request in each step, the chance that one is right where those before it are
        (one for all, or one for each position), and the model that guesses; without one, heads or tables that take no
        time. A step checks the guesses and one token more (Leviathan et al., ICML 2023). Where ``speculate`` is a list,
        guesses are a tree: so many follow the token before, then each of those; ``acceptance`` is then the chance of
        the likeliest of them, of the next likely one, and so on (SpecInfer, Sequoia, Medusa).
    draft_on, draft_latency_s, draft_tensor, draft_price, draft_ahead
        A machine of its own for the model that guesses, one beside each replica (Dovetail, Zhang et al., 2024), seconds
        one way between the two, chips that the model is divided over there, or of the replica's, dollars for an hour of
        that machine, and whether it guesses on while guesses are checked (PEARL, Liu et al., ICLR 2025).
    prefill_replicas, router
        Replicas that do prompts only and hand keys and values over (the others make the tokens), and who gets what.
    replicas_least, replicas_most, scale_at, start_s
        Fewest and most replicas, the tokens that may be due at each before another one is started, and seconds until
        that one takes requests.
    lost_every, restart_s
        Mean seconds of a replica's life, which is exponential, and seconds until another one is in its place.
    migrate_below, migrate_above, migrate_every
        Tokens more that each running request of a replica could get, below which its requests move to replicas above
        the other limit (Llumnix), which is twice the first where it is not said; and seconds between two looks.
    power_limit, capped_clock, power_every
        Watts that all chips may draw together, the shares of their clock that they have where they drew more, falling
        (POLCA), and seconds over which power is taken.
    price, electricity
        Dollars for an hour of a chip, and for a kilowatt-hour.
    """

    requests: Annotated[int, Field(ge=1, le=MOST_REQUESTS, strict=True)] | None = None
    skip: Annotated[int, Field(ge=0, le=MOST_REQUESTS, strict=True)] = 0
    rate: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    arrivals: Arrivals = Arrivals.TRACE
    burstiness: Annotated[float, Field(gt=0, le=100)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31, strict=True)] = 0
    batching: Batching = Batching.CONTINUOUS
    max_sequences: Annotated[int, Field(ge=1, le=MOST_SEQUENCES, strict=True)] = 256
    token_budget: Annotated[int, Field(ge=1, le=2**20, strict=True)] = 2048
    chunked: bool = True
    order: Order = Order.FCFS
    preemption: Preemption = Preemption.RECOMPUTE
    block: Annotated[int, Field(ge=1, le=MOST_BLOCK, strict=True)] = 16
    page: Bytes | None = None
    memory_share: Share = 0.9
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    prefix_cache: bool = True
    shared_attention: bool = False
    spill: Annotated[tuple[SpillTier, ...], Field(max_length=8)] = ()
    cache_tokens: Annotated[int, Field(ge=1, le=2**40, strict=True)] | None = None
    host_bandwidth: Bandwidth | None = None
    adapter_rank: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    adapter_slots: Annotated[int, Field(ge=1, le=65536, strict=True)] = 8
    model_slots: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = None
    model_bandwidth: Bandwidth | None = None
    expert_slots: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = None
    expert_bandwidth: Bandwidth | None = None
    expert_ahead: bool = False
    tune_sequence: Annotated[int, Field(ge=1, le=2**20, strict=True)] | None = None
    tune_rank: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    tune_step_s: Annotated[float, Field(gt=0, le=1e3)] | None = None
    speculate: Whole | tuple[Whole, ...] | None = None
    acceptance: Annotated[float, Field(ge=0, le=1)] | Acceptances | None = None
    draft: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    draft_on: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    draft_latency_s: Annotated[float, Field(ge=0, le=1e3)] | None = None
    draft_tensor: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = None
    draft_price: Annotated[float, Field(ge=0, le=1e6)] | None = None
    draft_ahead: bool = False
    prefill_replicas: Annotated[int, Field(ge=0, le=65536, strict=True)] = 0
    router: Router = Router.ROUND_ROBIN
    replicas_least: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = None
    replicas_most: Annotated[int, Field(ge=1, le=65536, strict=True)] | None = None
    scale_at: Annotated[float, Field(gt=0, le=1e12)] | None = None
    start_s: Annotated[float, Field(ge=0, le=1e9)] | None = None
    lost_every: Annotated[float, Field(ge=1e-3, le=1e12)] | None = None
    restart_s: Annotated[float, Field(ge=0, le=1e9)] | None = None
    migrate_below: Annotated[float, Field(gt=0, le=1e9)] | None = None
    migrate_above: Annotated[float, Field(gt=0, le=1e9)] | None = None
    migrate_every: Annotated[float, Field(ge=1e-3, le=1e6)] = 1.0
    power_limit: Annotated[float, Field(gt=0, le=1e12)] | None = None
    capped_clock: float | tuple[float, ...] | None = None
    power_every: Annotated[float, Field(ge=1e-3, le=1e6)] = 2.0
    price: Annotated[float, Field(ge=0, le=1e6)] | None = None
    electricity: Annotated[float, Field(ge=0, le=1e3)] = 0.1

    @model_validator(mode="after")
    def _keys_that_do_nothing(self) -> ServeSettings:
        given = self.model_fields_set
        drawn = self.arrivals in (Arrivals.POISSON, Arrivals.GAMMA) or self.speculate is not None
        drawn = drawn or self.lost_every is not None or self.expert_slots is not None
        for key, does, why in (
            ("burstiness", self.arrivals is Arrivals.GAMMA, "is of serve.arrivals gamma"),
            ("seed", drawn, NOTHING_DRAWN),
            (
                "host_bandwidth",
                self.preemption is Preemption.SWAP or self.adapter_rank is not None,
                "changes nothing without serve.preemption swap or serve.adapter_rank",
            ),
            ("acceptance", self.speculate is not None, "changes nothing without serve.speculate"),
            ("draft", self.speculate is not None, "changes nothing without serve.speculate"),
            ("draft_on", self.draft is not None, "changes nothing without serve.draft"),
            ("draft_tensor", self.draft is not None, "changes nothing without serve.draft"),
            ("draft_latency_s", self.draft_on is not None, "changes nothing without serve.draft_on"),
            ("draft_price", self.draft_on is not None, "changes nothing without serve.draft_on"),
            ("draft_ahead", self.draft_on is not None, "needs a machine that has nothing else to do, serve.draft_on"),
            ("adapter_slots", self.adapter_rank is not None, "changes nothing without serve.adapter_rank"),
            ("model_bandwidth", self.model_slots is not None, "changes nothing without serve.model_slots"),
            ("expert_bandwidth", self.expert_slots is not None, "changes nothing without serve.expert_slots"),
            ("expert_ahead", self.expert_slots is not None, "changes nothing without serve.expert_slots"),
            ("chunked", self.batching is Batching.CONTINUOUS, "is of serve.batching continuous"),
            ("token_budget", self.batching is not Batching.STATIC, "is not of serve.batching static"),
        ):
            if key in given and not does and getattr(self, key) != type(self).model_fields[key].default:
                raise rule_at(key, why, getattr(self, key))
        if self.arrivals is Arrivals.AT_ONCE and self.rate is not None:
            raise rule_at("rate", "changes nothing: serve.arrivals at_once", self.rate)
        if self.arrivals not in (Arrivals.TRACE, Arrivals.AT_ONCE) and self.rate is None:
            raise rule_at("arrivals", f"{self.arrivals.value} needs serve.rate, requests a second", self.arrivals.value)
        if self.arrivals is Arrivals.GAMMA and self.burstiness is None:
            raise rule_at("arrivals", "gamma needs serve.burstiness", "gamma")
        if self.preemption is Preemption.SWAP and self.host_bandwidth is None:
            raise rule_at("preemption", "swap needs serve.host_bandwidth", "swap")
        if self.prefill_replicas and self.batching is Batching.STATIC:
            raise rule_at("prefill_replicas", "is not of serve.batching static", self.prefill_replicas)
        if self.spill:
            if self.batching is Batching.STATIC:
                raise rule_at("spill", "is not of serve.batching static")
            if not self.prefix_cache:
                raise rule_at("spill", "changes nothing without serve.prefix_cache")
            names = [tier.name for tier in self.spill]
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise rule_at("spill", "names of tiers differ", twice)
            for at, (upper, tier) in enumerate(pairwise(self.spill), 1):
                if tier.bandwidth >= upper.bandwidth:
                    raise rule_at(f"spill.{at}.bandwidth", f"must be less than that of {upper.name}, before it")
                if tier.capacity <= upper.capacity:
                    rule = f"changes nothing: {upper.name}, before it, holds all that it could"
                    raise rule_at(f"spill.{at}.capacity", rule)
        if self.shared_attention:
            for does, why in (
                (self.batching is not Batching.STATIC, "is not of serve.batching static"),
                (self.prefix_cache, "changes nothing without serve.prefix_cache"),
                (self.max_sequences > 1, "changes nothing: a step has one request (serve.max_sequences)"),
                (
                    not self.prefill_replicas,
                    "changes nothing: what is handed over is shared with nobody (serve.prefill_replicas)",
                ),
            ):
                if not does:
                    raise rule_at("shared_attention", why, True)
        if self.speculate is not None:
            widths = self.speculate if isinstance(self.speculate, tuple) else (self.speculate,)
            if not 1 <= len(widths) <= MOST_PLACES or not all(1 <= each <= MOST_PLACES for each in widths):
                shown = list(widths) if isinstance(self.speculate, tuple) else self.speculate
                raise rule_at("speculate", f"whole numbers are from 1 to {MOST_PLACES}", shown)
            if self.acceptance is None:
                raise rule_at("speculate", "needs serve.acceptance, the chance that a guess is right", self.speculate)
            self._check_guesses(self.speculate, self.acceptance)
            if self.batching is Batching.STATIC:
                raise rule_at("speculate", "is not of serve.batching static", self.speculate)
        self._check_draft()
        if self.adapter_rank is not None and self.host_bandwidth is None:
            raise rule_at("adapter_rank", "needs serve.host_bandwidth: adapters come from there", self.adapter_rank)
        if self.page is not None:
            for key, why in (
                ("block", "has as many tokens as a page of serve.page"),
                ("draft", "has keys and values of its own, whose pages hold other tokens than those of serve.page"),
            ):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise rule_at(key, why, getattr(self, key))
        self._check_models()
        self._check_experts()
        self._check_tuning()
        self._check_elastic()
        return self

    def _check_tuning(self) -> None:
        """Refuse training in steps that are of one kind of work, or of replicas that come and go."""
        for key, what in (("tune_rank", "of the adapter"), ("tune_step_s", "seconds that a step may take")):
            if self.tune_sequence is None and getattr(self, key) is not None:
                raise rule_at(key, "changes nothing without serve.tune_sequence", getattr(self, key))
            if self.tune_sequence is not None and getattr(self, key) is None:
                raise rule_at("tune_sequence", f"needs serve.{key}, {what}", self.tune_sequence)
        for key, beside in (
            ("batching static", self.batching is Batching.STATIC),
            *((key, bool(getattr(self, key))) for key in NOT_BESIDE_TRAINING),
        ):
            if self.tune_sequence is not None and beside:
                raise rule_at("tune_sequence", f"is not of serve.{key}", self.tune_sequence)

    def _check_models(self) -> None:
        """Refuse models that come and go where what goes from step to step would be of one."""
        if self.model_slots is None:
            return
        if self.model_bandwidth is None:
            rule = "needs serve.model_bandwidth, bytes a second at which another model is brought"
            raise rule_at("model_slots", rule, self.model_slots)
        for key, beside in (
            ("batching static", self.batching is Batching.STATIC),
            ("speculate", self.speculate is not None),
            ("shared_attention", self.shared_attention),
            ("adapter_rank", self.adapter_rank is not None),
        ):
            if beside:
                raise rule_at("model_slots", f"is not of serve.{key}", self.model_slots)

    def _check_experts(self) -> None:
        """Refuse experts on the host where steps are of several models, or of passes that are not the model's."""
        if self.expert_slots is None:
            return
        if self.expert_bandwidth is None:
            rule = "needs serve.expert_bandwidth, bytes a second at which others come from the host"
            raise rule_at("expert_slots", rule, self.expert_slots)
        for key in ("model_slots", "tune_sequence"):
            if getattr(self, key) is not None:
                raise rule_at("expert_slots", f"is not of serve.{key}", self.expert_slots)

    def _check_draft(self) -> None:
        """Refuse a draft model on a machine of its own where its keys and values would have to follow requests."""
        if self.draft_on is None:
            return
        if self.draft_latency_s is None:
            raise rule_at("draft_on", "needs serve.draft_latency_s, seconds one way to that machine", self.draft_on)
        if self.draft_ahead and isinstance(self.speculate, tuple) and max(self.speculate) > 1:
            rule = "is of chains of guesses, and serve.speculate is a tree"
            raise rule_at("draft_ahead", rule, self.draft_ahead)
        for key, apart in (
            ("prefill_replicas", self.prefill_replicas > 0),
            ("migrate_below", self.migrate_below is not None),
            ("spill", bool(self.spill)),
            ("preemption", self.preemption is Preemption.SWAP),
            ("power_limit", self.power_limit is not None),
        ):
            if apart:
                raise rule_at("draft_on", f"is not of serve.{key}", self.draft_on)

    def _check_elastic(self) -> None:
        """Refuse keys of replicas that come and go where others make nothing of them."""
        least, most = self.replicas_least, self.replicas_most
        for key in ("replicas_most", "scale_at", "start_s"):
            if least is None and getattr(self, key) is not None:
                raise rule_at(key, "changes nothing without serve.replicas_least", getattr(self, key))
        if least is not None:
            for key, what in (("scale_at", "tokens that may be due at a replica"), ("start_s", "seconds of a start")):
                if getattr(self, key) is None:
                    raise rule_at("replicas_least", f"needs serve.{key}, {what}", least)
            if most is not None and most <= least:
                raise rule_at("replicas_most", f"must be more than serve.replicas_least, {least}", most)
        if self.lost_every is None and self.restart_s is not None:
            raise rule_at("restart_s", "changes nothing without serve.lost_every", self.restart_s)
        if self.lost_every is not None and self.restart_s is None:
            raise rule_at(
                "lost_every", "needs serve.restart_s, seconds until there is another replica", self.lost_every
            )
        self._check_migration()
        for key in ("capped_clock", "power_every"):
            if self.power_limit is None and getattr(self, key) != type(self).model_fields[key].default:
                raise rule_at(key, "changes nothing without serve.power_limit", getattr(self, key))
        if self.power_limit is not None and self.capped_clock is None:
            raise rule_at(
                "power_limit", "needs serve.capped_clock, shares of the clock that are had above it", self.power_limit
            )
        if self.capped_clock is not None and not self.clocks:
            raise rule_at("capped_clock", "must have a share of the clock at least", [])
        if any(not LEAST_CLOCK <= clock < 1 for clock in self.clocks):
            raise rule_at("capped_clock", f"shares of the clock are from {LEAST_CLOCK:g} to below 1", list(self.clocks))
        if any(low >= high for high, low in pairwise(self.clocks)):
            raise rule_at("capped_clock", "shares of the clock must fall", list(self.clocks))
        for key in ("replicas_least", "lost_every", "migrate_below", "power_limit"):
            if getattr(self, key) is not None and self.batching is Batching.STATIC:
                raise rule_at(key, "is not of serve.batching static", getattr(self, key))
            if getattr(self, key) is not None and self.prefill_replicas:
                raise rule_at(key, "is not of serve.prefill_replicas", getattr(self, key))

    @staticmethod
    def _check_guesses(speculate: int | tuple[int, ...], acceptance: float | tuple[float, ...]) -> None:
        """Refuse chances that are not those of the guesses."""
        if isinstance(speculate, int):
            if isinstance(acceptance, tuple) and len(acceptance) != speculate:
                rule = f"has {len(acceptance)} chances for the {speculate} guesses of serve.speculate"
                raise rule_at("acceptance", rule, list(acceptance))
            return
        shown, widest = list(speculate), max(speculate)
        if sum(accumulate(speculate, mul)) > MOST_GUESSES:
            raise rule_at("speculate", f"a tree has at most {MOST_GUESSES:,} guesses", shown)
        if not isinstance(acceptance, tuple) or len(acceptance) != widest:
            rule = f"of a tree is a list: the chance of each of the {widest} tokens that are guessed in one place"
            raise rule_at("acceptance", rule, list(acceptance) if isinstance(acceptance, tuple) else acceptance)
        if any(later > earlier for earlier, later in pairwise(acceptance)):
            raise rule_at(
                "acceptance", "of a tree falls: the likeliest token of a place is the first", list(acceptance)
            )
        if sum(acceptance) > 1 + 1e-9:
            raise rule_at("acceptance", "one of the tokens in one place is right at most: chances add up to 1", None)

    def _check_migration(self) -> None:
        """Refuse keys of requests that move where none do, and limits that both hold."""
        below, above = self.migrate_below, self.migrate_above
        for key in ("migrate_above", "migrate_every"):
            if below is None and getattr(self, key) != type(self).model_fields[key].default:
                raise rule_at(key, "changes nothing without serve.migrate_below", getattr(self, key))
        if below is not None and above is not None and above < below:
            raise rule_at("migrate_above", f"must be at least serve.migrate_below, {below:g}", above)

    @property
    def takes_above(self) -> float:
        """Tokens more that each running request of a replica could get, above which it takes others' requests."""
        return 2 * (self.migrate_below or 0.0) if self.migrate_above is None else self.migrate_above

    @property
    def by_events(self) -> bool:
        """Whether replicas are looked at beside each other, at any time."""
        return self.elastic or self.migrate_below is not None or self.power_limit is not None

    @property
    def elastic(self) -> bool:
        """Whether replicas come and go."""
        return self.replicas_least is not None or self.lost_every is not None

    @property
    def guesses(self) -> tuple[int, ...]:
        """Tokens that are guessed for each place behind a request's last one; none where nothing is guessed."""
        if self.speculate is None:
            return ()
        widths = self.speculate if isinstance(self.speculate, tuple) else (1,) * self.speculate
        return tuple(accumulate(widths, mul))

    @property
    def clocks(self) -> tuple[float, ...]:
        """Shares of the clock below the whole that chips may have, falling."""
        found = self.capped_clock
        return () if found is None else found if isinstance(found, tuple) else (found,)

    @property
    def chances(self) -> tuple[float, ...]:
        """Of each place, that a guess for it is right where those before are; none where nothing is guessed."""
        if self.speculate is None or self.acceptance is None:
            return ()
        if isinstance(self.speculate, tuple):
            assert isinstance(self.acceptance, tuple)
            return tuple(min(sum(self.acceptance[:width]), 1.0) for width in self.speculate)
        return self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,) * self.speculate


def read_settings(given: Sequence[tuple[str, str]]) -> ServeSettings:
    """Settings from ``serve.`` keys and their values as ``--set`` has them; raises `LoomError`."""
    document = Document.of({}, "--set")
    document.override([(path.removeprefix("serve."), value) for path, value in given], "serve.")
    return document.validate(ServeSettings)
