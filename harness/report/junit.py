"""junit.xml: a run is a test suite and a cell a test case, so that CI shows cells as it shows tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from harness.report.headline import headline
from harness.report.runs import Run, as_counted, find

NOT_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF), "\N{REPLACEMENT CHARACTER}")
"""Characters that XML can't hold, as a log's error may."""


Result = Failure | Error | Skipped


def junit(runs: Sequence[Run]) -> bytes:
    """All runs as JUnit XML.

    ``fail`` is a failure with its reasons, ``invalid`` an error, ``inconclusive`` is skipped with the reason; a cell
    that fails alone but not after the correction over its run's cells is inconclusive. A run that did not complete,
    or has no cell, has a case of its own called ``run``, with an error. The time of a case is the wall time of its
    passes in seconds; cells of a launch share its passes, so that times add up to more than the run took.
    """
    document = JUnitXml("cache-equivalence-harness")
    for run in runs:
        document.add_testsuite(_suite(run))
    document.update_statistics()  # type: ignore[no-untyped-call]
    text: bytes = document.tostring()  # type: ignore[no-untyped-call]
    return text


def _suite(run: Run) -> TestSuite:
    suite = TestSuite(_plain(run.id))
    if started := run.record.get("started_at"):
        suite.timestamp = str(started)
    for name in ("verdict", "status", "model"):
        suite.add_property(name, _plain(str(run.record.get(name))))
    cases = []
    for cell, (counts_as, sentence) in zip(run.cells, as_counted(run), strict=True):
        case = TestCase(_plain(str(cell.get("cell"))), classname=_plain(run.id), time=_seconds(cell))
        if result := _result(counts_as, [*(cell.get("reasons") or []), *([sentence] if sentence else [])]):
            case.result = [result]
        cases.append(case)
    if run.status != "complete" or not run.cells:
        case = TestCase("run", classname=_plain(run.id))
        first = headline(run)
        case.result = [_told(Error, run.status, [first.sentence, *first.reasons])]
        cases.append(case)
    suite.add_testcases(cases)  # one by one, each would count all cases before it again
    suite.update_statistics()  # type: ignore[no-untyped-call]
    return suite


def _result(verdict: str, reasons: list[str]) -> Result | None:
    kinds: dict[str, type[Result]] = {"fail": Failure, "invalid": Error, "inconclusive": Skipped}
    kind = kinds.get(verdict)
    return None if kind is None else _told(kind, verdict, reasons)


def _told(kind: type[Result], name: str, reasons: list[str]) -> Result:
    result = kind(_plain(reasons[0] if reasons else name), name)
    result.text = _plain("\n".join(reasons))
    return result


def _seconds(cell: Mapping[str, Any]) -> float:
    passes = (cell.get("passes") or {}).values()
    return round(sum(float(find(each, "wall_s") or 0) for each in passes), 3)


def _plain(text: str) -> str:
    return text.translate(NOT_XML)
