"""``python -m harness diagnose``: what went wrong, from logs of vLLM and LMCache."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from harness.cli.options import JSON, split_format
from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.files import logs_below, read_log
from harness.errors import UsageError
from harness.report.diagnosis import diagnoses_as_json, print_diagnoses


def diagnose_command(arguments: Sequence[str]) -> int:
    """``diagnose``: causes, evidence and remedies; exit code 1 where something went wrong, 0 where nothing is seen.

    Raises:
        UsageError: no log was named, or one is not there or can't be read.
    """
    chosen, paths = split_format(arguments)
    if not paths:
        raise UsageError("diagnose needs logs or a folder of them: python -m harness diagnose results/<run id>")
    diagnoses = {folder: diagnose([read_log(file) for file in files]) for folder, files in logs_below(paths).items()}
    if chosen == JSON:
        print(json.dumps(diagnoses_as_json(diagnoses), indent=2))
    else:
        print_diagnoses(Console(highlight=False), diagnoses)
    return 1 if any(diagnosis.wrong for diagnosis in diagnoses.values()) else 0
