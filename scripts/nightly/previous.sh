#!/usr/bin/env bash
# Writes previous=<id of the last scheduled night that ended> to $GITHUB_OUTPUT, or nothing after the sign: a night
# before that can't be found is no reason not to measure.
set -euo pipefail

previous=$(gh run list --repo "$GITHUB_REPOSITORY" --workflow nightly.yml --event schedule --status completed \
    --limit 1 --json databaseId --jq '.[0].databaseId // ""') || previous=
echo "previous=$previous" | tee -a "$GITHUB_OUTPUT"
