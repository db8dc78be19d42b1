# SPDX-License-Identifier: Apache-2.0
#
# Shared by setup.sh, test.sh and demo.sh.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

# A clang++ (16 or later) that links libFuzzer; nothing where there is none.
fuzzing_clang() {
  local name probe
  probe=$(mktemp -d)
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' \
    >"$probe/probe.cpp"
  for name in clang++-16 clang++-17 clang++-18 clang++-19 clang++-20 clang++; do
    command -v "$name" >/dev/null || continue
    if [ "$(echo __clang_major__ | "$name" -E -P -x c++ -)" -ge 16 ] &&
      "$name" -fsanitize=fuzzer,address "$probe/probe.cpp" -o "$probe/probe" 2>/dev/null; then
      echo "$name"
      break
    fi
  done
  rm -rf "$probe"
}

# build PRESET [cmake arguments] [-- targets]: configures and builds build/PRESET.
build() {
  local preset=$1 arguments=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do
    arguments+=("$1")
    shift
  done
  [ $# -eq 0 ] || shift
  if command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
  fi
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CCACHE_SLOPPINESS=pch_defines,time_macros
  fi
  say "building build/$preset"
  mkdir -p "build/$preset"
  cmake --preset "$preset" "${arguments[@]}" >"build/$preset/configure.log" 2>&1 ||
    { cat "build/$preset/configure.log"; fail "cmake --preset $preset"; }
  grep '^-- flashtile:' "build/$preset/configure.log" || true
  cmake --build "build/$preset" -j "$(nproc)" ${1:+--target "$@"} >"build/$preset/build.log" 2>&1 ||
    { tail -n 60 "build/$preset/build.log"; fail "build of build/$preset"; }
}
