#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs each libFuzzer program of a build over its committed corpus, then for some seconds on new
# inputs. What it finds is written to the build folder; the corpus stays as it is.
#   scripts/run_fuzzers.sh [SECONDS_EACH] [BUILD]
set -euo pipefail
source "$(dirname "$0")/common.sh"

seconds=${1:-10}
build=${2:-build/fuzz}
count=0
for source in tests/fuzz/*_fuzz.cpp; do
  [ -e "$source" ] || continue
  name=$(basename "$source" _fuzz.cpp)
  corpus=tests/fuzz/corpus/$name
  [ -d "$corpus" ] || fail "no corpus for $source: expected $corpus"
  found=$build/found/$name
  mkdir -p "$found"
  dictionary=()
  [ ! -e "tests/fuzz/$name.dict" ] || dictionary=("-dict=tests/fuzz/$name.dict")
  log=$build/$name.log
  run() { "$build/${name}_fuzz" -timeout=10 -rss_limit_mb=2048 "$@" >>"$log" 2>&1; }
  : >"$log"
  if ! run -runs=0 "$corpus" ||
    ! run -max_total_time="$seconds" -seed=1 -max_len=4096 "${dictionary[@]}" \
      -artifact_prefix="$found/" "$found" "$corpus"; then
    tail -n 40 "$log"
    fail "fuzzing $name: see $log and $found"
  fi
  say "fuzz $name: $(grep -c . <(find "$corpus" -type f)) inputs kept," \
    "$(grep -oE 'Done [0-9]+ runs' "$log" | tail -n 1 | tr 'D' 'd')"
  count=$((count + 1))
done
[ "$count" -gt 0 ] || fail "no fuzz target in tests/fuzz"
