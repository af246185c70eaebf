"""Context-parallel schedules, run in NumPy: exact attention and gradients, every pair once, volumes to the number."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siliconloom.arch import LoomError, NotSupported
from siliconloom.mapper.context import SCHEMES, Kind, Piece, context_schedule, pairs_of, shard_tokens
from siliconloom.mapper.context.schedule import RESULTS
from siliconloom.mapper.context.tokens import contiguous, split, striped, zigzag

DIM = 4
SOFTMAX = [s for s in SCHEMES if s != "lasp2"]


class Problem:
    """Random packed documents and what attention and its gradients are."""

    def __init__(self, lengths, heads, kv_heads, causal, seed):
        rng = np.random.default_rng(seed)
        n = sum(lengths)
        self.first = np.concatenate([[0], np.cumsum(lengths)])
        self.group = heads // kv_heads
        self.q, self.do = (rng.normal(size=(n, heads, DIM)) for _ in range(2))
        self.k, self.v = (rng.normal(size=(n, kv_heads, DIM)) for _ in range(2))
        document = np.repeat(np.arange(len(lengths)), lengths)
        self.mask = document[:, None] == document[None, :]
        if causal:
            self.mask &= np.tri(n, dtype=bool)
        self.out, self.lse = np.zeros_like(self.q), np.zeros((n, heads))
        self.dq, self.dk, self.dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        every = np.arange(n)
        for h in range(heads):
            self.out[:, h], self.lse[:, h] = self.attend(every, every, h)
        self.delta = (self.do * self.out).sum(axis=2)
        for h in range(heads):
            dq, dk, dv = self.gradients(every, every, h)
            self.dq[:, h] += dq
            self.dk[:, h // self.group] += dk
            self.dv[:, h // self.group] += dv

    def places(self, shard):
        return np.concatenate([np.array(p.tokens, int) + self.first[p.document] for p in shard] or [np.zeros(0, int)])

    def scores(self, queries, keys, h):
        found = self.q[queries, h] @ self.k[keys, h // self.group].T
        return np.where(self.mask[np.ix_(queries, keys)], found, -np.inf)

    def attend(self, queries, keys, h):
        scores = self.scores(queries, keys, h)
        lse = np.logaddexp.reduce(scores, axis=1)
        weights = np.exp(scores - np.where(np.isfinite(lse), lse, 0.0)[:, None])
        return weights @ self.v[keys, h // self.group], lse

    def gradients(self, queries, keys, h):
        g = h // self.group
        p = np.exp(self.scores(queries, keys, h) - self.lse[queries, h][:, None])
        ds = p * (self.do[queries, h] @ self.v[keys, g].T - self.delta[queries, h][:, None])
        return ds @ self.k[keys, g], ds.T @ self.q[queries, h], p.T @ self.do[queries, h]


def merge(out, lse, more, more_lse):
    """Two partial results of the same queries, weighted by their sums of exponentials."""
    joint = np.logaddexp(lse, more_lse)
    base = np.where(np.isfinite(joint), joint, 0.0)
    return out * np.exp(lse - base)[..., None] + more * np.exp(more_lse - base)[..., None], joint


class Machine:
    """What each rank holds; messages move it, blocks may use nothing else."""

    def __init__(self, schedule, problem):
        self.s, self.p = schedule, problem
        shape = (schedule.ranks, len(problem.q), schedule.sizes.heads)
        self.has = {kind: np.zeros(shape, bool) for kind in (Kind.Q, Kind.KV, Kind.DO)}
        for rank, shard in enumerate(schedule.holders):
            for kind in self.has:
                self.has[kind][rank, problem.places(shard)] = True
        if schedule.backward and schedule.scheme in ("ulysses", "hybrid"):  # kept from the forward pass
            for block in schedule.blocks:
                at = np.ix_([block.rank], problem.places(block.queries), block.heads)
                self.has[Kind.Q][at] = True
            forward = context_schedule(
                schedule.scheme,
                schedule.ranks,
                np.diff(problem.first).tolist(),
                causal=schedule.causal,
                heads=shape[2],
                kv_heads=schedule.sizes.kv_heads,
                head_dim=DIM,
                ulysses=degree_of(schedule),
            )
            for m in forward.messages:
                if m.step == 0 and m.kind is Kind.KV:
                    self.has[Kind.KV][np.ix_([m.target], problem.places(m.shard), m.heads)] = True
        self.out = np.zeros((*shape, DIM))
        self.lse = np.full(shape, -np.inf)
        self.dq = np.zeros((*shape, DIM))
        self.dkv = np.zeros((*shape, 2 * DIM))
        self.seen = np.zeros((shape[1], shape[1], shape[2]), int)

    def run(self):
        for step in range(self.s.steps):
            moved = [(m, self.take(m)) for m in self.s.messages if m.step == step]
            for block in self.s.blocks:
                if block.step == step:
                    self.compute(block)
            for message, load in moved:
                self.deliver(message, load)

    def take(self, m):
        at = np.ix_(self.p.places(m.shard), m.heads)
        if m.kind not in RESULTS:
            assert self.has[m.kind][m.source][at].all(), f"{m.source} does not have {m.kind} in step {m.step}"
            return None
        if m.kind is Kind.OUT:
            load = self.out[m.source][at].copy(), self.lse[m.source][at].copy()
            self.out[m.source][at], self.lse[m.source][at] = 0.0, -np.inf
            return load
        store = self.dq if m.kind is Kind.DQ else self.dkv
        load = store[m.source][at].copy()
        store[m.source][at] = 0.0
        return load

    def deliver(self, m, load):
        at = np.ix_(self.p.places(m.shard), m.heads)
        if m.kind is Kind.OUT:
            self.out[m.target][at], self.lse[m.target][at] = merge(
                self.out[m.target][at], self.lse[m.target][at], *load
            )
        elif m.kind in RESULTS:
            (self.dq if m.kind is Kind.DQ else self.dkv)[m.target][at] += load
        else:
            self.has[m.kind][m.target][at] = True

    def compute(self, block):
        queries, keys = self.p.places(block.queries), self.p.places(block.keys)
        assert self.has[Kind.Q][block.rank][np.ix_(queries, block.heads)].all()
        assert self.has[Kind.KV][block.rank][np.ix_(keys, block.heads)].all()
        assert block.pairs == self.p.mask[np.ix_(queries, keys)].sum()
        for h in block.heads:
            self.seen[np.ix_(queries, keys, [h])] += self.p.mask[np.ix_(queries, keys)][..., None]
            if not self.s.backward:
                at = (block.rank, queries, h)
                self.out[at], self.lse[at] = merge(self.out[at], self.lse[at], *self.p.attend(queries, keys, h))
                continue
            assert self.has[Kind.DO][block.rank, queries, h].all()
            dq, dk, dv = self.p.gradients(queries, keys, h)
            self.dq[block.rank, queries, h] += dq
            self.dkv[block.rank, keys, h] += np.concatenate([dk, dv], axis=1)


def degree_of(schedule):
    return len({(b.heads.start) for b in schedule.blocks})


def gathered(machine, store):
    """What the holders of the tokens have; no rank else has anything."""
    found = np.zeros(store.shape[1:])
    left = store.copy()
    for rank, shard in enumerate(machine.s.holders):
        at = machine.p.places(shard)
        found[at] = store[rank, at]
        left[rank, at] = 0.0
    assert not left.any()
    return found


@st.composite
def cases(draw):
    scheme = draw(st.sampled_from(SOFTMAX))
    ulysses = draw(st.sampled_from([1, 2, 4])) if scheme == "hybrid" else 1
    ranks = ulysses * draw(st.integers(1, 3)) if scheme == "hybrid" else draw(st.integers(1, 6))
    if scheme == "ulysses":
        ranks = draw(st.sampled_from([1, 2, 4]))
    lengths = draw(st.lists(st.integers(1, 14), min_size=1, max_size=4))
    kv_heads = draw(st.sampled_from([1, 2, 4]))
    causal = scheme == "lightseq" or draw(st.booleans())
    options = {"causal": causal, "heads": 4, "kv_heads": kv_heads, "head_dim": DIM, "ulysses": ulysses}
    return scheme, ranks, lengths, options


@pytest.mark.slow(seconds=1)
@settings(max_examples=120, deadline=None)
@given(cases(), st.integers(0, 99))
def test_forward_is_exact_attention_with_every_pair_once(case, seed):
    scheme, ranks, lengths, options = case
    schedule = context_schedule(scheme, ranks, lengths, **options)
    problem = Problem(lengths, 4, options["kv_heads"], options["causal"], seed)
    machine = Machine(schedule, problem)
    machine.run()
    np.testing.assert_array_equal(machine.seen, np.broadcast_to(problem.mask[..., None], machine.seen.shape))
    np.testing.assert_allclose(gathered(machine, machine.out), problem.out, atol=1e-10)
    assert schedule.pairs.sum() == problem.mask.sum() * 4
    assert schedule.tokens.sum() == sum(lengths)
    assert schedule.sent.sum() == schedule.received.sum()


@pytest.mark.slow(seconds=1)
@settings(max_examples=80, deadline=None)
@given(cases(), st.integers(0, 99))
def test_backward_brings_every_gradient_home(case, seed):
    scheme, ranks, lengths, options = case
    schedule = context_schedule(scheme, ranks, lengths, **options, backward=True)
    problem = Problem(lengths, 4, options["kv_heads"], options["causal"], seed)
    machine = Machine(schedule, problem)
    machine.run()
    np.testing.assert_array_equal(machine.seen, np.broadcast_to(problem.mask[..., None], machine.seen.shape))
    np.testing.assert_allclose(gathered(machine, machine.dq), problem.dq, atol=1e-10)
    dkv = gathered(machine, machine.dkv).reshape(sum(lengths), -1, problem.group, 2 * DIM).sum(axis=2)
    np.testing.assert_allclose(dkv, np.concatenate([problem.dk, problem.dv], axis=2), atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.booleans(), st.integers(0, 99))
def test_lasp2_is_linear_attention(ranks, length, causal, seed):
    schedule = context_schedule("lasp2", ranks, [length], causal=causal, heads=1, head_dim=DIM)
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(length, DIM)) for _ in range(3))
    mask = np.tri(length) if causal else np.ones((length, length))
    made, known = {}, [{} for _ in range(ranks)]
    out = np.zeros((length, DIM))
    for step in range(schedule.steps):
        arriving = [m for m in schedule.messages if m.step == step]
        for m in arriving:
            assert m.source in made
        for b in schedule.blocks:
            if b.step != step:
                continue
            queries = np.array([t for p in b.queries for t in p.tokens], int)
            keys = np.array([t for p in b.keys for t in p.tokens], int)
            if not b.queries:
                made[b.rank] = known[b.rank][b.rank] = k[keys].T @ v[keys]
            elif not b.keys:
                before = [s for o, s in known[b.rank].items() if not causal or o < b.rank]
                out[queries] += q[queries] @ sum(before, np.zeros((DIM, DIM)))
            else:
                out[queries] += (q[queries] @ k[keys].T * mask[np.ix_(queries, keys)]) @ v[keys]
        for m in arriving:
            known[m.target][m.source] = made[m.source]
    np.testing.assert_allclose(out, (q @ k.T * mask) @ v, atol=1e-9)


@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 60), st.integers(0, 12), st.integers(0, 12))
def test_pairs_in_closed_form_are_those_counted(step, a, b, m, n):
    queries, keys = range(a, a + m * step, step), range(b, b + n * step, step)
    expected = sum(j <= i for i in queries for j in keys)
    assert pairs_of((Piece(0, queries),), (Piece(0, keys),), causal=True) == expected
    assert pairs_of((Piece(0, queries),), (Piece(1, keys),), causal=True) == 0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.integers(1, 8), st.integers(1, 5))
def test_cuts_hold_every_token_once(lengths, ranks, parts):
    every = sorted((d, t) for d, n in enumerate(lengths) for t in range(n))
    for deal in (contiguous, striped, zigzag):
        shards = deal(lengths, ranks)
        assert sorted((p.document, t) for s in shards for p in s for t in p.tokens) == every
        again = [part for shard in shards for part in split(shard, parts)]
        assert sorted((p.document, t) for s in again for p in s for t in p.tokens) == every


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_balance_of_a_causal_mask(ranks):
    n = 64 * ranks
    share = {s: context_schedule(s, ranks, [n], heads=8, head_dim=8).pairs for s in SOFTMAX if s != "hybrid"}
    assert (share["zigzag"] == share["zigzag"][0]).all()
    assert (share["ulysses"] == share["ulysses"][0]).all()
    assert share["striped"].max() - share["striped"].min() <= 8 * n
    assert share["ring"].max() / share["ring"].mean() == pytest.approx(2 - 1 / ranks, rel=0.02)
    odd = context_schedule("lightseq", ranks + 1, [64 * (ranks + 1)], heads=8, head_dim=8).pairs
    assert (odd == odd[0]).all()  # an even number of ranks leaves half of them idle in the last step


@pytest.mark.parametrize(("ranks", "kv_heads"), [(4, 16), (8, 16), (8, 4)])
def test_volumes_are_the_papers(ranks, kv_heads):
    """Ulysses sends 4 N h / P (1 - 1/P) for one head group each; a ring 2 N/P keys and values, P - 1 times."""
    n, heads, dim = 1024 * ranks, 16, 8
    h, kv = heads * dim, kv_heads * dim
    made = {s: context_schedule(s, ranks, [n], heads=heads, kv_heads=kv_heads, head_dim=dim) for s in SOFTMAX}
    own, others = n // ranks, (ranks - 1) / ranks
    copied = max(kv, ranks * dim)
    assert (made["ulysses"].sent == own * (2 * h + 2 * copied) * others).all()
    assert (made["zigzag"].sent == (ranks - 1) * own * 2 * kv).all()
    assert (made["all_gather"].sent == made["zigzag"].sent).all()
    assert (made["token_ring"].sent == (ranks - 1) * own * (2 * h + heads)).all()
    back = context_schedule("zigzag", ranks, [n], heads=heads, kv_heads=kv_heads, head_dim=dim, backward=True)
    assert (back.sent == (2 * ranks - 1) * own * 2 * kv).all()


def test_lasp2_sends_the_same_whatever_the_length():
    sent = [context_schedule("lasp2", 4, [n], heads=2, head_dim=8).sent for n in (64, 4096)]
    assert (sent[0] == sent[1]).all()
    assert (sent[0] == 3 * 2 * 64).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40), st.integers(1, 8))
def test_packed_documents_send_less_and_stay_balanced(lengths, ranks):
    schedule = context_schedule("packed", ranks, lengths, heads=1, head_dim=1)
    short = [n for n in lengths if n * ranks <= sum(lengths) and n**2 * ranks <= sum(m**2 for m in lengths) / 2]
    sent = {p.document for m in schedule.messages for p in m.shard}
    assert not sent & {d for d, n in enumerate(lengths) if n in short}
    assert schedule.sent.sum() <= context_schedule("zigzag", ranks, lengths, heads=1, head_dim=1).sent.sum()
    # Largest first leaves no rank with more than the even share and what one document puts on a rank.
    assert schedule.tokens.max() <= 2 * sum(lengths) / ranks + 2 * ranks
    assert shard_tokens(tuple(p for s in schedule.holders for p in s)) == sum(lengths)


@pytest.mark.parametrize(
    ("scheme", "ranks", "options", "text"),
    [
        ("rign", 4, {}, "did you mean 'ring'"),
        ("ulysses", 3, {}, "8 heads cannot be shared by 3 ranks evenly"),
        ("hybrid", 6, {"ulysses": 4}, "6 ranks are not groups of 4"),
        ("lightseq", 4, {"causal": False}, "balances a causal mask"),
        ("ring", 0, {}, "both must be positive"),
        ("ring", 2, {"kv_heads": 3}, "8 heads cannot share 3 key heads evenly"),
    ],
)
def test_bad_schemes_are_refused(scheme, ranks, options, text):
    with pytest.raises(LoomError, match=text):
        context_schedule(scheme, ranks, [64], heads=8, head_dim=8, **options)


def test_linear_attention_of_documents_is_not_supported():
    with pytest.raises(NotSupported):
        context_schedule("lasp2", 2, [8, 8], heads=1, head_dim=8)
