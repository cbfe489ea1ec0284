"""From the command line to a command, and from what goes wrong there to an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module

from rich.console import Console

from harness import __version__
from harness.checking import nearest
from harness.cli.catalog import COMMANDS, Command, help_of, usage
from harness.errors import HarnessError, Interrupted, UsageError
from harness.interrupts import interruptible

HELP = ("-h", "--help")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # lm-eval, datasets and the hub's client would draw bars of their own over ours; read when they are imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    if arguments == ["--version"]:
        print(f"harness {__version__}")
        return 0
    if not arguments or arguments[0] in HELP or arguments == ["help"]:
        print(usage())
        return 0 if arguments else 2
    try:
        with interruptible():
            return _dispatch(*_asked(arguments))
    except HarnessError as error:
        return complain(error)
    except BrokenPipeError:
        return _pipe_closed()
    except Exception:
        # Python's own exit code for a crash is 1, which here means that the model changed.
        Console(stderr=True).print_exception()
        return HarnessError.exit_code
    except KeyboardInterrupt as stop:
        goes_on = stop.goes_on if isinstance(stop, Interrupted) else None
        told = f"interrupted; to go on with it: {goes_on}" if goes_on else "interrupted"
        with suppress(OSError):
            Console(stderr=True).print(told, style="yellow", markup=False, highlight=False, soft_wrap=True)
        return Interrupted.exit_code


def complain(error: HarnessError) -> int:
    """Tells a failure on stderr and returns its exit code."""
    with suppress(OSError):  # the reader of stderr may be gone; the exit code tells it as well
        Console(stderr=True, highlight=False).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    return error.exit_code


def _asked(arguments: Sequence[str]) -> tuple[Command, list[str]]:
    """The command that is named, and its words; ``help COMMAND`` is ``COMMAND --help``."""
    name, *rest = arguments
    if name == "help":
        name, rest = rest[0], ["--help"]
    if name not in COMMANDS:
        raise UsageError(f"{name} is no command; {nearest(name, list(COMMANDS))}")
    return COMMANDS[name], rest


def _dispatch(command: Command, words: Sequence[str]) -> int:
    if any(word in HELP for word in words):
        groups = None
        if command.takes == "overrides":
            from harness.cli.groups import config_groups

            groups = config_groups()
        print(help_of(command, groups))
        return 0
    function: Callable[[Sequence[str]], int] = getattr(import_module(command.home), command.function)
    return function(words)


def _pipe_closed() -> int:
    """Nobody reads on (``… | head``): no traceback, here and at Python's end; but not a pass either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return HarnessError.exit_code
