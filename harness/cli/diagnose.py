"""``python -m harness diagnose``: what went wrong, from logs of vLLM and LMCache."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from harness.cli.options import JSON, split_format
from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.files import blocks_of, logs_below, read_log
from harness.diagnosis.recognise import not_a_log
from harness.errors import UsageError
from harness.report.diagnosis import diagnoses_as_json, print_diagnoses


def diagnose_command(arguments: Sequence[str]) -> int:
    """``diagnose``: causes, evidence and remedies; exit code 1 where something went wrong, 0 where nothing is seen.

    Raises:
        UsageError: no log was named, one is not there or can't be read, or none is a log of vLLM or LMCache.
    """
    chosen, paths = split_format(arguments)
    if not paths:
        raise UsageError("diagnose needs logs or a folder of them: python -m harness diagnose results/<run id>")
    logs = logs_below(paths)
    diagnoses = {folder: diagnose([read_log(file) for file in files]) for folder, files in logs.items()}
    seen = {evidence.file for diagnosis in diagnoses.values() for evidence in diagnosis.evidence}
    unread = {
        folder: [why for file in files if str(file) not in seen and (why := not_a_log(str(file), blocks_of(file)))]
        for folder, files in logs.items()
    }
    told = [each for sentences in unread.values() for each in sentences]
    if len(told) == sum(map(len, logs.values())):
        raise UsageError("\n".join(told))
    if chosen == JSON:
        print(json.dumps(diagnoses_as_json(diagnoses, unread), indent=2))
    else:
        print_diagnoses(Console(highlight=False), diagnoses, told)
    return 1 if any(diagnosis.wrong for diagnosis in diagnoses.values()) else 0
