// SPDX-License-Identifier: Apache-2.0
//
// Registers, spills and shared memory of kernels, as tests/cuda/kernel_budget.tsv has them:
// problems of all options on all architectures (pairwise.py), compiled here without a GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/gpu_model.hpp"
#include "core/problem_text.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::cuda {
namespace {

/// A line of the table.
struct Budget {
  std::string arch, problem, stem;
  int64_t num_registers = 0;
  int64_t spill_bytes = 0;
  int64_t shared_bytes = 0;
};

struct BudgetTable {
  int compiler_version = 0;
  std::vector<Budget> lines;
};

BudgetTable read_table() {
  BudgetTable table;
  std::ifstream file(FLASHTILE_SOURCE_DIR "/tests/cuda/kernel_budget.tsv");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    if (line.starts_with("# nvrtc ")) {
      std::string skipped;
      words >> skipped >> skipped >> table.compiler_version;
      continue;
    }
    Budget budget;
    std::getline(words, budget.arch, '\t');
    std::getline(words, budget.problem, '\t');
    std::getline(words, budget.stem, '\t');
    words >> budget.num_registers >> budget.spill_bytes >> budget.shared_bytes;
    table.lines.push_back(budget);
  }
  return table;
}

/// The kernels of a problem on an architecture, by stem.
std::map<std::string, KernelChoice> kernels_of(const Budget& budget) {
  const OpCall call = make_call(parse_problem(budget.problem));
  Context context;
  context.arch = budget.arch;
  std::map<std::string, KernelChoice> kernels;
  for (const KernelChoice& kernel : call.kernels(context)) kernels[kernel.source.stem] = kernel;
  return kernels;
}

/// Compiles a kernel, which has to fit its architecture whatever the compiler is.
CompiledKernel compile(const KernelChoice& kernel) {
  const CompiledKernel compiled = Nvrtc::get()->compile(program_of(kernel.source));
  const GpuModel& gpu = *named_gpu_model(kernel.source.arch);
  EXPECT_LE(kernel.shared_bytes, gpu.shared_bytes_per_cta);
  EXPECT_LE(compiled.usage.num_registers * kernel.num_threads, 65536);
  EXPECT_EQ(compiled.usage.static_shared_bytes, 0);
  return compiled;
}

/// Compiles one line's kernel; writes what there is to `found`.
void check_line(const BudgetTable& table, const Budget& budget, std::ostream& found) {
  SCOPED_TRACE(budget.arch + " " + budget.problem + " " + budget.stem);
  const auto kernels = kernels_of(budget);
  ASSERT_TRUE(kernels.contains(budget.stem));
  const KernelChoice& kernel = kernels.at(budget.stem);
  const CompiledKernel compiled = compile(kernel);
  found << budget.arch << '\t' << budget.problem << '\t' << budget.stem << '\t'
        << compiled.usage.num_registers << '\t' << compiled.usage.spill_store_bytes << '\t'
        << kernel.shared_bytes << std::endl;
  EXPECT_EQ(kernel.shared_bytes, budget.shared_bytes);
  if (compiled.compiler_version == table.compiler_version) {
    EXPECT_EQ(compiled.usage.num_registers, budget.num_registers);
    EXPECT_EQ(compiled.usage.spill_store_bytes, budget.spill_bytes);
  }
}

TEST(KernelBudget, TableHoldsEachKernelOfItsProblems) {
  const BudgetTable table = read_table();
  ASSERT_GE(table.lines.size(), 50u);
  std::map<std::pair<std::string, std::string>, std::set<std::string>> stems;
  for (const Budget& budget : table.lines) {
    stems[{budget.arch, budget.problem}].insert(budget.stem);
  }
  for (const auto& [key, listed] : stems) {
    std::set<std::string> planned;
    for (const auto& [stem, kernel] : kernels_of({key.first, key.second, "", 0, 0, 0})) {
      planned.insert(stem);
    }
    EXPECT_EQ(planned, listed) << key.first << " " << key.second;
  }
}

TEST(KernelBudget, MainShapesHardlySpill) {
  // What is spilled lies outside the inner loop, and was timed: a larger tile makes up for it.
  constexpr int64_t kMostBytes = 64;
  // Of the table, so that a run without NVRTC sees it too: plain 16-bit attention.
  int num_seen = 0;
  for (const Budget& budget : read_table().lines) {
    const bool is_main = budget.problem.find("sq2048") != std::string::npos &&
                         budget.problem.find("f32") == std::string::npos &&
                         budget.problem.find("score") == std::string::npos &&
                         budget.problem.find("mask=") == std::string::npos &&
                         budget.problem.find("bias") == std::string::npos &&
                         budget.problem.find("dropout") == std::string::npos &&
                         budget.problem.find("max_logit") == std::string::npos &&
                         budget.stem == "attention_fwd_portable";
    if (!is_main) continue;
    ++num_seen;
    EXPECT_LE(budget.spill_bytes, kMostBytes) << budget.arch << " " << budget.problem;
  }
  EXPECT_GE(num_seen, 6);
}

TEST(KernelBudgetFull, RegistersSpillsAndSharedMemoryAreThoseOfTheTable) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  const BudgetTable table = read_table();
  std::ofstream found("kernel_budget_found.tsv");
  found << "# nvrtc " << Nvrtc::get()->version() << '\n';
  for (const Budget& budget : table.lines) check_line(table, budget, found);
}

/// The lines "ARCH<tab>PROBLEM" of the file that FLASHTILE_TEST_KERNELS names.
TEST(KernelBudgetFull, EveryKernelOfAListFitsItsArchitecture) {
  const char* path = std::getenv("FLASHTILE_TEST_KERNELS");
  if (path == nullptr) GTEST_SKIP() << "FLASHTILE_TEST_KERNELS names no list of problems";
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  std::ifstream file(path);
  std::set<std::string> seen;  // texts of programs: most problems share kernels
  std::string arch, problem;
  while (std::getline(file, arch, '\t') && std::getline(file, problem)) {
    SCOPED_TRACE(arch + " " + problem);
    for (const auto& [stem, kernel] : kernels_of({arch, problem, "", 0, 0, 0})) {
      if (seen.insert(arch + stem + kernel.source.config).second) compile(kernel);
    }
  }
  EXPECT_GT(seen.size(), 0u) << path;
}

TEST(KernelBudget, SomeLinesCompile) {
  if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  const BudgetTable table = read_table();
  std::ostringstream found;
  for (size_t i = 0; i < table.lines.size(); i += 16) check_line(table, table.lines[i], found);
}

}  // namespace
}  // namespace flashtile::cuda
