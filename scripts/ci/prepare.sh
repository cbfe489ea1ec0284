#!/usr/bin/env bash
# What a hosted runner lacks: uv and the library that vLLM's CPU build loads.
set -euo pipefail

python3 -m pip install --quiet uv==0.13.8
sudo apt-get update -qq
sudo apt-get install --yes --no-install-recommends libnuma1
