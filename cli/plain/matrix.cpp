// SPDX-License-Identifier: Apache-2.0
#include "plain/matrix.hpp"

#include <algorithm>

#include "core/float16.hpp"
#include "cpu/cpu_info.hpp"
#include "plain/product.hpp"

namespace flashtile::cli {
namespace {

struct Functions {
  void (*multiply)(const Product&);
  void (*round_f16)(float*, int64_t);
};

const Functions& functions() {
#if defined(__x86_64__)
  static const Functions best = [] {
    const cpu::CpuInfo& info = cpu::cpu_info();
    if (info.has(cpu::Isa::kAvx512)) return Functions{avx512::multiply, avx512::round_f16};
    if (info.has(cpu::Isa::kAvx2)) return Functions{avx2::multiply, avx2::round_f16};
    return Functions{scalar::multiply, scalar::round_f16};
  }();
#else
  static const Functions best{scalar::multiply, scalar::round_f16};
#endif
  return best;
}

}  // namespace

void multiply(const Left<float>& a, const Matrix<float>& b, bool accumulate, Matrix<float>& c) {
  std::vector<float> panel(static_cast<size_t>(a.num_cols() * kPanelCols));
  functions().multiply({a.num_rows(), b.num_cols(), a.num_cols(), a.matrix.data(), a.row_stride(),
                        a.col_stride(), b.data(), c.data(), accumulate, panel.data()});
}

void multiply(const Left<double>& a, const Matrix<double>& b, bool accumulate, Matrix<double>& c) {
  for (int64_t i = 0; i < a.num_rows(); ++i) {
    const std::span<double> sums = c.row(i);
    if (!accumulate) std::fill(sums.begin(), sums.end(), 0.0);
    for (int64_t p = 0; p < a.num_cols(); ++p) {
      const double factor = a.matrix.data()[i * a.row_stride() + p * a.col_stride()];
      const std::span<const double> row = b.row(p);
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += factor * row[j];
    }
  }
}

void round_to(DType dtype, std::span<float> values) {
  if (dtype == DType::kBF16) {
    for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  } else if (dtype == DType::kF16) {
    functions().round_f16(values.data(), static_cast<int64_t>(values.size()));
  }
}

void round_to(DType /*dtype*/, std::span<double> /*values*/) {}

}  // namespace flashtile::cli
