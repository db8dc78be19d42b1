#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a wheel named flash-linear-attention whose packages (fla, causal_conv1d, mamba_ssm) are
# flashtile's, for programs that look for those names. Not for upload.
#   scripts/build_fla.sh [FOLDER]    default: build/wheels; prints the wheel's path
# Then: pip install . FOLDER/flash_linear_attention-*.whl
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/wheels}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r python/shim/linear LICENSE "$copy"  # setuptools writes beside what it builds
python3 -m pip wheel -q --no-deps --wheel-dir "$folder" "$copy/linear"
ls "$folder"/flash_linear_attention-*.whl
