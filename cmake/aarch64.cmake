# SPDX-License-Identifier: Apache-2.0
#
# Cross build with Debian's compiler (g++-aarch64-linux-gnu); programs run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

# Header-only packages may come from the machine that builds; libraries may not.
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_DISABLE_FIND_PACKAGE_GTest ON)

find_program(qemu NAMES qemu-aarch64 qemu-aarch64-static)
if(qemu)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${qemu} -L /usr/aarch64-linux-gnu)
endif()
