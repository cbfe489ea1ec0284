"""``python -m harness model import``: a model's YAML from its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.cli.groups import configs_folder
from harness.errors import UsageError
from harness.model.importing import import_model


def model_command(arguments: Sequence[str]) -> int:
    """``model import``: writes a model's YAML.

    Raises:
        UsageError: what is asked for is not clear, or can't be done.
    """
    action, *rest = [*arguments, ""]
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    files = [word for word in rest if word and "=" not in word]
    if action != "import" or len(files) != 1 or not fields.keys() <= {"name", "path", "folder"}:
        raise UsageError(
            "model import needs one config.json or checkpoint folder: "
            "python -m harness model import CONFIG.json [name=… path=… folder=…]"
        )
    folder = Path(fields.get("folder", configs_folder() / "model"))
    written = import_model(Path(files[0]).expanduser(), folder, fields.get("name"), fields.get("path"))
    print(f"wrote {written}; what it implies: python -m harness plan model={written.stem}")
    return 0
