// SPDX-License-Identifier: Apache-2.0
//
// The commands of the program `flashtile`. Each function adds one to the parser; its work begins
// when the parser has seen it, and sets the exit code: 0 well, 1 a check failed. Bad use and bad
// files are exceptions, which main() turns into one line and 2.
#pragma once

#include <CLI/CLI.hpp>

#include "core/op_spec.hpp"

namespace flashtile::cli {

/// What a flag with a number takes; its error is one short line.
CLI::Validator at_least(double lowest);
CLI::Validator more_than_zero();

void add_info_command(CLI::App& app, int* exit_code);
/// Its flags are the rows of the op's table.
void add_attend_command(CLI::App& app, const OpSpec& op, int* exit_code);
void add_check_command(CLI::App& app, int* exit_code);
void add_bench_command(CLI::App& app, int* exit_code);
void add_explain_command(CLI::App& app, int* exit_code);
void add_compile_command(CLI::App& app, int* exit_code);

}  // namespace flashtile::cli
