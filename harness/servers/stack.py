"""LMCache and vLLM together: up in the right order, down on every way out."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.config import RunConfig
from harness.errors import HarnessError, ServerError
from harness.measure.counters import Snapshot
from harness.servers.checkpoint import LinkedCheckpoint
from harness.servers.commands import lmcache_command, shown, vllm_command
from harness.servers.damage import DamageModule
from harness.servers.environment import added_environment, server_environment
from harness.servers.lmcache import LMCacheServer
from harness.servers.ports import free_ports
from harness.servers.process import ServerProcess
from harness.servers.vllm import VllmServer

Notify = Callable[[str], None]

SCRATCH_PREFIX = "harness-"
SCRATCH = re.compile(re.escape(SCRATCH_PREFIX) + "[0-9a-f]+")
"""Its name: what is removed with it must not be somebody's ``harness-data``."""


def scratch_folder(temporary: str) -> Path | None:
    """The temporary folder of a server, if it is one that a launch made for it."""
    return Path(temporary) if SCRATCH.fullmatch(Path(temporary).name) else None


class Stack:
    """One server launch; a context manager that stops what it started on every exit path.

    Args:
        config: the run's configuration.
        budget: ``--max-num-batched-tokens`` of this launch.
        chunk_size: LMCache's chunk size in tokens.
        folder: where logs go.
        notify: told in words what is being waited for.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        budget: int,
        chunk_size: int,
        folder: Path,
        notify: Notify = lambda _: None,
    ) -> None:
        self.config = config
        self.budget = budget
        self.chunk_size = chunk_size
        self.folder = folder.resolve()
        self.notify = notify
        self.started_s: dict[str, float] = {}
        self.leftovers: list[Path] = []
        self._lmcache_port, self._lmcache_http_port, self._vllm_port = free_ports(3)
        # Of this launch alone: vLLM leaves its sockets in the temporary folder. Short, since a socket's path is.
        self._scratch = Path(tempfile.gettempdir()) / f"{SCRATCH_PREFIX}{uuid.uuid4().hex[:12]}"
        self._l2_dir = self._scratch / "l2" if config.check.file_l2 else None
        source = Path(config.model.path).expanduser()
        self._linked = LinkedCheckpoint(source, self._scratch) if config.check.linked_checkpoint else None
        self.damage = DamageModule(self._scratch) if config.check.damage_module else None
        self.commands = {
            "lmcache": lmcache_command(
                config,
                chunk_size=chunk_size,
                port=self._lmcache_port,
                http_port=self._lmcache_http_port,
                l2_dir=self._l2_dir,
                module=self.damage.argument if self.damage else None,
            ),
            "vllm": vllm_command(
                config,
                budget=budget,
                port=self._vllm_port,
                lmcache_port=self._lmcache_port,
                checkpoint=self._linked.path if self._linked else None,
            ),
        }
        if not config.check.connector:
            del self.commands["lmcache"]
        self._lmcache: LMCacheServer | None = None
        self._vllm: VllmServer | None = None

    @property
    def has_lmcache(self) -> bool:
        """Whether vLLM has an LMCache in this launch."""
        return self.config.check.connector

    @property
    def kept_dir(self) -> Path:
        """Where copies of LMCache's L2 are kept; gone with the launch."""
        return self._scratch / "kept"

    @property
    def lmcache(self) -> LMCacheServer:
        """The LMCache server of this launch."""
        assert self._lmcache is not None, "the stack is not up"
        return self._lmcache

    @property
    def vllm(self) -> VllmServer:
        """The vLLM server of this launch."""
        assert self._vllm is not None, "the stack is not up"
        return self._vllm

    def __enter__(self) -> Stack:
        try:
            (self._l2_dir or self._scratch).mkdir(parents=True, mode=0o700)
            if self._linked is not None:
                self._linked.point(noise=0)
            if self.has_lmcache:
                self._start_lmcache()
            self._start_vllm()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """vLLM first, since it does not outlive its LMCache in peace; then whatever is left on the machine."""
        try:
            if self._vllm is not None:
                self.notify("stopping vLLM")
                self.leftovers += self._vllm.stop()
        finally:
            self._vllm = None
            try:
                if self._lmcache is not None:
                    self.notify("stopping LMCache")
                    self.leftovers += self._lmcache.stop()
            finally:
                self._lmcache = None
                shutil.rmtree(self._scratch, ignore_errors=True)

    def serve(self, noise: float) -> float:
        """Starts vLLM anew with other weights behind the same path; LMCache and what it holds stay.

        Args:
            noise: see :meth:`LinkedCheckpoint.point`.

        Returns:
            Seconds until vLLM was ready.

        Raises:
            ServerError: vLLM does not come up again.
            HarnessError: the perturbed checkpoint can't be made.
        """
        if self._linked is None:
            raise HarnessError("A serve step needs the checkpoint behind a link (check.linked_checkpoint=true).")
        self.notify("stopping vLLM")
        self.leftovers += self.vllm.stop()
        self._linked.point(noise)
        self._start_vllm()
        return round(self.started_s["vllm"], 1)

    def restart(self, server: str) -> dict[str, float]:
        """Starts vLLM anew, or LMCache and with it vLLM, which does not find a new LMCache by itself.

        Args:
            server: ``vllm`` or ``lmcache``.

        Returns:
            Seconds until each was ready.

        Raises:
            ServerError: one does not come up again.
        """
        self.notify("stopping vLLM")
        self.leftovers += self.vllm.stop()
        if server == "lmcache" and self.has_lmcache:
            self.notify("stopping LMCache")
            self.leftovers += self.lmcache.stop()
            self._start_lmcache()
        self._start_vllm()
        started = ("vllm",) if server == "vllm" else ("lmcache", "vllm")
        return {name: round(self.started_s[name], 1) for name in started if name in self.started_s}

    def settle(self) -> dict[str, float]:
        """Waits until LMCache has nothing in flight; see :meth:`LMCacheServer.wait_until_settled`."""
        return self.lmcache.wait_until_settled() if self.has_lmcache else {}

    def snapshot(self) -> Snapshot:
        """Counters of both servers now."""
        return Snapshot(vllm=self.vllm.counters(), lmcache=self.lmcache.counters() if self.has_lmcache else {})

    def described(self) -> dict[str, Any]:
        """Commands, added environment and start-up times so far, for run.json; known before anything is started."""
        return {
            "budget": self.budget,
            "chunk_size": self.chunk_size,
            "commands": {name: shown(command) for name, command in self.commands.items()},
            "environment": added_environment(self.config),
            "started_s": {name: round(seconds, 1) for name, seconds in self.started_s.items()},
        }

    def _start_lmcache(self) -> None:
        process = self._process("LMCache")
        self._lmcache = LMCacheServer(process, self._lmcache_http_port, self._l2_dir)
        self._wait(process, self._lmcache.healthy, self.config.servers.lmcache.start_timeout_s)

    def _start_vllm(self) -> None:
        process = self._process("vLLM")
        # The cause of what one of them says often stands in the other's log.
        if self.has_lmcache:
            process.beside, self.lmcache.process.beside = [self.lmcache.process], [process]
        self._vllm = VllmServer(process, self._vllm_port, self.config.model.name)
        self._wait(process, self._ready, self.config.servers.vllm.start_timeout_s)

    def _ready(self) -> bool:
        # Without its LMCache vLLM hangs for ever and says nothing, so LMCache's end ends the wait.
        if self.has_lmcache and not self.lmcache.process.alive():
            raise ServerError("LMCache ended while vLLM was starting. " + self.lmcache.process.explanation())
        return self.vllm.healthy()

    def _process(self, name: str) -> ServerProcess:
        log = self.folder / f"{name.lower()}.log"
        env = server_environment(self.config) | {"TMPDIR": str(self._scratch)}
        process = ServerProcess(name, self.commands[name.lower()], env, log)
        process.start()
        return process

    def _wait(self, process: ServerProcess, ready: Callable[[], bool], timeout_s: float) -> None:
        def waiting(waited: float) -> None:
            self.notify(f"starting {process.name} ({waited:.0f} s)")

        self.started_s[process.name.lower()] = process.wait_until_ready(ready, timeout_s, waiting)
