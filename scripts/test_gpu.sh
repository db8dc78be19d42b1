#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The tests that need a GPU, on the programs of a build; ./test.sh --gpu builds them first.
#   scripts/test_gpu.sh [BUILD]
set -euo pipefail
source "$(dirname "$0")/common.sh"

build=${1:-build/release}
flashtile=$build/flashtile
failures=0

# step NAME COMMAND...: the last lines of its output, and of a failure what failed.
step() {
  local name=$1 log=$build/gpu-$1.log
  shift
  say "$name"
  if "$@" >"$log" 2>&1; then
    tail -n 5 "$log"
  else
    grep -E '^FAIL|FAILED|ERROR|Invalid|hazard' "$log" | head -n 30 || tail -n 30 "$log"
    failures=$((failures + 1))
  fi
}

# One problem each of the ways through the kernels.
small=(
  attention_fwd:b1:hq2:sq70:sk130:d64:causal:bf16
  attention_fwd:b1:hq2:hkv1:sq65:sk90:d128:window_left=20:softcap=9:f16
  attention_fwd:b2:hq8:hkv2:sq1:sk600:d64:bf16
  attention_bwd:b1:hq2:hkv1:sq70:sk140:d64:causal:bf16
  "attention_bwd:b1:hq2:sq70:sk60:d32:bias[1,hq,sq,sk]:dropout_p=0.2:sink:deterministic"
)

"$flashtile" info | grep -q '^cuda:0' || fail "there is no GPU: see $flashtile info"
if [ -x "$build/cuda_tests" ]; then
  step runtime "$build/cuda_tests" --gtest_filter='RuntimeDevice*'
fi
step golden "$flashtile" check --device cuda --golden tests/golden/attention
step problems "$flashtile" check --device cuda
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    step "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$flashtile" check --device cuda "${small[@]}"
  done
else
  say "no compute-sanitizer: memcheck and racecheck are left out"
fi
[ $failures -eq 0 ] || fail "$failures of the GPU's tests: see $build/gpu-*.log"
say "the GPU's tests passed"
