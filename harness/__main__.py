"""``python -m harness``."""

import sys

try:
    from harness.cli import main
except ModuleNotFoundError as missing:
    # Exit code 1 would read as a verdict.
    print(
        f"error: {sys.executable} has no {missing.name}: set up with `make demo` and use .venv/bin/python, "
        "or pip install -e '.[cpu,dev]'.",
        file=sys.stderr,
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main())
