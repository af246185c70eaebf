"""Cascades of extended Einsums: points, divisors, and what is wrong with a text or a file."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.document import Document
from siliconloom.arch.errors import DescriptionError, LoomError, NotSupported
from siliconloom.workloads.cascades.described import build_cascade, load_cascade
from siliconloom.workloads.cascades.interpret import CascadeValues
from siliconloom.workloads.cascades.text import EinsumTextError, parse_einsum
from siliconloom.workloads.cascades.tiles import kernel_traffic
from siliconloom.workloads.cascades.traffic import divisors, fused_traffic


def test_what_would_take_for_ever_is_refused():
    ranks = ", ".join(f"{rank}: 720720" for rank in "ABC")
    text = f"kind: cascade\nname: any\nranks: {{{ranks}}}\nstream: A\neinsums:\n  - Z[a, b] = X[a, c] * Y[c, b]\n"
    with pytest.raises(NotSupported, match="an Einsum with more than 2000000 sizes of tiles"):
        kernel_traffic(build_cascade(Document.parse(text)), 2**20)
    chain = ["  - S = X0[a]"] + [f"  - X{n}[a] = X{n - 1}[a]" for n in range(1, 14)]
    late = " + ".join(f"X{n}[a]" for n in range(14))
    text = "kind: cascade\nname: any\nranks: {A: 4}\nstream: A\neinsums:\n" + "\n".join(chain)
    cascade = build_cascade(Document.parse(f"{text}\n  - Z[a] = S * ({late})\n"))
    with pytest.raises(NotSupported, match="any: more than 12 tensors are read in a later pass"):
        fused_traffic(cascade, math.inf)


@given(st.integers(1, 5000))
def test_divisors_are_all_that_divide(number):
    assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


def test_divisors_of_large_extents_are_found_or_refused():
    assert len(divisors(1 << 72)) == 73
    with pytest.raises(NotSupported, match="two prime factors above"):
        divisors((2**31 - 1) ** 2)


@given(size=st.integers(1, 6))
def test_points_are_those_that_conditions_keep(size):
    for text in ("A[i, j] = X[i] * Y[j] | sum, j <= i", "A[i, j] = X[i] * Y[j] | sum, j < i", "A[i] = X[i] * Y[j]"):
        head = f"kind: cascade\nname: any\nranks: {{I: {size}}}\nvariables: {{j: I}}\nstream: I\neinsums:\n  - {text}\n"
        cascade = build_cascade(Document.parse(head))
        values = CascadeValues(cascade, dict.fromkeys(cascade.inputs))
        assert cascade.points(cascade.einsums[0]) == len(values.points(cascade.einsums[0], {}))


def test_a_summed_product_is_one_multiply_add_a_point():
    ranks = {"m": "M", "e": "E", "p": "P"}
    counts = {
        "Z[m, p] = A[e, m] * B[e, p]": {"mac": 1},
        "Z[m] = A[e, m] | max": {"max": 1},
        "Z[m] = exp(A[e, m] - B[m])": {"exp": 1, "subtract": 1, "add": 1},
        "Z[m, p] = A[m] * B[p]": {"multiply": 1},
        "Z[m] = (A[m] + B[m]) / 2": {"add": 1, "divide": 1},
    }
    for text, expected in counts.items():
        assert dict(parse_einsum(text, ranks).operations()) == expected, text


@pytest.mark.parametrize(
    ("text", "rule", "place"),
    [
        ("Z[m] = A[k]", "unknown variable k; known: m, p", 9),
        ("Z[m] = expp(A[m])", "unknown function expp", 7),
        ("Z[m] = A[m] | som", "a reduction is one of sum, max, min, not som", 14),
        ("Z[m] = A[m] +", "a tensor, a number or a function is expected, not the end", 13),
        ("Z[m] = A[m] B[m]", "B is more than the Einsum", 12),
        ("Z[m = A[m]", "']' is expected, not =", 4),
        ("Z[m] = A[1.5]", "a coordinate is a whole number, not 1.5", 9),
        ("Z[m] = A[m] ? 2", "'?' has no meaning in an Einsum", 12),
        ("Z[m] = exp(A[m], A[m])", "exp takes 1 argument, not 2", 7),
        ("Z[m] = A[m] | sum, p <= m", "a condition on p, which no access has", 12),
        ("Z[m, p] = A[m] * B[p] | sum, m < p, p < m", "not supported: more than one condition", 22),
        ("Z[m, m] = A[m]", "an output has every variable once", 0),
        ("Z[m+1] = 3", None, None),
    ],
)
def test_what_is_wrong_with_a_text_is_told_at_its_place(text, rule, place):
    ranks = {"m": "M", "p": "P"}
    if rule is None:
        assert parse_einsum(text, ranks).output.coordinates[0].offset == 1
        return
    with pytest.raises(EinsumTextError) as caught:
        parse_einsum(text, ranks)
    assert rule in caught.value.rule
    assert caught.value.place == place


HEAD = "kind: cascade\nname: any\nranks: {M: 8, N: M / 2}\nstream: M\neinsums:\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "  - Z[m] = A[k]\n", ":6:14: einsums.0: unknown variable k; known: m, n"),
        (HEAD + "  - Z[m] = A[m]\n  - Y[m] = Z[m, n]\n", ":7:5: einsums.1: Z has 1 coordinates elsewhere"),
        (HEAD + "  - Z[m] = A[m]\n  - Y[n] = Z[n]\n", "coordinate 1 of Z is along M elsewhere, not N"),
        (HEAD + "  - Y[m] = Z[m]\n  - Z[m] = A[m]\n", "Z is read before it is made"),
        (HEAD + "  - Y[m] = Z[m]\n  - Y[m] = A[m]\n", ":7:5: einsums.1: Y[m] is made twice"),
        (HEAD + "  - Y[m+1] = Y[m] + A[m]\n", ":6:5: einsums.0: Y has no value to begin with"),
        (
            HEAD.replace("einsums", "repeat: [N]\neinsums") + "  - Z[m] = A[m, n]\n",
            "repeat.0: is walked by the cascade",
        ),
        (HEAD.replace("einsums", "repeat: [M]\neinsums") + "  - Z[n] = A[n]\n", "repeat.0: is walked by the cascade"),
        (HEAD.replace("einsums", "outer: [M]\neinsums") + "  - Z[m] = A[m]\n", "outer.0: tiles of the rank that is"),
        (HEAD.replace("stream: M", "stream: MM") + "  - Z[m] = A[m]\n", "stream: no rank of that name; ranks: M, N"),
        (HEAD.replace("M / 2", "M / 3") + "  - Z[m] = A[m]\n", "ranks.N: 8 is not a multiple of 3"),
        (HEAD.replace("M: 8", "M: N * 2") + "  - Z[m] = A[m]\n", "ranks are made of one another in a circle"),
        (HEAD.replace("M / 2", "half") + "  - Z[m] = A[m]\n", "must be a number, A / B or A * B of other ranks"),
        (HEAD.replace("stream", "streem") + "  - Z[m] = A[m]\n", "did you mean 'stream'?"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_line_and_column(text, expected):
    with pytest.raises(DescriptionError) as caught:
        build_cascade(Document.parse(text, "any.yaml"))
    assert expected in str(caught.value)


def test_names_and_ranks_that_are_not_there_are_told():
    with pytest.raises(LoomError, match="did you mean 'fusemax'"):
        load_cascade("fuzemax")
    with pytest.raises(LoomError, match=r"fusemax has no rank MM; ranks: .*M0, M1, P0"):
        load_cascade("fusemax", [("MM", "4")])
    with pytest.raises(LoomError, match=r"ranks\.M1: 1000 is not a multiple of 256"):
        load_cascade("fusemax", [("M", "1000")])
