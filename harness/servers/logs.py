"""What a server's log tells: the lines worth showing to a person, and the block size it settled on."""

from __future__ import annotations

import re

ANSI = re.compile(r"\x1b\[[0-9;]*m")
VLLM_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) ?)?((CRITICAL|ERROR|WARNING|INFO|DEBUG) \d\d-\d\d [\d:]+ \[\S+\] ?)?")
EXCEPTION = re.compile(r"^\s*([A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b: .+|\w[\w.]*Error|Value error, .+)$")
"""Last line of a traceback; pydantic puts its reason on a line of its own, ``Value error, …``."""

GEOMETRY = re.compile(r"Resolved LMCache MP geometry: group_tokens_per_block=\[([\d, ]+)\]")
ATTENTION_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")
GROUP_SIZES = re.compile(r"kv cache group sizes \(([\d, ]+)\)")


def plain(line: str) -> str:
    """A log line without colours and without vLLM's process and time prefix."""
    return VLLM_PREFIX.sub("", ANSI.sub("", line)).rstrip()


def telling_lines(log: str, count: int = 4) -> list[str]:
    """Distinct exception lines of a log, in order; without any, its last lines.

    The first exception is usually the cause and the others its echoes, so the first ones are kept.
    """
    lines = [plain(line) for line in log.splitlines()]
    raised = list(dict.fromkeys(line.strip() for line in lines if EXCEPTION.match(line)))
    if raised:
        return raised[:count]
    return [line for line in lines if line][-count:]


def block_size_from_log(log: str) -> int | None:
    """Unified block size N in tokens that the running vLLM settled on; None when its log doesn't say.

    Three lines tell, the most specific first; a ``0`` in the geometry is a group that is not cached.
    """
    for pattern in (GEOMETRY, GROUP_SIZES, ATTENTION_BLOCK):
        if found := pattern.search(log):
            sizes = {int(size) for size in found[1].replace(" ", "").split(",") if size} - {0}
            if sizes:
                return max(sizes)
    return None
