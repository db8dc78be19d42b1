# SPDX-License-Identifier: Apache-2.0
#
# Installed: headers, library, CLI, the CMake package `flashtile` and flashtile.pc.
if(NOT FLASHTILE_INSTALL)
  return()
endif()
include(CMakePackageConfigHelpers)

install(TARGETS flashtile EXPORT flashtile-targets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashtile TYPE INCLUDE)
if(TARGET flashtile_cli)
  install(TARGETS flashtile_cli)
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashtile)
install(EXPORT flashtile-targets NAMESPACE flashtile:: DESTINATION ${package_dir})

# A shared library carries its dependencies; with a static one, users have to link them.
set(package_needs_openmp OFF)
set(pc_private "-pthread")
if(OpenMP_CXX_FOUND)
  list(JOIN OpenMP_CXX_FLAGS " " openmp_flags)
  string(APPEND pc_private " ${openmp_flags}")
  if(library_type STREQUAL "STATIC_LIBRARY")
    set(package_needs_openmp ON)
  endif()
endif()
set(pc_public "")
if(library_type STREQUAL "STATIC_LIBRARY")
  set(pc_public " ${pc_private} -lstdc++ -lm")
endif()
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/flashtile-config.cmake.in
  ${CMAKE_BINARY_DIR}/cmake/flashtile-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cmake/flashtile-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cmake/flashtile-config.cmake
              ${CMAKE_BINARY_DIR}/cmake/flashtile-config-version.cmake
        DESTINATION ${package_dir})

# Relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(${PROJECT_SOURCE_DIR}/cmake/flashtile.pc.in ${CMAKE_BINARY_DIR}/cmake/flashtile.pc
               @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/cmake/flashtile.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
