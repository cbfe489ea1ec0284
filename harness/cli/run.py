"""``python -m harness run``: measure and judge."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from harness.arms import Arms, run_arms
from harness.checking import first_line
from harness.cli.beforehand import checked_jobs
from harness.cli.compose import WHOLE_GROUPS, configs_folder, register, with_engine
from harness.cli.dispatch import complain
from harness.cli.options import JSON, TEXT, split_format, split_quiet
from harness.cli.output import Output
from harness.config import RunConfig, load_config
from harness.errors import HarnessError, UsageError
from harness.overrides import (
    MULTIRUN,
    arm_overrides,
    check_arms,
    check_launcher,
    check_missing,
    check_switches,
    hydra_sentence,
    is_multirun,
)
from harness.report.attribution import attribution_json, print_attribution
from harness.report.terminal import print_run, verdict_of_run
from harness.repro.replay import replayed_config
from harness.resume import is_bare, resumed_config
from harness.runner import run, warnings_of_leftovers
from harness.store import RunFolder, read_record


def run_command(arguments: Sequence[str]) -> int:
    """``run``: a Hydra application, so overrides, ``--cfg job`` and ``--multirun`` work as everywhere.

    Raises:
        UsageError: Hydra can't compose the configuration.
    """
    form, words = split_format(arguments)
    quiet, overrides = split_quiet(words)
    if any(word.startswith(("--cfg", "-c", "--hydra-help", "--info", "-i")) for word in overrides):
        form = TEXT  # Hydra answers that, on stdout
    with _stdout_for(form) as stdout:
        return _run_jobs(overrides, Output(form, quiet, stdout))


@contextmanager
def _stdout_for(form: str) -> Iterator[TextIO]:
    """The stdout that JSON goes to, while whatever else prints there is sent to stderr."""
    stdout = sys.stdout
    if form != JSON:
        yield stdout
    else:
        with redirect_stdout(sys.stderr):
            yield stdout


def _run_jobs(overrides: Sequence[str], output: Output) -> int:
    from harness.cli.jobs import Job

    overrides = checked_jobs(overrides)
    job = Job(output, bare=is_bare(list(overrides)))
    register()
    check_switches(overrides)
    check_missing(overrides)
    check_launcher(overrides)
    # Hydra would print its errors itself and exit with 1; here they are usage errors like any other.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Flags first: behind them argparse takes no further overrides.
    words = sorted(with_engine(overrides), key=lambda word: word not in MULTIRUN)
    sys.argv = ["harness run", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(configs_folder()), config_name="run")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(hydra_sentence(error)) from error
    except ValueError as error:
        if job.composing:  # what Hydra makes of gate=null
            raise UsageError(f"{first_line(error)}.") from error
        raise
    except AttributeError as error:
        if job.composing:  # see compose_config
            raise UsageError(f"{first_line(error)}: {WHOLE_GROUPS}") from error
        raise
    except SystemExit as stop:
        return int(stop.code) if isinstance(stop.code, int) else 2
    # Without jobs it was --cfg, which has printed what was asked for.
    return job.worst if job.ends or is_multirun(words) else 0


def run_one(composed: DictConfig, overrides: Sequence[str], output: Output, *, bare: bool = False) -> int:
    """One job of a (multi)run, from its composed configuration to its exit code.

    Args:
        composed: the configuration.
        overrides: of this job, as they were typed.
        output: what is said of it.
        bare: whether a run is resumed and nothing else was said.
    """
    try:
        if composed.check.arms:
            return run_all_arms(load_config(composed), overrides, output)
        config = load_config(composed) if composed.replay is None else replayed_config(composed, overrides)
        if config.resume is not None:
            config = resumed_config(config, bare=bare)
        with output.progress() as progress:
            folder, record, code = run(config, progress)
    except HarnessError as error:
        if output.form == JSON:
            output.emit({"exit_code": error.exit_code, "error": str(error)})
        return complain(error)
    cells = folder.cells()
    if output.quiet:
        output.summary().print(verdict_of_run(record, cells), soft_wrap=True)
    else:
        print_run(output.summary(), record, cells, str(folder.path))
    if len(cells) > 1:
        draw_at_the_end(folder.path, output)
    page = report_at_the_end(folder.path, output)
    if output.form == JSON:
        told = {"exit_code": code, "path": str(folder.path), "report": page and page.resolve().as_uri()}
        output.emit({**told, "run": record, "cells": cells})
    return code


def run_all_arms(config: RunConfig, overrides: Sequence[str], output: Output) -> int:
    """Runs a check that consists of others, and ends in the attribution table.

    Args:
        config: of the whole.
        overrides: of this job, as they were typed.
        output: what is said of it.
    """
    check_arms(config.check.arms, sorted(each.stem for each in (configs_folder() / "check").glob("*.yaml")))

    leftovers = warnings_of_leftovers(Path(config.results_dir))

    def compose(arm: str) -> RunConfig:
        return load_config(hydra.compose("run", overrides=arm_overrides(overrides, arm)))

    def shown(path: Path) -> None:
        folder = RunFolder(path)
        if not output.quiet:
            print_run(output.summary(), read_record(path), folder.cells(), str(path))

    with output.progress() as progress:
        for warning in leftovers:
            progress.warn(warning)
        arms = run_arms(config, compose, progress, shown)
    if output.quiet:
        told = attribution_json(arms.records)["meaning"]
        output.summary().print(str(told), soft_wrap=True, highlight=False, markup=False)
    else:
        print_attribution(output.summary(), arms.records)
        print(f"results: {arms.path}")
    page = report_at_the_end(arms.path, output)
    if output.form == JSON:
        output.emit(_arms_as_json(arms, page))
    return arms.exit_code


def _arms_as_json(arms: Arms, page: Path | None) -> dict[str, Any]:
    told = {"exit_code": arms.exit_code, "path": str(arms.path), "report": page and page.resolve().as_uri()}
    return {**told, "attribution": attribution_json(arms.records)}


def draw_at_the_end(path: Path, output: Output) -> None:
    """Draws the figures of a sweep that is over; what goes wrong is told and changes neither verdict nor exit code."""
    with output.progress() as progress:
        progress.stage("drawing figures")
        try:
            from harness.report.figures import write_figures

            drawn = write_figures(path)
        except Exception as error:
            told = str(error).rstrip(".") or type(error).__name__
            progress.warn(f"figures were not drawn: {told}. Try again: python -m harness figures {path}")
        else:
            progress.done(f"{len(drawn.written)} files in {path / 'figures'}")


def report_at_the_end(path: Path, output: Output) -> Path | None:
    """Writes the report of a run that is over; what goes wrong is told and changes neither verdict nor exit code.

    Returns:
        The HTML page; None where it was not written.
    """
    with output.progress() as progress:
        progress.stage("writing the report")
        try:
            from harness.report.files import write_report
            from harness.report.runs import expand, read_run

            page = write_report([read_run(each) for each in expand([path])], path)
        except Exception as error:
            told = str(error).rstrip(".") or type(error).__name__
            progress.warn(f"the report was not written: {told}. Try again: python -m harness report {path}")
            return None
        progress.done(f"report: {page.resolve().as_uri()}")
        return page
