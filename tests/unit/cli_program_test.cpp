// SPDX-License-Identifier: Apache-2.0
//
// The program as its users see it: exit codes, one line for bad use and bad files, files in and
// out.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/problem_text.hpp"
#include "files/npy.hpp"
#include "files/safetensors.hpp"
#include "unit/files_helpers.hpp"

namespace flashtile::cli {
namespace {

struct Outcome {
  int exit_code;
  std::string text;  ///< standard output and standard error
};

/// `variables` are assignments of the environment, as a shell takes them.
Outcome run(const std::string& arguments, const std::string& variables = "") {
  const std::string command = variables + " " + std::string(FLASHTILE_CLI) + " " + arguments;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  Outcome outcome{-1, ""};
  char buffer[4096];
  size_t count = 0;
  while ((count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0)
    outcome.text.append(buffer, count);
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

class Program : public TemporaryFolder {
 protected:
  /// q, k, v of (1, 3, 2, 4) as one file.
  std::string input_file() const {
    float values[3][24];
    for (int t = 0; t < 3; ++t) {
      for (int i = 0; i < 24; ++i)
        values[t][i] = static_cast<float>((i * 7 + t * 5) % 11) / 8 - 0.5f;
    }
    TensorMap tensors;
    const char* const kNames[] = {"q", "k", "v"};
    for (size_t t = 0; t < 3; ++t) {
      tensors[kNames[t]] = TensorView(values[t], DType::kF32, {1, 3, 2, 4});
    }
    write_safetensors(path("in.safetensors"), tensors);
    return path("in.safetensors");
  }
};

TEST_F(Program, EnvironmentThatIsNotUnderstoodIsAnErrorOfTheCall) {
  const std::string attend = "attend " + input_file();
  const std::pair<std::string, std::string> kCases[] = {
      {"FLASHTILE_IMPL=sclar", "FLASHTILE_IMPL is 'sclar', expected "},
      {"FLASHTILE_IMPL=attention_fwd", "attention_fwd_reference"},
      {"FLASHTILE_MAX_ISA=Scalar", "FLASHTILE_MAX_ISA is 'Scalar', expected scalar"},
      {"FLASHTILE_NUM_THREADS=two",
       "FLASHTILE_NUM_THREADS is 'two', expected a whole number from 1"},
      {"FLASHTILE_NUM_THREADS=0", "to 4095"},
      {"FLASHTILE_NUM_THREADS=2x", "'2x'"},
  };
  for (const auto& [variables, expected] : kCases) {
    const Outcome outcome = run(attend, variables);
    EXPECT_EQ(outcome.exit_code, 2) << variables << ": " << outcome.text;
    EXPECT_NE(outcome.text.find(expected), std::string::npos) << outcome.text;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
  }
  for (const char* variables : {"FLASHTILE_IMPL= FLASHTILE_NUM_THREADS= FLASHTILE_MAX_ISA=",
                                "FLASHTILE_IMPL=reference", "FLASHTILE_IMPL=attention_bwd_scalar",
                                "FLASHTILE_MAX_ISA=scalar FLASHTILE_NUM_THREADS=2"}) {
    const Outcome outcome = run(attend, variables);
    EXPECT_EQ(outcome.exit_code, 0) << variables << ": " << outcome.text;
  }
}

TEST_F(Program, CheckOfGoldenFilesEndsWithItsVerdict) {
  const std::string golden = std::string(FLASHTILE_SOURCE_DIR) + "/tests/golden/attention/";
  for (const char* name : {"seqlen_1_1.safetensors", "seqlen_k_0.safetensors"}) {
    std::filesystem::copy_file(golden + name, path(name));
  }
  const auto ends_with = [](const Outcome& outcome, const std::string& line) {
    EXPECT_TRUE(outcome.text.ends_with("\n" + line + "\n")) << outcome.text;
  };
  const std::string check = "check --golden " + path("");
  ends_with(run(check),
            "2 cases, each of them run by a kernel, not by the reference alone: PASSED");
  const Outcome alone = run(check + " --impl reference");
  EXPECT_EQ(alone.exit_code, 1);
  ends_with(alone, "2 cases, 2 of them run by no kernel, at most 0 expected: FAILED");
  const Outcome allowed = run(check + " --impl reference --max-unsupported 2");
  EXPECT_EQ(allowed.exit_code, 0);
  ends_with(allowed, "2 cases, 2 of them run by no kernel, at most 2 expected: PASSED");
}

TEST_F(Program, BadUseAndBadFilesGiveOneLineAndTwo) {
  const std::string in = input_file();
  write("cut.safetensors", read(in).substr(0, 250));
  write("text.npy", "not an array");
  const std::pair<std::string, std::string> kCases[] = {
      {"", "subcommand"},
      {"nonsense", "no command 'nonsense'"},
      {"attend --windw-left 3", "does not expect '--windw-left'; did you mean '--window-left'?"},
      {"attend", "give input files"},
      {"attend " + in + " --nonsense", "--nonsense"},
      {"attend " + path("none.safetensors"), "cannot be opened"},
      {"attend " + path("cut.safetensors"), "cut short"},
      {"attend --q " + path("text.npy"), "not a .npy file"},
      {"attend " + in + " --softcap 0", "softcap"},
      {"attend " + in + " --window-left -1", "window_left"},
      {"attend " + in + " --mask 'k_idx <='", "column 9"},
      {"attend " + in + " --backward", "dout"},
      {"attend " + in + " --impl nonsense", "nonsense"},
      {"attend " + in + " --out x.txt", "not to x.txt"},
      {"attend " + in + " --dq " + path("dq.npy"), "no result dq"},
      {"attend --q " + in + ":nonsense", "no tensor 'nonsense'"},
      {"attend --op nonsense", "no op 'nonsense'"},
      {"attend " + in + " --aux table", "NAME=VALUE"},
      {"check attention_fwd:what", "column 15"},
      {"check --golden " + path("nowhere"), "cannot be listed"},
      {"check --golden " + path("") + " attention_fwd", "not both"},
      {"attend " + in + " --out " + in, "is an input"},
      {"attend --q " + in + " --k " + in + " --v " + in + " -o " + in, "is an input"},
      {"attend " + in + " --out " + path("x.npy") + " --lse " + path("") + "./x.npy",
       "two results"},
      {"attend " + in + " --dtype foo=f16", "no result foo"},
      {"attend " + in + " --dout " + in + ":q", "no use for dout"},
      {"attend " + in + " --seed 3", "--problem"},
      {"attend " + in + " --threads -1", "expected at least 0, found -1"},
      {"attend " + in + " --repeat 0", "expected at least 1, found 0"},
      {"attend --problem attention_fwd:sq8:d8@nonsense",
       "no implementation 'attention_fwd_nonsense'"},
      {"check --impl nonsense attention_fwd:sq8:d8", "no implementation 'nonsense'"},
      {"check attention_fwd:sq8:d8@nonsense", "no implementation 'attention_fwd_nonsense'"},
      {"check attention_fwd:sq8:d8@scalar --impl reference", "--impl for 'reference'"},
      {"bench attention_fwd:sq8:d8@scalar --impl all", "--impl for 'all'"},
      {"bench --seconds nan", "expected more than 0, found nan"},
      {"check --golden " + path("") + " --impl nonsense", "no op has an implementation 'nonsense'"},
      {"check --max-unsupported 3", "goes with --golden"},
      {"check --max-unsupported -1 --golden " + path(""), "expected at least 0, found -1"},
      {"bench --pass sideways", "sideways"},
      {"bench nonsense:b1", "nonsense"},
      {"explain attention_fwd:b1:b2", "column"},
      {"info nonsense", "no op 'nonsense'"},
  };
  for (const auto& [arguments, part] : kCases) {
    SCOPED_TRACE(arguments);
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_TRUE(outcome.text.starts_with("flashtile: ")) << outcome.text;
    EXPECT_EQ(std::count(outcome.text.begin(), outcome.text.end(), '\n'), 1) << outcome.text;
    EXPECT_NE(outcome.text.find(part), std::string::npos) << outcome.text;
  }
}

TEST_F(Program, AttendWritesWhatTheFormulaGives) {
  const Outcome outcome = run("attend " + input_file() + " --causal --softmax-scale 0.5 --out " +
                              path("out.npy") + " --lse " + path("lse.npy") + " --check");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const TensorFile in = read_safetensors(path("in.safetensors"));
  const TensorFile out = read_npy(path("out.npy")), lse = read_npy(path("lse.npy"));
  EXPECT_EQ(to_string(out.tensors.at("")), "f32 (1, 3, 2, 4)");
  EXPECT_EQ(to_string(lse.tensors.at("")), "f32 (1, 2, 3)");
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t h = 0; h < 2; ++h) {
      double total = 0;
      double sums[4] = {};
      for (int64_t j = 0; j <= i; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < 4; ++d) {
          dot += static_cast<double>(element<float>(in.tensors.at("q"), {0, i, h, d})) *
                 static_cast<double>(element<float>(in.tensors.at("k"), {0, j, h, d}));
        }
        const double weight = std::exp(0.5 * dot);
        total += weight;
        for (int64_t d = 0; d < 4; ++d) {
          sums[d] += weight * static_cast<double>(element<float>(in.tensors.at("v"), {0, j, h, d}));
        }
      }
      EXPECT_NEAR(static_cast<double>(element<float>(lse.tensors.at(""), {0, h, i})),
                  std::log(total), 1e-6);
      for (int64_t d = 0; d < 4; ++d) {
        EXPECT_NEAR(static_cast<double>(element<float>(out.tensors.at(""), {0, i, h, d})),
                    sums[d] / total, 1e-6);
      }
    }
  }
}

TEST_F(Program, AttendTakesFlagsFilesAndExpressions) {
  const std::string in = input_file();
  const float gain[] = {0.5f, 2.0f};
  write_npy(path("gain.npy"), TensorView(gain, DType::kF32, {2}));
  const Outcome outcome =
      run("attend --q " + in + " --k " + in + ":k --v " + in + ":v --dout " + in +
          ":v --aux gain=" + path("gain.npy") +
          " --score 'score * gain[head] * param.half' --param half=0.5 --backward --check -o " +
          path("all.safetensors"));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  const TensorFile all = read_safetensors(path("all.safetensors"));
  for (const char* name : {"out", "lse", "dq", "dk", "dv", "daux.gain"}) {
    EXPECT_TRUE(all.tensors.contains(name)) << name;
  }
  EXPECT_NE(all.metadata.at("attention_bwd").find("param.half=0.5"), std::string::npos);
}

TEST_F(Program, AskedImplementationIsTheOneThatRuns) {
  const Outcome check = run("check attention_fwd:b1:hq1:sq8:d8@scalar");
  EXPECT_EQ(check.exit_code, 0) << check.text;
  EXPECT_NE(check.text.find("attention_fwd_scalar"), std::string::npos) << check.text;
  EXPECT_EQ(check.text.find("attention_fwd_reference"), std::string::npos) << check.text;
  const Outcome attend = run("attend --problem attention_fwd:b1:hq1:sq8:d8@scalar");
  EXPECT_NE(attend.text.find("attention_fwd_scalar, "), std::string::npos) << attend.text;
  const Outcome bench =
      run("bench attention_fwd:b1:hq1:sq8:d8@scalar --json --no-plain --seconds 0.01");
  ASSERT_EQ(bench.exit_code, 0) << bench.text;
  EXPECT_EQ(nlohmann::json::parse(bench.text).at("impl"), "attention_fwd_scalar");
}

TEST_F(Program, ABackwardOpRunsAlone) {
  const std::string problem = "attention_bwd:b1:hq2:sq9:d8:causal";
  const Outcome random = run("attend --op attention_bwd --problem " + problem + " --check");
  EXPECT_EQ(random.exit_code, 0) << random.text;
  // The forward's results may come from files as well.
  const std::string in = input_file();
  ASSERT_EQ(run("attend " + in + " -o " + path("forward.safetensors")).exit_code, 0);
  const Outcome files = run("attend --op attention_bwd " + in + " " + path("forward.safetensors") +
                            " --dout " + in + ":v --check");
  EXPECT_EQ(files.exit_code, 0) << files.text;
}

TEST_F(Program, RandomBlockListsFitTheirRoom) {
  for (int seed = 1; seed < 6; ++seed) {
    const Outcome outcome =
        run("check attention_fwd:b2:hq2:sq64:d8:block_rows=16:block_cols=16:block_counts:"
            "block_indices[b,1,4,2] --impl scalar --seed " +
            std::to_string(seed));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  }
}

TEST_F(Program, CheckFindsAWrongResultOfTheFile) {
  const std::string in = input_file();
  TensorFile file = read_safetensors(in);
  file.tensors["out"] = file.tensors.at("v");
  write_safetensors(path("wrong.safetensors"), file.tensors);
  const Outcome outcome = run("attend " + path("wrong.safetensors") + " --check");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.text;
  EXPECT_NE(outcome.text.find("the input file's own"), std::string::npos) << outcome.text;
}

TEST_F(Program, UnusedTensorsAreNamed) {
  TensorFile file = read_safetensors(input_file());
  file.tensors["extra"] = file.tensors.at("v");
  write_safetensors(path("more.safetensors"), file.tensors);
  const Outcome outcome = run("attend " + path("more.safetensors"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_NE(outcome.text.find("'extra' is not used"), std::string::npos) << outcome.text;
}

TEST_F(Program, EveryImplementationIsCheckedAndExplained) {
  const Outcome check = run("check attention_fwd:b1:hq2:sq9:d8:causal attention_bwd:b1:hq2:sq9:d8");
  EXPECT_EQ(check.exit_code, 0) << check.text;
  const Outcome explain = run("explain attention_fwd:b1:hq2:sq9:d8:causal");
  EXPECT_EQ(explain.exit_code, 0) << explain.text;
  const Outcome info = run("info");
  EXPECT_EQ(info.exit_code, 0) << info.text;
  for (const OpSpec* spec : all_ops()) {
    for (const std::string& name : spec->implementations()) {
      EXPECT_NE(info.text.find(name), std::string::npos) << name;
      if (spec->name != "attention_fwd") continue;
      EXPECT_NE(check.text.find(name), std::string::npos) << name;
      EXPECT_NE(explain.text.find(name), std::string::npos) << name;
    }
  }
}

TEST_F(Program, BenchGivesOneJsonObjectALine) {
  const std::string problem = "attention_fwd:b1:hq2:sq64:d16:causal";
  for (const char* pass : {"fwd", "bwd", "fwd+bwd"}) {
    const Outcome outcome =
        run("bench " + problem + " --json --seconds 0.02 --pass " + std::string(pass));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
    const auto line = nlohmann::json::parse(outcome.text);
    EXPECT_EQ(line.at("problem"), problem);
    EXPECT_EQ(line.at("op"), pass);
    EXPECT_GT(line.at("ms"), 0);
    EXPECT_LE(line.at("ms_min"), line.at("ms"));
    EXPECT_GE(line.at("ms_max"), line.at("ms"));
    EXPECT_GT(line.at("gflops"), 0);
    EXPECT_GT(line.at("peak_gflops"), 0);
    EXPECT_GT(line.at("plain_ms"), 0);
    EXPECT_GE(line.at("max_err"), 0);
    EXPECT_GE(line.at("threads"), 1);
    EXPECT_TRUE(line.at("impl").get<std::string>().starts_with("attention_"));
  }
}

TEST_F(Program, BenchPrintsTheShareOfTheBandwidth) {
  const Outcome outcome =
      run("bench attention_fwd:b1:hq2:sq1:sk64:d16 --json --roofline --no-plain --seconds 0.02");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_GT(nlohmann::json::parse(outcome.text).at("read_gbytes_per_s"), 0);
}

}  // namespace
}  // namespace flashtile::cli
