"""Whether a file is a log of vLLM or LMCache at all: nothing wrong in what is none proves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable

LINE = re.compile(
    rb"\b(?:CRITICAL|ERROR|WARNING|INFO|DEBUG) (?:\d{4}-)?\d\d-\d\d \d\d:\d\d:\d\d"  # vLLM
    rb"|\(\w[\w ]* pid=\d+\)"  # its processes
    rb"|LMCache (?:CRITICAL|ERROR|WARNING|INFO|DEBUG):"
    rb"|\b(?:ERROR|WARNING|INFO): {4,}\S"  # uvicorn, which serves both
    rb"|\"(?:name|logger)\": ?\"(?:vllm|lmcache)\b"  # a logging configuration of one's own, in JSON
    rb"|Traceback \(most recent call last\)|\b(?:vllm|lmcache)/[\w/]+\.py\b"
    rb"|usage: (?:vllm|lmcache|api_server\.py)\b|\b(?:vllm|lmcache|api_server\.py)[\w ]*: error: "
    rb"|No module named '?(?:vllm|lmcache)\b|\b(?:vllm|lmcache): (?:command )?not found"
    rb"|^Triton is (?:not )?installed",
    re.MULTILINE,
)
"""What a line of either server has, wherever it begins: docker compose, kubectl and journald put words before it."""


def not_a_log(name: str, blocks: Iterable[bytes]) -> str | None:
    """Why a file tells nothing about a server, in one sentence; None for a log of vLLM or LMCache.

    Args:
        name: of the file, as people know it.
        blocks: its bytes, cut where lines end; read as far as the first line that is recognised.
    """
    empty = True
    for block in blocks:
        if LINE.search(block):
            return None
        empty = empty and not block.strip()
    if empty:
        return f"{name} is empty: the server ended before it printed anything."
    return f"{name} does not look like a log of vLLM or LMCache."
