"""For every key of every description: a command whose result another value changes, or which refuses it.

A row is a description's name, the command of `bases.BASES`, where the description stands in its input, and keys with
values that its default or the input's value is not. ``key=value`` must change the result; ``key!value`` must be refused
with the key's name in the message. Several keys that only mean something together are joined by ``&``: the last one
is tried on top of the others; by ``&&`` where all are tried at once.
"""

from __future__ import annotations

ROWS = (
    # a chip
    (
        "Chip",
        "edge",
        "",
        "name=other clock=500MHz technology=45nm tile_count=2 memory.dram.capacity=16GiB "
        "noc.latency!1ns "
        "links.out.count!2 tiles_join!true clock!20GHz",
    ),
    ("Chip", "joined", "", "tiles_join=false"),
    ("Chip", "edge", "", "attention=separate"),
    (
        "SystolicArray",
        "edge",
        "tile.array.",
        "rows=8 cols=8 load_rows=1&tile.array.dataflow=output_stationary operands=[int8,bf16] multiply_stages=3 "
        "add_stages=2 accumulate_stages!2 unpack_stages!1 load_rows=1 load_rows!3 load_port=shared element=carry_save "
        "element!compressor element!digit_serial depth!2 operand_sigma!9",
    ),
    (
        "SystolicArray",
        "kept sums",
        "tile.array.",
        "element=compressor element=digit_serial depth=4 operands=bf16&tile.array.depth!2 "
        "element=digit_serial&tile.array.operand_sigma=9",
    ),
    ("Scratchpad", "edge", "tile.scratchpad.", "capacity=64KiB banks=4"),
    ("Accumulator", "edge", "tile.accumulator.", "capacity=16KiB"),
    (
        "VectorUnit",
        "edge",
        "tile.vector.",
        "lanes=8 latency=40 latency=40&tile.vector.sum_stages!2 transpose_rows=16 transpose_rows!3 sublanes=2 "
        "costs={softmax:{passes:9}} "
        "costs!{hardmax:{passes:9}} costs!{transpose:{passes:9}}",
    ),
    (
        "FunctionCost",
        "edge",
        "tile.vector.costs.softmax.",
        "passes=9 row_cycles=99 passes=2&tile.sequencer.launch_cycles=99&tile.vector.costs.softmax.kernels=3",
    ),
    ("VectorUnit", "packed rtl", "tile.vector.", "latency=30&tile.vector.sum_stages=4"),
    ("VectorUnit", "packed", "tile.vector.", "sum_stages!2 latency=30&tile.vector.sum_stages!3"),
    ("VectorUnit", "packed elements", "tile.vector.", "format=null"),
    ("SystolicArray", "own energy", "tile.array.", "energy=null"),
    ("ArrayEnergy", "own energy", "tile.array.energy.", "product=2pJ clock=3pJ clock=0J"),
    (
        "SystolicArray",
        "packed",
        "tile.array.",
        "weights!null accumulate_stages=2 accumulate_stages!3 unpack_stages=5 unpack_stages!9",
    ),
    ("SystolicArray", "kept", "tile.array.", "cache!bf16 cache!int8"),
    ("SystolicArray", "packed rtl", "tile.array.", "cache=[bf16]"),
    ("SparseWeights", "sparse", "tile.array.sparsity.", "skips=false patterns!block"),
    ("SystolicArray", "sparse", "tile.array.", "sparsity!null"),
    ("WeightFormats", "packed rtl", "tile.array.weights.", "formats=[int4] minima=false"),
    ("Dma", "edge", "tile.dma.", "bytes_per_cycle=16 outstanding=1"),
    ("SystolicArray", "npu rtl", "tile.array.", "dataflow=input_stationary"),
    ("Dma", "compressed", "tile.dma.", "decompression=1"),
    ("Dma", "npu rtl", "tile.dma.", "port_bytes=32 id_bits=8"),
    (
        "Sequencer",
        "edge",
        "tile.sequencer.",
        "issue_cycles=60 loop_cycles=60 queue_depth=1 program_words!8 launch_cycles=99",
    ),
    ("Sequencer", "npu rtl", "tile.sequencer.", "program_words=512"),
    (
        "Memory",
        "tiers",
        "memory.far.",
        "kind=flash capacity=8GiB bandwidth=5GB/s latency=2us access_bytes=256 "
        "energy=1nJ "
        "ports=1 devices=4 interleave=256B devices!5",
    ),
    ("Memory", "tiers", "memory.", "near.capacity=1GiB&memory.near.holds=[activations,cache]"),
    ("Memory", "rows", "memory.dram.", "dram=hbm2e"),
    ("PimTile", "pim", "tile.", "channels=2 lanes=4 accumulators=1 operands![int8] activate_group=1 commands=per_bank"),
    (
        "PimTile",
        "neupims",
        "chip.pim.",
        "dual_row_buffer=false activations=separate refresh_ranks=in_turn global_buffer=512B",
    ),
    ("PimTile", "pim rtl", "tile.", "bank_machines=1"),
    (
        "PimTile",
        "beside",
        "tile.pim.",
        "lanes=4 accumulators=1 activate_group=1 commands=per_bank bank_machines=1 dual_row_buffer!true "
        "global_buffer=128B channels!2 operands![int8] dram.timing.tRCD=20 activations!separate "
        "dram.controller.refresh=none",
    ),
    # a mapping
    ("DescribedMapping", "mapped", "", "joined!true banked!false placement!{}"),
    (
        "DescribedLayout",
        "mapped",
        "layout.",
        "weights=50048B&&layout.values=8000B moving=19968B&&layout.values=8000B vector=7040B "
        "results=8960B&&layout.values=8000B probabilities=7040B values!0B values=8192B values!64B constants!8B "
        "context=7000B second=8960B&&layout.values=8000B chained=15000B gates=64B&&layout.values=8000B "
        "partial=25000B&&layout.context=7000B partial!1MiB weights!60000B",
    ),
    ("DescribedLayout", "mapped sums", "layout.", "queries=4096B powers=4096B"),
    (
        "DescribedTask",
        "mapped",
        "tasks.8.",
        "operator!layer.other repetition!1 fused![] gemm!null vector!{rows:1,cols:1} "
        "layout={weights:32KiB,moving:16KiB,results:8KiB,second:8KiB,chained:8KiB,constants:4KiB,partial:24KiB} "
        "layout!{weights:1MiB,moving:8KiB,results:4KiB,partial:4KiB}",
    ),
    ("DescribedTask", "mapped", "tasks.0.", "vector!null"),
    ("DescribedTask", "mapped", "tasks.7.", "attention!null"),
    ("DescribedCut", "mapped", "tasks.4.cut.", "m=4&&tasks.4.cut.n=1&&tasks.4.gemm.m=8 n=2 batch!2 pairs!2"),
    (
        "DescribedCut",
        "mapped",
        "tasks.7.cut.",
        "pairs=2 queries=4&&tasks.7.cut.pairs=1&&tasks.7.attention.queries=1 group!2",
    ),
    ("DescribedCut", "mapped", "tasks.2.cut.", "cols=2 rows=4&&tasks.2.cut.cols=1"),
    (
        "DescribedProduct",
        "mapped",
        "tasks.4.gemm.",
        "m=16 n=16 k=32 order=n_outer k=768&&tasks.4.gemm.m=16&&tasks.4.gemm.n=16&&tasks.4.gemm.resident=true "
        "resident!true sequence!9 chunk=1KiB chunk!7B chunk!1GiB held!32 "
        "held=64&&tasks.4.gemm.order=m_kept&&tasks.4.gemm.m=16&&tasks.4.gemm.n=16&&tasks.4.gemm.k=32",
    ),
    (
        "DescribedProduct",
        "mapped sums",
        "tasks.5.gemm.",
        "block=8&&tasks.5.gemm.m=8&&tasks.4.vector.rows=8 block!3 block!16",
    ),
    (
        "DescribedAhead",
        "mapped",
        "tasks.4.gemm.ahead.",
        "weights=layer.attention_norm values=layer.attention_norm weights!layer.output values!layer.output",
    ),
    ("DescribedAhead", "mapped", "tasks.13.gemm.ahead.", "weights=head.norm"),
    (
        "DescribedAttention",
        "mapped",
        "tasks.7.attention.",
        "queries=2 keys=32 heads!2 whole=true keys=32&tasks.7.attention.whole!true "
        "queries=1&tasks.7.attention.resident=true resident!true",
    ),
    ("DescribedVector", "mapped", "tasks.2.vector.", "rows=2 cols=96"),
    ("DescribedPlace", "placed", "placement.15.", "operator!other role!other levels={far:2} levels!{near:1,far:2}"),
    # a system
    ("System", "system", "", "name=other algorithm=direct"),
    ("ChipGroup", "neupims", "chips.0.", "chip=npu-edge-int8 overrides={tile.vector.lanes:'32'}"),
    ("ChipGroup", "system", "chips.0.", "count=8"),
    ("Policy", "neupims", "policy.", "tensor=2 pipeline=2 attention=npu weights=pim values=row communicate=false"),
    ("Policy", "neupims many", "policy.", "interleave=never"),
    ("Policy", "unequal", "policy.", "balance=round_robin prefetch=false"),
    ("LinkProtocol", "link", "protocol.", "wire_cycles=20 packet_flits=4 outstanding=1 credits=32 timeout=400"),
    ("LinkProtocol", "ring engine", "protocol.", "flit_bits=128"),
    ("RingEngine", "ring engine", "ring.", "operand=int32 pieces=2"),
    # networks
    ("Network", "network", "", "name=other algorithm=ring"),
    ("Network", "own chips", "", "chips=9"),
    ("Topology", "network", "topology.", "kind=ring shape=[2,8] edges=[{between:[0,1],bandwidth:1MB/s}]"),
    (
        "Topology",
        "fat",
        "topology.",
        "chips_per_leaf=4 spines=1 uplink={bandwidth:1GB/s,latency:9us} forwarding=store_and_forward",
    ),
    ("Topology", "network", "topology.", "kind=switch&topology.adds=true adds!true"),
    ("Topology", "dragonfly", "topology.", "routers=2"),
    ("Topology", "nodes", "topology.", "switches!0"),
    ("Topology", "exchange", "topology.", "routing=ecmp"),
    ("LinkPort", "network", "link.", "count=2 bandwidth=1GB/s latency=9us"),
    ("Edge", "nodes", "topology.edges.0.", "between=[0,2] bandwidth=1MB/s latency=9us failed=true"),
    ("Endpoint", "network", "endpoint.", "memory=1GB/s delay=9us"),
    # communication programs
    ("Communication", "program", "", "name=other groups.few=[2,1,0] splits.tensor.size=2 timeout=1ms"),
    ("Entry", "program", "program.0.", "repeat=5"),
    ("Entry", "program", "program.5.", "ranks=1-2"),
    ("Entry", "program", "program.4.", "stream=main"),
    ("Step", "program", "program.0.do.0.", "compute.time=9us"),
    ("GroupSplit", "program", "splits.tensor.", "size=2 stride=2"),
    ("Compute", "program", "program.0.do.0.compute.", "time=9us"),
    ("CollectiveStep", "program", "program.0.do.1.all_reduce.", "group=all bytes=8MiB algorithm=tree"),
    ("AllToAll", "program", "program.3.do.2.all_to_all.", "group=tensor bytes=9MiB algorithm=hierarchical"),
    ("Broadcast", "program", "program.3.do.3.broadcast.", "group=tensor bytes=9MiB algorithm=ring root=5"),
    ("Barrier", "program", "program.3.do.4.barrier.", "group=tensor"),
    ("Send", "program", "program.1.do.0.together.0.send.", "to!rank+5 bytes!2MiB tag!1"),
    ("Receive", "program", "program.1.do.0.together.1.receive.", "from!rank+5 bytes!2MiB tag!1"),
    ("Event", "program", "events.0.", "at=1us chip=2 factor=3"),
    ("Event", "program", "events.1.", "between=[0,1] bandwidth=1MB/s"),
    ("Event", "program", "events.2.", "failed=false"),
    # GPUs
    (
        "Gpu",
        "gpu",
        "",
        "name=other architecture=ampere multiprocessors=66 clock=900MHz exponentials=4 power=200 "
        "idle_power=60 matrix.bf16=1024 power_cap=200 power_cap!900 locked_clock=900MHz locked_clock!1MHz",
    ),
    ("Gpu", "gpu", "", "vector.fp32=8 integer=8 sparse=1"),
    ("GpuCache", "gpu", "l2.", "capacity=4MiB"),
    ("GpuMemory", "gpu", "memory.", "bandwidth=1000GB/s"),
    ("GpuMemory", "known gpu", "memory.", "capacity=40GiB kind=hbm2e latency_cycles=900"),
    ("GpuCache", "known gpu", "l2.", "latency_cycles=900 far_latency_cycles=900"),
    (
        "GpuFirstLevel",
        "known gpu",
        "first_level.",
        "capacity=64KiB latency_cycles=90 shared_latency_cycles=90 remote_latency_cycles=900",
    ),
    ("GpuLink", "known gpu", "link.", "kind=pcie switched=false"),
    ("GpuLink", "gpu", "link.", "bandwidth=50GB/s per_node=4 in_switch=false network=5GB/s network_latency=50us"),
    # DRAM
    (
        "Dram",
        "dram",
        "",
        "name=other standard=HBM3 clock_period=2ns mapping=rochrababgco mapping=corabgbachro&organization.rows=16384 "
        "xor=[ba^ro0]",
    ),
    ("ChannelDram", "neupims", "chip.pim.dram.", "standard=GDDR6"),
    (
        "ChannelDram",
        "pim",
        "tile.dram.",
        "clock_period=2ns&&clock=500MHz mapping!robarabgcoch xor![ba^ro0] controller.two_commands!true",
    ),
    ("ChannelController", "pim", "tile.dram.controller.", "refresh=none queues!shared refresh!bank"),
    ("DramOrganization", "dram", "", "mapping=corabgbachro&organization.rows=16384"),
    (
        "DramController",
        "dram",
        "controller.",
        "scheduler=fcfs page=closed page=timeout&controller.timeout=1 "
        "read_queue=2 write_low=1&controller.write_queue=4 "
        "admission=shared&controller.read_queue=2 queues=shared&controller.read_queue=2 "
        "bank_queue=1 row_hits=1 refresh=none two_commands=false",
    ),
    (
        "DramOrganization",
        "dram",
        "organization.",
        "channels=2 ranks=2 bank_groups=2 banks=2 columns=32 bus_bits=64 burst_length=8 beats_per_clock=4",
    ),
    ("DramTiming", "dram", "", "controller.refresh=bank&timing.tRFCpb=100"),
    (
        "DramTiming",
        "dram",
        "timing.",
        "CL=30 CWL=12 tRCD=30 tRP=40 tRAS=90 tRC=140 tRRD_S=6 tRRD_L=12 tFAW=90 "
        "tCCD_L=9&timing.tCCD_S=9 "
        "tCCD_L=9 tWR=60 tWTR_S=8 tWTR_L=30 tRTP=40 tRTRS=40&organization.ranks=2 tRFC=900 tREFI=1500",
    ),
    # workloads
    (
        "GemmList",
        "gemms",
        "",
        "name=other precision=bf16 precision=w4a16&&weight_group=4 weight_group!16 weight_compression=0.7 "
        "weight_sparsity=2of4 weight_sparsity=block&&weight_density=0.5 "
        "weight_density=0.5&&weight_sparsity=block&&weight_block=4 weight_density!0.5 weight_block!8 "
        "weight_sparsity=2of4 weight_sparsity=block&&weight_density=0.5 "
        "weight_density=0.5&&weight_sparsity=block&&weight_block=4 weight_density!0.5 weight_block!8",
    ),
    ("GemmList", "compressed", "workload.", "weight_compression=0.9"),
    ("GemmList", "packed", "workload.", "weight_group=8"),
    ("GemmEntry", "gemms", "gemms.1.", "name=other m=8 n=8 k=8 batch=1 repeat=4 weight=false bias=true precision=bf16"),
    ("ConvolutionList", "images", "", "name=other precision=bf16 batch=1"),
    (
        "OnnxDescription",
        "exported",
        "",
        "name=other file=other.onnx batch=1 sequence=4 dimensions={heads:5} dimensions!{other:5} precision=bf16 "
        "file!none.onnx phase!decode",
    ),
    (
        "ConvolutionEntry",
        "images",
        "convolutions.0.",
        "name=other in_channels=16 out_channels=8 height=20 width=20 "
        "kernel=5 stride=2 padding=0 dilation=2 groups=2 repeat=2 bias=true precision=bf16",
    ),
    ("OperatorList", "operators", "", "name=other precision=bf16 batch=1"),
    (
        "ImageEntry",
        "operators",
        "operators.0.",
        "name!other in_channels=16 out_channels!8 height!20 width!20 kernel!5 stride!2 padding!0 dilation!2 groups=2 "
        "repeat=2 bias=true precision=bf16 block=some reads!none",
    ),
    (
        "PoolEntry",
        "operators",
        "operators.1.",
        "name=other kind=average_pool kernel=5 stride=2 padding=0 channels!8 height!20 width!20 repeat=2 "
        "precision=bf16 block=some",
    ),
    ("PoolEntry", "operators run", "workload.operators.1.", "reads=[]"),
    (
        "ProductEntry",
        "operators",
        "operators.2.",
        "name=other m=8 n=8 k=8 bias=true repeat=4 precision=bf16 block=some reads!pixels",
    ),
    (
        "AttentionEntry",
        "attention",
        "operators.0.",
        "name=other heads=8 kv_heads=4 kv_heads!3 queries=8 keys=24 head_dim=16 causal=true repeat=2 precision=bf16 "
        "block=some reads!none",
    ),
    (
        "VectorEntry",
        "operators",
        "operators.4.",
        "name=other kind=relu rows!8 cols!8 repeat=4 precision=bf16 block=some",
    ),
    ("VectorEntry", "operators run", "workload.operators.4.", "reads=[]"),
    (
        "Transformer",
        "prefill",
        "",
        "name=other batch=3 sequence=32 layers=1 precision=int8 phase=decode "
        "operator_precision={'*.down':int8} sample=greedy experts!all model.n_embd=64 context=96 training_batch!4 "
        "context!250 context=8&cache_precision=int8 context=96&cache_length!100 "
        "cache_length=96 cache_length!32 cache_precision=int8 cache_precision!int32 "
        "precision=w8a16&&weight_group=16 weight_group!16 weight_compression=0.7 "
        "weight_sparsity=2of4 weight_sparsity=block&&weight_density=0.5 "
        "weight_density=0.5&&weight_sparsity=block&&weight_block=4 weight_density!0.5 weight_block!8 "
        "model.quantization_config!{bits:4} "
        "model.quantization_config={'quant_method':gptq,'bits':4,'group_size':32} "
        "model.lora_rank!8",
    ),
    (
        "Transformer",
        "decode",
        "",
        "context=32 sequence=4 sequence!97 sequence=4&sample=greedy training_batch!4 encoder_sequence!8",
    ),
    ("Transformer", "prefill", "", "expert_popularity!1.0"),
    (
        "Transformer",
        "mixture",
        "",
        "expert_popularity=1.5 expert_popularity=[4,1,1,1,1,1,1,1] expert_popularity=chance expert_popularity![1]",
    ),
    ("Transformer", "prefill", "", "decoder_sequence!2 encoder_sequence!8 requests=[{new:8}]&batch!2"),
    (
        "Request",
        "prefill",
        "",
        "requests=[{new:8}]&requests.0.new=9 requests=[{new:8}]&requests.0.context=9 "
        "requests=[{new:8}]&requests.0.count=9",
    ),
    (
        "Transformer",
        "translator",
        "",
        "sequence=32 decoder_sequence=2 batch=3 layers=1 precision=int8 phase=decode phase!training sample=greedy "
        "encoder_sequence!32 context!96 cache_length=96 cache_precision=int8 experts!all model.d_kv=32 "
        "model.relative_attention_num_buckets=8 model.relative_attention_max_distance!64 weight_sparsity=2of4 "
        "operator_precision={'*.cross_kv':int8}",
    ),
    (
        "Transformer",
        "translated",
        "",
        "encoder_sequence=32 context=32 sequence!64 decoder_sequence!2 cache_length=600 cache_precision=int8 layers=1 "
        "operator_precision={'*.cross_kv':int8}",
    ),
    ("Transformer", "heard", "", "sequence!32 decoder_sequence=2 decoder_sequence!449 model.num_mel_bins=128"),
    (
        "Transformer",
        "training",
        "",
        "training_batch=2 batch=5&training_batch!3 context!96 sample!greedy cache_length!128 cache_precision!int8",
    ),
    # plans, runs, stragglers
    (
        "Plan",
        "plan",
        "plan.",
        "tensor=1&&plan.data=4 data=1&&plan.tensor=4 data=1&&plan.pipeline=4 microbatch=2 "
        "schedule=gpipe schedule=interleaved&plan.chunks=2 zero=1 recompute=full sequence_parallel=true "
        "attention=unfused "
        "data=1&&plan.context=2 microbatch=2&plan.overlap=tokens overlap_gradients=false vocabulary=true outer=4 "
        "zero=3&plan.zero_group=1",
    ),
    (
        "Plan",
        "hosted plan",
        "plan.",
        "offload=parameters offload!none offload_activations=true host_bandwidth=5GB/s "
        "host_memory_bandwidth=20GB/s host_bandwidth!null outer!4",
    ),
    ("Plan", "plan", "plan.", "offload!optimizer offload_activations!true host_bandwidth!1GB/s"),
    (
        "Plan",
        "context",
        "plan.",
        "context_scheme=ulysses context_scheme=hybrid&plan.context_heads=2 documents=512,256,256",
    ),
    (
        "Plan",
        "experts",
        "plan.",
        "expert=2 expert=2&plan.expert_load=2 expert=2&plan.expert_tensor=1 "
        "expert=2&plan.expert_routing=routing.csv expert=4&plan.expert_routing=routing.csv "
        "expert=4&plan.expert_routing=routing.csv&plan.expert_placement=in_order "
        "expert=2&plan.expert_routing=routing.csv&plan.expert_copies=1 expert=2&plan.expert_copies=1 "
        "expert_routing!routing.csv expert_copies!1 expert_load!2 expert=2&plan.expert_placement!in_order "
        "expert=2&plan.expert_copies!5 "
        "expert=2&plan.expert_routing=routing.csv&plan.expert_load!2",
    ),
    ("Plan", "apart", "plan.", "data=4&&plan.attention_chips=4"),
    ("DescribedRun", "run", "run.", "steps=500 mtbf=1d checkpoint=60s checkpoint_steps=3 restart=60s spares=0 seeds=3"),
    ("Straggler", "slow", "slow.", "stage=0 factor=5 at=1ms"),
    ("DescribedRun", "stored", "run.", "storage=1GB/s"),
    ("Straggler", "slow link", "slow.", "link!9"),
    # requests
    (
        "ServeSettings",
        "served",
        "serve.",
        "requests=10 skip=3 rate=100 arrivals=at_once rate=50&serve.arrivals=poisson&&serve.seed=4 "
        "rate=50&&serve.arrivals=gamma&&serve.burstiness=3 burstiness!3 seed!3 "
        "batching=static batching=prefill_first max_sequences=3 max_sequences=64&serve.token_budget=512 "
        "max_sequences!4096 max_sequences=64&serve.token_budget=512&serve.chunked!false "
        "max_sequences=64&serve.token_budget=900&serve.chunked=false "
        "acceptance!0.5 draft!gpt2 speculate!3 speculate=3&&serve.acceptance=0.6 "
        "speculate=[2,1]&&serve.acceptance=[0.5,0.3] speculate![2]&serve.acceptance!0.5 "
        "speculate=3&&serve.acceptance=0.6&&serve.draft=smollm2-135m speculate=2&&serve.acceptance=[0.9,0.1] "
        "draft_on!h100 draft_latency_s!1 draft_tensor!1 draft_price!1 draft_ahead!true "
        "order=shortest order=priority order=fair preemption!swap host_bandwidth!1GB/s "
        "preemption=swap&&serve.host_bandwidth=1GB/s "
        "block=64 watermark=0.3 prefix_cache=false cache_tokens=3200 cache_tokens!512 prefill_replicas!1 price=2 "
        "electricity=0.5",
    ),
    (
        "ServeSettings",
        "served guessing",
        "serve.",
        "draft_on=a100 draft_latency_s=0.01 draft_tensor=1 draft_tensor!3 price=2&serve.draft_price=1 "
        "draft_price!1 draft_latency_s!-1 draft_ahead=true",
    ),
    (
        "FleetGroup",
        "fleet",
        "groups.1.",
        "machine=dgx-h100 count=2 role!whole plan={tensor:2,data:1} overrides={chip.memory.bandwidth:1TB/s} "
        "price=3&groups.0.price=2 price!-1",
    ),
    ("FleetDescription", "fleet", "", "name!9 link!null"),
    (
        "ServeSettings",
        "served adapters",
        "serve.",
        "adapter_rank=64 adapter_slots=1 adapter_rank!null host_bandwidth=1GB/s",
    ),
    ("ServeSettings", "served", "serve.", "adapter_rank!8 adapter_slots!3 model_slots!2 model_bandwidth!1GB/s"),
    (
        "ServeSettings",
        "served",
        "serve.",
        "expert_slots!4 expert_bandwidth!50GB/s expert_ahead!true page=64KiB page!100",
    ),
    (
        "ServeSettings",
        "served offloaded",
        "serve.",
        "expert_slots=3 expert_slots!8 expert_slots!null expert_bandwidth=10GB/s expert_bandwidth!null "
        "expert_ahead=true seed=5 model_slots!1 tune_sequence!64",
    ),
    ("SpillTier", "served storing", "serve.spill.0.", "shared=true"),
    ("ServeSettings", "served", "serve.", "tune_sequence!512 tune_rank!8 tune_step_s!0.1"),
    (
        "ServeSettings",
        "served tuning",
        "serve.",
        "tune_sequence=300 tune_rank=256 tune_step_s=0.03 tune_step_s!0.001 tune_rank!null tune_step_s!null "
        "speculate!2 model_slots!1 batching!static lost_every!10 power_limit!500",
    ),
    (
        "ServeSettings",
        "served models",
        "serve.",
        "model_slots=1 model_slots!4 model_slots!null model_bandwidth=10GB/s model_bandwidth!null router=resident "
        "adapter_rank!8 speculate!2 shared_attention!true batching!static",
    ),
    (
        "ServeSettings",
        "served alike",
        "serve.",
        "shared_attention=true prefix_cache=false&&serve.shared_attention!true "
        "batching=static&&serve.shared_attention!true max_sequences=1&&serve.shared_attention!true",
    ),
    (
        "SpillTier",
        "served spilling",
        "serve.spill.0.",
        "name=cxl capacity=16MiB capacity!1KiB bandwidth=20GB/s bandwidth!1MB/s",
    ),
    ("ServeSettings", "served spilling", "serve.", "spill=[] prefix_cache!false batching!static"),
    ("ServeSettings", "served adapters", "serve.", "spill![{name:host,capacity:1GiB,bandwidth:1GB/s}]"),
    ("ServeSettings", "served roomy", "serve.", "memory_share=0.5 memory_share!0.1"),
    ("ServeSettings", "served many", "serve.", "prefill_replicas=1 router=least_loaded router=prefix"),
    (
        "ServeSettings",
        "served many",
        "serve.",
        "scale_at=900&&serve.start_s=0.1&&serve.replicas_least=2 replicas_least!2 replicas_least!4 scale_at!900 "
        "start_s!3 replicas_most!3 lost_every!2 restart_s!1 restart_s=1&&serve.lost_every=0.5",
    ),
    (
        "ServeSettings",
        "served scaled",
        "serve.",
        "replicas_most=2 replicas_most!1 replicas_most!5 scale_at=4000 start_s=0.4 replicas_least=3 replicas_least!4 "
        "restart_s=0.3&&serve.lost_every=0.5 restart_s=0.3&&serve.lost_every=0.5&&serve.seed=7",
    ),
    (
        "ServeSettings",
        "served moving",
        "serve.",
        "migrate_below=400 migrate_below!null migrate_above=900 migrate_above!100 migrate_every=0.4 "
        "batching!static prefill_replicas!1",
    ),
    (
        "ServeSettings",
        "served capped",
        "serve.",
        "power_limit=250 power_limit!null capped_clock=0.4 capped_clock=[0.8,0.5] capped_clock![0.5,0.8] "
        "capped_clock!0.1 capped_clock!null power_every=0.2 batching!static prefill_replicas!1",
    ),
    ("ServeSettings", "served", "serve.", "capped_clock!0.5 power_every!9 power_limit!300"),
    ("ServeSettings", "served many", "serve.", "migrate_above!9 migrate_every!9"),
    ("ServeSettings", "served", "serve.", "migrate_below!9"),
)

COMMENTS = {"description", "source", "product"}
"""Keys that are text for readers of the file."""

ELSEWHERE: dict[str, str] = {
    "DescribedRun.repair": "tests/evaluate/test_faulty_runs.py",
    "ChannelDram.name": "tests/arch/test_description.py",
    "Transformer.experts": "tests/workloads/test_workload_graph.py",
    **{
        f"{kind}.{key}": "tests/sweeps/test_sweep_keys.py"
        for kind, keys in {
            "Sweep": "name machine workload trace slo stack set method points population seed objectives",
            "SweepKey": "values from to step factor with",
            "SweepConstraint": "metric at_most at_least",
            "SweepMapping": "search seed objective placement",
        }.items()
        for key in keys.split()
    },
}
"""``Description.key`` that no row above changes, and the test that does."""
