"""``python -m harness``, and the installed command ``harness``."""

import sys


def main() -> int:
    """Runs a command; says how to set up where a package is missing."""
    try:
        from harness.cli import main as command_line

        return command_line()
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
