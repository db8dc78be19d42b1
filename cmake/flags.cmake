# SPDX-License-Identifier: Apache-2.0
#
# How everything of the project is compiled. `flashtile_flags` is linked (PRIVATE) by each target
# and is never installed: none of this reaches a user's own code.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

add_library(flashtile_flags INTERFACE)
# a * b + c must round twice wherever it is written as two operations, so that the reference gives
# the same doubles on every machine. Kernels ask for a fused one by name.
target_compile_options(flashtile_flags INTERFACE -ffp-contract=off)
target_compile_options(
  flashtile_flags
  INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion -Wundef
            $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor -Woverloaded-virtual -Wextra-semi>
            $<$<BOOL:${FLASHTILE_WERROR}>:-Werror>)
# GCC only: its notes on an ABI that has changed once are no warnings, and its bounds analysis takes
# std::sort of a short array for an access past the end.
target_compile_options(flashtile_flags
                       INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi;-Wno-array-bounds>)
# From GCC 13 on: a reference into a table is no reference to the argument that chose it.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(flashtile_flags
                         INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
# Clang only: a loop that it does not unroll is no fault; on a set of one lane none has to be.
target_compile_options(flashtile_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-pass-failed>)
# Bounds checks in the standard library wherever speed is not the point.
target_compile_definitions(flashtile_flags
                           INTERFACE $<$<NOT:$<CONFIG:Release>>:_GLIBCXX_ASSERTIONS>)

# -O1 for the library at large keeps the build short; the kernels get more (isa.cmake).
string(REPLACE "-O3" "-O1" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")
# Loops that fill and copy still become memset and memcpy.
set(optimised_gcc $<AND:$<CONFIG:Release>,$<COMPILE_LANG_AND_ID:CXX,GNU>>)
target_compile_options(flashtile_flags
                       INTERFACE $<${optimised_gcc}:-ftree-loop-distribute-patterns>)

# Files take less than a gigabyte each: GCC need not stop to collect what it no longer uses.
target_compile_options(
  flashtile_flags
  INTERFACE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=2000000>")

if(FLASHTILE_EMULATE_CPU)
  target_compile_definitions(flashtile_flags INTERFACE FLASHTILE_EMULATE_CPU)
endif()

if(FLASHTILE_SANITIZE)
  set(sanitize -fsanitize=${FLASHTILE_SANITIZE} -fno-sanitize-recover=all)
  target_compile_options(flashtile_flags INTERFACE ${sanitize} -fno-omit-frame-pointer -O1 -g1)
  # The checks that sanitizers add confuse GCC's flow analysis, as its manual says.
  target_compile_options(flashtile_flags
                         INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(flashtile_flags INTERFACE ${sanitize})
endif()

# Reading these takes a third of a small file's time. Each file still includes what it uses: the
# asan, fuzz and aarch64 presets build without.
set(precompiled_headers <algorithm> <array> <cmath> <memory> <optional> <span> <string> <vector>)
# Lets ccache work with them (it also needs CCACHE_SLOPPINESS=pch_defines,time_macros).
target_compile_options(flashtile_flags
                       INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)

find_package(Threads REQUIRED)
target_link_libraries(flashtile_flags INTERFACE Threads::Threads)
if(FLASHTILE_OPENMP)
  find_package(OpenMP COMPONENTS CXX)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(flashtile_flags INTERFACE OpenMP::OpenMP_CXX)
    target_compile_definitions(flashtile_flags INTERFACE FLASHTILE_OPENMP=1)
  elseif(FLASHTILE_OPENMP STREQUAL "ON")
    message(FATAL_ERROR "flashtile: FLASHTILE_OPENMP is ON, but the compiler has no OpenMP")
  else()
    message(STATUS "flashtile: no OpenMP; the default executor runs on one thread")
  endif()
endif()
