"""What a doctor looks at on this machine: everything here has side effects, and nothing here judges."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from harness.config import RunConfig
from harness.doctor.attached import Attached, look_at
from harness.errors import HarnessError
from harness.measure.provenance import gpus, versions_of
from harness.model.predict import predicted_sizes
from harness.plan import prompt_lengths
from harness.servers.environment import server_environment
from harness.servers.ports import free_ports
from harness.servers.shared_memory import SHARED_MEMORY

HUB = "huggingface.co"

HUB_TIMEOUT_S = 3.0

PORTS_NEEDED = 3
"""LMCache's two and vLLM's."""

LAUNCHERS = {"submitit_slurm": "hydra-submitit-launcher", "ray": "hydra-ray-launcher"}
"""``hydra/launcher=…`` -> the package that brings it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The machine and its environment; sizes in bytes."""

    python: str
    versions: Mapping[str, Mapping[str, str]]
    """``vllm``, ``lmcache`` or ``harness`` -> package -> version; an empty one is of a Python that does not run."""
    gpus: tuple[Mapping[str, str], ...]
    memory_available: int
    shm_total: int
    """Of /dev/shm; 0 where there is none."""
    shm_free: int
    shm_stale: tuple[str, ...]
    """Segments in it that a vLLM left behind which does not run any more."""
    disk_free: int
    disk_writable: bool
    """Whether the results folder can be made or written."""
    ports_free: int
    model_is_folder: bool
    model_has_config: bool
    """Whether that folder holds a config.json."""
    model_cached: bool
    """Whether the hub id's config.json is in the hub's cache here."""
    hub_reachable: bool | None
    """None where it was not asked."""
    hub_offline: bool
    data_missing: tuple[str, ...]
    """Files that task.data_dir lacks."""
    hash_seeds: Mapping[str, str]
    """Server -> PYTHONHASHSEED that it gets; empty for none."""
    launchers: Mapping[str, str]
    """Package of ``LAUNCHERS`` -> version, where it is installed."""
    libnuma: bool
    l1_needed: int | None
    """What one pass stores in LMCache's L1; None where the model's geometry is not at hand."""
    l1_estimated: bool
    """Whether that rests on an estimate of the prompts' lengths."""
    attached: Attached | None = None
    """What servers that run already say; None where a run starts its own."""


def gather(config: RunConfig) -> Facts:
    """Looks at this machine for a run of this configuration; asks the hub for at most a few seconds."""
    env = server_environment(config)
    pythons = config.servers.pythons | {"harness": None}
    shm = shutil.disk_usage(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
    folder = Path(config.model.path).expanduser()
    results = _existing(Path(config.results_dir))
    offline = env.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    cached = not folder.is_dir() and _in_hub_cache(config.model.path)
    wants_hub = not offline and not folder.is_dir() and not cached
    l1_needed, l1_estimated = _l1_needed(config)
    return Facts(
        python=platform.python_version(),
        versions=versions_of(pythons, env),
        gpus=tuple(gpus()),
        memory_available=psutil.virtual_memory().available,
        shm_total=shm.total if shm else 0,
        shm_free=shm.free if shm else 0,
        shm_stale=_stale_segments(),
        disk_free=shutil.disk_usage(results).free,
        disk_writable=os.access(results, os.W_OK),
        ports_free=_ports(),
        model_is_folder=folder.is_dir(),
        model_has_config=(folder / "config.json").is_file(),
        model_cached=cached,
        hub_reachable=_reachable(HUB) if wants_hub else None,
        hub_offline=offline,
        data_missing=_missing_data(config),
        hash_seeds={"vllm": env.get("PYTHONHASHSEED", ""), "lmcache": env.get("PYTHONHASHSEED", "")},
        launchers={package: found for package in LAUNCHERS.values() if (found := _installed(package))},
        libnuma=_loads("libnuma.so.1"),
        l1_needed=l1_needed,
        l1_estimated=l1_estimated,
        attached=look_at(config) if config.servers.attach else None,
    )


def for_arm(facts: Facts, config: RunConfig) -> Facts:
    """The facts with what differs from check to check: what one pass of its prompts stores, and whether servers that
    run already can take its steps.
    """
    l1_needed, l1_estimated = _l1_needed(config)
    attached = look_at(config) if config.servers.attach else None
    return replace(facts, l1_needed=l1_needed, l1_estimated=l1_estimated, attached=attached)


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    path = path.expanduser().absolute()
    while not path.exists():
        path = path.parent
    return path


def _stale_segments() -> tuple[str, ...]:
    """``lmcache_kv_<pid>_<n>`` whose process is gone."""
    found = []
    for path in sorted(SHARED_MEMORY.glob("lmcache_kv_*_*")) if SHARED_MEMORY.is_dir() else ():
        pid = path.name.split("_")[2]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            found.append(str(path))
    return tuple(found)


def _ports() -> int:
    try:
        return len(free_ports(PORTS_NEEDED))
    except OSError:
        return 0


def _reachable(host: str) -> bool:
    """Whether a connection is answered in time: nothing is downloaded. A proxy's answer stands for the hub's."""
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    name, _, port = (proxy.rpartition("@")[2].split("//")[-1].strip("/") if proxy else f"{host}:443").partition(":")
    try:
        socket.create_connection((name, int(port or 80)), timeout=HUB_TIMEOUT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _in_hub_cache(hub_id: str) -> bool:
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(hub_id, "config.json"), str)
    except Exception:  # no such package, or no valid id: then it is not cached
        return False


def _missing_data(config: RunConfig) -> tuple[str, ...]:
    if config.task.data_dir is None:
        return ()
    folder = Path(config.task.data_dir).expanduser()
    return tuple(name for name in ("train.jsonl", "test.jsonl") if not (folder / name).is_file())


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _l1_needed(config: RunConfig) -> tuple[int | None, bool]:
    try:
        sizes = predicted_sizes(config.model, config.engine)
        lengths, estimated = prompt_lengths(config, sizes.block_size)
        return sizes.l1_bytes(lengths), estimated
    except HarnessError:
        return None, False
