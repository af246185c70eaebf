"""Loops are looked for module by module: what is found to have none has none, and what has one is refused."""

import importlib.util
from graphlib import CycleError, TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siliconloom.arch.errors import CheckFailed
from siliconloom.rtl.synthesis import structure
from siliconloom.rtl.synthesis.structure import check_structure, may_loop

WIDTH = 2
KINDS = ("$and", "$add", "$dff")


@st.composite
def module(draw, children):
    """Two inputs, two outputs, and cells and children between them, whose operands are any bits that are there."""
    made = draw(st.lists(st.sampled_from((*KINDS, *children * 3)), min_size=1, max_size=4))
    outputs = {kind: ("Y",) if kind.startswith("$") else ("p", "q") for kind in made}
    words = [[WIDTH * at, WIDTH * at + 1] for at in range(2 + sum(len(outputs[kind]) for kind in made))]
    bit = st.sampled_from([bit for word in words for bit in word])
    word = st.lists(bit, min_size=WIDTH, max_size=WIDTH)
    left, cells = iter(words[2:]), {}
    for at, kind in enumerate(made):
        own = kind.startswith("$")
        ways = (
            {"A": "input", "B": "input", "Y": "output"}
            if own
            else {"a": "input", "b": "input", "p": "output", "q": "output"}
        )
        bits = {name: draw(word) if way == "input" else next(left) for name, way in ways.items()}
        cells[f"cell_{at}"] = {"type": kind, "port_directions": ways, "connections": bits}
    ports = {name: {"direction": "input", "bits": words[at]} for at, name in enumerate("ab")}
    ports |= {name: {"direction": "output", "bits": words[at]} for name, at in (("p", 2), ("q", -1))}
    return {"ports": ports, "cells": cells}


@st.composite
def design(draw):
    leaf = draw(module(()))
    middle = draw(module(("leaf",)))
    return {"top": draw(module(("leaf", "middle"))), "middle": middle, "leaf": leaf}


def loops(modules):
    """Whether the design, flattened, has a loop; bit by bit."""
    graph = {}

    def place(name, path, outside):
        def net(bit):
            return outside.get(bit, (path, bit))

        for cell_name, cell in modules[name]["cells"].items():
            bits = cell["connections"]
            if cell["type"] in modules:
                inner = modules[cell["type"]]["ports"]
                joined = {}
                for port in "ab":
                    joined |= dict(zip(inner[port]["bits"], map(net, bits[port]), strict=True))
                below = (*path, cell_name)
                place(cell["type"], below, joined)
                for port in "pq":
                    for ours, its in zip(bits[port], inner[port]["bits"], strict=True):
                        graph.setdefault(net(ours), set()).add(joined.get(its, (below, its)))
            elif cell["type"] != "$dff":
                for at in range(WIDTH):
                    read = [
                        each for name in "AB" for each in (bits[name] if cell["type"] == "$add" else [bits[name][at]])
                    ]
                    graph.setdefault(net(bits["Y"][at]), set()).update(map(net, read))

    place("top", (), {})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return True
    return False


@given(design())
def test_a_design_that_is_found_sound_has_no_loop(modules):
    assert may_loop(modules, "top") or not loops(modules)


@given(module(()))
def test_loops_of_a_module_alone_are_found_bit_by_bit(leaf):
    assert may_loop({"top": leaf}, "top") == loops({"top": leaf})


INNER = """module inner(input clk, input a, input b, output x, output reg y);
assign x = a ^ b; always @(posedge clk) y <= b; endmodule"""
SOUND = {
    "through a register": "inner one(clk, a, back, to, t); inner two(clk, a, to, b, back);",
    "through other bits of a word": "wire [1:0] w; wide one({w[0], a}, w); assign b = w[1];",
}
WRONG = {
    "through two modules": "inner one(clk, back, a, to, t); inner two(clk, to, a, back, b);",
    "in a module": "assign b = ~(b & a);",
    "a latch": "reg c; always @* if (a) c = t; assign b = c; assign t = a;",
    "two drivers": "inner one(clk, a, a, b, t); inner two(clk, t, a, b, back);",
    "an input left open": "inner one(.clk(clk), .a(a), .x(b));",
}
WIDE = "module wide(input [1:0] i, output [1:0] o); assign o = ~i; endmodule"
yosys = pytest.mark.skipif(importlib.util.find_spec("pyosys") is None, reason="pyosys is not installed")


def checked(body, folder):
    text = f"{INNER}\n{WIDE}\nmodule top(input clk, input a, output b); wire to, t, back; {body} endmodule\n"
    (folder / "top.v").write_text(text)
    check_structure(["read_verilog top.v"], "top", folder)


@yosys
@pytest.mark.parametrize("name", SOUND)
def test_what_only_looks_like_a_loop_is_none(name, tmp_path):
    checked(SOUND[name], tmp_path)


@yosys
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name, tmp_path):
    with pytest.raises(CheckFailed, match="latches, loops or conflicts"):
        checked(WRONG[name], tmp_path)


@yosys
def test_a_design_is_flattened_only_where_a_loop_is_possible(tmp_path, monkeypatch):
    monkeypatch.setattr(structure, "structure_checks", lambda: pytest.fail("flattened"))
    checked(SOUND["through a register"], tmp_path)
