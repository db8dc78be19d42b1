// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>

#include "core/validate.hpp"

namespace flashtile {
namespace {

// Views need addresses, not memory.
const void* address(int64_t bytes) { return reinterpret_cast<const void*>(1000000 + bytes); }

TensorView view(int64_t byte_offset, DType dtype, std::vector<int64_t> shape,
                std::vector<int64_t> strides) {
  return TensorView(address(byte_offset), dtype, shape, strides);
}

/// All bytes of a view's elements, and whether two elements are the same.
struct Bytes {
  std::set<int64_t> bytes;
  bool has_twice = false;
};

Bytes bytes_of(const TensorView& v) {
  Bytes result;
  std::set<int64_t> elements;
  const auto visit = [&](auto&& self, size_t dim, int64_t offset) -> void {
    if (dim == static_cast<size_t>(v.ndim)) {
      const int64_t first = reinterpret_cast<intptr_t>(v.data) + offset * dtype_bytes(v.dtype);
      if (!elements.insert(first).second) result.has_twice = true;
      for (int64_t i = 0; i < dtype_bytes(v.dtype); ++i) result.bytes.insert(first + i);
      return;
    }
    for (int64_t i = 0; i < v.shape[dim]; ++i) self(self, dim + 1, offset + i * v.strides[dim]);
  };
  visit(visit, 0, 0);
  return result;
}

TEST(IsLeadingPart, TakesTheFirstColumnsOfTheSameRows) {
  const TensorView whole = view(0, DType::kBF16, {2, 9, 1, 72}, {648, 72, 72, 1});
  EXPECT_TRUE(is_leading_part(whole.sliced(3, 0, 64), whole));
  EXPECT_FALSE(is_leading_part(whole, whole));
  EXPECT_FALSE(is_leading_part(whole.sliced(3, 0, 0), whole));
  EXPECT_FALSE(is_leading_part(whole.sliced(3, 1, 65), whole));
  EXPECT_FALSE(is_leading_part(whole.sliced(1, 0, 8).sliced(3, 0, 64), whole));
  EXPECT_FALSE(is_leading_part(view(0, DType::kBF16, {2, 9, 1, 64}, {576, 64, 64, 1}), whole));
  EXPECT_FALSE(is_leading_part(view(0, DType::kF16, {2, 9, 1, 64}, {648, 72, 72, 1}), whole));
  // The stride of a single head is nobody's.
  EXPECT_TRUE(is_leading_part(view(0, DType::kBF16, {2, 9, 1, 64}, {648, 72, 5, 1}), whole));
  TensorView part = whole.sliced(3, 0, 64);
  part.device = {DeviceType::kCuda, 0};
  EXPECT_FALSE(is_leading_part(part, whole));
}

TEST(IsLeadingPart, IsToldByStridesWithoutMemory) {
  const std::vector<int64_t> rows = {9, 72}, row = {1, 72}, part = {9, 64}, contiguous = {64, 1};
  const TensorView whole(nullptr, DType::kBF16, rows);
  EXPECT_TRUE(is_leading_part(whole.sliced(1, 0, 64), whole));
  EXPECT_FALSE(is_leading_part(TensorView(nullptr, DType::kBF16, part, contiguous), whole));
  // One row says nothing.
  const TensorView single(nullptr, DType::kBF16, row);
  EXPECT_FALSE(is_leading_part(single.sliced(1, 0, 64), single));
}

TEST(ViewsOverlap, SlicesOfAPackedBufferAreApart) {
  // (batch, seqlen, 3, heads, head_dim), f32: q, k, v are interleaved.
  const int64_t b = 4, s = 1000, h = 16, d = 64;
  const std::vector<int64_t> shape = {b, s, h, d};
  const std::vector<int64_t> strides = {s * 3 * h * d, 3 * h * d, d, 1};
  const TensorView q = view(0, DType::kF32, shape, strides);
  const TensorView k = view(4 * h * d, DType::kF32, shape, strides);
  const TensorView v = view(8 * h * d, DType::kF32, shape, strides);
  EXPECT_FALSE(views_overlap(q, k));
  EXPECT_FALSE(views_overlap(k, v));
  EXPECT_FALSE(views_overlap(v, q));
  EXPECT_TRUE(views_overlap(q, view(4 * (h * d - 1), DType::kF32, shape, strides)));
  EXPECT_TRUE(views_overlap(q, view(4 * 3 * h * d, DType::kF32, shape, strides)));
}

TEST(ViewsOverlap, InterleavedColumnsAreApart) {
  const TensorView even = view(0, DType::kF32, {1000, 1000}, {2000, 2});
  const TensorView odd = view(4, DType::kF32, {1000, 1000}, {2000, 2});
  EXPECT_FALSE(views_overlap(even, odd));
  EXPECT_TRUE(views_overlap(even, even));
  EXPECT_TRUE(views_overlap(even, view(8, DType::kF32, {1000, 1000}, {2000, 2})));
  // Half an element further on, bytes are shared.
  EXPECT_TRUE(views_overlap(even, view(2, DType::kF32, {1000, 1000}, {2000, 2})));
}

TEST(ViewsOverlap, ElementsOfDifferentSizesShareBytes) {
  const TensorView words = view(0, DType::kF64, {10}, {2});             // bytes 0-7, 16-23, ...
  EXPECT_FALSE(views_overlap(words, view(8, DType::kF32, {9}, {4})));   // 8-11, 24-27
  EXPECT_TRUE(views_overlap(words, view(4, DType::kF32, {9}, {4})));    // 4-7
  EXPECT_FALSE(views_overlap(words, view(15, DType::kU8, {9}, {16})));  // 15, 31
  EXPECT_TRUE(views_overlap(words, view(15, DType::kU8, {9}, {15})));   // 15, 30, 45, ..., 150
}

TEST(ViewsOverlap, NegativeAndZeroStrides) {
  const TensorView backwards = view(36, DType::kF32, {10}, {-1});  // bytes 0-39
  EXPECT_TRUE(views_overlap(backwards, view(0, DType::kF32, {1}, {1})));
  EXPECT_FALSE(views_overlap(backwards, view(40, DType::kF32, {1}, {1})));
  EXPECT_FALSE(views_overlap(backwards, view(-4, DType::kF32, {1}, {1})));
  EXPECT_TRUE(views_overlap(view(8, DType::kF32, {5, 7}, {0, 0}), backwards));
}

TEST(ViewsOverlap, EmptyAndForeignViewsNeverDo) {
  const TensorView all = view(0, DType::kF32, {10}, {1});
  EXPECT_FALSE(views_overlap(all, view(0, DType::kF32, {0, 10}, {10, 1})));
  EXPECT_FALSE(views_overlap(all, TensorView()));
  TensorView on_device = all;
  on_device.device = {DeviceType::kCuda, 0};
  EXPECT_FALSE(views_overlap(all, on_device));
}

TEST(ViewsOverlap, ViewsAtTheEndsOfTheAddressSpace) {
  const auto top = reinterpret_cast<const void*>(~uintptr_t{0} - 64);
  const auto bottom = reinterpret_cast<const void*>(uintptr_t{64});
  EXPECT_FALSE(
      views_overlap(TensorView(top, DType::kU8, {60}), TensorView(bottom, DType::kU8, {9})));
  EXPECT_TRUE(views_overlap(TensorView(top, DType::kU8, {60}), TensorView(top, DType::kU8, {9})));
}

// Against the sets of all bytes, for thousands of small views of every kind.
TEST(ViewsOverlap, AgreesWithBruteForce) {
  std::mt19937 random(11);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random()) % end; };
  const DType dtypes[] = {DType::kU8, DType::kF16, DType::kF32, DType::kF64};
  int num_overlaps = 0;
  int num_self_overlaps = 0;
  constexpr int kCases = 6000;
  for (int i = 0; i < kCases; ++i) {
    TensorView views[2];
    for (TensorView& v : views) {
      std::vector<int64_t> shape, strides;
      for (int64_t dim = below(4); dim >= 0; --dim) {
        shape.push_back(1 + below(4));
        strides.push_back(below(40) - 12);
      }
      v = view(below(120), dtypes[below(4)], shape, strides);
    }
    const Bytes a = bytes_of(views[0]);
    const Bytes b = bytes_of(views[1]);
    bool shares = false;
    for (int64_t byte : a.bytes) shares = shares || b.bytes.count(byte) != 0;
    ASSERT_EQ(views_overlap(views[0], views[1]), shares)
        << to_string(views[0]) << " and " << to_string(views[1]) << " case " << i;
    ASSERT_EQ(views_overlap(views[1], views[0]), shares);
    ASSERT_EQ(overlaps_itself(views[0]), a.has_twice) << to_string(views[0]);
    num_overlaps += shares;
    num_self_overlaps += a.has_twice;
  }
  // Both answers are well represented.
  EXPECT_GT(num_overlaps, kCases / 20);
  EXPECT_LT(num_overlaps, kCases * 19 / 20);
  EXPECT_GT(num_self_overlaps, kCases / 20);
  EXPECT_LT(num_self_overlaps, kCases * 19 / 20);
}

TEST(OverlapsItself, StridesDecide) {
  EXPECT_FALSE(overlaps_itself(view(0, DType::kF32, {1000, 1000}, {1000, 1})));
  EXPECT_FALSE(overlaps_itself(view(0, DType::kF32, {1000, 1000}, {1, 1000})));
  EXPECT_TRUE(overlaps_itself(view(0, DType::kF32, {1000, 1000}, {999, 1})));
  EXPECT_TRUE(overlaps_itself(view(0, DType::kF32, {2, 3}, {0, 1})));
  EXPECT_FALSE(overlaps_itself(view(0, DType::kF32, {1, 3}, {0, 1})));
  EXPECT_TRUE(overlaps_itself(view(0, DType::kF32, {3, 3}, {1, 1})));
  EXPECT_TRUE(overlaps_itself(view(0, DType::kF32, {3, 3}, {1, -1})));
  EXPECT_FALSE(overlaps_itself(view(0, DType::kF32, {0, 3}, {0, 0})));
  // 2 x + 3 y: 0 2 4 and 3 5 7 are apart, 6 is reached twice by one x more.
  EXPECT_FALSE(overlaps_itself(view(0, DType::kF32, {3, 2}, {2, 3})));
  EXPECT_TRUE(overlaps_itself(view(0, DType::kF32, {4, 3}, {2, 3})));
}

TEST(ViewsOverlap, SearchIsBounded) {
  // Steps without a common order: nothing merges, and the answer may take long.
  const TensorView a = view(0, DType::kU8, {90, 90, 90, 90}, {10007, 10009, 10037, 10039});
  const TensorView b = view(1, DType::kU8, {90, 90, 90, 90}, {10061, 10067, 10069, 10079});
  EXPECT_TRUE(views_overlap(a, b, /*max_work=*/3));
  const auto begin = std::chrono::steady_clock::now();
  views_overlap(a, b);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 1.0);
}

TEST(ViewsOverlap, LargeSlicesAreQuick) {
  const int64_t b = 8, s = 32768, h = 32, d = 128;
  const std::vector<int64_t> shape = {b, s, h, d};
  const std::vector<int64_t> strides = {s * 3 * h * d, 3 * h * d, d, 1};
  const TensorView q = view(0, DType::kBF16, shape, strides);
  const TensorView k = view(2 * h * d, DType::kBF16, shape, strides);
  constexpr int kCalls = 1000;
  const auto begin = std::chrono::steady_clock::now();
  int num_overlaps = 0;
  for (int i = 0; i < kCalls; ++i) num_overlaps += views_overlap(q, k, /*max_work=*/64);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(num_overlaps, 0);
  EXPECT_LT(seconds.count() / kCalls, 100e-6);  // a thousand times less than touching the elements
}

}  // namespace
}  // namespace flashtile
