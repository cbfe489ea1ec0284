"""What can go wrong, each with the exit code that a CI job sees."""

from __future__ import annotations

import os

from harness.redaction import known_secrets, redacted


class HarnessError(Exception):
    """A failure told to the user in words: what happened, the number or path that shows it, what to do next.

    Secrets never stand in it: a message may quote a value of the configuration or a line of a server's log.
    """

    exit_code = 3

    def __init__(self, text: object = "") -> None:
        super().__init__(redacted(str(text), known_secrets(os.environ)))


class UsageError(HarnessError):
    """The command line, a config value or a combination of them is wrong; nothing was started."""

    exit_code = 2


class ServerError(HarnessError):
    """A server or the machine failed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or a closed terminal: servers are stopped on the way out."""

    exit_code = 130

    goes_on: str | None = None
    """How the run goes on later, in words; None where none has begun."""
