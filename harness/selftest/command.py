"""``python -m harness selftest``: a run of the check that damages, or runs that were made, and their summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from harness.checking import nearest
from harness.config import RunConfig
from harness.errors import UsageError
from harness.overrides import is_multirun
from harness.resume import is_bare
from harness.runner import new_run_id
from harness.selftest.reduce import reduce_run
from harness.selftest.summary import read_summary, write_summary
from harness.selftest.table import print_summary

SHORT = "short"

JUDGED = (0, 1, 4)
"""Exit codes of a run that came to its end: the verdict of a selftest's run is ``fail`` by design."""


def selftest_command(
    arguments: Sequence[str], run: Callable[[Sequence[str]], int], compose: Callable[[Sequence[str]], RunConfig]
) -> int:
    """Runs a selftest and summarizes it; the summary decides.

    Args:
        arguments: ``short``, overrides as for ``run``; or ``from=<folder>[,<folder>]`` and ``into=<folder>``.
        run: the command ``run``.
        compose: overrides -> configuration.

    Returns:
        0 if every cell ended as it must, 1 if the gate did not bite or raised a false alarm, 4 if too little was
        measured; of a run that did not come to its end, its own.

    Raises:
        UsageError: words that don't go together, or a folder that holds no run.
    """
    fields = dict(word.split("=", 1) for word in arguments if word.startswith(("from=", "into=")))
    rest = [word for word in arguments if not word.startswith(("from=", "into="))]
    if "from" in fields:
        if rest:
            raise UsageError(f"from= summarizes runs that were made, and takes no {rest[0]}.")
        return summarize_runs([Path(each) for each in fields["from"].split(",") if each], fields.get("into"))
    if fields:
        raise UsageError("into= needs from=: python -m harness selftest from=results/<run id> into=results/<name>")
    if any(word.startswith("-") for word in rest):
        if is_multirun(rest):
            raise UsageError("selftest makes one run, whose launches are its repeats: it takes no --multirun.")
        return run(overrides_of(rest))
    for word in rest:
        if "=" not in word and not word.startswith("~") and word != SHORT:
            raise UsageError(f"selftest knows no {word!r}; {nearest(word, [SHORT])}")
    overrides = overrides_of(rest)
    config = compose(overrides)
    run_id = config.resume or config.run_id or new_run_id(config)
    named = [] if config.resume or config.run_id else [f"run_id={run_id}"]
    code = run([*overrides, *named])
    return summarize_runs([Path(config.results_dir) / run_id]) if code in JUDGED else code


def overrides_of(words: Sequence[str]) -> list[str]:
    """What ``run`` gets: check and sweep of the selftest, unless others are named or a run goes on as it began."""
    rest = [word for word in words if word != SHORT]
    if is_bare(rest):
        return rest
    names = {word.lstrip("+~").partition("=")[0] for word in rest}
    sweep = "selftest_short" if SHORT in words else "selftest"
    ours = {"check": "selftest", "sweep": sweep}
    return [*(f"{name}={value}" for name, value in ours.items() if name not in names), *rest]


def summarize_runs(paths: Sequence[Path], into: str | None = None) -> int:
    """Prints and writes the summary of results folders into the first of them.

    Args:
        paths: of the runs.
        into: where the first of them is kept in a small form.

    Returns:
        The exit code.

    Raises:
        UsageError: no folder, one named twice, or one that holds no run.
    """
    names = [path.resolve().name for path in paths]
    if not paths or len(set(names)) < len(names):
        raise UsageError("from= needs results folders of different names: from=results/<run id>,results/<run id>")
    summary, runs = read_summary(paths)
    written = write_summary(paths[0], summary, runs[0]) + draw(paths[0])
    print_summary(Console(highlight=False), summary)
    for file in written:
        print(file)
    if into is not None:
        print(reduce_run(paths[0], Path(into)))
    return summary.exit_code


def draw(path: Path) -> list[Path]:
    """Draws the figure of the selftest, and returns its files; what goes wrong is told and changes no exit code."""
    try:
        from harness.report.figures import write_figures

        drawn = write_figures(path, only=("selftest",))
    except Exception as error:
        print(f"warning: the figure was not drawn: {str(error) or type(error).__name__}", file=sys.stderr)
        return []
    return drawn.written
