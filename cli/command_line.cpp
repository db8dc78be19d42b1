// SPDX-License-Identifier: Apache-2.0
//
// The command line as a whole. Exit codes: 0 well, 1 a check failed, 2 bad use or bad files.
#include "command_line.hpp"

#include <iostream>
#include <new>
#include <string_view>

#include "commands.hpp"
#include "flashtile/error.hpp"
#include "flashtile/version.hpp"

namespace flashtile::cli {
namespace {

constexpr int kBadUse = 2;

/// The op that `attend --op NAME` names: its table decides which other flags there are.
std::string_view asked_op(int argc, char** argv) {
  constexpr std::string_view kFlag = "--op";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == kFlag && i + 1 < argc) return argv[i + 1];
    if (word.starts_with("--op=")) return word.substr(kFlag.size() + 1);
  }
  return "attention_fwd";
}

int fail(std::string_view text) {
  std::cerr << "flashtile: " << text << '\n';
  return kBadUse;
}

int run(int argc, char** argv) {
  const OpSpec* op = find_op(asked_op(argc, argv));
  if (op == nullptr) {
    return fail("there is no op '" + std::string(asked_op(argc, argv)) + "'; see flashtile info");
  }
  CLI::App app("Exact attention, tile by tile.", "flashtile");
  app.set_version_flag("--version", FLASHTILE_VERSION_STRING);
  app.require_subcommand(1);
  int exit_code = 0;
  add_info_command(app, &exit_code);
  add_attend_command(app, *op, &exit_code);
  add_check_command(app, &exit_code);
  add_bench_command(app, &exit_code);
  add_explain_command(app, &exit_code);
  add_compile_command(app, &exit_code);
  if (argc > 1 && argv[1][0] != '-') {
    std::string names;
    bool is_known = false;
    for (const CLI::App* command : app.get_subcommands({})) {
      names += " " + command->get_name();
      is_known = is_known || command->get_name() == argv[1];
    }
    if (!is_known) return fail("there is no command '" + std::string(argv[1]) + "', but" + names);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help and version
    return fail(error.what());
  }
  return exit_code;
}

}  // namespace

int run_command_line(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail("out of memory");
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace flashtile::cli
