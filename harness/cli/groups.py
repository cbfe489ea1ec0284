"""Where the shipped configs lie, and which there are."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def configs_folder() -> Path:
    """Folder of the shipped configs: beside the package in a checkout, inside it in a wheel."""
    checkout = PACKAGE.parent / "configs"
    return checkout if checkout.is_dir() else PACKAGE / "configs"


def config_groups() -> dict[str, list[str]]:
    """Config group -> its options, both in alphabetical order."""
    folders = sorted(each for each in configs_folder().iterdir() if each.is_dir())
    found = {each.name: sorted(file.stem for file in each.glob("*.yaml")) for each in folders}
    return {name: options for name, options in found.items() if options}
