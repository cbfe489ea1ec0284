"""Small HTTP calls to a server's control endpoints; the measured requests go through workload/client.py."""

from __future__ import annotations

from typing import Any

import requests

from harness.errors import ServerError

TIMEOUT_S = 30.0


class Endpoint:
    """A server's base URL, with errors in words."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def answers(self, path: str) -> bool:
        """Whether ``GET path`` answers 200 right now."""
        try:
            return requests.get(self.url + path, timeout=2.0).status_code == 200
        except requests.RequestException:
            return False

    def text(self, path: str) -> str:
        """Body of ``GET path``.

        Raises:
            ServerError: no answer, or not 200.
        """
        return self._call("GET", path).text

    def json(self, path: str) -> Any:
        """JSON body of ``GET path``; raises as :meth:`text`."""
        return self._decoded(self._call("GET", path), path)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """JSON body of ``POST path`` (None when it is empty); raises as :meth:`text`."""
        response = self._call("POST", path, body)
        return self._decoded(response, path) if response.text.strip() else None

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        try:
            response = requests.request(method, self.url + path, json=body, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            raise ServerError(
                f"{self.name} does not answer {method} {self.url}{path}: {type(error).__name__}."
            ) from error
        if response.status_code != 200:
            raise ServerError(
                f"{self.name} answered {response.status_code} to {method} {self.url}{path}: "
                f"{response.text[:300].strip()}"
            )
        return response

    def _decoded(self, response: requests.Response, path: str) -> Any:
        try:
            return response.json()
        except requests.JSONDecodeError as error:
            raise ServerError(f"{self.name} answered {path} with no JSON: {response.text[:200]!r}") from error
