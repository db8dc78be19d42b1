// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <memory>

#include "commands.hpp"
#include "flashtile/explain.hpp"

namespace flashtile::cli {

void add_explain_command(CLI::App& app, int* exit_code) {
  const auto texts = std::make_shared<std::vector<std::string>>();
  const auto archs = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "explain",
      "Says what the library would do with a problem: the implementation, its plan, and for each "
      "other one the first condition that it fails");
  command->add_option("problem", *texts, "Problem texts, such as attention_fwd:sq4096:d128:causal")
      ->required();
  command
      ->add_option("--arch", *archs,
                   "Plan for the usual GPU of an architecture, such as sm_89, without having one")
      ->delimiter(',');
  command->callback([texts, archs, exit_code] {
    if (archs->empty()) archs->emplace_back();
    bool is_first = true;
    for (const std::string& text : *texts) {
      for (const std::string& arch : *archs) {
        if (!is_first) std::cout << '\n';
        is_first = false;
        Context context;
        context.arch = arch;
        std::string lines = to_string(explain(text, context));
        if (!lines.ends_with('\n')) lines += '\n';
        if (!arch.empty()) std::cout << "arch:    " << arch << '\n';
        std::cout << lines;
      }
    }
    *exit_code = 0;
  });
}

}  // namespace flashtile::cli
