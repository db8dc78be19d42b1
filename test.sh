#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds and tests everything; ctest's summary comes last.
#   ./test.sh           all: release build, fuzzers, NEON under qemu, every test
#   ./test.sh --quick   about a minute: release build and the quick tests
#   ./test.sh --asan    the quick tests under AddressSanitizer and UBSan
#   ./test.sh --gpu     conformance, golden files, races, sanitizers, startup on a GPU
#   ./test.sh --python [PACKAGE ...]   installs the Python package in build/python and tests it;
#                       with torch, jax, ... as PACKAGE those are installed and tested, too
set -euo pipefail
source "$(dirname "$0")/scripts/common.sh"

mode=full
case "${1:-}" in
  "") ;;
  --quick) mode=quick ;;
  --asan) mode=asan ;;
  --gpu) mode=gpu ;;
  --python) mode=python ;;
  *) sed -n '3,10s/^# \{0,1\}//p' test.sh; exit 2 ;;
esac

# Waiting threads must not take the cores of the test beside them.
export OMP_WAIT_POLICY=passive CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$(nproc)}
export CTEST_OUTPUT_ON_FAILURE=1

fuzz() {
  local compiler
  compiler=$(fuzzing_clang)
  if [ -z "$compiler" ]; then
    say "no clang with libFuzzer: fuzzing is left out"
    return
  fi
  build fuzz -DFLASHTILE_WERROR=ON -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_C_COMPILER="${compiler/clang++/clang}"
  scripts/run_fuzzers.sh 8
}

# An emulated process costs a tenth of a second to start: only tests that reach NEON code.
neon_tests='unit\.Isa/|/neon|Golden|AttentionG|AttentionOptions|Decode|MaskRuns|MaskedRows'
neon_tests+='|UnequalHeadDims|capi|Program.Attend'
neon() {
  if ! command -v aarch64-linux-gnu-g++ >/dev/null || ! command -v qemu-aarch64 >/dev/null; then
    say "no aarch64 compiler or no qemu-user: the NEON tests are left out"
    return
  fi
  build aarch64 -DFLASHTILE_WERROR=ON -- \
    flashtile_cli unit_tests conformance_tests capi_tests capi_attention capi_old_header
  say "testing build/aarch64 under qemu"
  ctest --test-dir build/aarch64 --label-regex quick --tests-regex "$neon_tests" \
    >build/aarch64/ctest.log 2>&1 ||
    { tail -n 100 build/aarch64/ctest.log; fail "tests of build/aarch64"; }
  grep -E 'tests passed|Total Test time' build/aarch64/ctest.log
}

python_package() {
  local venv=build/python log=build/python.log start=$SECONDS
  mkdir -p build
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv" ||
    fail "python3 -m venv $venv (Debian: python3-venv)"
  say "installing flashtile in $venv"
  "$venv/bin/python" -m pip install -q "$@" ".[test]" >"$log" 2>&1 ||
    { tail -n 60 "$log"; fail "pip install ."; }
  say "installed after $((SECONDS - start)) s"
  "$venv/bin/python" -m pytest -q -p no:cacheprovider -rs tests/python
}

if [ $mode = python ]; then
  scripts/setup.sh build
  python_package "${@:2}"
  exit
fi

scripts/setup.sh test
case $mode in
  quick)
    build release -DFLASHTILE_WERROR=ON -DFLASHTILE_BUILD_TESTS=ON -DFLASHTILE_BUILD_CLI=ON
    ctest --test-dir build/release --label-regex quick
    ;;
  asan)
    build asan -DFLASHTILE_WERROR=ON -DFLASHTILE_BUILD_TESTS=ON -DFLASHTILE_BUILD_CLI=ON
    ctest --test-dir build/asan --label-regex quick
    ;;
  gpu)
    build release -DFLASHTILE_WERROR=ON -DFLASHTILE_BUILD_TESTS=ON -DFLASHTILE_BUILD_CLI=ON
    scripts/test_gpu.sh
    ;;
  full)
    build release -DFLASHTILE_WERROR=ON -DFLASHTILE_BUILD_TESTS=ON -DFLASHTILE_BUILD_CLI=ON
    fuzz
    neon
    say "testing build/release"
    ctest --test-dir build/release
    ;;
esac
