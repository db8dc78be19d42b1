// SPDX-License-Identifier: Apache-2.0
#pragma once

// Marks what the shared library exports; everything else is compiled with hidden visibility.
#define FLASHTILE_API __attribute__((visibility("default")))
