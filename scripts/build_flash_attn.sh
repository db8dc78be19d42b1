#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds a wheel named flash-attn whose modules (flash_attn, flash_attn_interface,
# flash_attn_2_cuda) are flashtile's, for programs that look for that name. Not for upload.
#   scripts/build_flash_attn.sh [FOLDER]    default: build/wheels; prints the wheel's path
# Then: pip install . FOLDER/flash_attn-*.whl
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/wheels}
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r python/shim LICENSE "$copy"  # setuptools writes beside what it builds
python3 -m pip wheel -q --no-deps --wheel-dir "$folder" "$copy/shim"
ls "$folder"/flash_attn-*.whl
