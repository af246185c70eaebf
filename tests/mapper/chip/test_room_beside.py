"""Room for rows that stay in part beside what a tile needs of the other rings, where buffers are divided for it."""

import random

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from siliconloom.mapper.chip.layout import SLOTS, Undivided, grain_of
from tests.mapper.chip.improvements import made_chip, random_chip

RINGS = ("weights", "partial", "results", "constants", "chained", "second")


@given(st.integers(0, 10**6))
def test_a_slot_of_rows_has_all_that_others_leave_and_no_more(seed):
    r = random.Random(seed)
    tile = made_chip(random_chip(r)).tile
    least = tuple((ring, r.choice([1, 16, 256])) for ring in ("moving", *RINGS[: r.randint(2, len(RINGS))]))
    room, grain = Undivided(tile, least), grain_of(tile)
    needs = {ring: r.choice([8, 100, 4096, 30_000]) for ring in r.sample(RINGS, r.randint(1, 4)) if ring != "partial"}
    slot = int(room.moving_beside(needs))
    assume(needs and slot > 0)
    assert slot % grain == 0
    assert bool(room.fits({**needs, "moving": slot}))
    assert not bool(room.fits({**needs, "moving": slot + grain * SLOTS}))
    many = room.moving_beside({ring: np.array([size, size]) for ring, size in needs.items()})
    assert np.array_equal(many, [slot, slot])
