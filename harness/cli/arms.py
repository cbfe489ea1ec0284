"""The arms of a check that consists of others, each with its configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.cli.compose import compose_config, configs_folder
from harness.config import RunConfig
from harness.errors import UsageError
from harness.overrides import arm_overrides, as_meant, check_arms


def compose_arms(config: RunConfig, overrides: Sequence[str]) -> Iterator[tuple[str, RunConfig | UsageError]]:
    """Every arm with its configuration, or with why it has none.

    Args:
        config: of the whole; ``check.arms`` names the arms.
        overrides: of the whole, as they were typed.

    Raises:
        UsageError: the arms are no checks.
    """
    check_arms(config.check.arms, sorted(each.stem for each in (configs_folder() / "check").glob("*.yaml")))
    for arm in config.check.arms:
        try:
            yield arm, compose_config(arm_overrides(as_meant(overrides), arm))
        except UsageError as error:
            yield arm, error
