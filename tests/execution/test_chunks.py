"""Values of several tokens behind earlier ones: chunks of prompts, and decode of several tokens."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from siliconloom.execution.run import lengths, run_model
from siliconloom.execution.weights import RandomWeights
from tests.execution.models import DATAFLOWS, SHAPES, VOCABULARY, chip_of, config_of, graph_of
from tests.execution.test_cached import SIDES, edge
from tests.execution.test_run import mapped_to


def run_of(folder, chip, config, sets, seed):
    mapped = mapped_to(chip, graph_of(folder, config, sets))
    tokens = np.random.default_rng(seed).integers(0, VOCABULARY, lengths(mapped.graph)[:2])
    return run_model(mapped, RandomWeights(mapped.graph, seed), tokens, keep=True)


def sets_of(past, new, batch, decode):
    length = str(past + new if decode else past)
    phase = "decode" if decode else "prefill"
    return [("phase", phase), ("context", length), ("sequence", str(new)), ("batch", str(batch))]


@pytest.mark.slow(seconds=5)
@settings(max_examples=6, deadline=None)
@given(
    family=st.sampled_from(["gpt2", "llama", "qwen2", "mixtral"]),
    shape=st.sampled_from(SHAPES),
    dataflow=st.sampled_from(DATAFLOWS),
    bus=st.sampled_from([8, 16, 32]),
    dim=st.sampled_from([8, 16, 10, 5, 24]),  # the odd one where nothing is rotary
    group=st.sampled_from([1, 2]),
    layers=st.integers(1, 2),
    batch=st.integers(1, 3),
    past=st.integers(1, 21),
    new=st.integers(1, 18),
    decode=st.booleans(),
    greedy=st.booleans(),
    dtype=st.sampled_from(["int8", "int8", "bf16", "fp16", "w8a8"]),
    seed=st.integers(0, 99),
)
def test_a_golden_run_of_a_chunk_is_the_exact_reading(
    tmp_path_factory, family, shape, dataflow, bus, dim, group, layers, batch, past, new, decode, greedy, dtype, seed
):
    assume(dim % 2 == 0 or family == "gpt2")
    sets = [*sets_of(past, new, batch, decode), ("precision", dtype)] + [("sample", "greedy")] * greedy
    chip = chip_of(*shape, bus, dataflow=dataflow, dtype=dtype)
    made = run_of(tmp_path_factory.mktemp("model"), chip, config_of(family, 4, 4 // group, dim, layers), sets, seed)
    assert {row.name: row.differing for row in made.rows if row.differing} == {}
    assert made.tensors["golden/head/0"].shape == (batch * (new if decode else 1), VOCABULARY)
    assert made.next_tokens == made.tensors["golden/head/0"].argmax(1).tolist()
    assert made.real_tokens == made.tensors["float64/head/0"].argmax(1).tolist()


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    sides=st.sampled_from(SIDES),
    load_rows=st.sampled_from([1, 2, 4]),
    kept=st.sampled_from(["bf16", "fp8_e4m3", "fp8_e5m2"]),
    family=st.sampled_from(["gpt2", "llama"]),
    dim=st.sampled_from([4, 8, 12, 24]),
    batch=st.integers(1, 2),
    past=st.integers(1, 25),
    new=st.integers(1, 15),
    decode=st.booleans(),
    seed=st.integers(0, 9),
)
def test_a_chunk_reads_keys_and_values_as_they_are_kept(
    tmp_path_factory, sides, load_rows, kept, family, dim, batch, past, new, decode, seed
):
    sets = [*sets_of(past, new, batch, decode), ("cache_precision", kept)]
    chip, folder = edge(sides, load_rows, True, kept), tmp_path_factory.mktemp("model")
    made = run_of(folder, chip, config_of(family, 4, 2, dim, 2), sets, seed)
    assert {row.name: row.differing for row in made.rows if row.differing} == {}


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(
    family=st.sampled_from(["gpt2", "llama"]),
    past=st.integers(1, 12),
    new=st.integers(1, 12),
    batch=st.integers(1, 2),
    seed=st.integers(0, 9),
)
def test_real_numbers_of_a_chunk_are_those_of_the_whole_prompt(tmp_path_factory, family, past, new, batch, seed):
    """The float64 logits of a chunk's last token are a prompt's, and those of decode are of each of its last tokens."""
    folder, config, chip = tmp_path_factory.mktemp("model"), config_of(family, 4, 2, 8, 2), chip_of(8, 8, 8, 16)
    whole = run_of(folder, chip, config, [("sequence", str(past + new)), ("batch", str(batch))], seed)
    chunk = run_of(folder, chip, config, sets_of(past, new, batch, False), seed)
    several = run_of(folder, chip, config, sets_of(past, new, batch, True), seed)
    expected, found, all_of = (made.tensors["float64/head/0"] for made in (whole, chunk, several))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(all_of.reshape(batch, new, -1)[:, -1], expected, rtol=1e-9, atol=1e-12)
    for one in range(1, new):  # the logits of an earlier token are those of the prompt that ends with it
        mapped = mapped_to(chip, graph_of(folder, config, [("sequence", str(past + one)), ("batch", str(batch))]))
        made = run_model(mapped, RandomWeights(mapped.graph, seed), whole.tokens[:, : past + one], keep=True)
        np.testing.assert_allclose(
            made.tensors["float64/head/0"], all_of.reshape(batch, new, -1)[:, one - 1], rtol=1e-9, atol=1e-12
        )
        break
