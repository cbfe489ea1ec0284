"""The jobs that a command line of ``run`` asks for: every one is checked before the first is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from harness.cli.arms import compose_arms
from harness.cli.compose import compose_config
from harness.errors import UsageError
from harness.overrides import as_meant, check_dashes, hydra_sentence, is_multirun


def checked_jobs(overrides: Sequence[str]) -> list[str]:
    """The overrides as the configuration knows them, of which every job of a multirun composes and is valid.

    A run of one job finds that out by itself; of many, the last might be refused after hours of the first.

    Raises:
        UsageError: of the first job that can't be done, naming it.
    """
    meant = as_meant(overrides)
    check_dashes(meant)
    if not is_multirun(meant):
        return meant
    for job in jobs_of([word for word in meant if not word.startswith("-")]):
        try:
            config = compose_config(job)
            for _ in compose_arms(config, job) if config.check.arms else ():
                pass  # an arm that can't be done is left out by the run; names that are no checks are refused
        except UsageError as error:
            raise UsageError(f"nothing was started, since one job can't be done, {' '.join(job)}: {error}") from error
    return meant


def jobs_of(overrides: Sequence[str]) -> Iterator[list[str]]:
    """The overrides of every job, in the order in which Hydra's own sweeper runs them.

    What is Hydra's (``hydra/launcher=…``) is left out, and what only a job that runs knows (``${hydra:job.num}``).
    Nothing is yielded where another sweeper chooses the values.

    Raises:
        UsageError: an override can't be parsed.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise UsageError(hydra_sentence(error)) from error
    values: dict[str, list[str]] = {}  # of an override that is given twice the last one counts, as Hydra has it
    for override in parsed:
        key = override.get_key_element()
        if override.key_or_group == "hydra/sweeper":
            return
        of_hydra = override.key_or_group.partition("/")[0].partition(".")[0] == "hydra"
        if of_hydra or "${hydra:" in (override.input_line or ""):
            continue
        if override.is_discrete_sweep():
            values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            values[key] = [str(override.input_line)]
    yield from (list(job) for job in product(*values.values()))
