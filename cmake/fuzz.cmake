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
find_package(nlohmann_json REQUIRED)

# Only what the targets reach is compiled: with sanitizers the rest takes minutes.
file(GLOB_RECURSE fuzzed_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/src/core/*.cpp ${PROJECT_SOURCE_DIR}/src/variant/*.cpp
     ${PROJECT_SOURCE_DIR}/src/cpu/kernels/*_scalar.cpp ${PROJECT_SOURCE_DIR}/cli/files/*.cpp)
flashtile_apply_isa(fuzzed_sources)
add_library(flashtile_fuzzed STATIC ${fuzzed_sources})
target_include_directories(
  flashtile_fuzzed PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
                          ${PROJECT_SOURCE_DIR}/cli)
target_link_libraries(flashtile_fuzzed PUBLIC flashtile_flags nlohmann_json::nlohmann_json)
set_target_properties(flashtile flashtile_objects PROPERTIES EXCLUDE_FROM_ALL ON)

file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM stem)
  add_executable(${stem} ${source})
  target_link_libraries(${stem} PRIVATE flashtile_fuzzed)
  target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
endforeach()
