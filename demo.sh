#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From nothing to attention on a real input: installs what is missing, builds, runs, compares.
set -euo pipefail
source "$(dirname "$0")/scripts/common.sh"

scripts/setup.sh build
build release -DFLASHTILE_BUILD_CLI=ON -DFLASHTILE_BUILD_TESTS=OFF
say "flashtile attend examples/minilm_layer.safetensors --check"
build/release/flashtile attend examples/minilm_layer.safetensors --check
echo
python3 scripts/demo.py build/release
