"""Launchers for clusters: one job per combination, each with the GPUs that *its* model needs.

Those of hydra-submitit-launcher and hydra-ray-launcher read resources once, for all jobs, before the values behind
commas are applied, and stop at the first job that is lost. These hand every job on by itself, through the same
plugins, wait for all of them, and cancel them where the harness is interrupted. Nothing of a plugin is imported before
it is used.
"""

from __future__ import annotations

import os
import signal
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from harness.checking import first_line
from harness.cli.jobs import LOG, Job, JobEnd, differing
from harness.config import load_config
from harness.errors import UsageError
from harness.measure.provenance import gpus

CANCELLED_S = 120.0
"""How long cancelled jobs have to stop their servers."""
LOOK_S = 0.5


class Handed:
    """A job that was handed on."""

    where: str
    """For people: the job's id and its log."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it has ended, however."""

    @abstractmethod
    def result(self) -> JobReturn:
        """What it returned; raises whatever the scheduler raises where it returned nothing."""

    @abstractmethod
    def cancel(self) -> None:
        """Tells it to stop its servers and end."""

    @abstractmethod
    def lost(self, error: Exception) -> str:
        """Why it returned nothing, for people."""


class OneByOneLauncher(Launcher):
    """Hands jobs on one by one, each with the resources of its own configuration.

    Args:
        resources: what the scheduler is asked for; interpolations are resolved in each job's configuration.
    """

    def __init__(self, **resources: Any) -> None:
        self.resources = resources

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Called by Hydra."""
        assert isinstance(task_function, Job)
        self.hydra_context, self.job, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Hands all jobs on and waits until all have ended.

        Raises:
            UsageError: a job's configuration is wrong, or the scheduler can't take it; then none goes on.
            Interrupted: they were cancelled.
        """
        setup_globals()
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        numbered = list(enumerate(map(list, job_overrides), start=initial_job_idx))
        names = differing(job_overrides)
        # All of them first: a wrong one is not to be found after hours in a queue.
        configs = [self._composed(number, overrides) for number, overrides in numbered]
        self.check(configs)
        handed: list[Handed] = []
        try:
            for (number, overrides), config, name in zip(numbered, configs, names, strict=True):
                handed.append(self.hand_on(number, overrides, config))
                self.job.started(number, name, handed[-1].where)
            return [
                JobReturn(overrides=overrides, status=JobStatus.COMPLETED, _return_value=self._wait(number, name, each))
                for (number, overrides), name, each in zip(numbered, names, handed, strict=True)
            ]
        except BaseException:
            _cancel(handed)
            raise

    @abstractmethod
    def check(self, configs: Sequence[DictConfig]) -> None:
        """Refuses jobs that the scheduler can't run side by side, or a launcher whose plugin is missing.

        Raises:
            UsageError: in one sentence.
        """

    @abstractmethod
    def hand_on(self, number: int, overrides: list[str], config: DictConfig) -> Handed:
        """Gives one job to the scheduler."""

    def _composed(self, number: int, overrides: list[str]) -> DictConfig:
        composed = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(composed):
            composed.hydra.job.id = f"job-{number}"
            composed.hydra.job.num = number
        plain = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        if plain.replay is None and plain.run_id is None:  # others may ask Hydra, which is not there yet
            load_config(plain)
        return composed

    def _wait(self, number: int, name: Sequence[str], handed: Handed) -> object:
        while not handed.done():
            time.sleep(LOOK_S)
        try:
            end = handed.result().return_value
        except Exception as error:
            end = JobEnd.failed(handed.lost(error))
        self.job.ended(number, name, end)
        return end


def resources_of(config: DictConfig) -> dict[str, Any]:
    """What a job asks for, by its own configuration."""
    plain = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert isinstance(plain, dict)
    return {str(name): value for name, value in plain.items() if name != "_target_"}


def _cancel(handed: Sequence[Handed]) -> None:
    """Ends jobs that still go on, and gives them time to stop their servers; a second Ctrl-C ends the waiting."""
    for each in handed:
        with suppress(Exception):
            each.cancel()
    deadline = time.monotonic() + CANCELLED_S
    while time.monotonic() < deadline and not all(each.done() for each in handed):
        time.sleep(LOOK_S)


# --- submitit --------------------------------------------------------------------------------------------------------


class SubmititJob(Handed):
    """A job of submitit."""

    def __init__(self, job: Any) -> None:
        self.job = job
        self.where = f"{type(job).__name__} {job.job_id}, log {job.paths.stderr}"

    def done(self) -> bool:
        """Asks for its result, and from time to time Slurm."""
        return bool(self.job.done())

    def result(self) -> JobReturn:
        """Reads its pickle, which submitit has written."""
        returned: JobReturn = self.job.results()[0]
        return returned

    def cancel(self) -> None:
        """``scancel``."""
        self.job.cancel(check=False)

    def lost(self, error: Exception) -> str:
        """Slurm's word for what became of it, and the last line of its log."""
        with suppress(OSError):
            lines = [line for line in (self.job.stderr() or "").splitlines() if line.strip()]
            last = f"; it said last: {lines[-1].strip()[:300]}" if lines else "; it said nothing"
            return f"the job ended without a result ({self.job.state}){last}. Its log: {self.job.paths.stderr}"
        return f"the job ended without a result ({self.job.state}): {first_line(error)}"


class LocalJob(SubmititJob):
    """A job of submitit's own on this machine."""

    def cancel(self) -> None:
        """SIGTERM, which submitit hands on; its own cancel kills the job a second later, servers left running."""
        os.kill(int(self.job.job_id), signal.SIGTERM)


class SubmititLauncher(OneByOneLauncher):
    """What both executors of submitit have in common."""

    cluster: str

    def check(self, configs: Sequence[DictConfig]) -> None:
        """Looks for the plugin."""
        try:
            import hydra_plugins.hydra_submitit_launcher.submitit_launcher  # noqa: F401
        except ModuleNotFoundError as error:
            raise UsageError(
                f"hydra/launcher={self.cluster} needs submitit, and {error.name} is not installed: pip install -e "
                "'.[cluster]'."
            ) from error

    def hand_on(self, number: int, overrides: list[str], config: DictConfig) -> Handed:
        """Submits a job."""
        from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher

        caller = BaseSubmititLauncher()
        caller.setup(hydra_context=self.hydra_context, task_function=self.job, config=self.config)
        try:
            executor = self.executor(resources_of(config))
            job = executor.submit(
                caller, overrides, "hydra.sweep.dir", number, config.hydra.job.id, Singleton.get_state()
            )
        except (RuntimeError, NameError, TypeError, ValueError) as error:
            raise UsageError(f"hydra/launcher={self.cluster}: {first_line(error)}") from error
        return self.handed(job)

    def executor(self, resources: dict[str, Any]) -> Any:
        """Submitit's executor with what a job asks for; 0 GPUs ask for none, since some clusters know no GPUs."""
        import submitit

        general = ("timeout_min", "cpus_per_task", "gpus_per_node", "tasks_per_node", "mem_gb", "nodes", "name",
                   "stderr_to_stdout")  # fmt: skip
        executor = submitit.AutoExecutor(folder=resources.pop("submitit_folder"), cluster=self.cluster)
        asked = {name: value for name, value in resources.items() if value is not None}
        if not asked.get("gpus_per_node"):
            asked.pop("gpus_per_node", None)
        executor.update_parameters(
            **{name if name in general else f"{self.cluster}_{name}": value for name, value in asked.items()}
        )
        return executor

    def handed(self, job: Any) -> Handed:
        """Wraps submitit's job."""
        return SubmititJob(job)


class SlurmLauncher(SubmititLauncher):
    """``hydra/launcher=slurm``: each job by ``sbatch``."""

    cluster = "slurm"


class LocalLauncher(SubmititLauncher):
    """``hydra/launcher=local``: each job a process on this machine, all at once."""

    cluster = "local"

    def check(self, configs: Sequence[DictConfig]) -> None:
        """Submitit gives each of its jobs the first GPUs of the machine."""
        super().check(configs)
        if len(configs) > 1 and any(config.model.gpus or config.engine.name == "gpu" for config in configs):
            raise UsageError(
                f"hydra/launcher=local starts {len(configs)} jobs at once, which would all take the same GPUs: use "
                "hydra/launcher=slurm or ray_job, or none, which runs one after another."
            )

    def hand_on(self, number: int, overrides: list[str], config: DictConfig) -> Handed:
        """Starts a job that the terminal's Ctrl-C does not reach: it is ended from here, see :class:`LocalJob`."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
        try:
            return super().hand_on(number, overrides, config)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def handed(self, job: Any) -> Handed:
        """Wraps submitit's job."""
        return LocalJob(job)


# --- Ray -------------------------------------------------------------------------------------------------------------


class RayJob(Handed):
    """A task of Ray."""

    def __init__(self, reference: Any, folder: Path) -> None:
        self.reference = reference
        self.log = folder / LOG
        self.where = f"Ray task {reference.hex()[:16]}, log {self.log}"

    def done(self) -> bool:
        """Asks Ray."""
        import ray

        return bool(ray.wait([self.reference], timeout=0)[0])

    def result(self) -> JobReturn:
        """Fetches it."""
        import ray

        returned: JobReturn = ray.get(self.reference)
        return returned

    def cancel(self) -> None:
        """A SIGINT to the worker; a task that still waits for GPUs is dropped."""
        import ray

        ray.cancel(self.reference)

    def lost(self, error: Exception) -> str:
        """What Ray says."""
        return f"the job ended without a result ({type(error).__name__}): {first_line(error)}. Its log: {self.log}"


class RayLauncher(OneByOneLauncher):
    """``hydra/launcher=ray_job``: each job a task of a Ray cluster, or of one here that ends with the run."""

    def check(self, configs: Sequence[DictConfig]) -> None:
        """Looks for the plugin, starts Ray or joins the cluster, and refuses jobs that would wait for ever."""
        try:
            from hydra_plugins.hydra_ray_launcher._launcher_util import start_ray
        except ModuleNotFoundError as error:
            raise UsageError(
                f"hydra/launcher=ray_job needs Ray, and {error.name} is not installed: pip install -e '.[cluster]'."
            ) from error
        address, here = self.resources["init"].get("address"), len(gpus())
        for config in configs:
            needed = resources_of(config)["remote"].get("num_gpus") or 0
            if needed > here and not address:  # a cluster may grow
                raise UsageError(
                    f"model={config.model.name} needs {needed:g} GPUs, and Ray would be started on this machine, which "
                    f"has {here}: join a cluster (hydra.launcher.init.address=auto)."
                )
        try:
            start_ray(OmegaConf.create(self.resources["init"]))
        except Exception as error:
            how = "joined" if address else "started"
            raise UsageError(f"hydra/launcher=ray_job: Ray can't be {how}: {first_line(error)}") from error

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """See :class:`OneByOneLauncher`; leaves the cluster at the end, or ends the one on this machine."""
        try:
            return super().launch(job_overrides, initial_job_idx)
        finally:
            with suppress(ImportError):
                import ray

                ray.shutdown()

    def hand_on(self, number: int, overrides: list[str], config: DictConfig) -> Handed:
        """Hands a task to Ray."""
        from hydra_plugins.hydra_ray_launcher._launcher_util import launch_job_on_ray

        remote = OmegaConf.create(resources_of(config)["remote"])
        reference = launch_job_on_ray(self.hydra_context, remote, config, self.job, Singleton.get_state())
        return RayJob(reference, Path(str(config.hydra.sweep.dir)).absolute() / str(number))
