"""Command lines of both servers: the recipe's arguments, the harness's own, and the user's extras.

Pure: nothing is started here.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.checking import ARGUMENTS, value_at
from harness.config import RunConfig
from harness.errors import UsageError
from harness.redaction import HIDDEN, secret_argument
from harness.servers.ports import LOOPBACK

VLLM_STOP_S = 15
"""Seconds vLLM gives running requests after SIGTERM; without it, it leaks its shared memory."""

OWNED_BY_HARNESS = {
    "servers.vllm.extra_args": {
        "--host": "servers bind loopback",
        "--port": "the harness picks a free port",
        "--model": "set model.path",
        "--served-model-name": "set model.name",
        "--max-num-batched-tokens": "set sweep.budgets",
        "--max-model-len": "set model.max_model_len",
        "--block-size": "set model.block_size",
        "--tensor-parallel-size": "set model.tensor_parallel_size",
        "-tp": "set model.tensor_parallel_size",
        "--kv-cache-dtype": "set model.kv_cache_dtype",
        "--kv-transfer-config": "the harness connects LMCache",
        "--num-gpu-blocks-override": "set check.kv_blocks_per_request",
        "--enable-prefix-caching": "always on",
        "--no-enable-prefix-caching": "hits need it",
        "--mamba-cache-mode": "only align is supported",
        "--shutdown-timeout": "the harness stops the server",
        "--disable-log-stats": "its counters are the evidence",
        "--uds": "servers bind loopback",
        "--config": "write its arguments out, so that they can be checked",
        "--api-key": "servers bind loopback, and it sends no key",
        "--hf-token": "set HF_TOKEN in the environment, since arguments can be read in logs and process lists",
        "--headless": "it needs the HTTP server",
        "--grpc": "it needs the HTTP server",
        "--ssl-keyfile": "it speaks plain HTTP, over loopback",
        "--ssl-certfile": "it speaks plain HTTP, over loopback",
        "--root-path": "it asks for /v1",
        "--help": "servers are to run",
        "-h": "servers are to run",
        "--version": "servers are to run",
    },
    "servers.lmcache.extra_args": {
        "--host": "servers bind loopback",
        "--http-host": "servers bind loopback",
        "--port": "the harness picks a free port",
        "--http-port": "the harness picks a free port",
        "--chunk-size": "set servers.lmcache.chunk_size",
        "--l1-size-gb": "set servers.lmcache.l1_size_gb",
        "--max-workers": "set servers.lmcache.max_workers",
        "--separate-object-groups": "set model.separate_object_groups",
        "--no-separate-object-groups": "set model.separate_object_groups",
        "--l2-adapter": "set check.file_l2, which gives it an L2 that is cleared before a cold pass",
        "--script-allowed-imports": "its endpoint that runs scripts stays off",
        "--help": "servers are to run",
        "-h": "servers are to run",
    },
}
"""Arguments that ``extra_args`` may not set -> why, or which field does."""


def check_extra_args(config: RunConfig) -> None:
    """Refuses extra arguments that the harness owns.

    Raises:
        UsageError: naming the argument and the field to use instead.
    """
    for field, owned in OWNED_BY_HARNESS.items():
        server = config.servers.vllm if "vllm" in field else config.servers.lmcache
        _refuse(field, server.extra_args, owned)
    # They come before the harness's own, which repeats only some of them.
    owned_of_vllm = OWNED_BY_HARNESS["servers.vllm.extra_args"]
    _refuse("model.vllm_args", config.model.vllm_args, owned_of_vllm)
    _refuse("engine.vllm_args", config.engine.vllm_args, owned_of_vllm)
    for field in ARGUMENTS:
        _refuse_secrets(field, value_at(config, field))


def _refuse_secrets(field: str, arguments: Sequence[str]) -> None:
    """Arguments can be read by every user in the process list, and servers write them into their logs."""
    if (name := secret_argument(arguments)) is not None:
        raise UsageError(
            f"{field} contains {name} with a secret ({HIDDEN}), and arguments can be read in logs and process lists: "
            "set it as an environment variable, such as HF_TOKEN, before you start."
        )


def _refuse(field: str, arguments: Sequence[str], owned: Mapping[str, str]) -> None:
    for argument in arguments:
        # Both programs take --a_b for --a-b and a beginning for the whole; vLLM takes --a.b=1 for a key of --a.
        name = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        for whole, why in owned.items():
            if name == whole or (len(name) > 2 and name.startswith("--") and whole.startswith(name)):
                shown = argument.split("=", 1)[0] if whole in ("--api-key", "--hf-token") else argument
                raise UsageError(f"{field} contains {shown}, which sets {whole}, and the harness does: {why}.")


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a command line, with its value."""

    words: tuple[str, ...]
    why: str
    """Why the harness gives it."""


def lmcache_arguments(
    config: RunConfig,
    *,
    chunk_size: int,
    port: int,
    http_port: int,
    l2_dir: Path | None = None,
    module: Mapping[str, object] | None = None,
) -> list[Argument]:
    """Arguments of ``lmcache server`` for a launch.

    Args:
        config: of the run.
        chunk_size: in tokens.
        port, http_port: of its two interfaces.
        l2_dir: folder for an L2 on disk.
        module: ``--server-module``, as LMCache takes it.
    """
    own, model = config.servers.lmcache, config.model
    workers = own.max_workers or model.tensor_parallel_size
    chosen: list[tuple[object, tuple[object, ...], str]] = [
        (True, ("--chunk-size", chunk_size), "N, or a multiple of it (servers.lmcache.chunk_size)"),
        (True, ("--l1-size-gb", f"{config.l1_size_gb:g}"), "its memory (servers.lmcache.l1_size_gb)"),
        (True, ("--eviction-policy", "LRU"), "the recipes' policy"),
        (
            model.separate_object_groups,
            ("--separate-object-groups",),
            "LMCache 0.5.6 wants it for models with recurrent layers (model.separate_object_groups)",
        ),
        (workers > 1, ("--max-workers", workers), "one per rank of vLLM: with fewer nothing is ever found"),
        (
            l2_dir is not None,
            ("--l2-adapter", json.dumps({"type": "fs", "base_path": str(l2_dir)})),
            "the check works on what lies on disk (check.file_l2)",
        ),
        (
            module is not None,
            ("--server-module", json.dumps(module)),
            "TEST ONLY: notes stores and spoils loads (check.damage_module)",
        ),
        (True, ("--host", LOOPBACK), "servers bind loopback"),
        (True, ("--port", port), "a free port"),
        (True, ("--http-host", LOOPBACK), "servers bind loopback"),
        (True, ("--http-port", http_port), "a free port, for its counters and for clearing it"),
    ]
    return _given(chosen) + _extra(own.extra_args, "servers.lmcache.extra_args")


def lmcache_command(
    config: RunConfig,
    *,
    chunk_size: int,
    port: int,
    http_port: int,
    l2_dir: Path | None = None,
    module: Mapping[str, object] | None = None,
) -> list[str]:
    """``lmcache server`` for a launch, as it is started; see :func:`lmcache_arguments`."""
    arguments = lmcache_arguments(
        config, chunk_size=chunk_size, port=port, http_port=http_port, l2_dir=l2_dir, module=module
    )
    python = config.servers.lmcache.python or sys.executable
    return [python, "-m", "lmcache.cli.main", "server", *words(arguments)]


def vllm_arguments(config: RunConfig, *, budget: int, port: int, lmcache_port: int) -> list[Argument]:
    """Arguments of ``vllm serve`` for a launch, behind the model; ``budget`` is ``--max-num-batched-tokens``."""
    model, per_request = config.model, config.check.kv_blocks_per_request
    blocks = None if per_request is None else math.ceil(per_request * config.load.concurrency)
    chosen: list[tuple[object, tuple[object, ...], str]] = [
        (
            model.tensor_parallel_size > 1,
            ("--tensor-parallel-size", model.tensor_parallel_size),
            "GPUs that share the model (model.tensor_parallel_size)",
        ),
        (True, ("--enable-prefix-caching",), "without it nothing is ever found"),
        (True, ("--mamba-cache-mode", "align"), "the one mode that keeps recurrent state at block boundaries"),
        (True, ("--max-num-batched-tokens", budget), "the budget of this launch (sweep.budgets)"),
        (
            config.check.connector,
            ("--kv-transfer-config", json.dumps(kv_transfer_config(lmcache_port, config.check.load_failures))),
            "LMCacheMPConnector, kv_both; a failed load fails its request, since recomputing in silence tests nothing"
            if config.check.load_failures == "fail"
            else "LMCacheMPConnector, kv_both; the check wants failed loads to be recomputed (check.load_failures)",
        ),
        (
            blocks is not None,
            ("--num-gpu-blocks-override", blocks),
            "so few that requests are preempted (check.kv_blocks_per_request)",
        ),
        (model.kv_cache_dtype != "auto", ("--kv-cache-dtype", model.kv_cache_dtype), "model.kv_cache_dtype"),
        (model.block_size is not None, ("--block-size", model.block_size), "model.block_size"),
        (
            blocks is None and model.max_model_len is not None,
            ("--max-model-len", model.max_model_len),
            "model.max_model_len",
        ),
        (blocks is not None, ("--max-model-len", "auto"), "as long as so few blocks allow"),
    ]
    own: list[tuple[object, tuple[object, ...], str]] = [
        (True, ("--served-model-name", model.name), "the name that requests use"),
        (True, ("--host", LOOPBACK), "servers bind loopback"),
        (True, ("--port", port), "a free port"),
        (True, ("--enable-prompt-tokens-details",), "each response says how many tokens came from a cache"),
        (True, ("--shutdown-timeout", VLLM_STOP_S), "without it vLLM leaks its shared memory when it is stopped"),
    ]
    return [
        *_given(chosen),
        *_extra(model.vllm_args, "model.vllm_args"),
        *_extra(config.engine.vllm_args, "engine.vllm_args"),
        *_given(own),
        *_extra(config.servers.vllm.extra_args, "servers.vllm.extra_args"),
    ]


def vllm_command(
    config: RunConfig, *, budget: int, port: int, lmcache_port: int, checkpoint: Path | None = None
) -> list[str]:
    """``vllm serve`` for a launch, as it is started; see :func:`vllm_arguments`. ``checkpoint`` replaces model.path."""
    arguments = vllm_arguments(config, budget=budget, port=port, lmcache_port=lmcache_port)
    python = config.servers.vllm.python or sys.executable
    served = served_path(config.model.path) if checkpoint is None else str(checkpoint)
    return [python, "-m", "vllm.entrypoints.cli.main", "serve", served, *words(arguments)]


def words(arguments: Sequence[Argument]) -> list[str]:
    """Arguments as a command line takes them."""
    return [word for argument in arguments for word in argument.words]


def _given(chosen: Sequence[tuple[object, tuple[object, ...], str]]) -> list[Argument]:
    return [Argument(tuple(str(word) for word in given), why) for wanted, given, why in chosen if wanted]


def _extra(arguments: Sequence[str], field: str) -> list[Argument]:
    return [Argument(tuple(arguments), field)] if arguments else []


def served_path(path: str) -> str:
    """A checkpoint folder as an absolute path, since servers work in another folder; a hub id as it is.

    Links are kept: the path is part of LMCache's key.
    """
    folder = Path(path).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


def kv_transfer_config(lmcache_port: int, load_failures: str = "fail") -> dict[str, object]:
    """vLLM's connector settings; a failed load fails the request unless a check wants it recomputed in silence."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": load_failures,
        "kv_connector_extra_config": {
            "lmcache.mp.host": f"tcp://{LOOPBACK}",
            "lmcache.mp.port": lmcache_port,
        },
    }


def shown(command: Sequence[str]) -> list[str]:
    """The command as a person would type it: ``lmcache server ...`` or ``vllm serve ...``."""
    program = command[2].split(".")[0]
    return [program, *command[3:]]
