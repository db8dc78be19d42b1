// SPDX-License-Identifier: Apache-2.0
#pragma once

// What each instruction of a strip program does to N lanes: N = 1 for scalars, else kStrip. The
// arithmetic is that of variant/expr/scalar_ops.hpp, in float32. See strip.hpp.

#include <cstdint>

#include "cpu/kernels/strip_load.hpp"
#include "cpu/kernels/strip_machine.hpp"
#include "cpu/kernels/strip_math.hpp"
#include "variant/expr/strip_program.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

template <int N, typename A, typename R, typename F>
inline void strip_map(const A* __restrict a, R* __restrict out, F f) {
  for (int i = 0; i < N; ++i) out[i] = f(a[i]);
}

template <int N, typename A, typename R, typename F>
inline void strip_map(const A* __restrict a, const A* __restrict b, R* __restrict out, F f) {
  for (int i = 0; i < N; ++i) out[i] = f(a[i], b[i]);
}

template <int N>
inline void strip_float_unary(variant::Op op, const float* a, float* out) {
  using variant::Op;
  switch (op) {
    case Op::kNeg:
      return strip_map<N>(a, out, [](float x) { return -x; });
    case Op::kAbs:
      return strip_map<N>(a, out, [](float x) { return __builtin_fabsf(x); });
    case Op::kExp:
      return strip_map<N>(a, out, [](float x) { return strip_exp(x); });
    case Op::kLog:
      return strip_map<N>(a, out, [](float x) { return strip_log(x); });
    case Op::kLog2:
      return strip_map<N>(a, out, [](float x) { return strip_log2(x); });
    case Op::kTanh:
      return strip_map<N>(a, out, [](float x) { return strip_tanh(x); });
    case Op::kSigmoid:
      return strip_map<N>(a, out, [](float x) { return strip_sigmoid(x); });
    case Op::kSqrt:
      return strip_map<N>(a, out, [](float x) { return __builtin_sqrtf(x); });
    case Op::kFloor:
      return strip_map<N>(a, out, [](float x) { return __builtin_floorf(x); });
    case Op::kSin:
      return strip_sin_cos<N, false>(a, out);
    case Op::kCos:
      return strip_sin_cos<N, true>(a, out);
    default:
      return;
  }
}

template <int N>
inline void strip_float_binary(variant::Op op, const float* a, const float* b, float* out) {
  using variant::Op;
  switch (op) {
    case Op::kAdd:
      return strip_map<N>(a, b, out, [](float x, float y) { return x + y; });
    case Op::kSub:
      return strip_map<N>(a, b, out, [](float x, float y) { return x - y; });
    case Op::kMul:
      return strip_map<N>(a, b, out, [](float x, float y) { return x * y; });
    case Op::kDiv:
      return strip_map<N>(a, b, out, [](float x, float y) { return x / y; });
    case Op::kMin:
      return strip_map<N>(a, b, out, [](float x, float y) { return ((x < y) | (x != x)) ? x : y; });
    case Op::kMax:
      return strip_map<N>(a, b, out, [](float x, float y) { return ((x > y) | (x != x)) ? x : y; });
    case Op::kMod:
      return strip_map<N>(a, b, out, [](float x, float y) { return __builtin_fmodf(x, y); });
    case Op::kPow:
      return strip_map<N>(a, b, out, [](float x, float y) { return __builtin_powf(x, y); });
    default:
      return;
  }
}

template <typename T, int N>
inline void strip_compare(variant::Op op, const T* a, const T* b, uint8_t* out) {
  using variant::Op;
  switch (op) {
    case Op::kEq:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x == y); });
    case Op::kNe:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x != y); });
    case Op::kLt:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x < y); });
    case Op::kLe:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x <= y); });
    case Op::kGt:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x > y); });
    default:
      return strip_map<N>(a, b, out, [](T x, T y) { return static_cast<uint8_t>(x >= y); });
  }
}

struct StripQuotient {
  int64_t quotient;
  int64_t remainder;
};

/// Towards zero; a divisor of 0 gives 0 and 0. Any values.
inline StripQuotient strip_divide_any(int64_t a, int64_t b) {
  if (b == 0) return {0, 0};
  if (b == -1) return {static_cast<int64_t>(0 - static_cast<uint64_t>(a)), 0};
  return {a / b, a % b};
}

/// The same for sizes below 2^51, where doubles are exact and vector code has conversions.
inline StripQuotient strip_divide_small(int64_t a, int64_t b) {
  constexpr double kMagic = 0x1.8p52;
  constexpr int64_t kMagicBits = __builtin_bit_cast(int64_t, kMagic);
  const auto x = __builtin_bit_cast(double, a + kMagicBits) - kMagic;
  const auto y = __builtin_bit_cast(double, b + kMagicBits) - kMagic;
  const double q = __builtin_trunc(x / (b == 0 ? 1.0 : y));
  const double r = x - q * y;
  const int64_t mask = -static_cast<int64_t>(b != 0);  // not a choice, which might become a branch
  return {(__builtin_bit_cast(int64_t, q + kMagic) - kMagicBits) & mask,
          (__builtin_bit_cast(int64_t, r + kMagic) - kMagicBits) & mask};
}

inline int64_t strip_division_result(variant::Op op, StripQuotient result, int64_t b) {
  using variant::Op;
  const bool is_below = (result.remainder != 0) & ((result.remainder < 0) != (b < 0));
  switch (op) {
    case Op::kDiv:
      return result.quotient;
    case Op::kMod:
      return result.remainder;
    case Op::kFloorDiv:
      return result.quotient - (is_below ? 1 : 0);
    default:
      return result.remainder + (is_below ? b : 0);
  }
}

template <variant::Op kOp, int N>
inline void strip_division(const int64_t* __restrict a, const int64_t* __restrict b,
                           int64_t* __restrict out) {
  uint64_t high_bits = 0;  // of the sizes, roughly: x ^ (x >> 63) is x or -x - 1
  for (int i = 0; i < N; ++i) {
    high_bits |=
        static_cast<uint64_t>(a[i] ^ (a[i] >> 63)) | static_cast<uint64_t>(b[i] ^ (b[i] >> 63));
  }
  if (high_bits < (uint64_t{1} << 50)) {
    for (int i = 0; i < N; ++i) {
      out[i] = strip_division_result(kOp, strip_divide_small(a[i], b[i]), b[i]);
    }
    return;
  }
  for (int i = 0; i < N; ++i) {
    out[i] = strip_division_result(kOp, strip_divide_any(a[i], b[i]), b[i]);
  }
}

template <int N>
inline void strip_int_unary(variant::Op op, const int64_t* a, int64_t* out) {
  const auto negative = [](int64_t x) {
    return static_cast<int64_t>(0 - static_cast<uint64_t>(x));
  };
  if (op == variant::Op::kNeg) return strip_map<N>(a, out, negative);
  strip_map<N>(a, out, [negative](int64_t x) { return x < 0 ? negative(x) : x; });
}

template <int N>
inline void strip_int_binary(variant::Op op, const int64_t* a, const int64_t* b, int64_t* out) {
  using variant::Op;
  using U = uint64_t;
  using I = int64_t;
  switch (op) {
    case Op::kAdd:
      return strip_map<N>(a, b, out, [](I x, I y) { return I(U(x) + U(y)); });
    case Op::kSub:
      return strip_map<N>(a, b, out, [](I x, I y) { return I(U(x) - U(y)); });
    case Op::kMul:
      return strip_map<N>(a, b, out, [](I x, I y) { return I(U(x) * U(y)); });
    case Op::kMin:
      return strip_map<N>(a, b, out, [](I x, I y) { return x < y ? x : y; });
    case Op::kMax:
      return strip_map<N>(a, b, out, [](I x, I y) { return x > y ? x : y; });
    case Op::kDiv:
      return strip_division<Op::kDiv, N>(a, b, out);
    case Op::kMod:
      return strip_division<Op::kMod, N>(a, b, out);
    case Op::kFloorDiv:
      return strip_division<Op::kFloorDiv, N>(a, b, out);
    case Op::kFloorMod:
      return strip_division<Op::kFloorMod, N>(a, b, out);
    case Op::kBitAnd:
      return strip_map<N>(a, b, out, [](I x, I y) { return x & y; });
    case Op::kBitOr:
      return strip_map<N>(a, b, out, [](I x, I y) { return x | y; });
    case Op::kBitXor:
      return strip_map<N>(a, b, out, [](I x, I y) { return x ^ y; });
    case Op::kShl:
      return strip_map<N>(a, b, out, [](I x, I y) { return I(U(x) << (U(y) & 63)); });
    case Op::kShr:
      return strip_map<N>(a, b, out, [](I x, I y) { return x >> (U(y) & 63); });
    default:
      return;
  }
}

/// Truncated towards zero; saturates, and NaN gives 0.
inline int64_t strip_to_int(float x) {
  const bool fits = x >= -0x1p63f && x < 0x1p63f;
  const auto value = static_cast<int64_t>(fits ? x : 0.0f);
  const int64_t ends = x > 0.0f ? INT64_MAX : x < 0.0f ? INT64_MIN : 0;
  return fits ? value : ends;
}

template <int N>
inline void strip_convert(StripMachine& m, const variant::StripInstruction& step) {
  using variant::Op;
  using variant::Type;
  const int32_t a = step.args[0];
  const int32_t out = step.out;
  const bool from_float = step.type == Type::kFloat;
  if (step.op == Op::kToInt) {
    if (from_float) {
      return strip_map<N>(m.floats<N>(a), m.ints<N>(out), [](float x) { return strip_to_int(x); });
    }
    return strip_map<N>(m.bools<N>(a), m.ints<N>(out), [](uint8_t x) { return int64_t{x}; });
  }
  if (step.op == Op::kToFloat) {
    if (step.type == Type::kInt) {
      return strip_map<N>(m.ints<N>(a), m.floats<N>(out),
                          [](int64_t x) { return static_cast<float>(x); });
    }
    return strip_map<N>(m.bools<N>(a), m.floats<N>(out),
                        [](uint8_t x) { return static_cast<float>(x); });
  }
  if (from_float) {
    return strip_map<N>(m.floats<N>(a), m.bools<N>(out),
                        [](float x) { return static_cast<uint8_t>(x != 0.0f); });
  }
  return strip_map<N>(m.ints<N>(a), m.bools<N>(out),
                      [](int64_t x) { return static_cast<uint8_t>(x != 0); });
}

template <int N, typename T>
inline void strip_choose(const uint8_t* __restrict condition, const T* __restrict yes,
                         const T* __restrict no, T* __restrict out) {
  for (int i = 0; i < N; ++i) out[i] = condition[i] != 0 ? yes[i] : no[i];
}

template <int N>
inline void strip_select(StripMachine& m, const variant::StripInstruction& step) {
  const uint8_t* condition = m.bools<N>(step.args[0]);
  switch (step.type) {
    case variant::Type::kBool:
      return strip_choose<N>(condition, m.bools<N>(step.args[1]), m.bools<N>(step.args[2]),
                             m.bools<N>(step.out));
    case variant::Type::kInt:
      return strip_choose<N>(condition, m.ints<N>(step.args[1]), m.ints<N>(step.args[2]),
                             m.ints<N>(step.out));
    case variant::Type::kFloat:
      return strip_choose<N>(condition, m.floats<N>(step.args[1]), m.floats<N>(step.args[2]),
                             m.floats<N>(step.out));
  }
}

template <int N>
inline void strip_logic(StripMachine& m, const variant::StripInstruction& step) {
  const uint8_t* a = m.bools<N>(step.args[0]);
  uint8_t* out = m.bools<N>(step.out);
  if (step.op == variant::Op::kNot) {
    return strip_map<N>(a, out, [](uint8_t x) { return static_cast<uint8_t>(x ^ 1); });
  }
  const uint8_t* b = m.bools<N>(step.args[1]);
  if (step.op == variant::Op::kAnd) {
    return strip_map<N>(a, b, out,
                        [](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x & y); });
  }
  strip_map<N>(a, b, out, [](uint8_t x, uint8_t y) { return static_cast<uint8_t>(x | y); });
}

template <int N>
inline void strip_variable(StripMachine& m, const variant::StripInstruction& step) {
  using variant::Variable;
  if (step.variable == Variable::kScore) {
    float* out = m.floats<N>(step.out);
    for (int i = 0; i < N; ++i) out[i] = m.score[i];
    return;
  }
  int64_t* out = m.ints<N>(step.out);
  if (step.variable == Variable::kKIdx) {
    for (int i = 0; i < N; ++i) out[i] = m.k_idx + i;
    return;
  }
  const variant::StripInputs& inputs = *m.inputs;
  const int64_t values[variant::kNumVariables] = {
      0,       inputs.batch,    inputs.head,     inputs.head_kv,      m.q_idx,
      m.k_idx, inputs.seqlen_q, inputs.seqlen_k, inputs.query_offset, inputs.leftpad};
  const int64_t value = values[static_cast<int>(step.variable)];
  for (int i = 0; i < N; ++i) out[i] = value;
}

template <int N, typename T>
inline void strip_fill(T* out, T value) {
  for (int i = 0; i < N; ++i) out[i] = value;
}

/// Copies a scalar register to every lane of a strip.
inline void strip_broadcast(StripMachine& m, const variant::StripInstruction& step) {
  const int32_t from = step.args[0];
  switch (step.type) {
    case variant::Type::kBool:
      return strip_fill<kStrip>(m.bools<kStrip>(step.out), *m.bools<1>(from));
    case variant::Type::kInt:
      return strip_fill<kStrip>(m.ints<kStrip>(step.out), *m.ints<1>(from));
    case variant::Type::kFloat:
      return strip_fill<kStrip>(m.floats<kStrip>(step.out), *m.floats<1>(from));
  }
}

template <int N>
inline void strip_arithmetic(StripMachine& m, const variant::StripInstruction& step) {
  using variant::Op;
  using variant::Type;
  const bool is_comparison = step.op >= Op::kEq && step.op <= Op::kGe;
  const int32_t a = step.args[0];
  const int32_t b = step.args[1];
  if (step.type == Type::kFloat) {
    if (is_comparison) {
      return strip_compare<float, N>(step.op, m.floats<N>(a), m.floats<N>(b), m.bools<N>(step.out));
    }
    if (b < 0) return strip_float_unary<N>(step.op, m.floats<N>(a), m.floats<N>(step.out));
    return strip_float_binary<N>(step.op, m.floats<N>(a), m.floats<N>(b), m.floats<N>(step.out));
  }
  if (is_comparison) {
    return strip_compare<int64_t, N>(step.op, m.ints<N>(a), m.ints<N>(b), m.bools<N>(step.out));
  }
  if (b < 0) return strip_int_unary<N>(step.op, m.ints<N>(a), m.ints<N>(step.out));
  strip_int_binary<N>(step.op, m.ints<N>(a), m.ints<N>(b), m.ints<N>(step.out));
}

template <int N>
inline void strip_instruction(StripMachine& m, const variant::StripInstruction& step) {
  using variant::Op;
  if (step.is_broadcast) return strip_broadcast(m, step);
  switch (step.op) {
    case Op::kBoolConst:
      return strip_fill<N>(m.bools<N>(step.out), static_cast<uint8_t>(step.int_value != 0));
    case Op::kIntConst:
      return strip_fill<N>(m.ints<N>(step.out), step.int_value);
    case Op::kFloatConst:
      return strip_fill<N>(m.floats<N>(step.out), step.float_value);
    case Op::kVariable:
      return strip_variable<N>(m, step);
    case Op::kParam:
      return strip_fill<N>(m.floats<N>(step.out), m.inputs->params[step.aux]);
    case Op::kLoad:
      return strip_load<N>(m, step);
    case Op::kNot:
    case Op::kAnd:
    case Op::kOr:
      return strip_logic<N>(m, step);
    case Op::kSelect:
      return strip_select<N>(m, step);
    case Op::kToInt:
    case Op::kToFloat:
    case Op::kToBool:
      return strip_convert<N>(m, step);
    default:
      return strip_arithmetic<N>(m, step);
  }
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
