"""Command lines of both servers: the recipe's arguments, the harness's own, and the user's extras.

Pure: nothing is started here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.config import RunConfig
from harness.errors import UsageError
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
        "--enable-prefix-caching": "always on",
        "--no-enable-prefix-caching": "hits need it",
        "--mamba-cache-mode": "only align is supported",
        "--shutdown-timeout": "the harness stops the server",
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
        for argument in server.extra_args:
            name = argument.split("=", 1)[0].replace("_", "-")
            if name in owned:
                raise UsageError(f"{field} contains {name}, which the harness sets: {owned[name]}.")


def lmcache_command(
    config: RunConfig, *, chunk_size: int, port: int, http_port: int, l2_dir: Path | None = None
) -> list[str]:
    """``lmcache server`` for a launch; ``chunk_size`` in tokens, ``l2_dir`` a folder for a file-system L2."""
    own = config.servers.lmcache
    command = [own.python or sys.executable, "-m", "lmcache.cli.main", "server"]
    command += ["--chunk-size", str(chunk_size), "--l1-size-gb", f"{own.l1_size_gb:g}"]
    command += ["--eviction-policy", "LRU"]
    if config.model.separate_object_groups:
        command.append("--separate-object-groups")
    workers = own.max_workers or config.model.tensor_parallel_size
    if workers > 1:
        command += ["--max-workers", str(workers)]
    if l2_dir is not None:
        command += ["--l2-adapter", json.dumps({"type": "fs", "base_path": str(l2_dir)})]
    command += [
        "--host",
        LOOPBACK,
        "--port",
        str(port),
        "--http-host",
        LOOPBACK,
        "--http-port",
        str(http_port),
    ]
    return command + list(own.extra_args)


def vllm_command(config: RunConfig, *, budget: int, port: int, lmcache_port: int) -> list[str]:
    """``vllm serve`` for a launch; ``budget`` is ``--max-num-batched-tokens``."""
    model, own = config.model, config.servers.vllm
    command = [own.python or sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model.path]
    command += ["--enable-prefix-caching", "--mamba-cache-mode", "align"]
    command += ["--max-num-batched-tokens", str(budget)]
    command += ["--kv-transfer-config", json.dumps(kv_transfer_config(lmcache_port))]
    if model.tensor_parallel_size > 1:
        command += ["--tensor-parallel-size", str(model.tensor_parallel_size)]
    if model.kv_cache_dtype != "auto":
        command += ["--kv-cache-dtype", model.kv_cache_dtype]
    if model.block_size is not None:
        command += ["--block-size", str(model.block_size)]
    if model.max_model_len is not None:
        command += ["--max-model-len", str(model.max_model_len)]
    command += list(model.vllm_args) + list(config.engine.vllm_args)
    command += ["--served-model-name", model.name, "--host", LOOPBACK, "--port", str(port)]
    command += ["--enable-prompt-tokens-details", "--shutdown-timeout", str(VLLM_STOP_S)]
    return command + list(own.extra_args)


def kv_transfer_config(lmcache_port: int) -> dict[str, object]:
    """vLLM's connector settings; a failed load fails the request, since a silent recompute tests nothing."""
    return {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {
            "lmcache.mp.host": f"tcp://{LOOPBACK}",
            "lmcache.mp.port": lmcache_port,
        },
    }


def shown(command: Sequence[str]) -> list[str]:
    """The command as a person would type it: ``lmcache server ...`` or ``vllm serve ...``."""
    program = command[2].split(".")[0]
    return [program, *command[3:]]
