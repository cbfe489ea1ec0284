"""Command lines of both servers: the recipe's arguments, the harness's own, and the user's extras.

Pure: nothing is started here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
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
        "--disable-log-stats": "its counters are the evidence",
        "--uds": "servers bind loopback",
        "--config": "write its arguments out, so that they can be checked",
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


def _refuse(field: str, arguments: Sequence[str], owned: Mapping[str, str]) -> None:
    for argument in arguments:
        # Both programs take --a_b for --a-b and a beginning for the whole; vLLM takes --a.b=1 for a key of --a.
        name = argument.split("=", 1)[0].split(".", 1)[0].replace("_", "-")
        for whole, why in owned.items():
            if name == whole or (len(name) > 2 and name.startswith("--") and whole.startswith(name)):
                raise UsageError(f"{field} contains {argument}, which sets {whole}, and the harness does: {why}.")


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
    command = [own.python or sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", served_path(model.path)]
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


def served_path(path: str) -> str:
    """A checkpoint folder as an absolute path, since servers work in another folder; a hub id as it is.

    Links are kept: the path is part of LMCache's key.
    """
    folder = Path(path).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


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
