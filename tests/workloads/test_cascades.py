"""Cascades of extended Einsums: what they compute, how often they pass over a rank, what lives in between."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from siliconloom.arch.document import Document
from siliconloom.arch.errors import LoomError, NotSupported
from siliconloom.workloads.cascades.described import build_cascade, load_cascade
from siliconloom.workloads.cascades.einsum import EinsumNumber
from siliconloom.workloads.cascades.interpret import CascadeValues
from siliconloom.workloads.cascades.names import cascade_names
from siliconloom.workloads.cascades.passes import plan_passes
from siliconloom.workloads.cascades.tiles import PRODUCT, kernel_traffic, least_tiled, tiled_elements
from siliconloom.workloads.cascades.traffic import (
    blocks,
    compulsory_traffic,
    divisors,
    footprint,
    fused_traffic,
    group_traffic,
    unfused_traffic,
)

ATTENTION = {"attention-3-pass": {}, "attention-2-pass": {}, "fusemax": {"M0": 2}, "flash-attention-2": {"J": 2}}


def sized(name, **ranks):
    known = load_cascade(name).extents
    sizes = {"B": 1, "P0": 1, "T0": 1, **ranks}
    return load_cascade(name, [(rank, str(size)) for rank, size in sizes.items() if rank in known])


def drawn(cascade, seed, names=None, low=-2.0, high=2.0):
    generator = np.random.default_rng(seed)
    shape = {name: [cascade.extents[r] for r in cascade.ranks_of(name)] for name in names or cascade.inputs}
    return {name: generator.uniform(low, high, size) for name, size in shape.items()}


@pytest.mark.parametrize("name", ATTENTION)
@given(seed=st.integers(0, 99), tiles=st.integers(1, 3), p=st.integers(1, 3), scale=st.sampled_from([1.0, 30.0]))
@settings(max_examples=15)
def test_every_attention_is_softmax_attention(name, seed, tiles, p, scale):
    """Also where exponentials without the maximum would overflow."""
    sizes = {**ATTENTION[name], "M": 2 * tiles, "P": p, "E": 2, "F": 3}
    cascade = sized(name, H=1, **sizes)
    generator = np.random.default_rng(seed)
    q, k, v = (generator.normal(0, scale, shape) for shape in ((2, p), (2, 2 * tiles), (3, 2 * tiles)))
    given_ = {"Q": q, "K": k, "V": v}
    if ATTENTION[name]:
        given_ |= {"K": k.reshape(2, tiles, 2), "V": v.reshape(3, tiles, 2)}
    values = CascadeValues(cascade, given_)
    scores = k.T @ q
    weights = np.exp(scores - scores.max(axis=0))
    np.testing.assert_allclose(values.tensor("AV"), v @ (weights / weights.sum(axis=0)), rtol=1e-9, atol=1e-12)
    if "LSE" in cascade.outputs:
        expected = np.log(weights.sum(axis=0)) + scores.max(axis=0)
        np.testing.assert_allclose(values.tensor("LSE"), expected, rtol=1e-9)


def test_causal_attention_reads_nothing_that_comes_later():
    cascade = sized("causal-attention", H=1, T=5, E=2, F=2)
    inputs = drawn(cascade, 3)
    scores = np.where(np.tri(5) > 0, inputs["Q"] @ inputs["K"].T, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = weights / weights.sum(axis=1, keepdims=True) @ inputs["V"]
    np.testing.assert_allclose(CascadeValues(cascade, inputs).tensor("AV"), expected)


def chunked(inputs, length):
    return {name: value.reshape(-1, length, *value.shape[1:]) for name, value in inputs.items()}


@pytest.mark.parametrize(
    ("recurrent", "chunkwise", "out", "low", "high"),
    [
        ("gla-recurrent", "gla-chunkwise", "O", 0.2, 1.0),
        ("ssd-recurrent", "ssd-chunkwise", "Y", -1.0, 0.0),
        ("mlstm-recurrent", "mlstm-chunkwise", "O", -2.0, 1.0),
    ],
)
@given(seed=st.integers(0, 99), length=st.integers(1, 4), chunks=st.integers(1, 3))
@settings(max_examples=10)
def test_chunks_compute_what_the_recurrence_does(recurrent, chunkwise, out, low, high, seed, length, chunks):
    tokens = length * chunks
    steps = sized(recurrent, H=1, T=tokens, E=2, F=2)
    inputs = drawn(steps, seed, low=low, high=high)
    one = CascadeValues(steps, inputs).tensor(out)
    cut = sized(chunkwise, H=1, T=tokens, L=length, E=2, F=2)
    other = CascadeValues(cut, chunked(inputs, length)).tensor(out)
    np.testing.assert_allclose(other.reshape(one.shape), one, rtol=1e-9, atol=1e-12)


def test_lasp_2_is_causal_linear_attention():
    cascade = sized("lasp-2", H=1, T=6, C=3, E=2, F=2)
    inputs = drawn(cascade, 1)
    q, k, v = (inputs[name].reshape(6, 2) for name in "QKV")
    expected = np.tril(q @ k.T) @ v
    np.testing.assert_allclose(CascadeValues(cascade, inputs).tensor("O").reshape(6, 2), expected)


def test_a_norm_folded_into_its_product_is_the_norm_and_then_the_product():
    apart, folded = (sized(name, T=2, D=3, N=2) for name in ("norm-product", "norm-product-fused"))
    inputs = drawn(apart, 5)
    values = [CascadeValues(cascade, inputs).tensor("Y") for cascade in (apart, folded)]
    np.testing.assert_allclose(*values)


# Passes


@pytest.mark.parametrize(
    ("name", "rank", "count"),
    [
        ("attention-3-pass", "M", 3),
        ("attention-2-pass", "M", 2),
        ("fusemax", "M1", 1),
        ("flash-attention-2", "T", 1),
        ("norm-product", "D", 2),
        ("norm-product-fused", "D", 1),
        ("gated-mlp", "H", 1),
        ("gla-chunkwise", "C", 1),
        ("lasp-2", "C", 1),
        ("mlstm-chunkwise", "C", 1),
        ("ssd-chunkwise", "C", 1),
    ],
)
def test_published_numbers_of_passes(name, rank, count):
    """Nayak et al. for attention; the others are what makes their cascade worth writing."""
    assert plan_passes(load_cascade(name), rank).count == count


class Clock:
    """The earliest moment of every element when a pass visits the coordinates of a rank in order, over and over.

    A moment is pass times extent plus coordinate; what is reduced along the rank is there when its pass has ended,
    after the last coordinate. Nothing of `plan_passes` is used: elements wait for elements.
    """

    def __init__(self, cascade, rank):
        self.cascade, self.rank, self.size = cascade, rank, cascade.extents[rank]
        self.values = CascadeValues(cascade, dict.fromkeys(cascade.inputs))
        self.known, self.reads, self.last = {}, {}, 0
        for tensor in (*cascade.intermediates, *cascade.outputs):
            for place in self.places(tensor):
                self.made(tensor, place)

    def places(self, tensor):
        spans = []
        for at, coordinate in enumerate(self.cascade.einsum(tensor).output.coordinates):
            rank = self.cascade.ranks[coordinate.variable]
            starts = any(e.name == tensor and not e.output.coordinates[at].variable for e in self.cascade.einsums)
            spans.append(range(0 if starts else coordinate.offset, self.cascade.extents[rank] + coordinate.offset))
        return itertools.product(*spans)

    def made(self, tensor, place):
        if tensor in self.cascade.inputs:
            return self.size  # in memory before the first pass
        if (tensor, place) not in self.known:
            einsum, fixed = self.values.producer(tensor, place)
            walked = [v for v in einsum.variables if self.cascade.ranks[v] == self.rank]
            moments = [self.size]
            for point in self.values.points(einsum, fixed):
                needs = [(a.tensor, self.values.coordinates(a, point)) for a in einsum.inputs]
                moment = max([self.size, *(self.made(*need) for need in needs)])
                if walked:
                    at, here = divmod(moment, self.size)
                    moment = int(at + (point[walked[0]] < here)) * self.size + point[walked[0]]
                    self.last = max(self.last, int(moment))
                    for need in needs:
                        self.reads.setdefault(need, set()).add(moment // self.size)
                moments.append(moment)
            folded = bool(walked) and walked[0] not in einsum.output.variables
            self.known[tensor, place] = (max(moments) // self.size + 1) * self.size - 0.5 if folded else max(moments)
        return self.known[tensor, place]

    @property
    def passes(self):
        return self.last // self.size

    def alive(self, tensors):
        """Most elements of tensors that one pass reads and an earlier one made or, of an input, read."""
        counts = [0]
        for gap in range(1, self.passes):
            found = 0
            for (tensor, place), reads in self.reads.items():
                if tensor not in self.cascade.inputs and not self.values.producer(tensor, place)[0].inputs:
                    continue  # an initial value is in no one's way
                made = min(reads) if tensor in self.cascade.inputs else self.known[tensor, place] // self.size
                found += tensor in tensors and made <= gap < max(reads)
            counts.append(found)
        return max(counts)


SMALL = {"M": 4, "P": 2, "E": 2, "F": 2, "M0": 2, "J": 2, "T": 4, "L": 2, "C": 2, "D": 3, "N": 2, "H": 3, "B": 1}


def small(name):
    known = load_cascade(name).extents
    sizes = {r: s for r, s in SMALL.items() if r in known}
    return sized(name, **{r: s for r, s in sizes.items() if not (name == "gated-mlp" and r == "N")})


@pytest.mark.parametrize("name", cascade_names())
def test_passes_and_live_fibers_are_those_of_elements_that_wait_for_elements(name):
    cascade = small(name)
    for rank in {cascade.ranks[v] for e in cascade.einsums for v in e.variables}:
        plan, clock = plan_passes(cascade, rank), Clock(cascade, rank)
        assert plan.count == clock.passes, rank
        whole = {v: cascade.extent(v) for v in cascade.outer}
        between, alive = footprint(cascade, plan, whole).between, clock.alive(plan.crossing)
        once = list(cascade.ranks.values()).count(rank) == 1  # of two variables the last coordinate need not wait
        if once and (rank == cascade.stream or not plan_passes(cascade, cascade.stream).state):
            assert between == alive, rank
        else:  # within the first chunk nothing waits for a state, which the cascade's text does not say
            assert between >= alive, rank


NAMES = ["A", "B", "C", "D"]


@st.composite
def random_cascades(draw):
    """Chains of Einsums over m and p: at a point, reduced over m, or running along m."""
    kinds, texts = {"X": "mp", "Y": "m"}, []
    for name in NAMES[: draw(st.integers(1, 4))]:
        reads = draw(st.lists(st.sampled_from(sorted(kinds)), min_size=1, max_size=2, unique=True))
        if name != "A":
            reads[0] = chr(ord(name) - 1)
        terms = [f"{r}[{', '.join(kinds[r])}]".replace("[m, p]", "[m, p]") for r in reads]
        along = any("m" in kinds[r] for r in reads)
        how = draw(st.sampled_from(["point", "reduce", "run"] if along else ["point"]))
        keys = "p" if any("p" in kinds[r] for r in reads) else ""
        if how == "run":
            index = ", ".join(["m+1", *keys])
            texts += [f"{name}[{', '.join(['0', *keys])}] = 0"]
            texts += [f"{name}[{index}] = {name}[{', '.join(['m', *keys])}] + {' * '.join(terms)}"]
            kinds[name] = "m" + keys
        else:
            kept = ("m" if how == "point" and along else "") + keys
            texts += [f"{name}[{', '.join(kept)}] = {' * '.join(terms)}" if kept else f"{name} = {' * '.join(terms)}"]
            kinds[name] = kept
    return "\n".join(f"  - {text}".replace("[]", "") for text in texts)


TWO_STATES = """  - A[p] = X[m, p]
  - B[0, p] = 0
  - B[m+1, p] = B[m, p] + A[p] * Y[m]
  - C[0, p] = 0
  - C[m+1, p] = C[m, p] + B[m, p]
  - D[m, p] = C[m, p] * X[m, p]"""


@pytest.mark.slow(seconds=1)
@given(einsums=random_cascades(), m=st.integers(2, 4))
@example(einsums=TWO_STATES, m=2)
@settings(max_examples=80)
def test_passes_of_any_cascade_are_those_of_its_elements(einsums, m):
    head = f"kind: cascade\nname: any\nranks: {{M: {m}, P: 2}}\nstream: M\neinsums:\n"
    cascade = build_cascade(Document.parse(head + einsums.replace(" ]", "]")))
    clock = Clock(cascade, "M")
    plan = plan_passes(cascade, "M")
    assert plan.count == clock.passes
    between, alive = footprint(cascade, plan, {}).between, clock.alive(plan.crossing)
    if plan.state:  # what reads initial values alone need not wait: a coordinate for each state behind another one
        assert alive <= between <= alive + len(plan.state) * sum(footprint(cascade, plan, {}).fibers.values()) // m
    else:
        assert between == alive


def test_what_needs_itself_or_what_comes_is_refused():
    head = "kind: cascade\nname: any\nranks: {M: 4}\nstream: M\neinsums:\n"
    ring = "  - X[0] = 0\n  - S = X[m]\n  - X[m+1] = X[m] + S\n"
    with pytest.raises(LoomError, match="any: S needs a whole pass over M of what needs S"):
        plan_passes(build_cascade(Document.parse(head + ring)), "M")
    ahead = "  - Y[m] = I[m]\n  - Z[m] = Y[m+1]\n"
    with pytest.raises(NotSupported, match=r"Z reads Y\[m\+1\] ahead along M"):
        plan_passes(build_cascade(Document.parse(head + ahead)), "M")


# Footprints and traffic


@given(
    tiles=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    sizes=st.tuples(*[st.sampled_from([4, 6, 8, 12])] * 3),
    order=st.permutations(["M", "N", "K"]),
)
def test_tiles_move_what_a_buffer_of_one_tile_each_fetches(tiles, sizes, order):
    """Against loops that fetch a tile when another one lies in the buffer."""
    extents = dict(zip("MNK", sizes, strict=True))
    tile = {r: divisors(extents[r])[min(t, len(divisors(extents[r])) - 1)] for r, t in zip("MNK", tiles, strict=True)}
    there, fetched, seen = {}, dict.fromkeys(PRODUCT, 0), set()
    for place in itertools.product(*(range(extents[r] // tile[r]) for r in order)):
        at = dict(zip(order, place, strict=True))
        for name, ranks in PRODUCT.items():
            mine = (name, *(at[r] for r in ranks))
            if there.get(name) != mine:
                size = math.prod(tile[r] for r in ranks)
                if name == "Z":  # written when it leaves; sums that come back are read, too
                    fetched[name] += size * (1 + (mine in seen))
                else:
                    fetched[name] += size
                seen.add(mine)
                there[name] = mine
    assert tiled_elements(PRODUCT, "Z", extents, tile, order) == fetched


@pytest.mark.slow(seconds=1)
@given(sizes=st.tuples(*[st.sampled_from([2, 4, 6, 8])] * 3), buffer=st.integers(3, 200))
def test_the_best_tiles_are_the_best_of_all(sizes, buffer):
    extents = dict(zip("MNK", sizes, strict=True))
    found = least_tiled(PRODUCT, "Z", extents, buffer)
    every = []
    for tile in itertools.product(*(divisors(extents[r]) for r in "MNK")):
        cut = dict(zip("MNK", tile, strict=True))
        if sum(math.prod(cut[r] for r in ranks) for ranks in PRODUCT.values()) <= buffer:
            for order in itertools.permutations("MNK"):
                every.append(sum(tiled_elements(PRODUCT, "Z", extents, cut, order).values()))
    assert found.total == min(every)
    assert least_tiled(PRODUCT, "Z", extents, buffer + 50).total <= found.total
    assert least_tiled(PRODUCT, "Z", extents, math.inf).total == sum(
        math.prod(extents[r] for r in ranks) for ranks in PRODUCT.values()
    )


def test_a_tile_that_finds_no_room_is_told():
    with pytest.raises(LoomError, match="no tile finds room in a buffer of 2 elements"):
        least_tiled(PRODUCT, "Z", {"M": 4, "N": 4, "K": 4}, 2)
    with pytest.raises(LoomError, match="tiles of 3 along M do not divide 4"):
        least_tiled(PRODUCT, "Z", {"M": 4, "N": 4, "K": 4}, 99, multiple={"M": 3})


@pytest.mark.parametrize("name", cascade_names())
def test_traffic_falls_to_the_compulsory_one_as_the_buffer_grows(name):
    cascade = load_cascade(name)
    if name == "mlp":  # three layers have no rank in common
        with pytest.raises(NotSupported, match="mlp: F1 is reduced and does not walk along C"):
            fused_traffic(cascade, math.inf)
        return
    least = compulsory_traffic(cascade)
    before = math.inf
    for megabytes in (8, 16, 32, 256):
        found = fused_traffic(cascade, megabytes * 2**20)
        assert least <= found.total <= before
        assert found.footprint.elements * 2 <= megabytes * 2**20
        assert set(found.tensors) >= {*cascade.inputs, *cascade.outputs}
        before = found.total
    assert fused_traffic(cascade, math.inf).total == least
    assert sum(unfused_traffic(cascade).values()) >= least


@given(m=st.sampled_from([256, 512, 1024]), p=st.sampled_from([64, 256]), buffer=st.integers(2_000, 400_000))
def test_a_block_of_three_passes_holds_its_scores_or_sends_them_to_memory(m, p, buffer):
    """Every block and both choices by hand: scores live between passes, keys and values come once a block."""
    cascade = sized("attention-3-pass", H=1, M=m, P=p, E=8, F=8)
    options = []
    for block in divisors(p):
        for kept in (("QK", "SN"), ("QK",), ("SN",), ()):
            room = block * (8 + 8 + 2 + (m if kept else 0)) + 8 + 8
            if 2 * room <= buffer:
                spilled = 2 * m * p * (2 - len(kept))
                options.append(2 * (2 * 8 * p + 2 * 8 * m * (p // block) + spilled))
    assume(options)
    found = fused_traffic(cascade, buffer)
    assert found.total == min(options)


def test_flash_attention_reads_keys_once_a_block_of_queries():
    cascade = sized("flash-attention-2", H=1, M=4096, P=4096, P0=128)
    found = fused_traffic(cascade, 512 * 1024)
    (block,) = found.footprint.block.values()
    assert block == 1024
    assert found.tensors["K"] == 4096 * 64 * 2 * 4096 // block
    assert found.tensors["Q"] == 4096 * 64 * 2
    assert found.spilled == ()


def test_staged_tensors_take_room_for_a_whole_block():
    cascade = sized("fusemax", M=4096, P=4096, P0=256)
    plan = plan_passes(cascade, "M1")
    bare, staged = (footprint(cascade, plan, {"p": 512}, staged=names) for names in ((), ("QK", "SLN")))
    assert bare.elements == 512 * (64 + 64 + 2) + 2 * 64 * 256
    assert staged.elements - bare.elements == 2 * 512 * 256


def test_keys_and_values_of_a_whole_sequence_stay_for_causal_attention():
    found = fused_traffic(sized("causal-attention", H=1, T=512), math.inf).footprint
    assert (found.held["K"], found.held["V"]) == (512 * 64, 512 * 64)


def test_blocks_divide_the_rank_and_are_whole_grains():
    cascade = sized("fusemax", P=768, P0=256)
    assert [b["p"] for b in blocks(cascade)] == [256, 768]
    with pytest.raises(LoomError, match="the grain 500 of P does not divide its extent 768"):
        list(blocks(replace(cascade, grain={"P": 500})))


def test_kernels_hand_on_through_memory_what_another_reads():
    cascade = load_cascade("attention-3-pass")
    kernels = [("QK",), ("GM", "SN", "SD", "A"), ("AV",)]
    assert group_traffic(cascade, kernels) == {"Q": 1, "K": 1, "V": 1, "QK": 2, "A": 2, "AV": 1}
    alone = group_traffic(cascade)
    assert (alone["QK"], alone["SN"], alone["A"]) == (3, 3, 2)
    with pytest.raises(LoomError, match="AV is in no group"):
        group_traffic(cascade, kernels[:2])


@pytest.mark.parametrize("name", ["attention-3-pass", "gated-mlp", "norm-product", "ssd-chunkwise"])
def test_kernels_with_all_the_buffer_they_want_move_what_they_share(name):
    cascade = load_cascade(name)
    if any(isinstance(e.expression, EinsumNumber) for e in cascade.einsums):  # initial states are no traffic
        assert sum(kernel_traffic(cascade, math.inf).values()) >= compulsory_traffic(cascade)
    else:
        assert kernel_traffic(cascade, math.inf) == unfused_traffic(cascade)
    assert sum(kernel_traffic(cascade, 2**20).values()) >= sum(kernel_traffic(cascade, 2**24).values())
