"""Hydra's own sweeper, which also tells the task function how its jobs ended, whichever launcher ran them."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from harness.cli.jobs import Job, differing


class ExitCodeSweeper(BasicSweeper):
    """One job for each of the values behind commas."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Keeps the task function."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        self.job = task_function

    def sweep(self, arguments: list[str]) -> Any:
        """Runs all jobs, and returns what the launcher handed back of each."""
        returns = super().sweep(arguments)
        if isinstance(self.job, Job):
            jobs = [each for batch in returns for each in batch]
            for number, own in enumerate(differing([each.overrides or () for each in jobs])):
                self.job.ended(number, own, jobs[number].return_value)
        return returns
