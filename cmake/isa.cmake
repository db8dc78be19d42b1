# SPDX-License-Identifier: Apache-2.0
#
# Instruction sets. A source file whose name ends in _<isa>.cpp is compiled for that set, with
# FLASHTILE_ISA=<isa>, and only where the target processor's family has it. Nothing else gets such
# flags: the library runs on the oldest processor and chooses at run time.
#
# Adding a set: one line here; docs/adding.md lists the other places.
set(isa_names "")
macro(flashtile_isa name family)
  list(APPEND isa_names ${name})
  set(isa_family_${name} ${family})
  set(isa_flags_${name} ${ARGN})
endmacro()

set(avx2 -mavx2 -mfma -mf16c)
set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl
           -mprefer-vector-width=512)
flashtile_isa(scalar any)
flashtile_isa(avx2 x86_64 ${avx2})
flashtile_isa(avx512 x86_64 ${avx512})
flashtile_isa(avx512_bf16 x86_64 ${avx512} -mavx512bf16)
flashtile_isa(avx512_amx x86_64 ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16)
flashtile_isa(neon aarch64)

string(TOLOWER "${CMAKE_SYSTEM_PROCESSOR}" processor)
if(processor MATCHES "^(x86_64|amd64)$")
  set(processor_family x86_64)
elseif(processor MATCHES "^(aarch64|arm64)$")
  set(processor_family aarch64)
else()
  set(processor_family other)
endif()

# Gives each file of the list `sources_variable` its instruction set's flags, and takes out those
# that this processor family does not have.
function(flashtile_apply_isa sources_variable)
  set(kept "")
  foreach(source IN LISTS ${sources_variable})
    set(keep TRUE)
    foreach(isa IN LISTS isa_names)
      if(source MATCHES "_${isa}\\.cpp$")
        if(NOT isa_family_${isa} MATCHES "^(any|${processor_family})$")
          set(keep FALSE)
        endif()
        # Vectors, unrolling and inlining are written out in the text: -O3 has little to add, and
        # made decoding half as slow again (GCC 12). What gains by it are the backward's loops over
        # gates in linear attention (an eighth). The scalar set loses at most 5 % by -O1.
        set(level -O2)
        if(isa STREQUAL "scalar")
          set(level -O1)
        elseif(source MATCHES "/linear_")
          set(level -O3)
        endif()
        # sqrt and the like need no errno, and nobody reads floating-point flags in a kernel.
        set_source_files_properties(
          ${source} PROPERTIES
          COMPILE_DEFINITIONS FLASHTILE_ISA=${isa}
          SKIP_PRECOMPILE_HEADERS ON
          COMPILE_OPTIONS
            "${isa_flags_${isa}};-fno-math-errno;-fno-trapping-math;$<$<CONFIG:Release>:${level}>")
      endif()
    endforeach()
    if(keep)
      list(APPEND kept ${source})
    endif()
  endforeach()
  set(${sources_variable} ${kept} PARENT_SCOPE)
endfunction()
