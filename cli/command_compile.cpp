// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>

#include "commands.hpp"
#include "compile_pack.hpp"
#include "core/gpu_model.hpp"
#include "pack_problems.hpp"
#include "terminal.hpp"

namespace flashtile::cli {
namespace {

struct CompileOptions {
  std::vector<std::string> archs;
  std::vector<std::string> ops;
  std::vector<std::string> problems;
  std::string file = "flashtile.pack";
  int threads = 0;
  bool is_verbose = false;
};

/// Full names, each once: "sm_90" is sm_90a.
std::vector<std::string> archs_of(const CompileOptions& options) {
  std::vector<std::string> archs;
  for (const std::string& name : options.archs) {
    const GpuModel* model = named_gpu_model(name);
    if (model == nullptr) {
      std::string known;
      for (const std::string& arch : known_gpu_archs()) known += " " + arch;
      throw CLI::ValidationError("--arch", "there is no architecture '" + name + "', but" + known);
    }
    if (std::find(archs.begin(), archs.end(), model->arch) == archs.end()) {
      archs.push_back(model->arch);
    }
  }
  return archs;
}

/// The problems that the options name; without any, the usual ones of the ops.
std::vector<std::string> problems_of(const CompileOptions& options) {
  std::vector<std::string> problems = options.problems;
  for (const std::string& name : options.ops) {
    const OpSpec* spec = find_op(name);
    if (spec == nullptr) throw CLI::ValidationError("--op", "there is no op '" + name + "'");
    const std::vector<std::string> usual = pack_problems(*spec);
    problems.insert(problems.end(), usual.begin(), usual.end());
  }
  if (!problems.empty()) return problems;
  for (const OpSpec* spec : all_ops()) {
    const std::vector<std::string> usual = pack_problems(*spec);
    problems.insert(problems.end(), usual.begin(), usual.end());
  }
  return problems;
}

void print_kernels(const std::vector<cuda::CompiledKernel>& kernels) {
  Table table({"kernel", "arch", "registers", "spilled", "shared", "code"});
  for (const cuda::CompiledKernel& kernel : kernels) {
    table.add({kernel.entry, kernel.arch, std::to_string(kernel.usage.num_registers),
               std::to_string(kernel.usage.spill_store_bytes),
               std::to_string(kernel.usage.static_shared_bytes),
               bytes_text(static_cast<double>(kernel.cubin.size()))});
  }
  table.print(std::cout);
}

int run_compile(const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const PackContent content = kernels_of(problems_of(options), archs_of(options));
  // What was asked for by name has to be in the pack.
  if (!options.problems.empty() && !content.refusals.empty()) {
    throw CLI::ValidationError("--problem", content.refusals.front());
  }
  if (content.sources.empty()) {
    throw CLI::ValidationError(
        "compile",
        "these problems have no GPU kernel" +
            (content.refusals.empty() ? std::string() : ": " + content.refusals.front()));
  }
  const auto kernels = write_pack(content.sources, options.file, options.threads);
  if (options.is_verbose) {
    print_kernels(kernels);
    for (const std::string& refusal : content.refusals)
      std::cout << "left out: " << refusal << '\n';
  }
  const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - start;
  const auto bytes = static_cast<double>(std::filesystem::file_size(options.file));
  std::cout << options.file << ": " << kernels.size() << " kernels, " << bytes_text(bytes)
            << ", in " << time_text(time.count());
  if (!content.refusals.empty()) {
    std::cout << "; " << content.refusals.size() << " problems left out, which no kernel takes";
  }
  std::cout << '\n';
  return 0;
}

}  // namespace

void add_compile_command(CLI::App& app, int* exit_code) {
  const auto options = std::make_shared<CompileOptions>();
  CLI::App* command = app.add_subcommand(
      "compile", "Writes a pack of compiled GPU kernels, for machines without NVRTC; needs no GPU");
  command->add_option("--arch", options->archs, "Architectures, such as sm_80,sm_89,sm_90a")
      ->delimiter(',')
      ->required();
  command->add_option("-o,--output", options->file, "The file to write")->capture_default_str();
  command->add_option("--op", options->ops, "Usual problems of these ops; all ops by default")
      ->delimiter(',');
  command->add_option("--problem", options->problems,
                      "A problem text, whose kernels serve all problems that differ from it in "
                      "sizes and numbers alone; may be given again");
  command->add_option("--threads", options->threads, "Kernels to compile at a time; 0: all CPUs")
      ->check(at_least(0));
  command->add_flag("--verbose", options->is_verbose, "Show each kernel");
  command->callback([options, exit_code] { *exit_code = run_compile(*options); });
}

}  // namespace flashtile::cli
