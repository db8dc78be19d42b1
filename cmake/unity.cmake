# SPDX-License-Identifier: Apache-2.0
#
# A clean build spends most of its time on the same headers over and over, so the small files of a
# folder are compiled as one. FLASHTILE_UNITY=OFF compiles each on its own, which suits work on the
# library itself: the debug preset does so, and every file still includes what it uses.
option(FLASHTILE_UNITY "Compile the files of a folder together" ON)

# Groups the sources of `target` by their folder. Files of an instruction set have their own flags
# and stay alone.
function(flashtile_unite target)
  if(NOT FLASHTILE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  list(JOIN isa_names "|" any_isa)
  foreach(source IN LISTS ARGN)
    if(NOT source MATCHES "_(${any_isa})\\.cpp$")
      cmake_path(GET source PARENT_PATH group)
      string(MAKE_C_IDENTIFIER ${group} group)
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
