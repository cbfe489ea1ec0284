"""From the text of logs to findings: which known failure, shown by which line, and which of them came first.

Pure: logs come in as blocks of bytes, so that memory stays bounded whatever their size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.diagnosis.table import NOTHING_STORED, TABLE, Entry, derived
from harness.model.rules import Severity
from harness.servers.logs import EXCEPTION, plain

SHOWN = 400
"""Characters of a line that are shown."""

LOOKED_AT = 16384
"""Characters of a line that patterns are searched in: some would take for ever in a line without an end."""

UNEXPLAINED = 4
"""Lines that are kept of a failure that the table does not know."""

FEW_REQUESTS = 20
"""Served requests below which it proves nothing that none was stored: short prompts, or a launch that was cut short."""

STOPPING = (
    b"[shutdown] API server: shutdown triggered",
    b"Unregistered KV cache for GPU ID",
    b"INFO:     Shutting down",
)
"""vLLM is being stopped from here on. Many a healthy log has an EngineDeadError behind the first of them."""

STARTING = (b"non-default args: {", b"Registered KV cache for GPU ID", b"LMCache cache server is running")
"""Until here: the same file may hold the next launch as well."""

PROMPT = "Received request "
"""What vLLM prints before a prompt when it logs requests: a user's text, which proves nothing."""

BARE = re.compile(r"\w[\w.]*Error")
"""An exception without a word: the statement above it has to tell."""
STORED = re.compile(rb"Stored \d+ tokens")
COMPLETION = re.compile(NOTHING_STORED.pattern.encode())
LMCACHE_SERVES = b"LMCache cache server is running"
STAMP = re.compile(rb"\d\d-\d\d \d\d:\d\d:\d\d")
"""Month to second, which both servers print; at New Year the order of two logs may be wrong."""

MATCHED = tuple((entry, re.compile(entry.pattern)) for entry in TABLE if entry is not NOTHING_STORED)
KNOWN = re.compile("|".join(re.escape(text) for entry, _ in MATCHED for text in entry.markers))
RAISED = ("Error", "Exception", "Value error", "Interrupt", "Exit")
"""What a line has that `EXCEPTION` matches."""
MARKERS = tuple(dict.fromkeys(text.encode() for entry, _ in MATCHED for text in entry.markers))
INTERESTING = (*MARKERS, *(text.encode() for text in RAISED), *STOPPING, *STARTING)


@dataclass(frozen=True, slots=True)
class Log:
    """One log: its name as people know it, and its text in blocks that end where a line ends (or a very long line is
    cut)."""

    name: str
    blocks: Iterable[bytes]
    first_line: int = 1
    """Number of its first line, for a log that is not read from its beginning."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One line of a log, as it can be shown."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A known failure and the first line that shows it."""

    entry: Entry
    evidence: Evidence
    numbers: dict[str, str]
    """The named groups of the line, and what follows from them."""
    count: int
    """How many lines show it; the further ones are its echoes."""

    @property
    def cause(self) -> str:
        """One sentence without its full stop."""
        return self._filled(self.entry.cause)

    @property
    def remedy(self) -> str:
        """What to do."""
        return self._filled(self.entry.remedy)

    @property
    def override(self) -> str | None:
        """What to put on the harness's command line; None where nothing mends it, or the line lacks the number."""
        if self.entry.override is None:
            return None
        try:
            return self.entry.override.format_map(self.numbers)
        except KeyError:
            return None

    def _filled(self, template: str) -> str:
        return template.format_map(_Known(self.numbers))


class _Known(dict[str, str]):
    """Numbers of a finding; a line that lacks one leaves it open."""

    def __missing__(self, name: str) -> str:
        return "?"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What logs that belong together say."""

    findings: tuple[Finding, ...]
    """Errors first, the earliest of them first, and echoes behind what they echo."""
    unexplained: tuple[Evidence, ...]
    """Exceptions that the table does not know: the first ones, each once."""

    @property
    def root(self) -> Finding | None:
        """The cause of what went wrong; None where the table does not know it."""
        known = [each for each in self.findings if each.entry.severity is Severity.ERROR and not each.entry.echo]
        return known[0] if known else None

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """Every line that is shown."""
        return (*(finding.evidence for finding in self.findings), *self.unexplained)

    @property
    def wrong(self) -> bool:
        """Whether anything went wrong, known or not."""
        return bool(self.unexplained) or any(each.entry.severity is Severity.ERROR for each in self.findings)


def diagnose(logs: Sequence[Log]) -> Diagnosis:
    """What the logs of one launch say together; their order decides only between lines of the same second."""
    findings: dict[str, _Found] = {}
    unexplained: list[tuple[bytes, int, int, Evidence]] = []
    served, stored, lmcache = _Served(), False, False
    for index, log in enumerate(logs):
        scan = _Scan(log, index, findings)
        for block in log.blocks:
            stored = stored or STORED.search(block) is not None
            lmcache = lmcache or LMCACHE_SERVES in block
            served.count_in(block, log.name, scan.line, scan.stamp, index)
            scan.read(block)
        unexplained += scan.unexplained
    if lmcache and not stored and served.requests >= FEW_REQUESTS and served.first is not None:
        findings[NOTHING_STORED.name] = served.first
        served.first.numbers = {"requests": str(served.requests)}
    order = list(Severity)
    ranked = sorted(
        findings.values(), key=lambda found: (order.index(found.entry.severity), found.entry.echo, found.position)
    )
    told: dict[str, Evidence] = {}
    for *_, evidence in sorted(unexplained, key=lambda item: item[:3]):
        told.setdefault(evidence.text, evidence)
    return Diagnosis(tuple(found.finding() for found in ranked), tuple(told.values())[:UNEXPLAINED])


@dataclass(slots=True)
class _Found:
    """A finding in the making."""

    entry: Entry
    evidence: Evidence
    numbers: dict[str, str]
    position: tuple[bytes, int, int]
    """Time, log and line: which of two findings came first."""
    count: int = 1

    def finding(self) -> Finding:
        return Finding(self.entry, self.evidence, self.numbers, self.count)


@dataclass(slots=True)
class _Served:
    """Requests that vLLM answered."""

    requests: int = 0
    first: _Found | None = None

    def count_in(self, block: bytes, name: str, line: int, stamp: bytes, index: int) -> None:
        for match in COMPLETION.finditer(block):
            self.requests += 1
            if self.first is None:
                line += block.count(b"\n", 0, match.start())
                text = block[block.rfind(b"\n", 0, match.start()) + 1 :].split(b"\n", 1)[0]
                evidence = Evidence(name, line, _shown(plain(_decoded(text)), 0))
                self.first = _Found(NOTHING_STORED, evidence, {}, (stamp, index, line))


@dataclass(slots=True)
class _Scan:
    """Reads one log."""

    log: Log
    index: int
    findings: dict[str, _Found]
    """What was found so far, by the name of its entry; shared with the scans of the other logs."""
    unexplained: list[tuple[bytes, int, int, Evidence]] = field(default_factory=list)
    line: int = 0
    """Number of the line that comes next."""
    stamp: bytes = b""
    """The last time that was seen: what a traceback says has none of its own."""
    stopping: bool = False

    def __post_init__(self) -> None:
        self.line = self.log.first_line

    def read(self, block: bytes) -> None:
        """Takes the next block; only lines that have a marker are looked at."""
        counted = 0
        for start in _starts(block):
            self.line += block.count(b"\n", counted, start)
            counted = start
            end = block.find(b"\n", start)
            raw = block[start : end if end >= 0 else len(block)]
            self._line(raw, block, start)
        self.line += block.count(b"\n", counted)
        self.stamp = _last_stamp(block, len(block)) or self.stamp

    def _line(self, raw: bytes, block: bytes, start: int) -> None:
        if any(marker in raw for marker in STOPPING):
            self.stopping = True
        elif any(marker in raw for marker in STARTING):
            self.stopping = False
        text = plain(_decoded(raw))[:LOOKED_AT]
        if PROMPT in text:
            return
        raised = EXCEPTION.match(text)
        if BARE.fullmatch(text) and (statement := _statement_before(block, start)):
            text = f"{text} ({statement})"
        for entry, pattern in MATCHED if KNOWN.search(text) else ():
            if any(marker in text for marker in entry.markers) and (match := pattern.search(text)):
                if not (entry.while_running and self.stopping):
                    self._found(entry, match, text, block, start)
                return
        if raised and not self.stopping and len(self.unexplained) < UNEXPLAINED:
            evidence = Evidence(self.log.name, self.line, _shown(text.strip(), 0))
            if evidence.text not in {item[3].text for item in self.unexplained}:
                self.unexplained.append((*self._position(block, start), evidence))

    def _position(self, block: bytes, start: int) -> tuple[bytes, int, int]:
        """Time, log and number of the line that begins at ``start``."""
        own = STAMP.search(block, start, start + 80)
        in_line = own is not None and b"\n" not in block[start : own.start()]
        stamp = own[0] if own is not None and in_line else _last_stamp(block, start) or self.stamp
        return stamp, self.index, self.line

    def _found(self, entry: Entry, match: re.Match[str], text: str, block: bytes, start: int) -> None:
        known = self.findings.get(entry.name)
        position = self._position(block, start) if known is None or known.position[1] != self.index else known.position
        if known and known.position <= position:
            known.count += 1
            return
        evidence = Evidence(self.log.name, self.line, _shown(text, match.start()))
        numbers = derived({name: _shown(value, 0) for name, value in match.groupdict().items() if value is not None})
        self.findings[entry.name] = _Found(entry, evidence, numbers, position, known.count + 1 if known else 1)


def _starts(block: bytes) -> list[int]:
    """Where the lines of a block begin that have a marker, in order."""
    starts = set()
    for marker in INTERESTING:
        at = block.find(marker)
        while at >= 0:
            starts.add(block.rfind(b"\n", 0, at) + 1)
            end = block.find(b"\n", at)
            at = block.find(marker, end) if end >= 0 else -1
    return sorted(starts)


def _statement_before(block: bytes, start: int) -> str:
    """The statement that raised what a traceback ends with; empty where the lines above are no traceback."""
    for raw in reversed(block[max(0, start - 4096) : start].splitlines()[-3:]):
        line = plain(_decoded(raw))
        if line.strip("^~ "):
            return line.strip() if line.startswith("    ") else ""
    return ""


def _last_stamp(block: bytes, end: int) -> bytes:
    """The last time that is printed shortly before ``end``; empty without one."""
    stamps: list[bytes] = STAMP.findall(block, max(0, end - 4096), end)
    return stamps[-1] if stamps else b""


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip("\r\n")


def _shown(text: str, start: int) -> str:
    """The part of a line that matters, of which no character can do anything to a terminal."""
    begin = max(0, start - SHOWN // 4) if len(text) > SHOWN else 0
    part = text[begin : begin + SHOWN].strip()
    told = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in part)
    return f"{'… ' if begin else ''}{told}{' …' if begin + SHOWN < len(text) else ''}"
