# SPDX-License-Identifier: Apache-2.0
#
# tests/<folder>/*.cpp become one GoogleTest program a folder; tests/support/*.cpp is shared by all.
# tests/<folder>/*_test.py run as they are, with FLASHTILE_BUILD_DIR set. Each tests/capi/*.c is a
# program of its own, against the library that users get.
#
# Cases have the label `quick`, or `full` where the suite's name contains "Full", or `gpu` where it
# ends in "Device": these are skipped where there is no GPU.
if(NOT FLASHTILE_BUILD_TESTS)
  return()
endif()

if(NOT TARGET flashtile_cli_parts)
  message(STATUS "flashtile: no tests, because they need the CLI's file readers")
  return()
endif()

find_package(GTest QUIET)
set(googletest_source /usr/src/googletest)  # Debian's package, for cross builds
if(NOT GTest_FOUND AND CMAKE_CROSSCOMPILING AND EXISTS ${googletest_source})
  set(INSTALL_GTEST OFF)
  set(BUILD_GMOCK OFF)
  add_subdirectory(${googletest_source} ${CMAKE_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
elseif(NOT GTest_FOUND)
  if(FLASHTILE_BUILD_TESTS STREQUAL "AUTO")
    message(STATUS "flashtile: no tests, because CMake does not find GoogleTest "
                   "(Debian: libgtest-dev)")
    return()
  endif()
  message(FATAL_ERROR "flashtile: FLASHTILE_BUILD_TESTS is ON, but CMake does not find GoogleTest "
                      "(Debian: libgtest-dev)")
endif()

enable_testing()
include(GoogleTest)
set(tests_dir ${PROJECT_SOURCE_DIR}/tests)

add_library(flashtile_test_base INTERFACE)
target_include_directories(flashtile_test_base INTERFACE ${tests_dir})
# Rates are asserted in a release build only: others leave out optimisation or add checks.
target_compile_definitions(flashtile_test_base
                           INTERFACE FLASHTILE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                     FLASHTILE_RELEASE=$<CONFIG:Release>)
target_link_libraries(flashtile_test_base INTERFACE flashtile_cli_parts flashtile_internal
                                                    GTest::gtest_main)
if(TARGET flashtile_cli)
  # How a shell starts the program: under the emulator in a cross build.
  list(JOIN CMAKE_CROSSCOMPILING_EMULATOR " " emulator)
  string(STRIP "${emulator} $<TARGET_FILE:flashtile_cli>" cli_command)
  target_compile_definitions(flashtile_test_base INTERFACE FLASHTILE_CLI="${cli_command}")
endif()

file(GLOB_RECURSE support_sources CONFIGURE_DEPENDS ${tests_dir}/support/*.cpp)
if(support_sources)
  add_library(flashtile_test_support STATIC ${support_sources})
  target_link_libraries(flashtile_test_support PUBLIC flashtile_test_base)
else()
  add_library(flashtile_test_support ALIAS flashtile_test_base)
endif()

set(test_timeout 120)
if(FLASHTILE_SANITIZE OR CMAKE_CROSSCOMPILING)
  set(test_timeout 600)
endif()

# A CUDA driver without a GPU, in a folder that only its own tests look into.
set(fake_driver_dir ${CMAKE_BINARY_DIR}/fake_driver)
add_library(fake_driver SHARED EXCLUDE_FROM_ALL ${tests_dir}/fake_driver/driver/fake_cuda.cpp)
set_target_properties(
  fake_driver PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1 CXX_VISIBILITY_PRESET default
                         LIBRARY_OUTPUT_DIRECTORY ${fake_driver_dir})
target_include_directories(fake_driver PRIVATE ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(fake_driver PRIVATE flashtile_flags)

file(GLOB test_sources CONFIGURE_DEPENDS ${tests_dir}/*/*_test.cpp)
set(test_folders "")
foreach(source IN LISTS test_sources)
  cmake_path(GET source PARENT_PATH folder)
  cmake_path(GET folder FILENAME folder)
  list(APPEND test_folders ${folder})
endforeach()
list(REMOVE_DUPLICATES test_folders)
foreach(folder IN LISTS test_folders)
  # It has an allocator of its own, as the sanitizers have.
  if(FLASHTILE_SANITIZE AND folder STREQUAL "out_of_memory")
    continue()
  endif()
  file(GLOB folder_sources CONFIGURE_DEPENDS ${tests_dir}/${folder}/*.cpp)
  flashtile_apply_isa(folder_sources)
  set(target ${folder}_tests)
  add_executable(${target} ${folder_sources})
  target_link_libraries(${target} PRIVATE flashtile_test_support)
  if(TARGET flashtile_cli)
    add_dependencies(${target} flashtile_cli)
  endif()
  if(folder STREQUAL "fake_driver")
    # What XLA calls needs no Python.
    target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/src/xla_call.cpp)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/python/src)
    target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
    target_link_options(${target} PRIVATE LINKER:--disable-new-dtags,-rpath,${fake_driver_dir})
    add_dependencies(${target} fake_driver)
  endif()
  gtest_discover_tests(
    ${target} TEST_PREFIX ${folder}. TEST_FILTER -*Full*:*Device.* TEST_LIST ${folder}_quick
    NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS "quick;${folder}" TIMEOUT ${test_timeout})
  gtest_discover_tests(
    ${target} TEST_PREFIX ${folder}. TEST_FILTER *Full* TEST_LIST ${folder}_full
    NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
    PROPERTIES LABELS "full;${folder}" TIMEOUT ${test_timeout})
  if(folder STREQUAL "cuda")
    gtest_discover_tests(
      ${target} TEST_PREFIX ${folder}. TEST_FILTER *Device.* TEST_LIST ${folder}_gpu
      NO_PRETTY_VALUES DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120
      PROPERTIES LABELS "gpu;${folder}" TIMEOUT ${test_timeout})
  endif()
endforeach()

file(GLOB capi_programs CONFIGURE_DEPENDS ${tests_dir}/capi/*.c)
foreach(source IN LISTS capi_programs)
  cmake_path(GET source STEM stem)
  add_executable(capi_${stem} ${source})
  target_link_libraries(capi_${stem} PRIVATE flashtile flashtile_flags m)
  add_test(NAME capi.${stem} COMMAND capi_${stem})
  set_tests_properties(capi.${stem} PROPERTIES LABELS "quick;capi" TIMEOUT ${test_timeout})
endforeach()

# The program's own check of all golden files, and the example of the README.
if(TARGET flashtile_cli)
  add_test(NAME cli.check_golden
           COMMAND flashtile_cli check --golden tests/golden/attention
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  add_test(NAME cli.attend_example
           COMMAND flashtile_cli attend examples/minilm_layer.safetensors --check
           WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(cli.check_golden cli.attend_example
                       PROPERTIES LABELS full TIMEOUT ${test_timeout})
endif()

# Each public header compiles alone.
file(GLOB public_headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/include
     ${PROJECT_SOURCE_DIR}/include/flashtile/*.hpp ${PROJECT_SOURCE_DIR}/include/flashtile/*.h)
set(header_sources "")
foreach(header IN LISTS public_headers)
  set(extensions cpp)
  if(header MATCHES "\\.h$")
    set(extensions c cpp)
  endif()
  foreach(extension IN LISTS extensions)
    set(source ${CMAKE_BINARY_DIR}/headers/${header}.${extension})
    file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${header}\"\n#include \"${header}\"\n")
    list(APPEND header_sources ${source})
  endforeach()
endforeach()
add_library(flashtile_headers OBJECT ${header_sources})
target_link_libraries(flashtile_headers PRIVATE flashtile flashtile_flags)

# Tests written in Python run on the machine that builds, so not in a cross build.
find_package(Python3 3.9 QUIET COMPONENTS Interpreter)
file(GLOB python_tests CONFIGURE_DEPENDS ${tests_dir}/*/*_test.py)
if(Python3_FOUND AND NOT CMAKE_CROSSCOMPILING)
  foreach(source IN LISTS python_tests)
    cmake_path(GET source STEM stem)
    set(label quick)
    set(timeout ${test_timeout})
    if(stem STREQUAL "emulated_test")
      # Each problem compiles its kernels for the host: minutes in all. It changes stacks by itself,
      # which AddressSanitizer does not follow.
      if(FLASHTILE_SANITIZE)
        continue()
      endif()
      set(label full)
      set(timeout 1200)
    endif()
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME folder)
    add_test(NAME ${folder}.${stem} COMMAND Python3::Interpreter ${source}
             WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    set_tests_properties(
      ${folder}.${stem} PROPERTIES LABELS "${label};${folder}" TIMEOUT ${timeout}
      ENVIRONMENT "FLASHTILE_BUILD_DIR=${CMAKE_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1")
  endforeach()

  # Sanitizers add shared symbols of their own.
  if(NOT FLASHTILE_SANITIZE)
    add_test(NAME symbols
             COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/scripts/check_symbols.py
                     $<TARGET_OBJECTS:flashtile_objects> $<TARGET_OBJECTS:flashtile_cli_parts>
             COMMAND_EXPAND_LISTS)
    set_tests_properties(symbols PROPERTIES LABELS quick)
  endif()
endif()
