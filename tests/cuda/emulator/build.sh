#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the emulated driver and compiler into a folder:
#   build.sh DIR
#   LD_LIBRARY_PATH=DIR FLASHTILE_NVRTC=DIR/libnvrtc_emulated.so \
#     FLASHTILE_EMULATOR_NVRTC=/path/of/libnvrtc.so build/release/flashtile check --device cuda ...
set -e
here=$(cd "$(dirname "$0")" && pwd)
source_dir=$here/../../../src
mkdir -p "$1"
out=$(cd "$1" && pwd)
cxx=${CXX:-g++}
flags="-std=c++20 -O2 -Wall -Wextra -fPIC -shared -I$here -I$source_dir"
$cxx $flags -Wl,-soname,libcuda.so.1 -o "$out/libcuda.so.1" "$here/machine.cpp" "$here/driver.cpp"
$cxx $flags "-DEMULATOR_DIR=\"$here\"" "-DLIBRARY_SOURCE_DIR=\"$source_dir\"" \
  "-DDRIVER_FILE=\"$out/libcuda.so.1\"" -o "$out/libnvrtc_emulated.so" "$here/nvrtc.cpp"
