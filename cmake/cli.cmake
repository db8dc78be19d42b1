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
add_library(flashtile_cli_parts STATIC ${cli_sources})
target_precompile_headers(flashtile_cli_parts PRIVATE ${precompiled_headers})
# CLI11 and nlohmann-json cost a compiler some four seconds in each file that includes them: those
# files, which are neither long nor hot, are compiled as one.
set_target_properties(flashtile_cli_parts PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
foreach(source IN LISTS cli_sources)
  file(STRINGS ${source} heavy REGEX "commands\\.hpp|<CLI/|<nlohmann/" LIMIT_COUNT 1)
  if(heavy)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP heavy)
  endif()
endforeach()
target_include_directories(flashtile_cli_parts PUBLIC ${PROJECT_SOURCE_DIR}/cli)
target_link_libraries(flashtile_cli_parts PUBLIC flashtile_internal CLI11::CLI11
                                                 nlohmann_json::nlohmann_json)
add_executable(flashtile_cli ${cli_main})
set_target_properties(flashtile_cli PROPERTIES OUTPUT_NAME flashtile)
target_link_libraries(flashtile_cli PRIVATE flashtile_cli_parts)
