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
# Room for all kernels of a run; what one program has compiled, the next ones find.
export FLASHTILE_CACHE_MB=${FLASHTILE_CACHE_MB:-4096} OMP_WAIT_POLICY=passive

# step NAME COMMAND...: the last lines of its output, and of a failure what failed.
step() {
  local name=$1 log=$build/gpu-$1.log start=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    say "$name: passed, $((SECONDS - start)) s"
    grep -E '^\{|PASSED|SKIPPED|hazards|ERROR SUMMARY' "$log" | tail -n 5 || true
  else
    say "$name: FAILED, $((SECONDS - start)) s"
    grep -E '^FAIL|FAILED|Failure|^error|ERROR|Invalid|hazard' "$log" | head -n 30 ||
      tail -n 30 "$log"
    failures=$((failures + 1))
  fi
}

# in_shards PROGRAM FILTER: the cases of a test program dealt to as many processes as there are
# CPUs, since each of them mostly compiles.
in_shards() {
  local program=$1 filter=$2 pids=() i result=0 folder
  folder=$(mktemp -d)
  export GTEST_TOTAL_SHARDS=$(($(nproc) < 16 ? $(nproc) : 16))
  for ((i = 0; i < GTEST_TOTAL_SHARDS; ++i)); do
    GTEST_SHARD_INDEX=$i "$program" --gtest_filter="$filter" --gtest_brief=1 >"$folder/$i" 2>&1 &
    pids+=($!)
  done
  for i in "${pids[@]}"; do wait "$i" || result=1; done
  unset GTEST_TOTAL_SHARDS
  cat "$folder"/*
  rm -r "$folder"
  return $result
}

# startup.cpp on the library of the build: compile times, and the first launch of a second process.
startup() {
  local program=$build/startup result=0
  g++ -std=c++20 -O2 -Iinclude -Isrc bench/gpu/startup.cpp "$build/libflashtile_internal.a" \
    -fopenmp -ldl -lpthread -o "$program"
  "$program" compile "$("$flashtile" info | grep -o 'sm_[0-9]*a\?' | head -n 1)" || result=1
  "$program" launch || result=1
  "$program" launch || result=1
  return $result
}

# One problem each of the ways through the kernels.
small=(
  attention_fwd:b1:hq2:sq70:sk130:d64:causal:bf16
  attention_fwd:b1:hq2:hkv1:sq65:sk90:d128:window_left=20:softcap=9:f16
  attention_fwd:b2:hq8:hkv2:sq1:sk600:d64:bf16
  attention_fwd:b2:hq16:hkv1:sq1:sk600:d576:dv512:v=k:bf16
  attention_fwd:b1:hq80:hkv1:sq1:sk300:d576:dv512:v=k:bf16
  "attention_fwd:hq2:cu_seqlens_q={0,70,300}:cu_seqlens_k={0,70,300}:d64:causal:bf16"
  attention_bwd:b1:hq2:hkv1:sq70:sk140:d64:causal:bf16
  "attention_bwd:b1:hq2:sq70:sk60:d32:bias[1,hq,sq,sk]:dropout_p=0.2:sink:deterministic"
  attention_merge:parts9:b2:sq5:hq3:dv136:lse:bf16
)

# Not by grep -q, which leaves before all has been printed.
"$flashtile" info | grep '^cuda:0' || fail "there is no GPU: see $flashtile info"
filter='*AttentionGrid*:*AttentionOptions*:*AttentionExpressions*:*AttentionGolden*'
filter+=':*AttentionAppend.*:*AttentionDecode.*:*UnseenMemory*:*UnseenPages*:*SeenNan*'
FLASHTILE_TEST_DEVICE=cuda step conformance in_shards "$build/conformance_tests" "$filter"
step golden "$flashtile" check --device cuda --golden tests/golden/attention
step problems "$flashtile" check --device cuda
step device "$build/cuda_tests" --gtest_filter='*Device.*'
step small "$flashtile" check --device cuda "${small[@]}"
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if [ -x "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    step "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$flashtile" check --device cuda "${small[@]}"
  done
else
  say "no compute-sanitizer: memcheck and racecheck are left out"
fi
step startup startup
[ $failures -eq 0 ] || fail "$failures of the GPU's tests: see $build/gpu-*.log"
say "the GPU's tests passed after $SECONDS s"
