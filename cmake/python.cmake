# SPDX-License-Identifier: Apache-2.0
#
# The Python package's extension module flashtile._core, which has the library in it. pyproject.toml
# turns it on; `pip install .` is the way to build it.
option(FLASHTILE_BUILD_PYTHON "Build the Python extension" OFF)
if(NOT FLASHTILE_BUILD_PYTHON)
  return()
endif()

find_package(Python 3.9 REQUIRED COMPONENTS Interpreter Development.Module
             OPTIONAL_COMPONENTS Development.SABIModule)
find_package(nanobind CONFIG REQUIRED)

# Only entry points are public: flashtile in another library of the process stays apart.
nanobind_add_module(flashtile_python STABLE_ABI NB_STATIC NOMINSIZE
                    ${PROJECT_SOURCE_DIR}/python/src/arrays.cpp
                    ${PROJECT_SOURCE_DIR}/python/src/mask_blocks.cpp
                    ${PROJECT_SOURCE_DIR}/python/src/module.cpp
                    ${PROJECT_SOURCE_DIR}/python/src/op.cpp
                    ${PROJECT_SOURCE_DIR}/python/src/xla_call.cpp)
set_target_properties(flashtile_python PROPERTIES OUTPUT_NAME _core UNITY_BUILD ON)
target_link_libraries(flashtile_python PRIVATE flashtile_internal)
# nanobind's headers are not held to our warnings.
target_include_directories(flashtile_python SYSTEM PRIVATE ${NB_DIR}/include)
target_link_options(flashtile_python PRIVATE LINKER:--exclude-libs,ALL)
install(TARGETS flashtile_python LIBRARY DESTINATION flashtile COMPONENT python)
