// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashtile::cli {

/// Everything that main() does. Returns the exit code; throws nothing.
int run_command_line(int argc, char** argv);

}  // namespace flashtile::cli
