"""LMCache and vLLM together: up in the right order, down on every way out."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.config import RunConfig
from harness.errors import HarnessError, Interrupted, ServerError
from harness.interrupts import held
from harness.measure.counters import Snapshot
from harness.servers.checkpoint import LinkedCheckpoint
from harness.servers.commands import lmcache_command, shown, vllm_command
from harness.servers.damage import DamageModule
from harness.servers.environment import added_environment, server_environment
from harness.servers.ledger import Ledger
from harness.servers.lmcache import LMCacheServer
from harness.servers.ports import free_ports, give_back
from harness.servers.process import ServerProcess
from harness.servers.vllm import VllmServer

Notify = Callable[[str], None]

LONGEST_SCRATCH = 64
"""Characters of a temporary folder's path: vLLM puts sockets there, whose paths (36 more) may have 107."""


def scratch_folder() -> Path:
    """A new name below the temporary folder, or below /tmp where that one's path is too long for sockets."""
    name = f"harness-{uuid.uuid4().hex[:12]}"
    chosen = Path(tempfile.gettempdir()).resolve() / name
    return chosen if len(str(chosen)) <= LONGEST_SCRATCH else Path("/tmp") / name


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
        # Of this launch alone: vLLM leaves its sockets in the temporary folder.
        self._scratch = scratch_folder()
        self._ledger = Ledger(self.folder, self._scratch)
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
            # First, so that a harness that is killed at any moment from here on leaves nothing that can't be found.
            self._ledger.note()
            self._make_scratch()
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
        """vLLM first, since it does not outlive its LMCache in peace; then whatever is left on the machine.

        What cuts it short (a second Ctrl-C) leaves nothing either: then both servers are killed at once.
        """
        try:
            self._stop_vllm()
            self._stop_lmcache()
        except BaseException as error:
            with held():
                try:
                    self._stop_vllm(hurried=True)
                finally:
                    self._stop_lmcache(hurried=True)
            if not isinstance(error, ServerError):
                raise
            # It outlived its SIGKILL for long, and is gone now: no failure, and not what is to be told of a Ctrl-C.
            if isinstance(error.__context__, Interrupted):
                raise error.__context__ from None
        finally:
            with held():
                shutil.rmtree(self._scratch, ignore_errors=True)
                if not any(each is not None and each.process.pid for each in (self._vllm, self._lmcache)):
                    self._ledger.close()
                    give_back((self._lmcache_port, self._lmcache_http_port, self._vllm_port))
                self._vllm = self._lmcache = None

    def _stop_vllm(self, *, hurried: bool = False) -> None:
        """Stopping a server that is stopped is nothing, so this can be done again."""
        if self._vllm is not None:
            self.notify("stopping vLLM")
            self.leftovers += self._vllm.stop(hurried=hurried)

    def _stop_lmcache(self, *, hurried: bool = False) -> None:
        if self._lmcache is not None:
            self.notify("stopping LMCache")
            self.leftovers += self._lmcache.stop(hurried=hurried)

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

    def note(self) -> None:
        """Writes down what both servers have on the machine by now, for whoever finds it if this process is killed."""
        for server in (self._lmcache, self._vllm):
            if server is not None:
                server.process.note_family()

    def check(self, when: str = "") -> None:
        """Sees whether both servers still run; see :meth:`ServerProcess.check`."""
        self.vllm.process.check(when)

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

    def _make_scratch(self) -> None:
        try:
            (self._l2_dir or self._scratch).mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise HarnessError(
                f"The servers' temporary folder {self._scratch} can't be made: {error.strerror} "
                "(TMPDIR chooses another place)."
            ) from error

    def _start_lmcache(self) -> None:
        self._lmcache = LMCacheServer(self._process("LMCache"), self._lmcache_http_port, self._l2_dir)
        self._start(self._lmcache.process, self._lmcache.healthy, self.config.servers.lmcache.start_timeout_s)

    def _start_vllm(self) -> None:
        process = self._process("vLLM")
        # The cause of what one of them says often stands in the other's log.
        if self.has_lmcache:
            process.beside, self.lmcache.process.beside = [self.lmcache.process], [process]
        self._vllm = VllmServer(process, self._vllm_port, self.config.model.name)
        try:
            self._start(process, self._ready, self.config.servers.vllm.start_timeout_s)
        except ServerError as error:
            if process.alive() and self.has_lmcache and not self.lmcache.healthy():
                hangs = "LMCache, which it needs, does not answer its health check. "
                raise ServerError(hangs + self.lmcache.process.suspended() + str(error)) from error
            raise

    def _ready(self) -> bool:
        # Without its LMCache vLLM hangs for ever and says nothing, so LMCache's end ends the wait.
        self.vllm.process.check(" while vLLM was starting")
        return self.vllm.healthy()

    def _process(self, name: str) -> ServerProcess:
        log = self.folder / f"{name.lower()}.log"
        env = server_environment(self.config) | {"TMPDIR": str(self._scratch)}
        return ServerProcess(name, self.commands[name.lower()], env, log, self._noted)

    def _noted(self, process: ServerProcess) -> None:
        self._ledger.note(process.name, process.family, process.segments)

    def _start(self, process: ServerProcess, ready: Callable[[], bool], timeout_s: float) -> None:
        def waiting(waited: float) -> None:
            self.notify(f"starting {process.name} ({waited:.0f} s)")

        process.start()
        self.started_s[process.name.lower()] = process.wait_until_ready(ready, timeout_s, waiting)
