"""The dataclasses behind ``configs/``: every value is typed and checked here before anything starts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.addresses import check_attached
from harness.checking import check_values, first_line, nearest
from harness.errors import UsageError
from harness.places import check_places

UNKNOWN_KEY = re.compile(r"Key '(?P<key>[^']*)' not in '(?P<schema>\w+)'")
"""How OmegaConf says that a class has no such field."""


@dataclass
class GeometryConfig:
    """Layers, heads and dtypes of a model whose checkpoint is not at hand; see :class:`harness.model.Geometry`."""

    layers: int = MISSING
    attention_layers: int = MISSING
    key_heads: int = MISSING
    value_heads: int = MISSING
    key_dim: int = MISSING
    value_dim: int = MISSING
    conv_kernel: int = MISSING
    kv_heads: int = MISSING
    head_dim: int = MISSING
    dtype: str = "bfloat16"
    ssm_dtype: str = "float32"


@dataclass
class RecipeConfig:
    """Server arguments that are published for a model: planned commands hold them unchanged."""

    source: str = MISSING
    lmcache: list[str] = field(default_factory=list)
    vllm: list[str] = field(default_factory=list)


@dataclass
class ModelConfig:
    """A model as vLLM is to serve it; ``configs/model``."""

    name: str = MISSING
    path: str = MISSING
    """Checkpoint folder or hub id; a relative path is taken from the current folder."""
    block_size: int | None = None
    """vLLM ``--block-size``; None leaves it to vLLM."""
    max_model_len: int | None = None
    """vLLM ``--max-model-len`` in tokens; None leaves it to the checkpoint."""
    tensor_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    separate_object_groups: bool = True
    vllm_args: list[str] = field(default_factory=list)
    gpus: int = 0
    """GPUs it needs; 0 for one that a CPU serves."""
    parameters_b: float | None = None
    """Parameters in 1e9, for the memory that its weights take."""
    l1_size_gb: float = 2.0
    """LMCache's L1 in GB where servers.lmcache.l1_size_gb does not say otherwise."""
    native_context: int | None = None
    """Context in tokens that it was trained for."""
    geometry: GeometryConfig | None = None
    """Used where ``path`` is no folder; None asks the hub for config.json."""
    recipe: RecipeConfig | None = None
    support: dict[str, str] = field(default_factory=dict)
    """What is validated for it: a feature of ``harness/model/support.py`` -> one of its statuses."""
    support_source: str | None = None


@dataclass
class SweepConfig:
    """Which budgets and hit rates are measured; ``configs/sweep``."""

    name: str = MISSING
    budgets: list[Any] = field(default_factory=lambda: ["2N-1"])
    """Tokens per step (``--max-num-batched-tokens``): numbers, or words in N such as ``2N-1`` and ``1.5N``."""
    hit_rates: list[Any] = field(default_factory=lambda: ["full"])
    """Shares of the prompt tokens that warm retrieves, each a cell: numbers from 0 to 1, or ``full`` for all that
    can be reached. 0 retrieves nothing: speed only."""
    diverge_after: list[Any] = field(default_factory=list)
    """Blocks of N after which what was stored goes on differently, each a cell; needs ``check=divergence``."""
    damage: list[Any] = field(default_factory=list)
    """What is damaged before warm, each a cell: ``none``, a kind of ``harness/corruption.py``, or ``kind@0.05`` for 5 %
    of the prompts; needs ``check=selftest``."""
    damage_once: list[Any] = field(default_factory=list)
    """The same, in the first repeat only."""
    repeats: int = 1
    shard: str | None = None
    """``i/n``: of the launches every n-th, from the i-th on, so that n jobs measure each of them once."""


@dataclass
class TaskConfig:
    """What is asked; ``configs/task``."""

    name: str = MISSING
    limit: int | None = None
    """Questions; None asks all of them."""
    floor: float = 0.05
    """Cold scores at or below this prove nothing: two models that know nothing are always equivalent."""
    min_blocks: int = 1
    """Whole blocks of N tokens that every prompt must cover."""
    num_fewshot: int | None = None
    """Few-shot examples; None takes the fewest from ``min_fewshot`` on that cover ``min_blocks``. The pocket task has
    them after its context; None: none for a tokenizer that has all its words, as the pocket model's, else 3."""
    min_fewshot: int = 0
    max_fewshot: int = 64
    data_dir: str | None = None
    """Folder with train.jsonl and test.jsonl that replaces the hub."""
    filter: str = "strict-match"
    metric: str = "exact_match"
    max_gen_toks: int | None = None
    blocks: int = 6
    """Pocket task only: blocks of N tokens in each prompt, before its tail."""
    tail_tokens: list[int] | None = None
    """By how many tokens prompts are longer than their blocks, drawn from these: [-1] gives prompts of k N - 1 tokens,
    [-1, 0, 1] also such of k N and k N + 1; other tasks get a preamble. None leaves prompts as they are; the pocket
    task takes what the question needs, and 9 to 33 more."""
    shared_blocks: int = 0
    """Pocket task only, as all below: blocks at the beginning that all prompts have in common."""
    long_answers: bool = False
    """Whether answers have about 64 tokens, for load tests, not 14."""
    seed: int = 0


@dataclass
class LoadConfig:
    """How requests are sent: the same for every pass."""

    concurrency: int = 8
    request_timeout_s: float = 600.0
    retries: int = 0
    """Re-sent at most this often after a broken connection; a re-sent cold request may hit the cache."""
    seed: int = 0
    """Every pass derives its own order from this."""
    sample_hz: float = 20.0
    """How often running and waiting requests are read."""


@dataclass
class EngineConfig:
    """Which build of vLLM runs and on what; ``configs/engine``."""

    name: str = MISSING
    env: dict[str, str] = field(default_factory=dict)
    """Environment of both servers, on top of the harness's own."""
    vllm_args: list[str] = field(default_factory=list)
    overlay: bool = False
    """Whether servers get the folder that makes the CPU builds work together on their path."""
    kernel_alignment: int = 16
    """Tokens that N is a multiple of."""
    gpu_memory_gb: float | None = None
    """Memory of one GPU in GB, for planning on another machine; None asks this machine's."""
    default_block_size: int | None = None
    """Where N is also a multiple of vLLM's ``--block-size`` (CPU): its default."""


@dataclass
class ServerConfig:
    """What both servers have in common."""

    python: str | None = None
    """Interpreter whose environment has the server; None is this one."""
    extra_args: list[str] = field(default_factory=list)
    start_timeout_s: float = 300.0
    url: str | None = None
    """Base address of one that runs already, for ``servers.attach``."""


@dataclass
class LMCacheConfig(ServerConfig):
    """The LMCache server."""

    start_timeout_s: float = 120.0
    l1_size_gb: float | None = None
    """``--l1-size-gb``; None takes model.l1_size_gb."""
    chunk_size: int | None = None
    """Tokens per chunk: a multiple of N; None is N."""
    max_workers: int | None = None


@dataclass
class ServersConfig:
    """Both servers."""

    attach: bool = False
    """Whether to measure servers that run already, at their ``url``: nothing is started or stopped."""
    vllm: ServerConfig = field(default_factory=ServerConfig)
    lmcache: LMCacheConfig = field(default_factory=LMCacheConfig)

    @property
    def pythons(self) -> dict[str, str | None]:
        """Server -> the interpreter whose environment has it; None is the harness's own."""
        return {"vllm": self.vllm.python, "lmcache": self.lmcache.python}


@dataclass
class GateConfig:
    """How a verdict is reached; ``configs/gate``."""

    name: str = MISSING
    mode: str = "tost"
    """``tost`` (equivalence test on paired scores, and drift), ``threshold`` (the harness's validity checks, then
    |difference| <= tolerance) or ``lmcache_ci`` (LMCache's own rule with its own numbers and no other check)."""
    margin: float = 0.03
    """Largest score difference that counts as the same, as a fraction of questions."""
    alpha: float = 0.05
    tolerance: float = 0.05
    """For ``mode=threshold``."""
    drift_margin_nats: float = 0.1
    """Smallest |Δlogprob| of one token that drift counts as a difference. 0.1 nats change a token's probability by
    a factor of 1.105. Source: servers' own tests accept less between implementations in half precision, 0.01 nats
    plus 1 % (vLLM, tests/samplers/test_logprobs.py) and 0.03 nats (SGLang, test_generation_models.py); and healthy
    passes of the CPU engine differ by 1e-4 at most."""
    hit_rate_tolerance: float = 0.02
    """Largest gap between measured and reachable hit rate, as a fraction of prompt tokens."""
    local_hit_tolerance: float = 0.005
    """Largest share of prompt tokens that vLLM's own cache may serve in the cold and warm pass."""
    on_inconclusive: str = "fail"
    """``fail`` (exit 4) or ``warn`` (exit 0)."""
    looks: int = 1
    """How often the gate is asked, each time after another part of the questions; 1 asks all of them at once. See
    ``harness/equivalence/looks.py``."""
    interim_alpha: float = 0.2
    """Share of alpha that all looks before the last have together; of no effect with one look."""
    early_pass: bool = True
    """Whether a look before the last may end the run with ``pass``; ``fail`` and ``invalid`` always may."""


@dataclass
class CheckConfig:
    """The steps of a launch and of each of its cells; ``configs/check``."""

    name: str = MISSING
    launch: list[Any] = field(default_factory=list)
    cell: list[Any] = field(default_factory=list)
    seeded_cell: list[Any] = field(default_factory=list)
    """Steps of a cell whose hit rate is a number, in place of ``cell``; empty where the check has no such cells."""
    file_l2: bool = False
    """Whether LMCache gets a file-system L2 in the launch's scratch folder."""
    linked_checkpoint: bool = False
    """Whether vLLM gets the checkpoint through a link, so that `serve` steps can exchange what is behind its path."""
    variants: dict[str, Any] = field(default_factory=dict)
    """Name -> steps: a cell each, in place of ``cell``."""
    warm_from: str = "lmcache"
    """What has to have served the warm pass: ``lmcache``, ``mixed`` (first blocks from vLLM's own cache, the next from
    LMCache), ``vllm`` (its own cache alone) or ``nothing`` (all of it computed)."""
    connector: bool = True
    """Whether vLLM gets LMCache; without, no LMCache is started."""
    preempts: bool = False
    """Whether the cell proves nothing unless requests were preempted in its warm pass."""
    kv_blocks_per_request: float | None = None
    """Blocks of vLLM's KV cache for each request that runs at once (``--num-gpu-blocks-override``); None leaves it to
    vLLM."""
    damage_module: bool = False
    """Whether LMCache loads the test-only module that notes stores and spoils loads."""
    load_failures: str = "fail"
    """vLLM's ``kv_load_failure_policy``: ``fail`` or ``recompute``, which hides that a load failed."""
    arms: list[str] = field(default_factory=list)
    """Other checks, each a run of its own, that are attributed together; see ``check=all``."""


@dataclass
class RunConfig:
    """One run of the harness."""

    model: ModelConfig = field(default_factory=ModelConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    check: CheckConfig = field(default_factory=CheckConfig)
    load: LoadConfig = field(default_factory=LoadConfig)
    servers: ServersConfig = field(default_factory=ServersConfig)
    results_dir: str = "results"
    run_id: str | None = None
    resume: str | None = None
    """Id of a run in ``results_dir`` that goes on where it ended; without other overrides it takes its own values."""
    replay: str | None = None
    """Folder of a repro bundle: sends its prompts again, with the configuration that is stored in it."""
    strict: bool = False
    """Whether a predicted N that the server contradicts is an error."""
    allow_unvalidated: bool = False
    """Whether to run what no published run has validated; the results say so."""

    @property
    def l1_size_gb(self) -> float:
        """LMCache's L1 in GB."""
        return self.servers.lmcache.l1_size_gb or self.model.l1_size_gb

    def chunk_size(self, block_size: int) -> int:
        """LMCache's chunk size in tokens where N is ``block_size``."""
        return self.servers.lmcache.chunk_size or block_size


def load_config(composed: DictConfig) -> RunConfig:
    """Checks a composed Hydra config against the dataclasses.

    Raises:
        UsageError: one sentence with the field, its value and the accepted form.
    """
    try:
        # Through a plain container: a key that was appended to the composed config (+key=…) is checked as well.
        plain = OmegaConf.to_container(composed, resolve=True)
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(RunConfig), plain))
    except OmegaConfBaseException as error:
        raise UsageError(_in_one_sentence(error)) from error
    assert isinstance(config, RunConfig)
    check_values(config)
    check_attached(config)
    check_places(config)
    return config


def _in_one_sentence(error: OmegaConfBaseException) -> str:
    return f"{error.full_key or 'config'}: {with_nearest_key(first_line(error))}."


SCHEMAS: tuple[type, ...] = (
    GeometryConfig, RecipeConfig, ModelConfig, SweepConfig, TaskConfig, LoadConfig, EngineConfig, ServerConfig,
    LMCacheConfig, ServersConfig, GateConfig, CheckConfig, RunConfig,
)  # fmt: skip
"""Every class above."""


def with_nearest_key(told: str) -> str:
    """A complaint about an unknown key, as OmegaConf makes it, with the nearest one that there is."""
    found = UNKNOWN_KEY.search(told)
    known = {each.__name__: [field.name for field in fields(each)] for each in SCHEMAS}
    if found is None or found["schema"] not in known:
        return told
    return f"{told.rstrip('. ')}; {nearest(found['key'], known[found['schema']]).rstrip('.')}"
