"""From overrides to a checked configuration: Hydra and the shipped configs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.checking import first_line
from harness.cli.groups import configs_folder
from harness.config import RunConfig, load_config
from harness.errors import UsageError
from harness.model.support import FEATURES, OTHER_ENGINES
from harness.overrides import as_meant, check_dashes, check_missing, check_switches, hydra_sentence
from harness.pocket import CHECKPOINT
from harness.resume import is_bare

__all__ = ["compose_config", "configs_folder", "register", "with_engine"]

WHOLE_GROUPS = (
    "model.geometry and model.recipe are set in a model's YAML or one field at a time, +model.geometry.layers=1."
)


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration that overrides give.

    Raises:
        UsageError: Hydra can't compose it, or a value is wrong.
    """
    register()
    overrides = as_meant(overrides)
    check_dashes(overrides)
    check_switches(overrides)
    check_missing(overrides)
    try:
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(configs_folder().resolve())):
            composed = hydra.compose("run", overrides=with_engine(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(hydra_sentence(error)) from error
    except ValueError as error:  # what Hydra makes of gate=null
        raise UsageError(f"{first_line(error)}.") from error
    except AttributeError as error:  # and of a whole group for a field that has none: model.geometry={layers: 1}
        raise UsageError(f"{first_line(error)}: {WHOLE_GROUPS}") from error
    return load_config(composed)


def register() -> None:
    """Tells Hydra the typed schema of ``configs/`` and what configs can't know: where the pocket checkpoint lies, and
    a name that nobody else has.
    """
    ConfigStore.instance().store(name="schema", node=RunConfig)
    OmegaConf.register_new_resolver("pocket_checkpoint", lambda: str(CHECKPOINT), replace=True)
    # Two multiruns may begin in the same second, on two machines that share their results.
    OmegaConf.register_new_resolver("unique", lambda: uuid.uuid4().hex[:8], use_cache=True, replace=True)


def with_engine(overrides: Sequence[str]) -> list[str]:
    """The overrides, with ``engine=gpu`` where the machine has an NVIDIA GPU and nobody chose an engine, as a
    stored configuration did.
    """
    chosen = [override.partition("=")[2] for override in overrides if override.lstrip("+~").startswith("engine=")]
    for name in chosen:
        if name in OTHER_ENGINES:
            raise UsageError(
                f"engine={name}: {FEATURES[OTHER_ENGINES[name]]} can't be run by this harness, and is not validated "
                "with LMCache for every model here (python -m harness plan model=… lists it): use engine=gpu, which "
                "is vLLM."
            )
    has_gpu = Path("/proc/driver/nvidia/gpus").is_dir() and any(Path("/proc/driver/nvidia/gpus").iterdir())
    stored = is_bare(list(overrides)) or any(override.startswith("replay=") for override in overrides)
    return [*overrides] if chosen or stored or not has_gpu else [*overrides, "engine=gpu"]
