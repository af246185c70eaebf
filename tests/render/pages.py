"""Pages of every kind in headless Chromium, and the pictures that are kept of them.

``python -m tests.render.pages`` takes the pictures anew.
"""

import fcntl
import shutil
import sys
import tempfile
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from siliconloom.cli import main

PICTURES = Path(__file__).parent / "pictures"
SMALL = ["--set", "workload.layers=2", "--set", "workload.sequence=64"]
COMMANDS = {
    "chip": ["sim", "npu-edge-int8", "gpt2", *SMALL],
    "gpus": ["sim", "h100", "gpt2", *SMALL],
    "memory": ["sim", "neupims", "gpt3-7b", "--set", "workload.phase=decode"],
    "comparison": ["compare", "npu-edge-int8", "gpt2", "--gpu", "h100,a100", *SMALL],
    "plan": [
        *("plan", "dgx-h100", "gpt3-13b", "--set", "workload.phase=training", "--set", "workload.batch=32"),
        *("--set", "plan.pipeline=4", "--set", "plan.tensor=2", "--set", "plan.data=1", "--set", "plan.microbatch=2"),
    ],
    "sweep": ["sweep", "{folder}/sweep.yaml", "--results", "{folder}/sweep.sqlite", "--workers", "1"],
    "network": ["collective", "torus-2d", "all_reduce", "4 MiB", "--chips", "16"],
    "service": [
        *("serve", "dgx-h100", "llama3-8b", "azure-conv", "--set", "serve.requests=100", "--set", "serve.rate=20"),
        *("--set", "serve.price=3", "--set", "plan.data=2", "--slo", "ttft=300ms,tpot=12ms", "--find", "rate"),
    ],
}
"""A command for each kind of page, without its ``--report``; ``{folder}`` is where the pages go."""
SWEEP = """kind: sweep
machine: npu-edge-int8
workload: gpt2
set: {workload.layers: 1, workload.sequence: 32}
keys:
  tile.scratchpad.capacity: [64 KiB, 128 KiB, 256 KiB]
  memory.dram.bandwidth: [10 GB/s, 20 GB/s]
objectives: [time, energy]
"""
SHOWN = {
    "chip": "#timeline canvas",
    "gpus": "#kinds",
    "memory": "#units",
    "comparison": "#whole-time",
    "plan": "#pipeline canvas",
    "network": "#links canvas",
    "sweep": "#points .drawing",
    "service": "#overtime canvas",
}
"""What is kept as a picture of each kind."""
DARKER = 24
"""Of 255; pixels that differ by more are other ones."""


def chromium():
    """Path of the browser; nothing where there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


def write_pages(folder):
    """Path of a page of each kind; of processes that share a folder one writes them, and the others wait for it."""
    pages = {kind: Path(folder) / f"{kind}.html" for kind in COMMANDS}
    with (Path(folder) / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (Path(folder) / "sweep.yaml").write_text(SWEEP)
        for kind, page in pages.items():
            command = [word.replace("{folder}", str(folder)) for word in COMMANDS[kind]]
            assert page.exists() or main([*command, "--report", str(page)]) == 0
    return pages


@contextmanager
def browser():
    """The browser, as long as it is needed."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--font-render-hinting=none"])
        yield found
        found.close()


def picture(page, kind):
    """PNG of what is kept of a page."""
    return page.locator(SHOWN[kind]).screenshot(animations="disabled")


def other_pixels(png, kept):
    """Share of the pixels of two PNG files that are other ones, four by four together; 1 where sizes differ much."""
    images = [imread(BytesIO(each), format="png")[..., :3] for each in (png, kept)]
    if any(abs(a - b) > 0.1 * b for a, b in zip(images[0].shape, images[1].shape, strict=True)):
        return 1.0
    high, wide, _ = (min(sizes) // 4 * 4 or 3 for sizes in zip(*(i.shape for i in images), strict=True))
    means = [i[:high, :wide].reshape(high // 4, 4, wide // 4, 4, 3).mean(axis=(1, 3)) for i in images]
    return float((np.abs(means[0] - means[1]).max(axis=2) > DARKER / 255).mean())


def open_page(found, path, width=1000, height=800, dark=False):
    """A page in the browser, and what it complained of."""
    page = found.new_page(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light")
    complaints, here = [], ("file:", "blob:", "data:")
    page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: None if asked.url.startswith(here) else complaints.append(asked.url))
    page.goto(path.as_uri())
    return page, complaints


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, browser() as found:
        for kind, path in write_pages(folder).items():
            (PICTURES / f"{kind}.png").write_bytes(picture(open_page(found, path)[0], kind))
    sys.exit(0)
