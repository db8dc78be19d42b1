// SPDX-License-Identifier: Apache-2.0
//
// The command line as a whole. Exit codes: 0 well, 1 a check failed, 2 bad use or bad files.
#include "command_line.hpp"

#include <cmath>
#include <functional>
#include <iostream>
#include <new>
#include <string_view>

#include "commands.hpp"
#include "core/text.hpp"
#include "flashtile/error.hpp"
#include "flashtile/version.hpp"
#include "terminal.hpp"

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

/// What a command did not expect, and the flag that was perhaps meant.
std::string unexpected_text(const CLI::App& app) {
  const CLI::App& command = *app.get_subcommands().front();
  std::string text = command.get_name() + " does not expect";
  const std::vector<std::string> words = app.remaining(/*recurse=*/true);
  for (const std::string& word : words) text += " '" + word + "'";
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  const std::vector<std::string_view> names(flags.begin(), flags.end());
  const std::string_view nearest = nearest_name(words.front(), names);
  return nearest.empty() ? text : text + "; did you mean '" + std::string(nearest) + "'?";
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
  } catch (const CLI::ExtrasError&) {
    return fail(unexpected_text(app));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help and version
    return fail(error.what());
  }
  return exit_code;
}

/// Refuses what is no finite number, and numbers that `is_right` does not take.
CLI::Validator number_validator(std::function<bool(double)> is_right, const std::string& expected) {
  return CLI::Validator(
      [is_right = std::move(is_right), expected](const std::string& text) -> std::string {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
        if (is_number && is_right(value)) return {};
        return "expected " + expected + ", found " + text;
      },
      "NUMBER");
}

}  // namespace

CLI::Validator at_least(double lowest) {
  return number_validator([lowest](double value) { return value >= lowest; },
                          "at least " + number_text(lowest));
}

CLI::Validator more_than_zero() {
  return number_validator([](double value) { return value > 0; }, "more than 0");
}

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
