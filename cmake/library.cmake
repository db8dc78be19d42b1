# SPDX-License-Identifier: Apache-2.0
#
# Everything under src/ is compiled once, as objects. `flashtile` is what users get;
# `flashtile_internal` is an archive of the same objects for the CLI and the tests, which see more
# than the shared library exports.
file(GLOB_RECURSE library_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/*.cpp)
flashtile_apply_isa(library_sources)
include(cmake/embed.cmake)
flashtile_embed_device_text(library_sources)

add_library(flashtile_objects OBJECT ${library_sources})
target_include_directories(flashtile_objects PRIVATE ${PROJECT_SOURCE_DIR}/include
                                                     ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(flashtile_objects PRIVATE flashtile_flags)
target_precompile_headers(flashtile_objects PRIVATE ${precompiled_headers})
flashtile_unite(flashtile_objects ${library_sources})

add_library(flashtile $<TARGET_OBJECTS:flashtile_objects>)
add_library(flashtile::flashtile ALIAS flashtile)
set_target_properties(flashtile PROPERTIES VERSION ${PROJECT_VERSION}
                                           SOVERSION ${PROJECT_VERSION_MAJOR}
                                           LINKER_LANGUAGE CXX)
target_compile_features(flashtile INTERFACE cxx_std_20)
target_include_directories(
  flashtile INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(flashtile PRIVATE $<BUILD_INTERFACE:flashtile_flags> Threads::Threads)
if(OpenMP_CXX_FOUND)
  target_link_libraries(flashtile PRIVATE OpenMP::OpenMP_CXX)
endif()

get_target_property(library_type flashtile TYPE)
if(library_type STREQUAL "SHARED_LIBRARY")
  set(exports ${PROJECT_SOURCE_DIR}/cmake/exports.map)
  target_link_options(flashtile PRIVATE LINKER:--version-script=${exports})
  set_property(TARGET flashtile APPEND PROPERTY LINK_DEPENDS ${exports})
endif()

add_library(flashtile_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:flashtile_objects>)
set_target_properties(flashtile_internal PROPERTIES LINKER_LANGUAGE CXX)
target_include_directories(flashtile_internal INTERFACE ${PROJECT_SOURCE_DIR}/include
                                                        ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(flashtile_internal PUBLIC flashtile_flags)
