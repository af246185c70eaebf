"""Operator profiles: what was timed is said again, what lies between is between, what is no profile is refused."""

import gzip
import shutil
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import LoomError
from siliconloom.baselines.profile import SAMPLER, ProfileCosts, captured_size
from siliconloom.baselines.profile_tables import PROFILES, load_profile, profile_names
from siliconloom.baselines.stacks import NO_STACK, STACKS

NAME = "rtx-pro-6000-llama3-8b-tp1"
LAYERS = {"qkv_proj": 3, "down_proj": 3, "embedding": 1, "lm_head": 1}
DEPTH = 3


@cache
def profile():
    return load_profile(PROFILES / NAME)


def costs(stack=NO_STACK, most=128, **more):
    return ProfileCosts(profile(), LAYERS, depth=DEPTH, stack=stack, most_requests=most, **more)


@cache
def attention_rows():
    text = gzip.decompress((PROFILES / NAME / "attention.csv.gz").read_bytes()).decode()
    rows = [line.split(",") for line in text.splitlines()[1:]]
    return [(*map(int, row[:4]), float(row[4]) * 1e-6) for row in rows]


def rest(tokens, sequences):
    """What a step takes beside its attention, of the tables themselves."""
    found = sum(
        np.interp(tokens, *profile().dense[name]) * times for name, times in LAYERS.items() if name != "lm_head"
    )
    of_head = (profile().per_sequence[name] for name in ("lm_head", SAMPLER))
    return found + (sum(np.interp(sequences, *table) for table in of_head) if sequences else 0.0)


@given(st.data())
def test_every_timed_call_is_said_as_it_was_timed(data):
    chunk, known, count, context, seconds = data.draw(st.sampled_from(attention_rows()))
    if count + chunk > costs().most_tokens or (chunk and known not in profile().attention[chunk]):
        return
    chunks = [(chunk, known)] * (chunk > 0)
    told, joules = costs().steps(chunks, len(chunks), count, np.array([float(context)]))
    kernels = DEPTH * seconds + rest(captured_size(count + chunk, 128), count + len(chunks))
    assert told.tolist() == pytest.approx([kernels], rel=1e-9)
    assert joules.tolist() == [0.0]


@given(chunk=st.integers(1, 1900), known=st.integers(0, 16384), count=st.integers(0, 128), context=st.floats(16, 16384))
def test_a_chunk_lies_between_the_timed_ones_around_it(chunk, known, count, context):
    made = costs()
    chunks = [c for c in profile().attention if c]
    low = max((c for c in chunks if c <= chunk), default=min(chunks))
    high = min(c for c in chunks if c >= chunk)
    ends = [made._behind(c, known, count, context) for c in (low, high)]
    assert min(ends) - 1e-12 <= made._chunk(chunk, known, count, context) <= max(ends) + 1e-12
    knowns = sorted(profile().attention[low])
    around = [max(k for k in knowns if k <= known), min(k for k in knowns if k >= known)]
    times = [made._behind(low, k, count, context) for k in around]
    assert min(times) - 1e-12 <= ends[0] <= max(times) + 1e-12


@given(count=st.integers(1, 256), first=st.floats(1, 16000), number=st.integers(1, 50))
def test_steps_in_a_row_are_steps_one_by_one(count, first, number):
    contexts = first + np.arange(number)
    made = costs(STACKS["vllm"])
    together, _ = made.steps([], 0, count, contexts)
    each = [made.steps([], 0, count, np.array([c]))[0][0] for c in contexts]
    assert together.tolist() == pytest.approx(each, rel=1e-12)


@given(count=st.integers(129, 256), chunk=st.integers(1, 1024), context=st.floats(16, 16384))
def test_more_requests_than_were_timed_beside_a_chunk_add_what_they_add_alone(count, chunk, context):
    made = costs()
    most = made._chunk(chunk, 0, 128, context)
    alone = [float(np.interp(context, made._decode.contexts, made._curve(n))) for n in (128, count)]
    assert made._chunk(chunk, 0, count, context) == pytest.approx(most + alone[1] - alone[0], rel=1e-9)


@given(tokens=st.integers(1, 4096), most=st.integers(1, 512))
def test_steps_are_padded_to_graphs_that_vllm_captures(tokens, most):
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
    held = [size for size in sizes if size >= tokens]
    expected = held[0] if tokens <= min(2 * most, 512) else tokens
    assert captured_size(tokens, most) == expected


def test_messages_and_the_host_are_added():
    bare = costs().steps([], 0, 16, np.array([100.0]))[0][0]
    assert costs(messages=lambda tokens: tokens * 1e-3).steps([], 0, 16, np.array([100.0]))[0][0] == pytest.approx(
        bare + 16e-3
    )
    stack = STACKS["vllm"]
    assert costs(stack).steps([], 0, 16, np.array([100.0]))[0][0] == pytest.approx(stack.seconds(bare, 0, 16))


def test_the_package_has_profiles_that_are_read():
    names = profile_names()
    assert NAME in names
    for name in names:
        found = load_profile(PROFILES / name)
        assert found.described.name == name
        assert set(found.described.products) <= {*found.dense, *found.per_sequence}


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("dense.csv", lambda t: t.replace("act_fn,1,", "act_fn,2,", 1), "stands twice for act_fn"),
        ("dense.csv", lambda t: t.replace("tokens", "toks"), "did you mean 'tokens'"),
        ("per_sequence.csv", lambda t: t.replace("\n", "\nsampler,0,3\n", 1), "must be a whole number from 1"),
        ("attention.csv", lambda t: "\n".join(t.splitlines()[:-5]), "no grid of n_decode and kv_decode"),
        ("attention.csv", lambda t: t + t.splitlines()[-1] + "\n", "stand twice"),
        ("attention.csv", lambda t: t.splitlines()[0] + "\n16,0,0,0,-3", "positive number of microseconds"),
        ("attention.csv", lambda t: t.splitlines()[0] + "\n16,0,0,0,3\n16,0,1,8,3", "the table has no calls without"),
        ("profile.yaml", lambda t: t.replace("heads:", "head:", 1), "did you mean 'heads'"),
        ("profile.yaml", None, "no profile.yaml there"),
        ("dense.csv", None, "dense.csv: no such file"),
    ],
)
def test_what_is_no_profile_is_refused_with_its_place(tmp_path, file, change, said):
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(PROFILES / NAME / "profile.yaml", folder)
    for name in ("dense", "per_sequence", "attention"):
        (folder / f"{name}.csv").write_bytes(gzip.decompress((PROFILES / NAME / f"{name}.csv.gz").read_bytes()))
    assert load_profile(folder).dense.keys() == profile().dense.keys()
    load_profile.cache_clear()
    path = folder / file
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    from siliconloom.baselines.profile_tables import describe_profile

    describe_profile.cache_clear()
    with pytest.raises(LoomError) as error:
        load_profile(folder)
    assert said in str(error.value)
    assert file.partition(".")[0] in str(error.value)
