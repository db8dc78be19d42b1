// SPDX-License-Identifier: Apache-2.0
#include "core/validate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>

#include "flashtile/error.hpp"
#include "toy_op.hpp"

namespace flashtile {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

/// A good call of scale_rows, b2 r3 c4, that each test spoils in one way.
class ValidateTest : public testing::Test {
 protected:
  ValidateTest() {
    args_.x = TensorView(x_.data(), DType::kF32, {2, 3, 4});
    args_.factor = TensorView(factor_.data(), DType::kF32, {3});
    args_.y = TensorView(y_.data(), DType::kF32, {2, 3, 4});
  }

  std::string error(bool has_memory = true) const {
    try {
      const OpSpec& spec = toy::scale_rows_spec();
      has_memory ? validate_call(spec, &args_) : validate_shapes(spec, &args_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "no error";
  }

  toy::ScaleRowsArgs args_;
  std::array<float, 64> x_{};
  std::array<float, 16> factor_{};
  std::array<float, 64> y_{};
  std::array<float, 64> more_{};
  std::array<int32_t, 16> ints_{};
};

TEST_F(ValidateTest, GoodCallsGiveTheirSizes) {
  EXPECT_EQ(validate_call(toy::scale_rows_spec(), &args_),
            (Sizes{{"batch_size", 2}, {"num_rows", 3}, {"num_cols", 4}}));
}

TEST_F(ValidateTest, RequiredTensors) {
  args_.factor = {};
  EXPECT_EQ(error(), "scale_rows: factor is missing");
}

TEST_F(ValidateTest, SizesMustAgree) {
  args_.factor = TensorView(factor_.data(), DType::kF32, {5});
  EXPECT_EQ(error(), "scale_rows: num_rows of factor is 5, of x 3");
  args_.factor = TensorView(factor_.data(), DType::kF32, {2, 4});
  EXPECT_EQ(error(), "scale_rows: num_rows of factor is 4, of x 3");
}

TEST_F(ValidateTest, NumbersOfDimensions) {
  args_.y = TensorView(y_.data(), DType::kF32, {2, 3});
  EXPECT_EQ(error(),
            "scale_rows: y has 2 dimensions (shape 2, 3), expected 3: (batch_size, num_rows, "
            "num_cols)");
  args_.y = TensorView(y_.data(), DType::kF32, {2, 3, 4});
  args_.factor = TensorView(factor_.data(), DType::kF32, {1, 2, 3});
  EXPECT_EQ(error(),
            "scale_rows: factor has 3 dimensions (shape 1, 2, 3), expected 1: (num_rows) or 2: "
            "(batch_size, num_rows)");
  args_.factor.ndim = 9;
  EXPECT_EQ(error(), "scale_rows: factor has 9 dimensions, expected 0 to 8");
  args_.factor.ndim = -1;
  EXPECT_EQ(error(), "scale_rows: factor has -1 dimensions, expected 0 to 8");
}

TEST_F(ValidateTest, BroadcastDimensions) {
  args_.bias = TensorView(more_.data(), DType::kF32, {1, 4});
  EXPECT_EQ(error(), "no error");
  args_.bias = TensorView(more_.data(), DType::kF32, {2, 4});
  EXPECT_EQ(error(), "no error");
  args_.bias = TensorView(more_.data(), DType::kF32, {3, 4});
  EXPECT_EQ(error(), "scale_rows: batch_size of bias is 3, expected 1 or that of x (2)");
  args_.bias = TensorView(more_.data(), DType::kF32, {1, 1});
  EXPECT_EQ(error(), "scale_rows: num_cols of bias is 1, of x 4");
}

TEST_F(ValidateTest, Dtypes) {
  args_.x.dtype = DType::kI32;
  EXPECT_EQ(error(), "scale_rows: dtype of x is i32, expected f32 or f64");
  args_.x.dtype = DType::kF32;
  args_.y.dtype = DType::kU8;
  EXPECT_EQ(error(), "scale_rows: dtype of y is u8, expected that of x (f32) or f32");
  args_.y.dtype = DType::kF32;
  args_.dy = TensorView(more_.data(), DType::kF16, {2, 3, 4});
  EXPECT_EQ(error(), "scale_rows: dtype of dy is f16, expected that of x (f32)");
  args_.dy.dtype = static_cast<DType>(77);
  EXPECT_EQ(error(), "scale_rows: dtype of dy is the unknown code 77");
}

TEST_F(ValidateTest, NegativeSizes) {
  args_.x.shape[1] = -3;
  EXPECT_EQ(error(), "scale_rows: dimension 1 of x is -3, expected at least 0");
}

TEST_F(ValidateTest, ProductsThatOverflow) {
  const char* expected = "scale_rows: x spans more bytes than 64 bits address: f32";
  for (const std::array<int64_t, 3>& shape : {std::array<int64_t, 3>{kMax, 3, 4},
                                              {1 << 30, 1 << 30, 4},
                                              {kMax, kMax, kMax},
                                              {0, kMax, kMax}}) {
    std::copy(shape.begin(), shape.end(), args_.x.shape.begin());
    EXPECT_EQ(error().substr(0, 56), expected) << shape[0];
  }
  args_.x = TensorView(x_.data(), DType::kF32, {2, 3, 4});
  for (int64_t stride : {kMax, std::numeric_limits<int64_t>::min(), kMax / 4, -kMax / 4}) {
    args_.x.strides[0] = stride;
    EXPECT_EQ(error().substr(0, 56), expected) << stride;
  }
}

TEST_F(ValidateTest, NullAndMisalignedData) {
  args_.x.data = nullptr;
  EXPECT_EQ(error(), "scale_rows: data of x is null, expected memory for 24 elements");
  EXPECT_EQ(error(/*has_memory=*/false), "no error");
  args_.x.data = reinterpret_cast<char*>(x_.data()) + 2;
  EXPECT_EQ(error(), "scale_rows: data of x lies 2 bytes behind a multiple of its element size, 4");
}

TEST_F(ValidateTest, EmptyTensorsNeedNoData) {
  args_.x = TensorView(nullptr, DType::kF32, {2, 0, 4});
  args_.factor = TensorView(nullptr, DType::kF32, {0});
  args_.y = TensorView(nullptr, DType::kF32, {2, 0, 4});
  EXPECT_EQ(error(), "no error");
}

TEST_F(ValidateTest, DevicesMustBeOne) {
  args_.factor.device = {DeviceType::kCuda, 1};
  EXPECT_EQ(error(), "scale_rows: device of factor is cuda:1, of x cpu:0");
  args_.x.device = args_.y.device = args_.factor.device;
  EXPECT_EQ(error(), "no error");  // implementations say what they take
}

TEST_F(ValidateTest, OutputsMayNotRepeatElements) {
  args_.y.strides[0] = 0;
  EXPECT_EQ(error().substr(0, 50), "scale_rows: elements of output y share memory: f32");
  EXPECT_EQ(error(/*has_memory=*/false), error());
  args_.y.strides[0] = 12;
  args_.x.strides[0] = 0;  // inputs may
  EXPECT_EQ(error(), "no error");
}

TEST_F(ValidateTest, OutputsMayNotOverlapAnything) {
  args_.y.data = x_.data() + 23;
  EXPECT_EQ(error(), "scale_rows: output y shares memory with x: f32 (2, 3, 4) and f32 (2, 3, 4)");
  args_.y.data = x_.data() + 24;
  EXPECT_EQ(error(), "no error");
  args_.dy = TensorView(more_.data(), DType::kF32, {2, 3, 4});
  args_.dx = args_.y;
  EXPECT_EQ(error(), "scale_rows: output y shares memory with dx: f32 (2, 3, 4) and f32 (2, 3, 4)");
  args_.dx = {};
  args_.tables.push_back({"t", TensorView(x_.data() + 24, DType::kF32, {2}), {}});
  EXPECT_EQ(error(), "scale_rows: output y shares memory with table.t: f32 (2, 3, 4) and f32 (2)");
}

TEST_F(ValidateTest, InterleavedOutputsAreLegal) {
  const int64_t shape[] = {2, 3, 4};
  const int64_t strides[] = {24, 8, 2};
  args_.x = TensorView(more_.data(), DType::kF32, shape, strides);
  args_.y = TensorView(more_.data() + 1, DType::kF32, shape, strides);
  EXPECT_EQ(error(), "no error");
}

TEST_F(ValidateTest, InputsMayOverlap) {
  args_.factor = TensorView(x_.data(), DType::kF32, {3});
  args_.dy = args_.x;
  EXPECT_EQ(error(), "no error");
}

TEST_F(ValidateTest, GradientsFollowTheirInput) {
  args_.dfactor = TensorView(more_.data(), DType::kF32, {4});
  EXPECT_EQ(error(), "scale_rows: shape of dfactor is (4), expected that of factor (3)");
  args_.dfactor = TensorView(more_.data(), DType::kF32, {3});
  EXPECT_EQ(error(), "no error");
  args_.tables.push_back({"t", {}, TensorView(more_.data() + 8, DType::kF32, {2})});
  EXPECT_EQ(error(), "scale_rows: dtable.t is given without table.t");
  args_.tables[0].tensor = TensorView(more_.data() + 16, DType::kI32, {2});
  EXPECT_EQ(error(), "no error");
  args_.tables[0].tensor.shape[0] = 1;
  EXPECT_EQ(error(), "scale_rows: shape of dtable.t is (2), expected that of table.t (1)");
}

TEST_F(ValidateTest, FamiliesAreChecked) {
  args_.tables.push_back({"t", TensorView(more_.data(), DType::kF64, {2}), {}});
  EXPECT_EQ(error(), "scale_rows: dtype of table.t is f64, expected f32 or i32");
}

TEST_F(ValidateTest, OptionsSetDirectlyAreCheckedToo) {
  args_.repeat = 0;
  EXPECT_EQ(error(), "scale_rows: repeat is 0, expected at least 1 and at most 8");
  args_.repeat = 1;
  args_.limit = 0.0;
  EXPECT_EQ(error(), "scale_rows: limit is 0, expected more than 0");
  args_.limit = 1.0;
  args_.extras.push_back({"e", std::numeric_limits<double>::infinity()});
  EXPECT_EQ(error(), "scale_rows: extra.e is inf, expected a finite number");
}

}  // namespace
}  // namespace flashtile
