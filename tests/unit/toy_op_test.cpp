// SPDX-License-Identifier: Apache-2.0
//
// What an op gets from its table alone. scale_rows is known to nothing but toy_op.cpp; validation
// and problem texts of it are tested in validate_test.cpp and problem_text_test.cpp.
#include "toy_op.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "command_runs.hpp"
#include "files/safetensors.hpp"
#include "flashtile/error.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/flashtile.h"
#include "golden_case.hpp"

namespace flashtile {
namespace {

constexpr int64_t kBatch = 2, kRows = 3, kCols = 4;
constexpr size_t kCount = kBatch * kRows * kCols;

/// Inputs, and what scale_rows makes of them, worked out here.
struct Example {
  std::vector<float> x, factor, bias, dy;
  std::vector<double> y, dx, dfactor;
  double shift = 0.5;

  Example() {
    for (size_t i = 0; i < kCount; ++i) {
      x.push_back(static_cast<float>(i) / 8 - 1);
      dy.push_back(static_cast<float>(i % 5) - 2);
    }
    factor = {2, -1, 0.25f};
    bias = {0, 1, 2, 3};
    dfactor.assign(kRows, 0.0);
    for (size_t i = 0; i < kCount; ++i) {
      const size_t r = i / kCols % kRows;
      const size_t c = i % kCols;
      y.push_back(-(double{x[i]} * double{factor[r]} + double{bias[c]} + shift));
      dx.push_back(-double{dy[i]} * double{factor[r]});
      dfactor[r] -= double{dy[i]} * double{x[i]};
    }
  }
};

class ToyOpTest : public testing::Test {
 protected:
  void SetUp() override { toy::register_scale_rows(); }
  Example example_;
};

TEST_F(ToyOpTest, ExplainsItself) {
  const Explanation explanation = explain("scale_rows:b2:r3:dx=none:dfactor=none:f64");
  EXPECT_EQ(explanation.chosen, "scale_rows_reference");
  EXPECT_EQ(explanation.plan, "loops");
  ASSERT_EQ(explanation.candidates.size(), 2u);
  EXPECT_EQ(explanation.candidates[0].refusal, "dtype is not f32");
  EXPECT_EQ(to_string(explanation),
            "problem: scale_rows:b2:r3:dx=none:dfactor=none:f64\n"
            "chosen:  scale_rows_reference\n"
            "plan:    loops\n"
            "  scale_rows_float: dtype is not f32\n"
            "  scale_rows_reference: takes it\n");
  EXPECT_TRUE(supports("scale_rows:r3:dx=none:dfactor=none"));
  EXPECT_TRUE(supports("scale_rows:r3:dx=none:dfactor=none@float"));
  EXPECT_FALSE(supports("scale_rows:r3:dx=none:dfactor=none:f64@float"));
  EXPECT_THROW(supports("scale_rows:r3:dx=none:dfactor=none@what"), Error);
  EXPECT_EQ(implementations("scale_rows"),
            (std::vector<std::string>{"scale_rows_float", "scale_rows_reference"}));
  EXPECT_THROW(implementations("scale_columns"), Error);
}

TEST_F(ToyOpTest, RunsThroughTheCFace) {
  const int64_t shape[] = {kBatch, kRows, kCols};
  const int64_t shape_factor[] = {kRows};
  const int64_t shape_bias[] = {1, kCols};
  std::array<float, kCount> y{}, dx{};
  std::array<float, kRows> dfactor{};
  flashtile_call* call = flashtile_call_new("scale_rows");
  ASSERT_NE(call, nullptr);
  const auto set = [&](const char* name, void* data, int32_t ndim, const int64_t* dims) {
    const flashtile_tensor tensor = flashtile_cpu_tensor(data, FLASHTILE_F32, ndim, dims);
    EXPECT_EQ(flashtile_call_set_tensor(call, name, &tensor), FLASHTILE_OK)
        << flashtile_last_error();
  };
  set("x", example_.x.data(), 3, shape);
  set("factor", example_.factor.data(), 1, shape_factor);
  set("bias", example_.bias.data(), 2, shape_bias);
  set("y", y.data(), 3, shape);
  EXPECT_EQ(flashtile_call_set_float(call, "shift", example_.shift), FLASHTILE_OK);
  EXPECT_EQ(flashtile_call_set_bool(call, "negate", 1), FLASHTILE_OK);
  for (const char* implementation : {"scale_rows_float", "scale_rows_reference"}) {
    y.fill(-77);
    flashtile_context context;
    flashtile_context_init(&context, sizeof(context));
    context.implementation = implementation;
    ASSERT_EQ(flashtile_call_run(&context, call), FLASHTILE_OK) << flashtile_last_error();
    for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(y[i], example_.y[i], 1e-6);
  }
  set("dy", example_.dy.data(), 3, shape);
  set("dx", dx.data(), 3, shape);
  set("dfactor", dfactor.data(), 1, shape_factor);
  ASSERT_EQ(flashtile_call_run(nullptr, call), FLASHTILE_OK) << flashtile_last_error();
  for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(dx[i], example_.dx[i], 1e-6);
  for (size_t r = 0; r < kRows; ++r) EXPECT_NEAR(dfactor[r], example_.dfactor[r], 1e-5);

  EXPECT_EQ(flashtile_call_set_int(call, "repeat", 9), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_STREQ(flashtile_last_error(),
               "scale_rows: repeat is 9, expected at least 1 and at most 8");
  set("factor", example_.factor.data(), 2, shape);
  EXPECT_EQ(flashtile_call_run(nullptr, call), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_STREQ(flashtile_last_error(),
               "scale_rows: shape of dfactor is (3), expected that of factor (2, 3)");
  flashtile_call_free(call);
}

TEST_F(ToyOpTest, IsCheckedByTheProgram) {
  std::string output;
  const std::vector<const char*> problems = {
      "scale_rows:b2:r5:c7:dy:f32",
      "scale_rows:b3:r4:c1:bias[1,c]:num_used={4,0,2}:shift=-2:negate:table.t[5]:dy:f32",
      "scale_rows:b2:r5:factor[b,r]:repeat=3:limit=2:form=square:extra.e=0.5:dx=none:dfactor=none",
  };
  for (const char* problem : problems) {
    EXPECT_EQ(run_cli({"check", problem}, &output), 0) << output;
    EXPECT_NE(output.find("scale_rows_float"), std::string::npos) << output;
    EXPECT_EQ(output.find("FAIL"), std::string::npos) << output;
  }
  EXPECT_EQ(run_cli({"explain", "scale_rows:b2:dx=none:dfactor=none"}, &output), 0);
  EXPECT_NE(output.find("chosen:  scale_rows_float"), std::string::npos) << output;
  EXPECT_THROW(run_cli({"check", "scale_rows:b2:what"}, &output), Error);
}

void write_golden(const std::string& path, Example& example) {
  const int64_t shape[] = {kBatch, kRows, kCols};
  const auto floats = [](std::vector<float>& values, std::span<const int64_t> dims) {
    return TensorView(values.data(), DType::kF32, dims);
  };
  const auto doubles = [](std::vector<double>& values, std::span<const int64_t> dims) {
    return TensorView(values.data(), DType::kF64, dims);
  };
  const int64_t rows[] = {kRows};
  const int64_t bias[] = {1, kCols};
  cli::write_safetensors(path,
                         {{"x", floats(example.x, shape)},
                          {"factor", floats(example.factor, rows)},
                          {"bias", floats(example.bias, bias)},
                          {"dy", floats(example.dy, shape)},
                          {"expect.y", doubles(example.y, shape)},
                          {"expect.dx", doubles(example.dx, shape)},
                          {"expect.dfactor", doubles(example.dfactor, rows)}},
                         {{"case_version", "1"},
                          {"name", "toy"},
                          {"op", "scale_rows"},
                          {"note", ""},
                          {"dtype", "f32"},
                          {"options", R"({"shift": 0.5, "negate": true, "limit": null})"},
                          {"plain_err", R"({"y": 1e-7, "dx": 1e-7, "dfactor": 1e-6})"},
                          {"floor", R"({"y": 1e-6, "dx": 1e-6, "dfactor": 1e-6})"}});
}

TEST_F(ToyOpTest, GoldenFilesAreReadByTheTable) {
  const Folder folder;
  write_golden(folder.file("toy.safetensors"), example_);
  const cli::CheckCase check_case = cli::read_golden_case(folder.file("toy.safetensors"));
  ASSERT_EQ(check_case.unsupported, "");
  ASSERT_EQ(check_case.steps.size(), 1u);
  const OpCall& call = check_case.steps[0].owned.call;
  EXPECT_EQ(call.spec().name, "scale_rows");
  EXPECT_EQ(call.option("shift"), OptionValue(0.5));
  EXPECT_EQ(call.option("negate"), OptionValue(true));
  EXPECT_EQ(to_string(call.tensor("dx")), "f32 (2, 3, 4)");

  std::string output;
  EXPECT_EQ(run_cli({"check", "--golden", folder.path(), "-v"}, &output), 0) << output;
  EXPECT_NE(output.find("ok   toy  scale_rows_float"), std::string::npos) << output;
  EXPECT_NE(output.find("ok   toy  scale_rows_reference"), std::string::npos) << output;
  // The check sees a wrong expectation.
  example_.dfactor[1] += 1e-3;
  write_golden(folder.file("toy.safetensors"), example_);
  EXPECT_EQ(run_cli({"check", "--golden", folder.path()}, &output), 1) << output;
  EXPECT_NE(output.find("FAIL toy  scale_rows_float  dfactor"), std::string::npos) << output;
}

}  // namespace
}  // namespace flashtile
