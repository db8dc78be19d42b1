// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "core/float8.hpp"
#include "core/float_mode.hpp"
#include "unit/simd_float_bits.hpp"
#include "unit/simd_guarded.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::testing {
namespace {

class SimdMemory : public ::testing::TestWithParam<const SimdTable*> {
 protected:
  const SimdTable& table() const { return *GetParam(); }
  int64_t lanes() const { return table().lanes; }

  // Every count over guarded memory: loads give zeros past it, stores touch nothing past it.
  template <typename T, typename Load, typename Store>
  void check_partial(T one, Load load, Store store) {
    for (int64_t count = 0; count <= lanes(); ++count) {
      Guarded<T> in(count);
      std::fill(in.begin(), in.end(), one);
      std::vector<T> wide(static_cast<size_t>(lanes()), T(one));
      load(in.data(), count, wide.data());
      for (int64_t i = 0; i < lanes(); ++i) {
        EXPECT_EQ(wide[static_cast<size_t>(i)], i < count ? one : T(0)) << count << " " << i;
      }
      Guarded<T> out(count);
      store(std::vector<T>(static_cast<size_t>(lanes()), one).data(), count, out.data());
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(out[i], one) << count << " " << i;

      std::vector<T> roomy(static_cast<size_t>(lanes()), T(0));
      store(std::vector<T>(static_cast<size_t>(lanes()), one).data(), count, roomy.data());
      for (int64_t i = 0; i < lanes(); ++i) {
        EXPECT_EQ(roomy[static_cast<size_t>(i)], i < count ? one : T(0)) << count << " " << i;
      }
    }
  }

  std::vector<uint16_t> store_16(DType dtype, const std::vector<float>& x) {
    std::vector<uint16_t> y(x.size());
    table().store(dtype, x.data(), -1, y.data());
    return y;
  }
};

TEST_P(SimdMemory, BytesWidenToWhatTheyMean) {
  for (const DType dtype : {DType::kI8, DType::kE4M3}) {
    for (int first = 0; first < 256; first += static_cast<int>(lanes())) {
      for (const int64_t count : {int64_t{-1}, int64_t{0}, lanes() - 1}) {
        const int64_t valid = count < 0 ? lanes() : count;
        Guarded<uint8_t> bytes(valid);
        for (int64_t i = 0; i < valid; ++i) bytes[i] = static_cast<uint8_t>(first + i);
        std::vector<float> wide(static_cast<size_t>(lanes()), 7);
        {
          const KernelFloatMode mode;  // what is subnormal in 8 bits counts
          table().load(dtype, bytes.data(), count, wide.data());
        }
        for (int64_t i = 0; i < lanes(); ++i) {
          const auto code = static_cast<uint8_t>(first + i);
          float expected = 0;
          if (i < valid) {
            expected = dtype == DType::kE4M3 ? e4m3_to_float(code)
                                             : static_cast<float>(static_cast<int8_t>(code));
          }
          const float found = wide[static_cast<size_t>(i)];
          EXPECT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
              << dtype_name(dtype) << " " << first + i << ": " << found;
        }
      }
    }
  }
}

TEST_P(SimdMemory, PartialFormsStayInside) {
  check_partial<float>(
      3.0f, [this](const float* x, int64_t n, float* y) { table().load(DType::kF32, x, n, y); },
      [this](const float* x, int64_t n, float* y) { table().store(DType::kF32, x, n, y); });
  check_partial<uint32_t>(
      77u, [this](const uint32_t* x, int64_t n, uint32_t* y) { table().load_u(x, n, y); },
      [this](const uint32_t* x, int64_t n, uint32_t* y) { table().store_u(x, n, y); });
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const SmallFloat& format = dtype == DType::kF16 ? kHalf : kBfloat16;
    check_partial<uint16_t>(
        format.nearest(3.0),
        [&](const uint16_t* x, int64_t n, uint16_t* y) {
          std::vector<float> wide(static_cast<size_t>(lanes()));
          table().load(dtype, x, n, wide.data());
          for (size_t i = 0; i < wide.size(); ++i) y[i] = format.nearest(wide[i]);
        },
        [&](const uint16_t*, int64_t n, uint16_t* y) {
          const std::vector<float> threes(static_cast<size_t>(lanes()), 3.0f);
          table().store(dtype, threes.data(), n, y);
        });
  }
  check_partial<uint16_t>(
      0xFEDC,
      [this](const uint16_t* x, int64_t n, uint16_t* y) {
        std::vector<uint32_t> wide(static_cast<size_t>(lanes()));
        table().load_u16(x, n, wide.data());
        for (size_t i = 0; i < wide.size(); ++i) y[i] = static_cast<uint16_t>(wide[i]);
      },
      [this](const uint16_t* x, int64_t n, uint16_t* y) {
        std::vector<uint32_t> wide(x, x + lanes());
        for (uint32_t& word : wide) word |= 0x12340000;
        table().store_u16(wide.data(), n, y);
      });
}

TEST_P(SimdMemory, FullFormsStayInside) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    Guarded<char> bytes(lanes() * dtype_bytes(dtype));
    const std::vector<float> x(static_cast<size_t>(lanes()), -1.5f);
    table().store(dtype, x.data(), -1, bytes.data());
    std::vector<float> y(x.size());
    table().load(dtype, bytes.data(), -1, y.data());
    EXPECT_EQ(y, x);
  }
}

TEST_P(SimdMemory, EverySixteenBitPatternIsReadExactly) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const SmallFloat& format = dtype == DType::kF16 ? kHalf : kBfloat16;
    for (uint32_t first = 0; first < 65536; first += static_cast<uint32_t>(lanes())) {
      std::vector<uint16_t> x(static_cast<size_t>(lanes()));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(first + i);
      std::vector<float> y(x.size());
      table().load(dtype, x.data(), -1, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double expected = format.value(x[i]);
        ASSERT_TRUE(std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected) << x[i];
        ASSERT_EQ(std::signbit(y[i]), x[i] >> 15 != 0) << x[i];
      }
    }
  }
}

TEST_P(SimdMemory, StoresRoundToNearestEven) {
  std::mt19937 random(11);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const SmallFloat& format = dtype == DType::kF16 ? kHalf : kBfloat16;
    std::vector<float> values;
    // Each pattern's value, the point half way to the next one, and its neighbours.
    for (uint16_t bits = 0; std::isfinite(format.value(bits)); bits += 7) {
      const float low = static_cast<float>(format.value(bits));
      const float middle = static_cast<float>(0.5 * (format.value(bits) + format.value(bits + 1)));
      for (const float x :
           {low, middle, std::nextafterf(middle, 1e38f), std::nextafterf(middle, -1e38f)}) {
        if (!std::isfinite(x)) continue;
        values.push_back(x);
        values.push_back(-x);
      }
    }
    for (const float x : {65504.0f, 65519.99f, 65520.0f, 65536.0f, 1e30f, 3.4028235e38f, 3.39e38f})
      values.push_back(x);
    std::uniform_int_distribution<uint32_t> word;
    for (int i = 0; i < 20000; ++i) {
      const float x = std::bit_cast<float>(word(random));
      if (std::isfinite(x)) values.push_back(x);
    }
    values.resize(values.size() / static_cast<size_t>(lanes()) * static_cast<size_t>(lanes()));
    for (size_t first = 0; first < values.size(); first += static_cast<size_t>(lanes())) {
      const std::vector<float> x(values.begin() + static_cast<std::ptrdiff_t>(first),
                                 values.begin() + static_cast<std::ptrdiff_t>(first) + lanes());
      const std::vector<uint16_t> y = store_16(dtype, x);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(y[i], format.nearest(x[i])) << dtype_name(dtype) << " of " << x[i];
      }
    }
  }
}

TEST_P(SimdMemory, StoresKeepInfAndNan) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const SmallFloat& format = dtype == DType::kF16 ? kHalf : kBfloat16;
    for (const uint32_t bits : {0x7F800000u, 0xFF800000u, 0x7F800001u, 0xFFFFFFFFu, 0x7FC00000u}) {
      const float x = std::bit_cast<float>(bits);
      const uint16_t y = store_16(dtype, std::vector<float>(static_cast<size_t>(lanes()), x))[0];
      EXPECT_EQ(std::isnan(format.value(y)), std::isnan(x)) << bits;
      EXPECT_EQ(std::isinf(format.value(y)), std::isinf(x)) << bits;
      EXPECT_EQ(y >> 15 != 0, bits >> 31 != 0) << bits;
    }
  }
}

TEST_P(SimdMemory, TheFlushingStoreDiffersForSubnormalsOnly) {
  std::mt19937 random(12);
  std::uniform_int_distribution<uint32_t> word;
  for (int round = 0; round < 4000; ++round) {
    std::vector<float> x(static_cast<size_t>(lanes()));
    for (float& value : x) value = std::bit_cast<float>(word(random));
    std::vector<uint16_t> y(x.size());
    table().store_flush(x.data(), y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(kBfloat16.value(y[i])));
      } else if (std::fabs(x[i]) < 0x1p-126f) {
        EXPECT_LT(std::fabs(kBfloat16.value(y[i])), 0x1.01p-126);
      } else {
        EXPECT_EQ(y[i], kBfloat16.nearest(x[i])) << x[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdMemory, ::testing::ValuesIn(simd_tables()),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace flashtile::testing
