// SPDX-License-Identifier: Apache-2.0
#pragma once

// The text of one SimdTable; included by simd_table_<isa>.cpp, which names it.

#include "cpu/kernels/gemm.hpp"
#include "cpu/kernels/pack.hpp"
#include "cpu/kernels/pack_bf16.hpp"
#include "cpu/kernels/rows.hpp"
#include "unit/simd_table.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

using Product = testing::SimdTable::Product;
using Rows = testing::SimdTable::Rows;

inline Vf apply(testing::UnaryOp op, Vf x) {
  using enum testing::UnaryOp;
  switch (op) {
    case kNeg:
      return -x;
    case kAbs:
      return abs(x);
    case kSqrt:
      return sqrt(x);
    case kRound:
      return round_nearest(x);
    case kFloor:
      return floor(x);
    case kExp:
      return exp(x);
    case kExp2:
      return exp2(x);
    case kExp2Fast:
      return exp2_fast(x);
    case kLog:
      return log(x);
    case kLog2:
      return log2(x);
    case kTanh:
      return tanh(x);
    case kSigmoid:
      return sigmoid(x);
  }
  return x;
}
inline Vf apply(testing::BinaryOp op, Vf x, Vf y) {
  using enum testing::BinaryOp;
  switch (op) {
    case kAdd:
      return x + y;
    case kSub:
      return x - y;
    case kMul:
      return x * y;
    case kDiv:
      return x / y;
    case kMin:
      return min(x, y);
    case kMax:
      return max(x, y);
  }
  return x;
}
inline Mf apply(testing::CompareOp op, Vf x, Vf y) {
  using enum testing::CompareOp;
  switch (op) {
    case kLt:
      return x < y;
    case kLe:
      return x <= y;
    case kGt:
      return x > y;
    case kGe:
      return x >= y;
    case kEq:
      return x == y;
    case kNe:
      return x != y;
  }
  return x != x;
}
inline Vu apply(testing::IntOp op, Vu x, Vu y) {
  using enum testing::IntOp;
  switch (op) {
    case kAdd:
      return x + y;
    case kSub:
      return x - y;
    case kXor:
      return x ^ y;
    case kAnd:
      return x & y;
    case kOr:
      return x | y;
    case kMulLo:
      return mul_lo(x, y);
    case kMulHi:
      return mul_hi(x, y);
  }
  return x;
}

template <typename T>
void load_as(const void* x, int64_t count, float* y) {
  const T* p = static_cast<const T*>(x);
  store(y, count < 0 ? load(p) : load_partial(p, count));
}
template <typename T>
void store_as(const float* x, int64_t count, void* y) {
  T* p = static_cast<T*>(y);
  if (count < 0) {
    store(p, load(x));
  } else {
    store_partial(p, load(x), count);
  }
}
inline RowSource source(const Rows& rows) { return {rows.rows, rows.dtype, rows.stride}; }

inline void fill_basic(testing::SimdTable& t) {
  t.unary = [](testing::UnaryOp op, const float* x, float* y) { store(y, apply(op, load(x))); };
  t.binary = [](testing::BinaryOp op, const float* x, const float* y, float* z) {
    store(z, apply(op, load(x), load(y)));
  };
  t.fma = [](const float* a, const float* b, const float* c, float* sum, float* difference) {
    store(sum, fma(load(a), load(b), load(c)));
    store(difference, fnma(load(a), load(b), load(c)));
  };
  t.scale_pow2 = [](const float* x, const float* n, float* y) {
    store(y, scale_pow2(load(x), load(n)));
  };
  t.compare = [](testing::CompareOp op, const float* x, const float* y) {
    const Mf m = apply(op, load(x), load(y));
    // The mask operators, in a form that leaves the mask as it is.
    const Mf none = m & ~m;
    const Mf same = ((m | none) ^ none) & ~none;
    return any(same) == (bits(m) != 0) && all(m) == !any(~m) ? bits(same) : ~0u;
  };
  t.first_lanes = [](int64_t count) { return bits(first_lanes(count)); };
  t.select = [](int64_t count, const float* if_set, const float* if_clear, float* out) {
    const Mf m = first_lanes(count);
    const Vf x = select(m, load(if_set), load(if_clear));
    const Vu y = select(m, as_vu(load(if_set)), as_vu(load(if_clear)));
    store(out, as_vf(as_vu(x) | y));  // two equal answers, or neither
  };
  t.reduce_add = [](const float* x) { return reduce_add(load(x)); };
  t.reduce_max = [](const float* x) { return reduce_max(load(x)); };
}

inline void fill_integers(testing::SimdTable& t) {
  t.integer = [](testing::IntOp op, const uint32_t* x, const uint32_t* y, uint32_t* z) {
    store_u(z, apply(op, load_u(x), load_u(y)));
  };
  t.shift = [](const uint32_t* x, int left, int right, uint32_t* y) {
    store_u(y, (load_u(x) << left) >> right);
  };
  t.less_i32 = [](const uint32_t* x, const uint32_t* y) {
    return bits(less_i32(load_u(x), load_u(y)));
  };
  t.equal_u = [](const uint32_t* x, const uint32_t* y) { return bits(load_u(x) == load_u(y)); };
  t.round_to_i32 = [](const float* x, uint32_t* y) { store_u(y, round_to_i32(load(x))); };
  t.i32_to_float = [](const uint32_t* x, float* y) { store(y, i32_to_float(load_u(x))); };
  t.transpose = [](const uint32_t* x, uint32_t* y) {
    Vu block[kLanes];
    for (int i = 0; i < kLanes; ++i) block[i] = load_u(x + i * kLanes);
    transpose(block);
    for (int i = 0; i < kLanes; ++i) store_u(y + i * kLanes, block[i]);
  };
  t.store_u_groups = [](const uint32_t* x, uint32_t* y, int64_t stride) {
    store_u_groups(y, stride, load_u(x));
  };
}

inline void fill_memory(testing::SimdTable& t) {
  t.load = [](DType dtype, const void* x, int64_t count, float* y) {
    if (dtype == DType::kF16) return load_as<F16>(x, count, y);
    if (dtype == DType::kBF16) return load_as<Bf16>(x, count, y);
    if (dtype == DType::kI8) return load_as<I8>(x, count, y);
    if (dtype == DType::kE4M3) return load_as<E4m3>(x, count, y);
    return load_as<float>(x, count, y);
  };
  t.store = [](DType dtype, const float* x, int64_t count, void* y) {
    if (dtype == DType::kF16) return store_as<F16>(x, count, y);
    if (dtype == DType::kBF16) return store_as<Bf16>(x, count, y);
    return store_as<float>(x, count, y);
  };
  t.store_flush = [](const float* x, uint16_t* y) {
    store_flush(reinterpret_cast<Bf16*>(y), load(x));
  };
  t.load_u = [](const uint32_t* x, int64_t count, uint32_t* y) {
    store_u(y, load_u_partial(x, count));
  };
  t.store_u = [](const uint32_t* x, int64_t count, uint32_t* y) {
    store_u_partial(y, load_u(x), count);
  };
  t.load_u16 = [](const uint16_t* x, int64_t count, uint32_t* y) {
    store_u(y, count < 0 ? load_u16(x) : load_u16_partial(x, count));
  };
  t.store_u16 = [](const uint32_t* x, int64_t count, uint16_t* y) {
    count < 0 ? store_u16(y, load_u(x)) : store_u16_partial(y, load_u(x), count);
  };
}

inline void fill_tiles(testing::SimdTable& t) {
  t.padded = [](int64_t n) { return padded(n); };
  t.tile_ld = [](int64_t n) { return tile_ld(n); };
  t.gemm = [](const Product& x) {
    gemm(x.m, x.n, x.k, {static_cast<const float*>(x.a), x.row_stride, x.col_stride},
         static_cast<const float*>(x.b), x.ldb,
         {x.c, x.ldc, x.alpha, x.accumulate, x.row_scale, nullptr, x.addend, x.addend_row_stride});
  };
  t.gemm_fetching = [](const Product& x, const char* row, int64_t row_stride, int64_t num_rows,
                       int64_t row_bytes, int64_t period) {
    RowPrefetch prefetch;
    prefetch.add({row, row_stride, num_rows, row_bytes});
    prefetch.period = period;
    spread_prefetch(tiles_of(x.m, x.n) * ((x.k + period - 1) / period), &prefetch);
    gemm(x.m, x.n, x.k, {static_cast<const float*>(x.a), x.row_stride, x.col_stride},
         static_cast<const float*>(x.b), x.ldb,
         {.c = x.c, .ldc = x.ldc, .alpha = x.alpha, .prefetch = &prefetch});
    return prefetch.current == prefetch.num_sets ? 0 : prefetch.sets[0].num_rows;
  };
  t.pack_rows = [](const Rows& src, float* dst, int64_t ld, float scale) {
    return pack_rows(source(src), src.num_rows, src.dim, dst, ld, scale);
  };
  t.pack_rows_transposed = [](const Rows& src, float* dst, int64_t ld, float scale) {
    return pack_rows_transposed(source(src), src.num_rows, src.dim, dst, ld, scale);
  };
  t.unpack_rows = [](const float* src, int64_t ld, const Rows& target, float scale,
                     const float* row_scale) {
    unpack_rows(src, ld, target.num_rows, target.dim, {target.rows, target.dtype, target.stride},
                scale, row_scale);
  };
#if defined(__AVX512BF16__)
  t.gemm_bf16 = [](const Product& x) {
    [[maybe_unused]] const PairProducts products;
    gemm_bf16(
        x.m, x.n, x.k, {static_cast<const Bf16*>(x.a), x.row_stride, x.col_stride},
        static_cast<const Bf16*>(x.b), x.ldb,
        {x.c, x.ldc, x.alpha, x.accumulate, x.row_scale, nullptr, x.addend, x.addend_row_stride});
  };
  t.pack_rows_bf16 = [](const Rows& src, Bf16* dst, int64_t ld) {
    return pack_rows_bf16(source(src), src.num_rows, src.dim, dst, ld);
  };
  t.pack_pairs = [](const Rows& src, Bf16* dst, int64_t ld) {
    return pack_pairs(source(src), src.num_rows, src.dim, dst, ld);
  };
  t.pack_pairs_transposed = [](const Rows& src, Bf16* dst, int64_t ld) {
    return pack_pairs_transposed(source(src), src.num_rows, src.dim, dst, ld);
  };
#endif
}

inline void fill_rows(testing::SimdTable& t) {
  t.row_max_of = row_max_of;
  t.softmax_reference = [](float row_max) { return softmax_reference(row_max); };
  t.exp_row = exp_row<Exp, float>;
  t.exp2_row = exp_row<Exp2, float>;
  t.exp2_row_bf16 = exp_row<Exp2, Bf16>;
  t.exp2_row_lanes = [](const float* s, int64_t n, float reference, float* p, float* top) {
    const RowLanes lanes = exp_row_lanes<Exp2>(s, n, reference, p);
    *top = reduce_max(lanes.top);
    return reduce_add(lanes.sum);
  };
  t.exp2_grad_row = exp_grad_row<Exp2>;
  t.scale_row = scale_row;
  t.fill_row = fill_row;
  t.mask_row_outside = mask_row_outside;
  t.mask_row_bytes = mask_row_bytes;
  t.row_dot = row_dot;
  t.softmax_grad_row = softmax_grad_row<float>;
}

/// All of it; `isa` is the one that this file is compiled for.
inline testing::SimdTable make_table(Isa isa) {
  testing::SimdTable t{};
  t.isa = isa;
  t.lanes = kLanes;
  t.has_bf16_dot = kHasBf16Dot;
  fill_basic(t);
  fill_integers(t);
  fill_memory(t);
  fill_tiles(t);
  fill_rows(t);
  return t;
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
