"""The numbers that users read change only on purpose: cycles, bytes, joules, plans, with nothing left to compare."""

import copy

import pytest
import yaml

from tests.golden.numbers import COMMANDS, NUMBERS, differences, run_command

KEPT = yaml.safe_load(NUMBERS.read_text())
SLOW = ("plan sn40l-node", "plan dgx-a100x128", "sim neupims gpt3-13b")
"""How commands begin that take seconds, and have others beside them of the same kind."""


def test_every_command_is_kept_and_no_other():
    assert list(KEPT) == list(COMMANDS)


@pytest.mark.parametrize(
    "command",
    [pytest.param(each, marks=[pytest.mark.slow(seconds=3)] * str(each).startswith(SLOW)) for each in COMMANDS],
)
def test_numbers_are_those_that_were_kept(command):
    moved = differences(run_command(command), KEPT[command])
    assert not moved, "moved on purpose? `python -m tests.golden.numbers`, and say why:\n" + "\n".join(moved[:20])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_kept_number_is_compared(command):
    """Each number of the file is changed by one part in ten thousand, or by one: no change goes unseen."""

    def leaves(value, path=()):
        if isinstance(value, dict | list):
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                yield from leaves(each, (*path, key))
        else:
            yield path, value

    found = KEPT[command]
    seen = 0
    for path, value in leaves(found):
        if isinstance(value, bool) or not isinstance(value, int | float) or value == 0:
            continue
        changed = copy.deepcopy(found)
        place = changed
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value + 1 if isinstance(value, int) else value * 1.0001
        assert len(differences(changed, found)) == 1, path
        seen += 1
    assert seen >= 3
