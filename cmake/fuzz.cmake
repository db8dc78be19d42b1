# SPDX-License-Identifier: Apache-2.0
#
# tests/fuzz/<name>_fuzz.cpp become libFuzzer programs <name>_fuzz; tests/fuzz/corpus/<name>/ holds
# their inputs. scripts/run_fuzzers.sh runs them.
if(NOT FLASHTILE_FUZZ)
  return()
endif()
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "flashtile: FLASHTILE_FUZZ needs clang; the compiler is "
                      "${CMAKE_CXX_COMPILER_ID}")
endif()

target_compile_options(flashtile_flags INTERFACE -fsanitize=fuzzer-no-link)
file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM stem)
  add_executable(${stem} ${source})
  target_link_libraries(${stem} PRIVATE flashtile_internal)
  if(TARGET flashtile_cli_parts)
    target_link_libraries(${stem} PRIVATE flashtile_cli_parts)
  endif()
  target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
endforeach()
