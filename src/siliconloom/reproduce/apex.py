"""APEX+'s measured service: Llama 3.1 70B under vLLM 0.6.0 on eight H100, as one, two and four replicas.

`loom serve`'s own run of the same requests: kernels by the GPU model, the host's share by the stack ``vllm``, both of
which come from other measurements. Requests and their arrivals are those of the repository (MIT licence). Runs of
tensor parallelism 4 and 2 are taken to be of two and four replicas, by the names of the repository's files.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from siliconloom.evaluate.fleets import prepare_named
from siliconloom.evaluate.serving_run import serve
from siliconloom.reproduce.card import Card, CardRow

REQUESTS = files("siliconloom").joinpath("reproduce/data/apex/lmsys-0.5.csv")
GPUS = 8
MEASURED_MS = {8: (38.0, 14.1), 4: (38.2, 20.2), 2: (55.3, 32.6)}
"""By tensor parallelism: mean time to the first token, and for each further one."""
TOLERANCE = 0.1
STEP = (
    "2.3 to 2.6 ms a step less here, however the model is divided, as a slower host would leave (vLLM 0.6.0 is older "
    "than what the stack was measured on); nobody measured that host"
)
FIRST = (
    "14 to 20 ms less here, however the model is divided, as a server would leave that takes requests in the engine's "
    "own process (--disable-frontend-multiprocessing), which is not modelled; nobody measured that share"
)


def card() -> Card:
    """Serve the requests on the eight GPUs, by the chips that a replica has."""
    rows = []
    for tensor, (first, further) in MEASURED_MS.items():
        sets = [("plan.tensor", str(tensor)), ("plan.data", str(GPUS // tensor))]
        with as_file(REQUESTS) as path:
            result = serve(prepare_named("dgx-h100", "llama3-70b", str(path), sets))
        ours = result["ttft_s"]["mean"] * 1e3, result["tpot_s"]["mean"] * 1e3
        name = f"tensor {tensor}, {GPUS // tensor} replica{'s' * (tensor < GPUS)}"
        rows.append(CardRow(f"time per further token, ms [{name}]", ours[1], further, TOLERANCE, STEP))
        rows.append(CardRow(f"time to first token, ms [{name}]", ours[0], first, TOLERANCE, FIRST))
    return Card(
        "apex",
        "APEX+: a chat service of Llama 3.1 70B on eight H100",
        "Lin et al., APEX: An Extensible and Dynamism-Aware Simulator for Automated Parallel Execution in LLM Serving, "
        "2024 (measured by vLLM 0.6.0)",
        tuple(rows),
    )
