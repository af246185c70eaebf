"""The same workload under other names: operators and blocks are called what nobody can read anything from."""

import random
import re

from msgspec.structs import replace

from siliconloom.workloads.dataflow import Dataflow

OPAQUE = re.compile(r"\b[xb]\d{4}z")


def renamed(graph, seed=0):
    """The graph with opaque names in no order, in its references too, and what each of them stands for."""
    chance = random.Random(seed)
    operators = _opaque("x", list(graph.dataflow), chance)
    blocks = _opaque("b", [name for name, _, _ in graph.blocks()], chance)
    dataflow = Dataflow()
    for operator in graph.operators():
        place = operator.place
        changes = {
            "name": operators[operator.name],
            "block": blocks[operator.block],
            "place": replace(
                place,
                forward=place.forward and operators[place.forward],
                forward_block=place.forward_block and blocks[place.forward_block],
            ),
        }
        if getattr(operator, "tied", None):
            changes["tied"] = operators[operator.tied]
        dataflow.add(replace(operator, **changes))
    for source, target, elements in graph.dataflow.edges():
        dataflow.connect(operators[source], operators[target], elements)
    names = [*operators.items(), *blocks.items()]
    return replace(graph, dataflow=dataflow), {new: old for old, new in names}


def known(text, names):
    """A text with the names of old; what somebody has added to a name stays."""
    return OPAQUE.sub(lambda found: names[found[0]], text)


def _opaque(letter, names, chance):
    numbers = chance.sample(range(10_000), len(names))
    return {name: f"{letter}{number:04}z" for name, number in zip(names, numbers, strict=True)}
