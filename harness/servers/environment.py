"""Environment variables of both servers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.config import RunConfig
from harness.errors import UsageError

OVERLAY = Path(__file__).parent / "cpu_engine"
"""Folder that makes vLLM's CPU build and LMCache work together; see its README."""

DAMAGE_MODULE = Path(__file__).parent / "damage_module"
"""Folder of the test-only LMCache server module that a selftest loads."""

PLUGIN = "harness_cpu_kv"
"""Name of the overlay's vLLM plugin."""

COMMON = {
    # POST /reset_prefix_cache exists in development mode only.
    "VLLM_SERVER_DEV_MODE": "1",
    # Block hashes must agree between processes, or every lookup misses and looks clean.
    "PYTHONHASHSEED": "0",
    # A module in the working directory must never shadow a library.
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "LMCACHE_DISABLE_BANNER": "1",
    "NO_COLOR": "1",
}


OWNED_VARIABLES = {
    "VLLM_SERVER_DEV_MODE": "vLLM's caches can't be reset without it, and it listens on loopback only",
    "PYTHONHASHSEED": "both servers need the same one, or nothing is ever found",
    "PYTHONSAFEPATH": "a module in the working directory must not shadow a library",
    "TMPDIR": "each launch has a folder of its own, which is removed with it",
}
"""Variables that ``engine.env`` may not set -> why the harness does."""

EXPOSING = {
    "VLLM_HOST_IP": "servers listen on loopback",
    "VLLM_LOOPBACK_IP": "servers listen on loopback",
    "VLLM_DP_MASTER_IP": "servers listen on loopback",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "servers listen on loopback",
    "VLLM_EC_SIDE_CHANNEL_HOST": "servers listen on loopback",
    "LMCACHE_COORDINATOR_ADVERTISE_IP": "servers listen on loopback",
    "LMCACHE_RUN_SCRIPT_API_ENABLED": "it lets anyone who reaches LMCache run programs",
    "VLLM_API_KEY": "servers listen on loopback, and the harness sends no key",
}
"""Variables that would make a server listen elsewhere, open more endpoints, or refuse the harness -> why they never
reach one: ``engine.env`` may not set them, and those of the caller's environment are left out."""


def check_variables(config: RunConfig) -> None:
    """Refuses variables in ``engine.env`` that the harness sets itself, or that would expose a server.

    Raises:
        UsageError: naming the variable.
    """
    for name, why in (OWNED_VARIABLES | EXPOSING).items():
        if name in config.engine.env:
            raise UsageError(f"engine.env.{name} can't be set: {why}; leave it out.")


def server_environment(config: RunConfig, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """What both servers get: the caller's environment less what would expose them, the harness's own, the engine's."""
    caller = os.environ if base is None else base
    inherited = {name: value for name, value in caller.items() if name not in EXPOSING}
    env = inherited | added_environment(config)
    if "PYTHONPATH" in added_environment(config) and inherited.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], inherited["PYTHONPATH"]])
    if config.engine.overlay and "VLLM_PLUGINS" in env:
        # A list that names some plugins keeps all others out, and without this one the cache is not shared.
        env["VLLM_PLUGINS"] = f"{env['VLLM_PLUGINS']},{PLUGIN}"
    return env


def added_environment(config: RunConfig) -> dict[str, str]:
    """Only what the harness and the engine add, as it is shown and recorded."""
    added = COMMON | config.engine.env
    if Path(config.model.path).expanduser().is_dir():
        added["HF_HUB_OFFLINE"] = "1"
    folders = [OVERLAY] * config.engine.overlay + [DAMAGE_MODULE] * config.check.damage_module
    if folders:
        added["PYTHONPATH"] = os.pathsep.join(map(str, folders))
    return added
