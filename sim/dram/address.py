"""Where in a memory an address lies."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from siliconloom.arch.dram import Dram
from siliconloom.arch.kernels import kernel

NUMBER = {"ch": 0, "ra": 1, "bg": 2, "ba": 3, "ro": 4, "co": 5}


def located(dram: Dram, addresses: NDArray[np.int64]) -> tuple[Any, Any, Any, Any, Any]:
    """Line, channel, bank within the channel, row and burst of every address."""
    parts = np.array([(NUMBER[f], first, bits, own) for f, first, bits, own in dram.layout()], np.int64)
    mixed = np.array([(NUMBER[f], NUMBER[other], first) for f, other, first in dram.mixed()], np.int64).reshape(-1, 3)
    widths = np.array([dram.widths()[f] for f in NUMBER], np.int64)
    line, found = np.empty(len(addresses), np.int64), np.empty((4, len(addresses)), np.int32)
    locate(addresses, parts, mixed, widths, dram.organization.request_bytes.bit_length() - 1, line, found)
    channel, bank, row, column = found
    return line, channel, bank, row, column


@kernel()
def locate(address: Any, parts: Any, mixed: Any, widths: Any, line_shift: int, line: Any, found: Any) -> None:
    """Fill per address: ``line``, and in ``found`` channel, bank within the channel, row, burst within the row.

    ``parts`` has field (channel, rank, bank group, bank, row, column), first bit, bits and first bit in the field;
    ``mixed`` field, other field and its first bit; ``widths`` each field's bits.
    """
    value = np.zeros(6, np.int64)
    for i in range(address.size):
        a = address[i]
        line[i] = a >> line_shift
        value[:] = 0
        for k in range(len(parts)):
            value[parts[k, 0]] |= (a >> parts[k, 1] & (1 << parts[k, 2]) - 1) << parts[k, 3]
        for k in range(len(mixed)):
            value[mixed[k, 0]] ^= value[mixed[k, 1]] >> mixed[k, 2] & (1 << widths[mixed[k, 0]]) - 1
        found[0, i] = value[0]
        found[1, i] = (value[1] << widths[2] | value[2]) << widths[3] | value[3]
        found[2, i], found[3, i] = value[4], value[5]
