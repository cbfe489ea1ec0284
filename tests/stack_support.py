"""What the stack tests share: the shipped configuration composed as the command line does, and a look around."""

from __future__ import annotations

from pathlib import Path

import psutil
from hydra import compose, initialize_config_dir

from harness.cli import configs_folder, register
from harness.config import RunConfig, load_config
from harness.servers.shared_memory import SHARED_MEMORY


def composed(*overrides: str) -> RunConfig:
    """The run configuration that these overrides give."""
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(configs_folder().resolve())):
        return load_config(compose("run", overrides=list(overrides)))


def shared_memory() -> set[Path]:
    """Segments on the machine now."""
    return set(SHARED_MEMORY.iterdir())


def server_processes(results: Path) -> list[psutil.Process]:
    """Processes that work in a results folder: servers run in their launch's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(results):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found
