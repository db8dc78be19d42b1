// SPDX-License-Identifier: Apache-2.0
//
// What an op of linear attention gets from its entry alone. leaky_sum is known to nothing but
// tests/support/toy_linear_op.cpp, where it is as docs/adding.md says. Its finite differences,
// parts, packed sequences, resets and steps are among those of all ops (for_each_linear_case).
#include "support/toy_linear_op.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "command_runs.hpp"
#include "files/safetensors.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/flashtile.h"
#include "golden_case.hpp"

namespace flashtile {
namespace {

constexpr int64_t kBatch = 2, kRows = 4, kHeads = 2, kDim = 3;
constexpr size_t kCount = kBatch * kRows * kHeads * kDim;
constexpr int64_t kShapeX[] = {kBatch, kRows, kHeads, kDim};
constexpr int64_t kShapeG[] = {kBatch, kRows, kHeads};
constexpr int64_t kShapeD[] = {kHeads};

int64_t gate_place(int64_t b, int64_t t, int64_t h) { return (b * kRows + t) * kHeads + h; }

/// Inputs, and what leaky_sum makes of them: not row by row, but as a sum over all earlier rows.
struct LeakyExample {
  std::vector<float> x, g, skip, dout;
  std::vector<double> out, dx, dg, dskip;
  double scale = 0.5;

  LeakyExample() {
    for (size_t i = 0; i < kCount; ++i) {
      x.push_back(static_cast<float>(i * 7 % 11) / 4 - 1);
      dout.push_back(static_cast<float>(i * 5 % 13) / 8 - 0.5f);
    }
    for (size_t i = 0; i < kCount / kDim; ++i) g.push_back(-static_cast<float>(i % 3) / 4);
    skip = {2, -0.75f};
    out.assign(kCount, 0.0);
    dx.assign(kCount, 0.0);
    dg.assign(kCount / kDim, 0.0);
    dskip.assign(kHeads, 0.0);
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < kHeads; ++h) {
        for (int64_t t = 0; t < kRows; ++t) {
          for (int64_t s = 0; s <= t; ++s) add_pair(b, h, t, s);
        }
      }
    }
  }

 private:
  /// What row t takes from row s.
  void add_pair(int64_t b, int64_t h, int64_t t, int64_t s) {
    double log_weight = 0;
    for (int64_t r = s + 1; r <= t; ++r) {
      log_weight += double{g[static_cast<size_t>(gate_place(b, r, h))]};
    }
    const auto head = static_cast<size_t>(h);
    const double own = s == t ? double{skip[head]} : 0;
    const double weight = scale * std::exp(log_weight) + own;
    for (int64_t i = 0; i < kDim; ++i) {
      const auto to = static_cast<size_t>(gate_place(b, t, h) * kDim + i);
      const auto from = static_cast<size_t>(gate_place(b, s, h) * kDim + i);
      const double product = double{dout[to]} * double{x[from]};
      out[to] += weight * double{x[from]};
      dx[from] += weight * double{dout[to]};
      if (s == t) dskip[head] += product;
      for (int64_t r = s + 1; r <= t; ++r) {
        dg[static_cast<size_t>(gate_place(b, r, h))] += weight * product;
      }
    }
  }
};

TensorView view(std::vector<float>& values, std::span<const int64_t> shape) {
  return TensorView(values.data(), DType::kF32, shape);
}

void expect_near(const std::vector<float>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(double{found[i]}, expected[i], 1e-5) << i;
}

class ToyLinearOpTest : public testing::Test {
 protected:
  void SetUp() override { toy::leaky_sum_specs(); }

  LinearArgs args() {
    LinearArgs args;
    args.inputs.v = view(example_.x, kShapeX);
    args.inputs.g = view(example_.g, kShapeG);
    args.inputs.D = view(example_.skip, kShapeD);
    args.scale = example_.scale;
    return args;
  }

  LeakyExample example_;
};

TEST_F(ToyLinearOpTest, TablesComeFromTheEntry) {
  const auto names = [](const char* op) {
    std::vector<std::string> found;
    for (const TensorSpec& row : find_op(op)->tensors) found.emplace_back(row.name);
    return found;
  };
  EXPECT_EQ(names("leaky_sum_fwd"),
            (std::vector<std::string>{"x", "g", "D", "cu_seqlens", "initial_state", "out",
                                      "final_state"}));
  EXPECT_EQ(names("leaky_sum_bwd"),
            (std::vector<std::string>{"x", "g", "D", "cu_seqlens", "initial_state", "dout",
                                      "dfinal_state", "dx", "dg", "dD", "dinitial_state"}));
  EXPECT_EQ(names("leaky_sum_step"),
            (std::vector<std::string>{"x", "g", "D", "state_slots", "state", "out"}));
  // No kernel takes a recurrence that it does not know.
  for (const OpSpec* spec : toy::leaky_sum_specs()) {
    EXPECT_EQ(spec->implementations(),
              std::vector<std::string>{std::string(spec->name) + "_reference"});
  }
  EXPECT_TRUE(supports("leaky_sum_fwd:cu_seqlens={0,3,3,5}:hq2:d3:bf16"));
}

TEST_F(ToyLinearOpTest, HasTheFunctionsOfItsHeader) {
  std::vector<float> out(kCount), dx(kCount), dg(kCount / kDim), dskip(kHeads);
  LinearArgs forward = args();
  forward.out = view(out, kShapeX);
  toy::leaky_sum_fwd(forward);
  expect_near(out, example_.out);

  LinearArgs backward = args();
  backward.dout = view(example_.dout, kShapeX);
  backward.gradients.v = view(dx, kShapeX);
  backward.gradients.g = view(dg, kShapeG);
  backward.gradients.D = view(dskip, kShapeD);
  toy::leaky_sum_bwd(backward);
  expect_near(dx, example_.dx);
  expect_near(dg, example_.dg);
  expect_near(dskip, example_.dskip);

  const int64_t shape_state[] = {kBatch, kHeads, kDim};
  std::vector<float> state(kBatch * kHeads * kDim), row_out(state.size());
  for (int64_t t = 0; t < kRows; ++t) {
    LinearArgs step = args();
    const int64_t strides_x[] = {kRows * kHeads * kDim, kDim, 1};
    const int64_t strides_g[] = {kRows * kHeads, 1};
    step.inputs.v = TensorView(&example_.x[static_cast<size_t>(gate_place(0, t, 0) * kDim)],
                               DType::kF32, shape_state, strides_x);
    step.inputs.g = TensorView(&example_.g[static_cast<size_t>(gate_place(0, t, 0))], DType::kF32,
                               std::span(shape_state).first(2), strides_g);
    step.states.state = view(state, shape_state);
    step.out = view(row_out, shape_state);
    toy::leaky_sum_step(step);
    for (size_t i = 0; i < row_out.size(); ++i) {
      const auto b = static_cast<int64_t>(i) / (kHeads * kDim);
      const int64_t place = gate_place(b, t, 0) * kDim + static_cast<int64_t>(i) % (kHeads * kDim);
      EXPECT_NEAR(double{row_out[i]}, example_.out[static_cast<size_t>(place)], 1e-5)
          << "row " << t;
    }
  }
}

std::string error_of(const LinearArgs& args) {
  try {
    toy::leaky_sum_fwd(args);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_F(ToyLinearOpTest, IsValidated) {
  std::vector<float> out(kCount);
  LinearArgs good = args();
  good.out = view(out, kShapeX);
  LinearArgs bad = good;
  bad.inputs.g = view(example_.g, kShapeX);
  EXPECT_EQ(
      error_of(bad),
      "leaky_sum_fwd: g has 4 dimensions (shape 2, 4, 2, 3), expected 3: (batch_size, seqlen, "
      "num_heads)");
  bad = good;
  bad.inputs.q = good.inputs.v;
  EXPECT_EQ(error_of(bad), "leaky_sum_fwd: there is no tensor 'q', which linear_attention_fwd has");
  bad = good;
  bad.out = {};
  EXPECT_EQ(error_of(bad), "leaky_sum_fwd: out is missing");
}

TEST_F(ToyLinearOpTest, RunsThroughTheCFace) {
  flashtile_call* call = flashtile_call_new("leaky_sum_bwd");
  ASSERT_NE(call, nullptr);
  std::vector<float> dx(kCount), dg(kCount / kDim);
  const auto set = [&](const char* name, std::vector<float>& values,
                       std::span<const int64_t> shape) {
    const flashtile_tensor tensor = flashtile_cpu_tensor(
        values.data(), FLASHTILE_F32, static_cast<int32_t>(shape.size()), shape.data());
    EXPECT_EQ(flashtile_call_set_tensor(call, name, &tensor), FLASHTILE_OK)
        << flashtile_last_error();
  };
  set("x", example_.x, kShapeX);
  set("g", example_.g, kShapeG);
  set("D", example_.skip, kShapeD);
  set("dout", example_.dout, kShapeX);
  set("dx", dx, kShapeX);
  set("dg", dg, kShapeG);
  EXPECT_EQ(flashtile_call_set_float(call, "scale", example_.scale), FLASHTILE_OK);
  ASSERT_EQ(flashtile_call_run(nullptr, call), FLASHTILE_OK) << flashtile_last_error();
  expect_near(dx, example_.dx);
  expect_near(dg, example_.dg);
  EXPECT_EQ(flashtile_call_set_int(call, "layer", 1), FLASHTILE_INVALID_ARGUMENT);
  flashtile_call_free(call);
}

void write_golden(const std::string& path, LeakyExample& example) {
  const auto doubles = [](std::vector<double>& values, std::span<const int64_t> shape) {
    return TensorView(values.data(), DType::kF64, shape);
  };
  cli::write_safetensors(path,
                         {{"x", view(example.x, kShapeX)},
                          {"g", view(example.g, kShapeG)},
                          {"D", view(example.skip, kShapeD)},
                          {"dout", view(example.dout, kShapeX)},
                          {"expect.out", doubles(example.out, kShapeX)},
                          {"expect.dx", doubles(example.dx, kShapeX)},
                          {"expect.dg", doubles(example.dg, kShapeG)},
                          {"expect.dD", doubles(example.dskip, kShapeD)}},
                         {{"case_version", "1"},
                          {"name", "toy"},
                          {"op", "leaky_sum"},
                          {"note", ""},
                          {"dtype", "f32"},
                          {"options", R"({"scale": 0.5})"},
                          {"plain_err", R"({"out": 1e-7, "dx": 1e-7, "dg": 1e-7, "dD": 1e-7})"},
                          {"floor", R"({"out": 1e-6, "dx": 1e-6, "dg": 1e-6, "dD": 1e-6})"}});
}

TEST_F(ToyLinearOpTest, GoldenFilesAreJudgedByItsName) {
  const Folder folder;
  write_golden(folder.file("toy.safetensors"), example_);
  std::string output;
  // The program counts files that no kernel runs.
  EXPECT_EQ(run_cli({"check", "--golden", folder.path(), "-v", "--max-unsupported", "1"}, &output),
            0)
      << output;
  EXPECT_NE(output.find("ok   toy  leaky_sum_fwd_reference"), std::string::npos) << output;
  EXPECT_NE(output.find("ok   toy  leaky_sum_bwd_reference"), std::string::npos) << output;
  example_.dg[1] += 1e-3;
  write_golden(folder.file("toy.safetensors"), example_);
  EXPECT_EQ(run_cli({"check", "--golden", folder.path(), "--max-unsupported", "1"}, &output), 1)
      << output;
  EXPECT_NE(output.find("FAIL toy  leaky_sum_bwd_reference  dg"), std::string::npos) << output;
}

TEST_F(ToyLinearOpTest, IsKnownToTheProgram) {
  const Folder folder;
  std::string output;
  for (const char* problem :
       {"leaky_sum_fwd:b2:t5:hq2:d3:D:initial_state:final_state:scale=2",
        "leaky_sum_bwd:cu_seqlens={0,4,4,9}:hq2:d3:initial_state:dfinal_state:bf16",
        "leaky_sum_step:b2:hq2:d3:lines5:state_slots={3,0}:D:f16"}) {
    EXPECT_EQ(run_cli({"check", problem, "-v"}, &output), 0) << output;
    EXPECT_NE(output.find("ok "), std::string::npos) << output;
  }
  EXPECT_EQ(run_cli({"info", "leaky_sum_bwd"}, &output), 0);
  EXPECT_NE(output.find("gradients of a sum of each element that leaks"), std::string::npos)
      << output;
  EXPECT_EQ(run_cli({"explain", "leaky_sum_fwd:b2:t5:hq2:d3"}, &output), 0);
  EXPECT_NE(output.find("chosen:  leaky_sum_fwd_reference"), std::string::npos) << output;

  const std::string inputs = folder.file("in.safetensors");
  const std::string result = folder.file("out.safetensors");
  cli::write_safetensors(inputs,
                         {{"x", view(example_.x, kShapeX)},
                          {"g", view(example_.g, kShapeG)},
                          {"D", view(example_.skip, kShapeD)}},
                         {});
  EXPECT_EQ(run_cli({"attend", inputs, "--op", "leaky_sum_fwd", "--scale", "0.5", "-o", result},
                    &output, find_op("leaky_sum_fwd")),
            0)
      << output;
  const cli::TensorFile written = cli::read_safetensors(result);
  const auto* numbers = static_cast<const float*>(written.tensors.at("out").data);
  expect_near(std::vector<float>(numbers, numbers + kCount), example_.out);
}

}  // namespace
}  // namespace flashtile
