// SPDX-License-Identifier: Apache-2.0
#include "flashtile/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "flashtile/error.hpp"

namespace flashtile {
namespace {

const std::vector<DType> kAll = {DType::kF32, DType::kF16,  DType::kBF16, DType::kF64,
                                 DType::kI32, DType::kI64,  DType::kU8,   DType::kBool,
                                 DType::kI8,  DType::kE4M3, DType::kE5M2};

TEST(DTypeTest, NamesAreDistinctAndReadBack) {
  for (DType dtype : kAll) EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
  EXPECT_EQ(dtype_from_name("float32"), DType::kNone);
  EXPECT_EQ(dtype_from_name(""), DType::kNone);
  EXPECT_EQ(dtype_name(DType::kNone), "none");
}

TEST(DTypeTest, BytesFollowTheName) {
  EXPECT_EQ(dtype_bytes(DType::kNone), 0);
  EXPECT_EQ(dtype_bytes(DType::kE4M3), 1);
  EXPECT_EQ(dtype_bytes(DType::kBool), 1);
  EXPECT_EQ(dtype_bytes(DType::kF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kBF16), 2);
  EXPECT_EQ(dtype_bytes(DType::kI32), 4);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8);
  EXPECT_EQ(dtype_bytes(DType::kF64), 8);
}

TEST(DTypeTest, NumberThatIsNoDTypeIsNone) {
  const auto odd = static_cast<DType>(99);
  EXPECT_EQ(dtype_bytes(odd), 0);
  EXPECT_EQ(dtype_name(odd), "none");
  EXPECT_FALSE(is_floating(odd));
}

TEST(DTypeTest, FloatingAreTheFourThatOpsCompute) {
  int count = 0;
  for (DType dtype : kAll) count += is_floating(dtype) ? 1 : 0;
  EXPECT_EQ(count, 4);
  EXPECT_TRUE(is_floating(DType::kBF16));
  EXPECT_FALSE(is_floating(DType::kE4M3));
}

TEST(TensorViewTest, DefaultIsNoTensor) {
  const TensorView none;
  EXPECT_FALSE(none);
  EXPECT_EQ(to_string(none), "none");
}

TEST(TensorViewTest, ContiguousStridesAreRowMajor) {
  std::vector<float> data(2 * 3 * 5);
  const TensorView view(data.data(), DType::kF32, {2, 3, 5});
  EXPECT_TRUE(view);
  EXPECT_EQ(view.numel(), 30);
  int64_t position = 0;
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 5; ++k) {
        EXPECT_EQ(view.at({i, j, k}), reinterpret_cast<char*>(data.data() + position++));
      }
    }
  }
}

TEST(TensorViewTest, TransposedAndSlicedReadTheSameMemory) {
  std::vector<int16_t> data(4 * 6);
  const TensorView view(data.data(), DType::kF16, {4, 6});
  const TensorView turned = view.transposed(0, 1);
  EXPECT_EQ(turned.shape[0], 6);
  EXPECT_EQ(turned.at({5, 2}), view.at({2, 5}));
  const TensorView part = turned.sliced(0, 1, 4).sliced(1, 2, 4);
  EXPECT_EQ(part.shape[0], 3);
  EXPECT_EQ(part.shape[1], 2);
  EXPECT_EQ(part.at({2, 1}), view.at({3, 3}));
  EXPECT_EQ(view.sliced(0, 4, 4).numel(), 0);
}

TEST(TensorViewTest, NegativeAndZeroStrides) {
  std::vector<double> data(4);
  const int64_t shape[] = {3, 4};
  const int64_t strides[] = {0, -1};
  const TensorView view(data.data() + 3, DType::kF64, shape, strides);
  EXPECT_EQ(view.at({2, 3}), reinterpret_cast<char*>(data.data()));
  EXPECT_EQ(view.at({0, 0}), reinterpret_cast<char*>(data.data() + 3));
}

TEST(TensorViewTest, NoDimensionsIsOneElement) {
  float value = 0;
  const TensorView view(&value, DType::kF32, std::initializer_list<int64_t>{});
  EXPECT_EQ(view.numel(), 1);
  EXPECT_EQ(view.at({}), reinterpret_cast<char*>(&value));
  EXPECT_EQ(to_string(view), "f32 ()");
}

TEST(TensorViewTest, TextHasStridesOnlyWhereTheyMatter) {
  std::vector<float> data(2 * 3 * 4);
  const TensorView view(data.data(), DType::kF32, {2, 3, 4});
  EXPECT_EQ(to_string(view), "f32 (2, 3, 4)");
  EXPECT_EQ(to_string(view.transposed(0, 2)), "f32 (4, 3, 2) strides (1, 4, 12)");
  EXPECT_EQ(to_string(view.sliced(0, 1, 2)), "f32 (1, 3, 4)");
  EXPECT_EQ(to_string(view.sliced(2, 0, 2)), "f32 (2, 3, 2) strides (12, 4, 1)");
  EXPECT_EQ(to_string(view.sliced(2, 2, 2)), "f32 (2, 3, 0)");
}

TEST(TensorViewTest, RefusesWhatItCannotDescribe) {
  EXPECT_THROW(TensorView(nullptr, DType::kF32, {1, 1, 1, 1, 1, 1, 1, 1, 1}), Error);
  const int64_t half = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_THROW(TensorView(nullptr, DType::kF32, {half, 3}), Error);
  const int64_t shape[] = {2, 3};
  const int64_t strides[] = {1};
  EXPECT_THROW(TensorView(nullptr, DType::kF32, shape, strides), Error);
  const TensorView view(nullptr, DType::kF32, {2, 3});
  EXPECT_THROW(view.transposed(0, 2), Error);
  EXPECT_THROW(view.transposed(-1, 0), Error);
  EXPECT_THROW(view.sliced(1, 2, 4), Error);
  EXPECT_THROW(view.sliced(1, 2, 1), Error);
  EXPECT_THROW(view.sliced(1, -1, 1), Error);
}

TEST(TensorViewTest, ErrorNamesWhatWasFoundAndExpected) {
  try {
    (void)TensorView(nullptr, DType::kF32, {2, 3}).sliced(1, 2, 4);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()),
              "TensorView: sliced: range is [2, 4), expected one inside [0, 3)");
  }
}

}  // namespace
}  // namespace flashtile
