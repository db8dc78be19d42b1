// SPDX-License-Identifier: Apache-2.0
#pragma once

// The one place where the version stands: CMake, the package files and the CLI read it from here.
#define FLASHTILE_VERSION_MAJOR 0
#define FLASHTILE_VERSION_MINOR 1
#define FLASHTILE_VERSION_PATCH 0
#define FLASHTILE_VERSION_STRING "0.1.0"
