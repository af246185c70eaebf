"""Tilings that nobody estimated: at random, and by small changes of others.

A sample is how the tiles of a chip share an operator, the sizes of a tile, the order of its loops and what stays. The
division of the buffers is free: every ring may have slots of just what tiles take (`exact_fit`), in whole banks. Larger
slots change no cycle of an operator that stands alone, and a tile that has no room in such a division has so in none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

from msgspec import Struct

from siliconloom.arch.description import Chip
from siliconloom.arch.layout import padded, sums_pitch, sums_room
from siliconloom.arch.tile import NpuTile
from siliconloom.arch.vector import COLUMN_LIMIT, ROW_LIMIT
from siliconloom.mapper.chip.attention_cost import attention_needs, carries, key_unit
from siliconloom.mapper.chip.attention_layout import AttentionLayout, may_stay
from siliconloom.mapper.chip.attention_places import most_heads, query_parts
from siliconloom.mapper.chip.gemm_cost import ORDERS, Order
from siliconloom.mapper.chip.gemm_layout import GemmLayout
from siliconloom.mapper.chip.layout import ACCUMULATED, Layout, banks_of, grain_of, sums_taken
from siliconloom.mapper.chip.orientation import oriented
from siliconloom.mapper.chip.sharing import Cut, Share, shares
from siliconloom.mapper.chip.tasks import Task, gemm_shape
from siliconloom.mapper.chip.tile_sizes import grains, is_part
from siliconloom.workloads import Attention, Gemm

SHRUNK = 60
"""How often a tile that has no room is made smaller before it is given up."""
SIZES = {"gemm": ("m", "n", "k"), "attention": ("queries", "keys", "heads")}
"""Of a tile, by the kind of its operator."""
LOOPS = {"gemm": ("order", "resident", "held"), "attention": ("whole", "resident")}
"""What else is decided about it."""

Sizes = dict[str, Any]
"""Of a tile, by the keys of a mapping's description, with what else is decided about the operator."""
Needs = Mapping[str, int]
"""Bytes of a slot, by ring."""


class Sample(Struct, frozen=True):
    """A mapping of one operator; ``apart`` says that values of attention have a ring of their own."""

    share: Share
    sizes: Sizes
    apart: bool = False


def exact_fit(tile: NpuTile, needs: Needs) -> dict[str, int]:
    """Slots of all rings that hold just these bytes, in whole banks; nothing where there is no room for them."""
    grain, line = grain_of(tile), sums_pitch(tile.array)
    slots = {ring: padded(int(need), line if ring in ACCUMULATED else grain) for ring, need in needs.items()}
    layout = Layout(**(dict.fromkeys(Layout.__struct_fields__, 0) | slots))
    sums = sums_taken(tile, layout.partial, layout.context)
    fits = banks_of(tile, layout) <= tile.scratchpad.banks and sums <= sums_room(tile)
    return slots if fits else {}


class Moves:
    """Samples of a task, a product or attention; ``fits`` says whether there is room for what a tile needs.

    ``orders`` are those of a product's outer loops that are tried.
    """

    def __init__(
        self,
        chip: Chip,
        task: Task,
        random: random.Random,
        fits: Callable[[Needs], bool],
        orders: Sequence[Order] = ORDERS[:2],
    ) -> None:
        assert isinstance(chip.tile, NpuTile)
        self.chip, self.tile, self.task, self.random, self.fits = chip, chip.tile, task, random, fits
        self.kind, self.orders = task.operator.kind, orders
        self.shares = [share for _, share in shares(chip, task.operator, task.fused)]
        self._layouts: dict[Cut, GemmLayout] = {}
        self._limits: dict[Cut, dict[str, tuple[int, int]]] = {}

    @property
    def may_lie_apart(self) -> bool:
        """Whether values of attention may have a ring of their own."""
        operator = self.task.operator
        own_values = isinstance(operator, Attention) and not operator.values_in_keys
        return own_values and oriented(self.tile).array.dataflow != "output_stationary"

    def layout(self, share: Share) -> GemmLayout:
        """How operands and results of a share of a product lie."""
        if share.cut not in self._layouts:
            assert isinstance(share.operator, Gemm)
            self._layouts[share.cut] = GemmLayout(self.tile, gemm_shape(share.operator, self.task))
        return self._layouts[share.cut]

    def drawn(self, *, apart: bool) -> Sample:
        """A sample at random; the first ways to share the operator more often than the last ones."""
        share = self.shares[int(len(self.shares) * self.random.random() ** 3)]
        sizes = {key: self._size(share, key) for key in SIZES[self.kind]}
        return self.settled(Sample(share, sizes, apart))

    def changed(self, sample: Sample, *, rings: bool) -> Sample:
        """The same with one thing or two changed; with ``rings`` also whether values have one of their own."""
        r, share, sizes, apart = self.random, sample.share, dict(sample.sizes), sample.apart
        for _ in range(r.choice([1, 1, 2])):
            way = r.choice(["size", "size", "size", "loops", "share"])
            if way == "share" and len(self.shares) > 1:
                share = self.shares[min(int(r.expovariate(0.3)), len(self.shares) - 1)]
            elif way == "loops" and self.kind == "gemm":
                if r.random() < 0.5:
                    sizes["order"] = r.choice(self.orders)
                elif sizes["order"] == "m_kept" and r.random() < 0.5:
                    sizes["held"] = r.randrange(self.limits(share)["k"][0])
                else:
                    sizes["resident"] = r.random() < 0.5
            elif way == "loops" and rings and r.random() < 0.7:
                apart = not apart
            elif way == "loops":
                key = r.choice(LOOPS["attention"])
                sizes[key] = not sizes[key]
            else:
                key = r.choice(SIZES[self.kind])
                sizes[key] = self._near(share, key, sizes[key]) if r.random() < 0.7 else self._size(share, key)
        return self.settled(Sample(share, sizes, apart), kept=True)

    def shrunk(self, sample: Sample) -> Sample:
        """The same with one size of the tile about halved."""
        key = self.random.choice(SIZES[self.kind])
        sizes = sample.sizes | {key: self._smaller(sample.share, key, sample.sizes[key])}
        return self._agreed(Sample(sample.share, sizes, sample.apart))

    def needs(self, sample: Sample) -> Needs:
        """Bytes of a slot of every ring that a sample's tile takes."""
        part, sizes = sample.share.operator, sample.sizes
        if isinstance(part, Gemm):
            return self.layout(sample.share).needs_in(*(sizes[key] for key in ("order", "m", "n", "k", "held")))
        assert isinstance(part, Attention)
        queries, keys, heads, whole = (sizes[key] for key in (*SIZES["attention"], "whole"))
        most = self.limits(sample.share)["keys"][0]
        return attention_needs(self.chip, part, queries, keys, heads, whole, most, apart=sample.apart)

    def limits(self, share: Share) -> dict[str, tuple[int, int]]:
        """For each size of a tile of a share: the whole dimension, and what sizes are multiples of."""
        if share.cut not in self._limits:
            self._limits[share.cut] = self._limits_of(share)
        return self._limits[share.cut]

    def _limits_of(self, share: Share) -> dict[str, tuple[int, int]]:
        part = share.operator
        if isinstance(part, Gemm):
            shape = self.layout(share).shape
            units = (
                unit * (shape.halves if key == "n" else 1)
                for key, unit in zip("mnk", grains(self.tile, shape), strict=True)
            )
            return dict(zip("mnk", zip((shape.most_m, shape.n, shape.k), units, strict=True), strict=True))
        assert isinstance(part, Attention)
        parts = query_parts(part)
        most = max(each.queries for each in parts), max(each.keys for each in parts), most_heads(part)
        tokens = 1, key_unit(self.tile, part, False), 1
        return dict(zip(SIZES["attention"], zip(most, tokens, strict=True), strict=True))

    def settled(self, sample: Sample, *, kept: bool = False) -> Sample:
        """The same with what must agree with the sizes, of a tile that has room if any as small has.

        What is decided beside sizes is drawn, unless it is ``kept``.
        """
        share, sizes, r = sample.share, dict(sample.sizes), self.random
        sizes |= {key: self._rounded(share, key, sizes[key]) for key in SIZES[self.kind]}
        if not kept and self.kind == "gemm":
            sizes |= {"order": r.choice(["n_outer", "m_outer"]), "resident": r.random() < 0.7, "held": 0}
        elif not kept:
            sizes |= {"whole": r.random() < 0.3, "resident": r.random() < 0.7}
        for _ in range(SHRUNK):
            made = self._agreed(Sample(share, sizes, sample.apart))
            if self.fits(self.needs(made)):
                return made
            key = r.choice(SIZES[self.kind])
            sizes[key] = self._smaller(share, key, sizes[key])
        return self._agreed(Sample(share, sizes, sample.apart))

    def _size(self, share: Share, key: str) -> int:
        """A size at random: the whole, an even division, any multiple of the grain, or a part of a grain."""
        whole, grain = self.limits(share)[key]
        way, r = self.random.random(), self.random
        if way < 0.2:
            return whole
        if way < 0.5:
            return self._rounded(share, key, -(-whole // int(2 ** r.uniform(1, max(log2(whole), 1)))))
        if way < 0.9 or grain == 1:
            size = 2 ** r.uniform(0, log2(whole) if whole > 1 else 0)
            return self._rounded(share, key, 8 * round(size / 8) if r.random() < 0.5 and size > 8 else int(size))
        return self._rounded(share, key, max(grain >> r.choice([1, 2, 3]), 1))

    def _near(self, share: Share, key: str, size: int) -> int:
        """A size near another one."""
        whole, grain = self.limits(share)[key]
        parts = -(-whole // size)
        ways = [
            2 * size,
            size // 2,
            size + grain,
            size - grain,
            -(-whole // (parts + 1)),
            -(-whole // max(parts - 1, 1)),
        ]
        return self._rounded(share, key, self.random.choice([*ways, size + 8 * grain, size - 8 * grain]))

    def _rounded(self, share: Share, key: str, size: int) -> int:
        """A size that is legal by itself: the whole, a multiple of the grain, or a part of one that may be used."""
        whole, grain = self.limits(share)[key]
        size = max(size, 1)
        if size >= whole:
            return whole
        part = share.operator
        if size < grain and isinstance(part, Gemm):
            shape = self.layout(share).shape
            halves = shape.halves if key == "n" else 1
            if size % halves == 0 and is_part(self.tile, shape, key, size // halves):
                return size
        return min(padded(size, grain), whole)

    def _smaller(self, share: Share, key: str, size: int) -> int:
        """About half of a size, or of a grain what is half of it."""
        grain = self.limits(share)[key][1]
        half = size // 2
        return self._rounded(share, key, half // grain * grain if half > grain else half)

    def _agreed(self, sample: Sample) -> Sample:
        """The same without what sizes leave no choice about."""
        sizes, limits = dict(sample.sizes), self.limits(sample.share)
        part = sample.share.operator
        if isinstance(part, Gemm):
            layout = self.layout(sample.share)
            shape = layout.shape
            sizes["resident"] = bool(sizes["resident"]) and sizes["k"] == shape.k
            if sizes["order"] == "m_pairs" and not (sizes["resident"] and sizes["m"] < shape.m and not layout.blocks):
                sizes["order"] = "m_outer"
            if sizes["order"] == "m_kept" and not layout.may_stay(sizes["k"]):
                sizes["order"] = "m_outer"
            sizes["resident"] |= sizes["order"] == "m_kept" and sizes["k"] == shape.k
            some = sizes["held"] // sizes["k"] * sizes["k"]  # whole tiles of the depth, and not all of it
            sizes["held"] = some if sizes["order"] == "m_kept" and some < shape.k else 0
            return Sample(sample.share, sizes)
        assert isinstance(part, Attention)
        most = limits["keys"][0]
        whole = bool(sizes["whole"]) and carries(part) and sizes["keys"] < most <= COLUMN_LIMIT
        if whole:
            sizes["keys"] = padded(sizes["keys"], key_unit(self.tile, part, True))
            whole = sizes["keys"] < most
        sizes |= {"whole": whole, "keys": min(sizes["keys"], most)}
        sizes["queries"] = max(min(sizes["queries"], ROW_LIMIT // sizes["heads"]), 1)
        sizes["resident"] = bool(sizes["resident"]) and may_stay(
            AttentionLayout.of(self.chip, part), *(sizes[key] for key in SIZES["attention"])
        )
        return Sample(sample.share, sizes, sample.apart and self.may_lie_apart)


__all__ = ["LOOPS", "SIZES", "Moves", "Needs", "Sample", "Sizes", "exact_fit"]
