"""``python -m harness``, and the installed command ``harness``."""

import gc
import sys


def main() -> int:
    """Runs a command; says how to set up where a package is missing."""
    try:
        from harness.cli import main as command_line

        code = command_line()
        # What was imported ends with the process: Python's last collections would look through all of it, for 0.5 s.
        gc.freeze()
        return code
    except ModuleNotFoundError as missing:
        # Exit code 1 would read as a verdict.
        print(
            f"error: {sys.executable} has no {missing.name}: set up with `make demo` and use .venv/bin/python, "
            "or pip install -e '.[cpu,dev]'.",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
