#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing on Debian 12, Ubuntu 24.04 and later; does nothing where all is there.
#   scripts/setup.sh build   compiler, CMake and the CLI's two header libraries
#   scripts/setup.sh test    that, and what ./test.sh needs
set -euo pipefail
source "$(dirname "$0")/common.sh"

updated=no
install_packages() {
  local as_root=() log
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || return 1
    as_root=(sudo)
  fi
  command -v apt-get >/dev/null || return 1
  if [ "$updated" = no ]; then
    "${as_root[@]}" apt-get update -qq >/dev/null || true
    updated=yes
  fi
  log=$(mktemp)
  if "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "$@" >"$log" 2>&1; then
    rm -f "$log"
    return 0
  fi
  tail -n 5 "$log"
  rm -f "$log"
  return 1
}

# The packages for which the check fails: package=command or package=/path/to/a/file.
missing_of() {
  local pair
  for pair in "$@"; do
    case "${pair#*=}" in
      /*) [ -e "${pair#*=}" ] || echo "${pair%%=*}" ;;
      *) command -v "${pair#*=}" >/dev/null || echo "${pair%%=*}" ;;
    esac
  done
}

# required PAIR...: installs what is missing, or ends with what to do.
required() {
  local missing
  missing=$(missing_of "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  say "installing $missing"
  # shellcheck disable=SC2086
  install_packages $missing || fail "cannot install $missing: install them, then run this again"
}

# optional WHAT PAIR...: the same, but goes on without.
optional() {
  local what=$1 missing
  shift
  missing=$(missing_of "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  say "installing $missing($what)"
  # shellcheck disable=SC2086
  install_packages $missing || say "cannot install $missing: $what is left out"
}

install_fuzzing_clang() {
  local version
  [ -z "$(fuzzing_clang)" ] || return 0
  for version in 16 17 18 19 20; do
    say "installing clang-$version libclang-rt-$version-dev (fuzzing)"
    install_packages "clang-$version" "libclang-rt-$version-dev" || continue
    [ -z "$(fuzzing_clang)" ] || return 0
  done
  say "cannot install a clang with libFuzzer: fuzzing is left out"
}

required g++=g++ cmake=cmake make=make \
  libcli11-dev=/usr/include/CLI/CLI.hpp nlohmann-json3-dev=/usr/include/nlohmann/json.hpp
optional "faster builds" ninja-build=ninja
required python3=python3
if [ "${1:-test}" = test ]; then
  required libgtest-dev=/usr/include/gtest/gtest.h pkg-config=pkg-config binutils=nm
  optional "the format check" clang-format=clang-format
  optional "the NEON tests" g++-aarch64-linux-gnu=aarch64-linux-gnu-g++ \
    qemu-user=qemu-aarch64 googletest=/usr/src/googletest/CMakeLists.txt
  install_fuzzing_clang
fi
