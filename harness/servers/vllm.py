"""The vLLM server: health, resetting its own prefix cache, tokens, and the block size it settled on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.errors import ServerError
from harness.measure.counters import Counters, info_labels
from harness.servers.commands import VLLM_STOP_S
from harness.servers.http import Endpoint, StatusError
from harness.servers.logs import block_size_from_log
from harness.servers.ports import LOOPBACK
from harness.servers.process import ServerProcess
from harness.servers.waiting import wait_for

RESET_S = 60.0
STOP_S = VLLM_STOP_S + 15.0


class VllmServer:
    """A running vLLM server.

    Args:
        process: the child process.
        port: its HTTP port on the loopback interface.
        model: served model name.
        url: its base address where that is another one.
    """

    HEALTH = "/health"

    def __init__(self, process: ServerProcess, port: int, model: str, url: str | None = None) -> None:
        self.process = process
        self.http = Endpoint("vLLM", url or f"http://{LOOPBACK}:{port}", process.explanation)
        self.model = model

    def healthy(self) -> bool:
        """Whether its health endpoint is green."""
        return self.http.answers(self.HEALTH)

    def counters(self) -> Counters:
        """All its counters."""
        return self.http.counters()

    def block_size(self) -> int:
        """Unified block size N in tokens, as the running server has it.

        Raises:
            ServerError: neither its log nor its metrics say it.
        """
        if (from_log := block_size_from_log(self.process.log_text())) is not None:
            return from_log
        labels = info_labels(self.http.text("/metrics"), "vllm:cache_config_info")
        if labels.get("block_size", "").isdigit():
            return int(labels["block_size"])
        raise ServerError(f"vLLM does not say its block size, neither in {self.process.log} nor in /metrics.")

    def reset_prefix_cache(self) -> dict[str, Any]:
        """Empties vLLM's own prefix cache and leaves LMCache alone; retries while blocks are still held.

        Returns:
            ``{"attempts": n, "success": True}``.

        Raises:
            ServerError: it kept refusing for :data:`RESET_S` seconds, the endpoint isn't there, it doesn't say whether
                it succeeded, or a server ended.
        """
        attempts = 0

        def accepted() -> bool | None:
            nonlocal attempts
            self.process.check(" while vLLM's prefix cache was being reset")
            attempts += 1
            body = self._post_reset()
            if not isinstance(body, dict) or "success" not in body:
                raise ServerError(
                    f"vLLM answered POST {self.http.url}/reset_prefix_cache with {str(body)[:200]!r} and not with "
                    '{"success": …}, so whether its cache is empty is not known: this release is not the one that '
                    "was tested (0.32.0)."
                )
            # HTTP 200 is not success: the body may say that blocks are still held.
            return True if body["success"] is True else None

        if wait_for(accepted, RESET_S) is None:
            raise ServerError(
                f"vLLM refused {attempts} times in {RESET_S:g} s to reset its prefix cache: blocks are still held "
                "by a request or by a store on its way to LMCache. "
                + self.process.suspended()
                + self.process.log_excerpt()
            )
        return {"attempts": attempts, "success": True}

    def _post_reset(self) -> Any:
        try:
            return self.http.post("/reset_prefix_cache")
        except StatusError as error:
            if error.status != 404:
                raise
            raise ServerError(
                f"{error} The endpoint exists in vLLM's development mode only: start vLLM with VLLM_SERVER_DEV_MODE=1."
            ) from error

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt, special tokens as for a completion."""
        body = self.http.post("/tokenize", {"model": self.model, "prompt": text})
        return [int(token) for token in body["tokens"]]

    def max_model_len(self) -> int:
        """Longest prompt plus answer in tokens."""
        return int(self.http.json("/v1/models")["data"][0]["max_model_len"])

    def stop(self, *, hurried: bool = False) -> list[Path]:
        """Ends it, at once if ``hurried``; see :meth:`ServerProcess.stop`."""
        return self.process.stop(0.0 if hurried else STOP_S)
