// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "unit/simd_float_bits.hpp"
#include "unit/simd_guarded.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

constexpr DType kDtypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Rows of small whole numbers, exact in every dtype, each row in guarded memory of its own.
class GuardedRows {
 public:
  GuardedRows(int64_t num_rows, int64_t dim, DType dtype, int64_t stride)
      : dim_(dim), dtype_(dtype), stride_(stride) {
    const int64_t span = dim == 0 ? 0 : (dim - 1) * stride + 1;
    for (int64_t r = 0; r < num_rows; ++r) {
      memory_.push_back(std::make_unique<Guarded<char>>(span * dtype_bytes(dtype)));
      pointers_.push_back(memory_.back()->data());
    }
  }

  SimdTable::Rows view() {
    return {pointers_.data(), dtype_, stride_, static_cast<int64_t>(pointers_.size()), dim_};
  }
  void drop(int64_t row) { pointers_[static_cast<size_t>(row)] = nullptr; }
  bool has(int64_t row) const { return pointers_[static_cast<size_t>(row)] != nullptr; }

  void set(int64_t row, int64_t d, double value) {
    char* at = address(row, d);
    if (dtype_ == DType::kF32) {
      *reinterpret_cast<float*>(at) = static_cast<float>(value);
    } else {
      *reinterpret_cast<uint16_t*>(at) = format().nearest(value);
    }
  }
  double get(int64_t row, int64_t d) {
    const char* at = address(row, d);
    if (dtype_ == DType::kF32) return *reinterpret_cast<const float*>(at);
    return format().value(*reinterpret_cast<const uint16_t*>(at));
  }

 private:
  const SmallFloat& format() const { return dtype_ == DType::kF16 ? kHalf : kBfloat16; }
  char* address(int64_t row, int64_t d) {
    return memory_[static_cast<size_t>(row)]->data() + d * stride_ * dtype_bytes(dtype_);
  }

  int64_t dim_;
  DType dtype_;
  int64_t stride_;
  std::vector<std::unique_ptr<Guarded<char>>> memory_;
  std::vector<void*> pointers_;
};

double whole(int64_t row, int64_t d) { return static_cast<double>((row * 31 + d * 7) % 101 - 50); }

class SimdPack : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }

  template <typename F>
  void for_shapes(F check) {
    for (const DType dtype : kDtypes) {
      for (const int64_t stride : {1, 2}) {
        for (const int64_t num_rows : {0, 1, 3, 17}) {
          for (const int64_t dim : {1, 4, 7, 16, 37}) {
            GuardedRows rows(num_rows, dim, dtype, stride);
            for (int64_t r = 0; r < num_rows; ++r) {
              for (int64_t d = 0; d < dim; ++d) rows.set(r, d, whole(r, d));
            }
            if (num_rows > 2) rows.drop(1);
            check(rows, num_rows, dim);
          }
        }
      }
    }
  }
};

TEST_P(SimdPack, RowsAndTheirPadding) {
  for_shapes([this](GuardedRows& rows, int64_t num_rows, int64_t dim) {
    for (const int64_t ld : {dim, table().padded(dim), table().padded(dim) + 5}) {
      Guarded<float> dst(num_rows * ld);
      std::fill(dst.begin(), dst.end(), 1e9f);
      EXPECT_FALSE(table().pack_rows(rows.view(), dst.data(), ld, 0.5f));
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t d = 0; d < ld; ++d) {
          const double expected = d < dim && rows.has(r) ? 0.5 * whole(r, d) : 0.0;
          ASSERT_EQ(dst[r * ld + d], expected) << r << " " << d << " ld " << ld;
        }
      }
    }
  });
}

TEST_P(SimdPack, TransposedRowsAndTheirPadding) {
  for_shapes([this](GuardedRows& rows, int64_t num_rows, int64_t dim) {
    for (const int64_t ld : {num_rows, table().padded(num_rows), table().padded(num_rows) + 5}) {
      Guarded<float> dst(dim * ld);
      std::fill(dst.begin(), dst.end(), 1e9f);
      EXPECT_FALSE(table().pack_rows_transposed(rows.view(), dst.data(), ld, 2.0f));
      for (int64_t d = 0; d < dim; ++d) {
        for (int64_t r = 0; r < ld; ++r) {
          const double expected = r < num_rows && rows.has(r) ? 2.0 * whole(r, d) : 0.0;
          ASSERT_EQ(dst[d * ld + r], expected) << r << " " << d << " ld " << ld;
        }
      }
    }
  });
}

TEST_P(SimdPack, ANonFiniteElementIsReportedAndKept) {
  for (const DType dtype : kDtypes) {
    for (const double special :
         {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
      for (int64_t at = 0; at < 5 * 19; at += 6) {
        GuardedRows rows(5, 19, dtype, 1);
        rows.set(at / 19, at % 19, special);
        std::vector<float> dst(static_cast<size_t>(19 * table().padded(19)));
        EXPECT_TRUE(table().pack_rows(rows.view(), dst.data(), 19, 1.0f));
        EXPECT_EQ(dst[static_cast<size_t>(at)], special);
        EXPECT_TRUE(table().pack_rows_transposed(rows.view(), dst.data(), 8, 1.0f));
        rows.drop(at / 19);
        EXPECT_FALSE(table().pack_rows(rows.view(), dst.data(), 19, 1.0f));
      }
    }
  }
  GuardedRows rows(2, 3, DType::kF32, 1);
  rows.set(1, 2, std::numeric_limits<double>::quiet_NaN());
  std::vector<float> dst(6);
  EXPECT_TRUE(table().pack_rows(rows.view(), dst.data(), 3, 1.0f));
  EXPECT_TRUE(std::isnan(dst[5]));
  rows.set(1, 2, std::numeric_limits<float>::max());  // large is not infinite
  EXPECT_FALSE(table().pack_rows(rows.view(), dst.data(), 3, 1.0f));
}

TEST_P(SimdPack, UnpackScalesRoundsAndSkips) {
  for_shapes([this](GuardedRows& rows, int64_t num_rows, int64_t dim) {
    const int64_t ld = dim + 3;
    Guarded<float> src(num_rows * ld);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t d = 0; d < ld; ++d) {
        src[r * ld + d] = d < dim ? static_cast<float>(3 * whole(r, d) + 1) : NAN;
      }
    }
    std::vector<float> row_scale;
    for (int64_t r = 0; r < num_rows; ++r) row_scale.push_back(r % 2 == 0 ? 1.0f : -2.0f);
    table().unpack_rows(src.data(), ld, rows.view(), 0.5f, row_scale.data());
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t d = 0; d < dim; ++d) {
        const double result = 0.5 * (r % 2 == 0 ? 1.0 : -2.0) * (3 * whole(r, d) + 1);
        GuardedRows rounded(1, 1, rows.view().dtype, 1);
        rounded.set(0, 0, result);
        ASSERT_EQ(rows.get(r, d), rows.has(r) ? rounded.get(0, 0) : whole(r, d)) << r << " " << d;
      }
    }
  });
}

TEST_P(SimdPack, LeadingDimensionsAvoidLargePowersOfTwo) {
  for (int64_t n = 0; n < 3000; ++n) {
    const int64_t ld = table().tile_ld(n);
    EXPECT_GE(ld, n);
    EXPECT_LE(ld, n + 32);
    EXPECT_EQ(ld % table().lanes, 0);
    EXPECT_TRUE(n == 0 || ld % 256 != 0) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdPack, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
