# SPDX-License-Identifier: Apache-2.0
#
# The program `flashtile`: cli/main.cpp, and everything else under cli/ as an archive that the
# tests link too.
if(NOT FLASHTILE_BUILD_CLI)
  return()
endif()

file(GLOB_RECURSE cli_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cli/*.cpp)
set(cli_main ${PROJECT_SOURCE_DIR}/cli/main.cpp)
list(REMOVE_ITEM cli_sources ${cli_main})

find_package(CLI11 QUIET)
find_package(nlohmann_json QUIET)
set(cli_missing "")
if(NOT CLI11_FOUND)
  list(APPEND cli_missing "CLI11 (Debian: libcli11-dev)")
endif()
if(NOT nlohmann_json_FOUND)
  list(APPEND cli_missing "nlohmann-json (Debian: nlohmann-json3-dev)")
endif()
if(cli_missing)
  list(JOIN cli_missing " and " cli_missing)
  if(FLASHTILE_BUILD_CLI STREQUAL "AUTO")
    message(STATUS "flashtile: no CLI, because CMake does not find ${cli_missing}")
    return()
  endif()
  message(FATAL_ERROR "flashtile: FLASHTILE_BUILD_CLI is ON, but CMake does not find "
                      "${cli_missing}")
endif()

flashtile_apply_isa(cli_sources)
# CLI11 and nlohmann-json cost a compiler some four seconds in each file that includes them, half of
# them for making fast what is not hot: those files are compiled as one, without optimisation.
set(cli_heavy "")
foreach(source IN LISTS cli_sources)
  file(STRINGS ${source} heavy REGEX "commands\\.hpp|<CLI/|<nlohmann/" LIMIT_COUNT 1)
  if(heavy)
    list(APPEND cli_heavy ${source})
  endif()
endforeach()
list(REMOVE_ITEM cli_sources ${cli_heavy})

add_library(flashtile_cli_heavy OBJECT ${cli_heavy})
set_target_properties(flashtile_cli_heavy PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
target_compile_options(flashtile_cli_heavy PRIVATE $<$<CONFIG:Release>:-O0>)
add_library(flashtile_cli_parts STATIC ${cli_sources} $<TARGET_OBJECTS:flashtile_cli_heavy>)
flashtile_unite(flashtile_cli_parts ${cli_sources})
target_precompile_headers(flashtile_cli_parts REUSE_FROM flashtile_objects)
# No dependency on the library: what takes longest to compile is begun first.
target_include_directories(flashtile_cli_heavy PRIVATE
  ${PROJECT_SOURCE_DIR}/cli ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(flashtile_cli_heavy PRIVATE flashtile_flags CLI11::CLI11
                                                  nlohmann_json::nlohmann_json)
target_include_directories(flashtile_cli_parts PUBLIC ${PROJECT_SOURCE_DIR}/cli)
target_link_libraries(flashtile_cli_parts PUBLIC flashtile_internal CLI11::CLI11
                                                 nlohmann_json::nlohmann_json)
add_executable(flashtile_cli ${cli_main})
set_target_properties(flashtile_cli PROPERTIES OUTPUT_NAME flashtile)
target_link_libraries(flashtile_cli PRIVATE flashtile_cli_parts)
