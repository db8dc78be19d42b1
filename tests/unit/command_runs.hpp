// SPDX-License-Identifier: Apache-2.0
//
// Commands of the program in the test's own process, which knows ops that the test registers.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "commands.hpp"

namespace flashtile {

/// Runs the program's own commands; gives the exit code and what they print. `attended` is the op
/// that attend has the flags of.
inline int run_cli(std::vector<std::string> arguments, std::string* output,
                   const OpSpec* attended = nullptr) {
  CLI::App app;
  int exit_code = -1;
  if (attended != nullptr) cli::add_attend_command(app, *attended, &exit_code);
  cli::add_check_command(app, &exit_code);
  cli::add_explain_command(app, &exit_code);
  cli::add_info_command(app, &exit_code);
  std::reverse(arguments.begin(), arguments.end());
  testing::internal::CaptureStdout();
  try {
    app.parse(arguments);
  } catch (...) {
    testing::internal::GetCapturedStdout();
    throw;
  }
  *output = testing::internal::GetCapturedStdout();
  return exit_code;
}

/// A folder that is gone at the end of the test.
class Folder {
 public:
  Folder()
      : path_(std::filesystem::temp_directory_path() /
              ("flashtile_commands_" + std::to_string(getpid()))) {
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace flashtile
