"""Small HTTP calls to a server's control endpoints; the measured requests go through workload/client.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import requests

from harness.errors import ServerError
from harness.measure.counters import Counters, parse_counters

TIMEOUT_S = 30.0


class StatusError(ServerError):
    """A server answered, but not with 200.

    Args:
        message: what happened.
        status: its HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Endpoint:
    """A server's base URL, with errors in words.

    Args:
        name: what people call the server.
        url: base URL without a slash at its end.
        explain: asked for what the server's log says when it does not answer.
    """

    def __init__(self, name: str, url: str, explain: Callable[[], str] = lambda: "") -> None:
        self.name = name
        self.url = url
        self.explain = explain

    def answers(self, path: str) -> bool:
        """Whether ``GET path`` answers 200 right now."""
        try:
            return _request("GET", self.url + path, timeout_s=2.0).status_code == 200
        except requests.RequestException:
            return False

    def text(self, path: str) -> str:
        """Body of ``GET path``.

        Raises:
            ServerError: no answer, or not 200.
        """
        return self._call("GET", path).text

    def counters(self) -> Counters:
        """Counters of its ``/metrics`` page; raises as :meth:`text`."""
        try:
            return parse_counters(self.text("/metrics"))
        except ValueError as error:
            raise ServerError(f"{self.name}'s /metrics can't be read as a Prometheus page: {error}") from error

    def json(self, path: str) -> Any:
        """JSON body of ``GET path``; raises as :meth:`text`."""
        return self._decoded(self._call("GET", path), path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """JSON body of ``POST path`` (None when it is empty); raises as :meth:`text`."""
        response = self._call("POST", path, body)
        return self._decoded(response, path) if response.text.strip() else None

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        try:
            response = _request(method, self.url + path, timeout_s=TIMEOUT_S, body=body)
        except requests.RequestException as error:
            how = f"nothing within {TIMEOUT_S:g} s" if isinstance(error, requests.Timeout) else "no connection"
            raise ServerError(
                f"{self.name} does not answer {method} {self.url}{path} ({how}). {self.explain()}".rstrip()
            ) from error
        if response.status_code != 200:
            raise StatusError(
                f"{self.name} answered {response.status_code} to {method} {self.url}{path}: "
                f"{response.text[:300].strip() or 'an empty page'}",
                response.status_code,
            )
        return response

    def _decoded(self, response: requests.Response, path: str) -> Any:
        try:
            return response.json()
        except requests.JSONDecodeError as error:
            raise ServerError(f"{self.name} answered {path} with no JSON: {response.text[:200]!r}") from error


def _request(method: str, url: str, *, timeout_s: float, body: dict[str, Any] | None = None) -> requests.Response:
    with requests.Session() as session:
        # A proxy that the environment names is not for the loopback interface.
        session.trust_env = False
        return session.request(method, url, json=body, timeout=timeout_s)
