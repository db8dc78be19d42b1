#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Everything that needs a GPU, in one go: builds, checks, then times. Results go to $OUT.
#   bench/gpu/session.sh [build] [golden] [check] [sweep] [hopper_sweep] [forward] [options]
#     [hopper_options] [decode] [backward_sweep] [backward]                     (default: all)
# $BUILD may hold programs that were built on another machine (flashtile,
# forward_sweep, hopper_sweep, backward_sweep, libflashtile.so.X.Y.Z): leave `build` out then.
set -u
cd "$(dirname "$0")/../.."
OUT=${OUT:-/tmp/flashtile-gpu}
BUILD=${BUILD:-build/gpu}
mkdir -p "$OUT"
export FLASHTILE_CACHE_DIR=${FLASHTILE_CACHE_DIR:-$OUT/../flashtile-cache}
parts=${*:-build golden check sweep hopper_sweep forward options hopper_options decode \
  backward_sweep backward}
jobs=$(nproc)

has() { [[ " $parts " == *" $1 "* ]]; }
step() { echo "== $1 ($SECONDS s)"; }

if has build; then
  step build
  generator=()
  command -v ninja > /dev/null && generator=(-G Ninja)
  cmake -S . -B "$BUILD" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release > "$OUT/cmake.log" 2>&1
  # The program is called flashtile too, and Ninja takes that name for the file.
  cmake --build "$BUILD" -j "$jobs" --target libflashtile.so flashtile_internal \
    >> "$OUT/cmake.log" 2>&1 || { tail -20 "$OUT/cmake.log"; exit 1; }
  # The program needs CLI11 and nlohmann-json, which may not be there.
  cmake --build "$BUILD" -j "$jobs" --target flashtile_cli >> "$OUT/cmake.log" 2>&1 ||
    echo "no program: $(grep -m1 'no CLI' "$OUT/cmake.log")"
  for sweep in forward_sweep hopper_sweep backward_sweep; do
    g++ -std=c++20 -O2 -Iinclude -Isrc "bench/gpu/$sweep.cpp" "$BUILD/libflashtile_internal.a" \
      -fopenmp -ldl -lpthread -o "$BUILD/$sweep" || exit 1
  done
fi
if has golden && [ -x "$BUILD/flashtile" ]; then
  step golden
  "$BUILD/flashtile" info
  "$BUILD/flashtile" check --device cuda --golden tests/golden/attention --max-unsupported 1000 \
    > "$OUT/golden.txt" 2>&1
  grep -c '^FAIL' "$OUT/golden.txt"
  grep '^FAIL' "$OUT/golden.txt" | cut -c1-200 | head -20
  tail -4 "$OUT/golden.txt"
fi
if has check && [ -x "$BUILD/flashtile" ]; then
  step check
  "$BUILD/flashtile" check --device cuda > "$OUT/check.txt" 2>&1
  grep '^FAIL' "$OUT/check.txt" | cut -c1-200 | head -20
  tail -4 "$OUT/check.txt"
fi
if has sweep; then
  step sweep
  "$BUILD/forward_sweep" --json "$OUT/sweep.jsonl" 2>&1 | tee "$OUT/sweep.txt" | awk '
    { key = $1 $2 $3; if (count[key]++ < 4 || /^#/) print }'
fi
if has hopper_sweep; then
  step hopper_sweep
  "$BUILD/hopper_sweep" --json "$OUT/hopper_sweep.jsonl" --commit "$(git rev-parse --short HEAD)" \
    2>&1 | tee "$OUT/hopper_sweep.txt" | grep 'FAIL\|planned'
fi
if has forward; then
  step forward
  library=$(ls "$BUILD"/libflashtile.so.*.*.* | head -1)
  python3 bench/gpu/forward.py --library "$library" --json "$OUT/forward.jsonl" --sustained --redo \
    --points "$OUT/points.jsonl" --commit "$(git rev-parse --short HEAD)" 2>&1 |
    tee "$OUT/forward.txt"
  python3 bench/gpu/forward.py --library "$library" --json "$OUT/forward_unequal.jsonl" \
    --dims 192/128 64/256 64/512 --seqlens 16384 \
    --implementations attention_fwd_sm90 attention_fwd_portable 2>&1 |
    tee "$OUT/forward_unequal.txt"
fi
if has options; then
  step options
  library=$(ls "$BUILD"/libflashtile.so.*.*.* | head -1)
  python3 bench/gpu/options.py --library "$library" --json "$OUT/options.jsonl" 2>&1 |
    tee "$OUT/options.txt"
fi
if has hopper_options; then
  step hopper_options
  library=$(ls "$BUILD"/libflashtile.so.*.*.* | head -1)
  python3 bench/gpu/hopper_options.py --library "$library" --json "$OUT/hopper_options.jsonl" \
    --peers --portable --commit "$(git rev-parse --short HEAD)" 2>&1 |
    tee "$OUT/hopper_options.txt"
fi
if has decode; then
  step decode
  library=$(ls "$BUILD"/libflashtile.so.*.*.* | head -1)
  python3 bench/gpu/decode.py --library "$library" --json "$OUT/decode.jsonl" 2>&1 |
    tee "$OUT/decode.txt"
fi
if has backward_sweep; then
  step backward_sweep
  "$BUILD/backward_sweep" --json "$OUT/backward_sweep.jsonl" 2>&1 |
    tee "$OUT/backward_sweep.txt" | awk '{ key = $1 $2 $3 $4; if (count[key]++ < 4 || /^#/) print }'
fi
if has backward; then
  step backward
  library=$(ls "$BUILD"/libflashtile.so.*.*.* | head -1)
  python3 bench/gpu/backward.py --library "$library" --json "$OUT/backward.jsonl" 2>&1 |
    tee "$OUT/backward.txt"
fi
step done
