#!/usr/bin/env bash
# The gate as a Buildkite step: set-up, measuring, cleaning up, and the gate's exit code.
set -euo pipefail
cd "$(dirname "$0")/../.."

export GATE_RUN_ID=${GATE_RUN_ID:-buildkite-${BUILDKITE_BUILD_NUMBER:-0}-${BUILDKITE_RETRY_COUNT:-0}-$GATE_MODEL}
python=.venv/bin/python
scripts/nightly/setup.sh
trap '"$python" -m harness.nightly clean' EXIT
"$python" -m harness.nightly measure
"$python" -m harness.nightly gate
