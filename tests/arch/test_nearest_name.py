"""The name that is suggested for a wrong one: by what it means, by its words, by its letters; numbers as written."""

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from siliconloom.arch.errors import ALIASES, LONGEST_NAME, nearest_name
from siliconloom.arch.names import chip_names, gpu_names, system_names
from siliconloom.workloads.huggingface import MODELS
from siliconloom.workloads.names import workload_names

MACHINES = [*chip_names(), *system_names()]
LISTS = {"workloads": workload_names(), "gpus": gpu_names(), "machines": MACHINES, "models": sorted(MODELS)}


@pytest.mark.parametrize(
    ("name", "among", "meant"),
    [
        ("mamba", "workloads", "mamba-2.8b"),
        ("gpt_neox", "workloads", "pythia-1b"),
        ("gpt_neox", "models", "gpt_neox"),
        ("opt", "workloads", None),
        ("lama3", "workloads", "llama3-8b"),
        ("gtp2", "workloads", "gpt2"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "workloads", "mistral-7b"),
        ("GB200", "gpus", None),
        ("GH200", "gpus", None),
        ("h20", "gpus", None),
        ("rtx3090", "gpus", None),
        ("RTX4090", "gpus", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "gpus", "rtx-4090"),
        ("NVIDIA H100 80GB HBM3", "gpus", "h100"),
        ("NVIDIA A100-SXM4-40GB", "gpus", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "gpus", "a100"),
        ("Tesla V100-SXM2-16GB", "gpus", "v100"),
        ("AMD Instinct MI300X", "gpus", "mi300x"),
        ("npu-egde", "machines", "npu-edge"),
        ("edge-int8", "machines", "npu-edge-int8"),
        ("NPU_EDGE", "machines", "npu-edge"),
    ],
)
def test_what_is_meant_is_suggested_and_nothing_else(name, among, meant):
    assert nearest_name(name, LISTS[among]) == meant


def test_a_family_is_not_another_one():
    assert nearest_name("mamba", ["llama", "llama3-8b", "gpt2"]) is None
    assert nearest_name("gpt_neox", ["gpt2", "gpt2-xl"]) is None


def test_every_alias_is_a_word_for_something_in_the_library():
    import yaml

    known = {name for names in LISTS.values() for name in names}
    for name, words in yaml.safe_load(ALIASES.read_text()).items():
        assert name in known
        for word in words:
            assert nearest_name(word, LISTS["workloads"] + LISTS["gpus"] + MACHINES) == name, word


def numbers(text):
    return ["".join(sorted(n)) for n in re.findall("[0-9]+", text)]


@given(st.sampled_from([n for names in (LISTS["gpus"], MACHINES) for n in names]), st.data())
def test_a_name_with_other_numbers_is_never_suggested_by_its_letters(name, data):
    """Of what has one number alone: an a30 is no a40, whatever the letters say; a dgx-a128 may be a dgx-a100x128."""
    assume(len(numbers(name)) == 1)
    other = re.sub("[0-9]+", str(data.draw(st.integers(0, 9999))), name)
    found = nearest_name(other, LISTS["gpus"] + MACHINES)
    assert found is None or set(numbers(other)) <= set(numbers(found)) or numbers(found) == []


@given(st.sampled_from([n for n in workload_names() + MACHINES if len(re.sub("[^a-z]", "", n)) > 5]), st.data())
def test_a_slip_of_the_keyboard_is_mended(name, data):
    places = [i for i in range(len(name) - 1) if name[i].isalpha() and name[i + 1].isalpha() and name[i] != name[i + 1]]
    at = data.draw(st.sampled_from(places))
    slips = [name[:at] + name[at + 1 :], name[:at] + name[at + 1] + name[at] + name[at + 2 :], name[:at] + name[at:]]
    wrong = data.draw(st.sampled_from(slips))
    found = nearest_name(wrong, LISTS["workloads"] + MACHINES)
    assert found is not None
    letters = re.sub("[^a-z]", "", wrong)
    assert found == name or abs(len(re.sub("[^a-z]", "", found)) - len(letters)) <= 2


@given(st.text(max_size=2 * LONGEST_NAME), st.lists(st.text(max_size=30), max_size=8))
def test_whatever_is_written_a_suggestion_is_one_of_the_valid_names(name, valid):
    found = nearest_name(name, valid)
    assert found is None or found in valid


@given(st.text(min_size=1, max_size=30))
def test_a_name_but_for_case_and_punctuation_is_itself(name):
    plain = re.sub("[^0-9a-z]", "", name.lower())
    assume(plain)
    assert nearest_name(f"-{name}_", ["other-name", name]) == name
