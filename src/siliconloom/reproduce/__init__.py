"""Published results, derived again: ``loom reproduce``.

A *card* is one publication: a module with a function ``card() -> Card`` whose rows put a figure of ours beside a
published one. To add a card, write its module and add one line to `CARDS`.

A card's figures come from a mechanism (a closed form, an event simulation, the simulator itself) with parameters that
the publication or a data sheet states. Nothing is fitted to the table that it is judged by; a row that lies outside
its tolerance says why.
"""

CARDS = {
    "apex": "siliconloom.reproduce.apex",
    "bit-weight": "siliconloom.reproduce.bit_weight",
    "flash-attention-2": "siliconloom.reproduce.flash_attention_2",
    "flat": "siliconloom.reproduce.flat",
    "distserve": "siliconloom.reproduce.distserve",
    "sarathi": "siliconloom.reproduce.sarathi",
    "splitwise": "siliconloom.reproduce.splitwise",
    "hydragen": "siliconloom.reproduce.hydragen",
    "dfloat11": "siliconloom.reproduce.dfloat11",
    "tpuv3": "siliconloom.reproduce.tpuv3",
    "exflow": "siliconloom.reproduce.exflow",
    "flux-comet": "siliconloom.reproduce.flux_comet",
    "fusemax": "siliconloom.reproduce.fusemax",
    "genz": "siliconloom.reproduce.genz",
    "hopper-latency": "siliconloom.reproduce.hopper_latency",
    "intar": "siliconloom.reproduce.intar",
    "instinfer": "siliconloom.reproduce.instinfer",
    "long-context": "siliconloom.reproduce.long_context",
    "nanoflow": "siliconloom.reproduce.nanoflow",
    "neupims": "siliconloom.reproduce.neupims",
    "neupims-simulator": "siliconloom.reproduce.neupims_simulator",
    "pim-gpt": "siliconloom.reproduce.pim_gpt",
    "lasp-2": "siliconloom.reproduce.lasp2",
    "ring-attention": "siliconloom.reproduce.ring_attention",
    "tokenring": "siliconloom.reproduce.tokenring",
    "ulysses": "siliconloom.reproduce.ulysses",
    "skippipe": "siliconloom.reproduce.skippipe",
    "sn40l": "siliconloom.reproduce.sn40l",
    "gpipe": "siliconloom.reproduce.gpipe",
    "marlin": "siliconloom.reproduce.marlin",
    "megatron": "siliconloom.reproduce.megatron",
    "t3": "siliconloom.reproduce.t3",
    "tokenweave": "siliconloom.reproduce.tokenweave",
    "ladder-residual": "siliconloom.reproduce.ladder",
    "vocabulary-parallel": "siliconloom.reproduce.vocabulary_parallel",
    "zero": "siliconloom.reproduce.zero",
}
"""Name of each card, lower case, and the module that holds it."""
