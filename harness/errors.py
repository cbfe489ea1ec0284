"""What can go wrong, each with the exit code that a CI job sees."""

from __future__ import annotations


class HarnessError(Exception):
    """A failure told to the user in words: what happened, the number or path that shows it, what to do next."""

    exit_code = 3


class UsageError(HarnessError):
    """The command line, a config value or a combination of them is wrong; nothing was started."""

    exit_code = 2


class ServerError(HarnessError):
    """A server or the machine failed."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or a closed terminal: servers are stopped on the way out."""

    exit_code = 130
