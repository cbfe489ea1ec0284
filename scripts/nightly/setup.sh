#!/usr/bin/env bash
# Makes .venv in the repository anew, with vLLM and LMCache for GPUs: what was installed last night decides nothing.
#   GATE_ENGINE=cpu      the CPU builds instead
#   PYTHON_BASE=python   interpreter that .venv is made with (default: python3.11)
set -euo pipefail
cd "$(dirname "$0")/../.."

if [[ ${GATE_ENGINE:-gpu} == cpu ]]; then
    exec .ci/setup demo
fi
"${PYTHON_BASE:-python3.11}" -m venv --clear .venv
.venv/bin/python -m pip install --no-input --progress-bar=off -e '.[gpu]'
