"""transformers, importable beside PyPI's CUDA builds of torchvision and torchaudio on a machine without CUDA."""

import importlib
import sys
from types import ModuleType

_MEND = "harness.servers.cpu_engine.sitecustomize"


def import_transformers() -> ModuleType:
    """Imports transformers, after the same mend of broken extensions that the servers of `engine=cpu` get.

    There the interpreter has done it before any other import, and a second time would fail.
    """
    if not hasattr(sys.modules.get("sitecustomize"), "broken_extensions"):
        importlib.import_module(_MEND)
    transformers = importlib.import_module("transformers")
    _look_again("torchaudio", "torchcodec")
    return transformers


def _look_again(*extensions: str) -> None:
    """Makes transformers forget that it saw extensions which the mend has hidden since."""
    utils = importlib.import_module("transformers.utils.import_utils")
    for name in extensions:
        if sys.modules.get(name, utils) is None:
            getattr(utils, f"is_{name}_available").cache_clear()
