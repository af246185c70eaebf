"""Synthesis of a design module by module, on all processors, each distinct module once and never again.

Modules are independent of each other where nothing is simplified across their borders: what Yosys makes of one depends
on its own text and on the ports of those that it holds. So they are shared out to several runs of Yosys, in each of
which the modules of the others are black boxes, and what a module took is kept in a memo (`arch.memo`) under these
texts.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from siliconloom.arch.memo import compiled_memo, key_of
from siliconloom.rtl.emit import Bundle
from siliconloom.rtl.synthesis.module import INSTANCE, PORT
from siliconloom.rtl.synthesis.yosys import quoted, run_yosys, yosys_version

SHARES = 6
"""Runs of Yosys a processor, at most: several small modules share one, which takes seconds to begin."""
Counts = dict[str, int]
"""Instances in a module by the kind of what is placed: cells, and modules of the design."""


def module_counts(bundle: Bundle, folder: Path, told: Callable[[int, int], None]) -> dict[str, Counts]:
    """Cells of an ECP5, and instances, in every module of a design whose files lie in ``folder``.

    Parameters
    ----------
    bundle
        The design.
    folder
        To work in.
    told
        Called with the number of modules that are known and of all, as it grows.

    Raises
    ------
    YosysError
        When Yosys stops with an error.
    """
    texts = {Path(name).stem: bundle.files[name] for name in bundle.sidecar["verilog"]}
    below = {name: sorted(set(INSTANCE.findall(text)) & texts.keys()) for name, text in texts.items()}
    reached = _reached(bundle.top, below)
    prefix = f"{bundle.top}_"
    keys = {name: _key(name, texts, below[name], prefix) for name in reached}
    memo, found = compiled_memo(), dict[str, Counts]()
    for name, key in keys.items():
        kept = memo.known(key)
        if kept is not None:
            kinds = json.loads(str(kept["counts"]))
            found[name] = {f"{prefix}{kind}" if f"{prefix}{kind}" in texts else kind: n for kind, n in kinds.items()}
    told(len(found), len(reached))
    waiting = [name for name in reached if name not in found]

    def synthesized(number: int, share: Sequence[str]) -> None:
        for name, counts in _run(number, share, texts, below, folder).items():
            memo.keep(keys[name], {"counts": json.dumps({k.removeprefix(prefix): n for k, n in counts.items()})})
            found[name] = counts
        told(len(found), len(reached))

    workers = os.cpu_count() or 1
    shares = list(_shares(waiting, texts, workers * SHARES))
    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(synthesized, number, share) for number, share in enumerate(shares)]:
            done.result()
    return {name: found[name] for name in reached}


def statistics_of(counts: Mapping[str, Counts], top: str) -> dict[str, Any]:
    """What Yosys' ``stat -json`` would say of all of a design: of its modules, and of everything in the top."""

    def whole(name: str) -> Counter[str]:
        if name not in totals:
            total: Counter[str] = Counter()
            for kind, count in counts[name].items():
                inner = whole(kind) if kind in counts else {kind: 1}
                total.update({each: count * many for each, many in inner.items()})
            totals[name] = total
        return totals[name]

    totals: dict[str, Counter[str]] = {}
    return {
        "creator": yosys_version(),
        "modules": {name: {"num_cells_by_type": found} for name, found in counts.items()},
        "design": {"num_cells_by_type": dict(whole(top))},
    }


def _reached(top: str, below: Mapping[str, Sequence[str]]) -> list[str]:
    """A module and all that it holds, each once."""
    found, waiting = [top], [top]
    while waiting:
        new = [name for name in below[waiting.pop()] if name not in found]
        found += new
        waiting += new
    return found


def _key(name: str, texts: Mapping[str, str], below: Sequence[str], prefix: str) -> str:
    """The memo's key of a module: its text and the ports of what it holds, without the prefix of the chip's names."""
    ports = [str(PORT.findall(texts[each])) for each in below]
    return key_of("ecp5 module", yosys_version(), name.removeprefix(prefix), texts[name].replace(prefix, ""), *ports)


def _shares(names: Sequence[str], texts: Mapping[str, str], most: int) -> Iterator[list[str]]:
    """Modules shared out to runs, the largest ones first and by themselves, by the length of their text."""
    left = sum(len(texts[name]) for name in names)
    share: list[str] = []
    for name in sorted(names, key=lambda each: -len(texts[each])):
        share.append(name)
        if sum(len(texts[each]) for each in share) * most >= left:
            yield share
            share = []
    if share:
        yield share


def _run(
    number: int, share: Sequence[str], texts: Mapping[str, str], below: Mapping[str, Sequence[str]], folder: Path
) -> dict[str, Counts]:
    """Synthesize some modules side by side; the others that they hold are black boxes."""
    boxes = sorted({each for name in share for each in below[name]} - {*share})
    every, found = f"every_{number}", f"cells_{number}.json"
    rows = [f"  (* keep *) {name} of_{place} ();" for place, name in enumerate(share)]
    (folder / f"{every}.v").write_text("\n".join([f"module {every};", *rows, "endmodule", ""]), encoding="utf-8")
    run_yosys(
        [
            *(f"read_verilog -lib {quoted(f'{name}.v')}" for name in boxes),
            *(f"read_verilog {quoted(f'{name}.v')}" for name in [*share, every]),
            f"synth_ecp5 -noflatten -top {every} -run begin:check",  # `check_structure` has checked it
            "delete t:$scopeinfo",
            f"tee -q -o {found} stat -json",
        ],
        folder,
    )
    modules = json.loads((folder / found).read_text(encoding="utf-8"))["modules"]
    made = {_plain(name): each["num_cells_by_type"] for name, each in modules.items()}
    return {name: {_plain(kind): count for kind, count in made[name].items()} for name in share}


def _plain(name: str) -> str:
    return re.sub(r"^\\", "", name)


__all__ = ["module_counts", "statistics_of"]
