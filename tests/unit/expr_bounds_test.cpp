// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "unit/expr_random.hpp"
#include "variant/expr/bounds.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/range_index.hpp"
#include "variant/expr/scalar_ops.hpp"

namespace flashtile::variant {
namespace {

using testing::Data;
using testing::Generator;

// What a mask does over each block of a rectangle, found by asking for every pair.
struct Counts {
  int num_blocks = 0;
  int num_false = 0;     // blocks that are wholly dropped
  int num_true = 0;      // blocks that are wholly kept
  int missed_false = 0;  // of those, ones that the bounds did not see
  int missed_true = 0;
};

// Compares bounds with every pair; counts, and fails where they are unsound.
void compare(Bounds& bounds, Evaluator& evaluator, Variables at, int64_t rows, int64_t cols,
             const std::string& text, Counts* counts) {
  for (int64_t q = 0; q < at.seqlen_q; q += rows) {
    for (int64_t k = 0; k < at.seqlen_k; k += cols) {
      const int64_t q_end = std::min(q + rows, at.seqlen_q);
      const int64_t k_end = std::min(k + cols, at.seqlen_k);
      const Truth found = bounds.over(at, q, q_end, k, k_end);
      int64_t kept = 0;
      for (at.q_idx = q; at.q_idx < q_end; ++at.q_idx) {
        for (at.k_idx = k; at.k_idx < k_end; ++at.k_idx) kept += evaluator.truth(at);
      }
      const bool none = kept == 0;
      const bool all = kept == (q_end - q) * (k_end - k);
      ++counts->num_blocks;
      counts->num_false += none;
      counts->num_true += all;
      counts->missed_false += none && found != Truth::kFalse;
      counts->missed_true += all && found != Truth::kTrue;
      ASSERT_FALSE(found == Truth::kFalse && !none) << text << " q " << q << " k " << k;
      ASSERT_FALSE(found == Truth::kTrue && !all) << text << " q " << q << " k " << k;
    }
  }
}

int64_t between(std::mt19937_64& random, int64_t lo, int64_t hi) {
  return lo + static_cast<int64_t>(random() % static_cast<uint64_t>(hi - lo + 1));
}

// Tensors that masks of the usual kinds read.
struct MaskData {
  std::vector<int32_t> document, sections, prefix, windows;
  std::vector<float> limits;
  std::vector<int64_t> rows;  // (3, 100): documents for each sequence, labels in any order

  explicit MaskData(std::mt19937_64& random) : sections(100), prefix(3), windows(4), limits(4) {
    const std::vector<int32_t> labels = {7, 3, 9, 1, 12, 5, 8, 30, -4, 2};
    for (size_t n = 0; document.size() < 100; ++n) {
      document.insert(document.end(), static_cast<size_t>(between(random, 1, 30)), labels[n % 10]);
    }
    for (auto& x : sections) x = static_cast<int32_t>(random() % 5);  // not in runs
    for (auto& x : prefix) x = static_cast<int32_t>(random() % 50);
    for (auto& x : windows) x = static_cast<int32_t>(random() % 20);
    for (auto& x : limits) x = static_cast<float>(random() % 60);
    for (int line = 0; line < 3; ++line) {
      const size_t end = static_cast<size_t>(line + 1) * 100;
      while (rows.size() < end) {
        const int64_t value = static_cast<int64_t>(random() % 1000);
        for (int64_t n = between(random, 1, 3); n > 0 && rows.size() < end; --n) {
          rows.push_back(value);
        }
      }
    }
  }

  static std::vector<AuxSignature> signatures() {
    return {{"document", 1, false}, {"sections", 1, false}, {"prefix", 1, false},
            {"windows", 1, false},  {"limits", 1, true},    {"rows", 2, false}};
  }

  std::vector<TensorView> views(const Expr& expr) const {
    std::vector<TensorView> out;
    for (const AuxSignature& aux : expr.aux) {
      if (aux.name == "document") out.emplace_back(document.data(), DType::kI32, V{100});
      if (aux.name == "sections") out.emplace_back(sections.data(), DType::kI32, V{100});
      if (aux.name == "prefix") out.emplace_back(prefix.data(), DType::kI32, V{3});
      if (aux.name == "windows") out.emplace_back(windows.data(), DType::kI32, V{4});
      if (aux.name == "limits") out.emplace_back(limits.data(), DType::kF32, V{4});
      if (aux.name == "rows") out.emplace_back(rows.data(), DType::kI64, V{3, 100});
    }
    return out;
  }

 private:
  using V = std::vector<int64_t>;
};

// Compares a mask over rectangles and blocks of random sizes.
Counts compare_random(const std::string& text, uint64_t seed, int repeats) {
  std::mt19937_64 random(seed);
  Counts counts;
  for (int n = 0; n < repeats; ++n) {
    const MaskData data(random);
    const Expr mask = parse_mask(text, MaskData::signatures());
    const std::vector<double> params(mask.params.size(), 6.0);
    Bounds bounds(mask, data.views(mask), params);
    Evaluator evaluator(mask, data.views(mask), params);
    Variables at;
    at.seqlen_q = between(random, 1, 99);
    at.seqlen_k = between(random, 1, 99);
    at.query_offset = at.seqlen_k - at.seqlen_q;
    at.batch = between(random, 0, 2);
    at.head = between(random, 0, 3);
    at.head_kv = at.head / 2;
    compare(bounds, evaluator, at, between(random, 1, 40), between(random, 1, 40), text, &counts);
  }
  return counts;
}

TEST(ExprBounds, VisitedBlocksOfTheUsualMasksAreExact) {
  for (const char* text : {
           "k_idx <= q_idx + query_offset",
           "k_idx <= q_idx",
           "q_idx - k_idx <= 5 && k_idx - q_idx <= 2",
           "q_idx - k_idx <= windows[head] && k_idx <= q_idx",
           "abs(q_idx - k_idx) < 3",
           "k_idx < prefix[batch] || k_idx <= q_idx",
           "k_idx <= max(q_idx, prefix[batch] - 1)",
           "document[q_idx] == document[k_idx] && q_idx >= k_idx",
           "document[q_idx] == document[k_idx]",
           "rows[batch, q_idx] == rows[batch, k_idx] && k_idx <= q_idx",
           "sections[q_idx] == sections[k_idx]",
           "k_idx < 4 || (q_idx - k_idx <= 9 && k_idx <= q_idx)",
           "k_idx <= q_idx && (k_idx < 4 || q_idx - k_idx <= int(param.w))",
           "(q_idx - k_idx) % 4 == 0",
           "(q_idx - k_idx) % 4 == 1",
           "(q_idx - k_idx) % 4 == -1",
           "floormod(k_idx - q_idx, 7) == 3",
           "(q_idx - k_idx) % 4 == 0 && k_idx <= q_idx && q_idx - k_idx <= 6",
           "floormod(q_idx - k_idx, 5) == 1 && k_idx <= q_idx",
           "k_idx % 5 == 0 && q_idx - k_idx <= 3 && k_idx <= q_idx",
           "floordiv(q_idx + query_offset, 8) == floordiv(k_idx, 8)",
           "q_idx / 8 == k_idx / 8 && k_idx <= q_idx",
           "k_idx % 2 == head_kv || k_idx == seqlen_k - 1",
           "head % 2 == 0 ? k_idx <= q_idx : head_kv == 0 || abs(q_idx - k_idx) < 3",
           "q_idx < 20 ? k_idx < 5 : k_idx <= q_idx && q_idx - k_idx < 30",
           "k_idx < 30 && q_idx - k_idx <= 5",
           "q_idx % 3 != 1 && !(head == 1 && q_idx > 5)",
           "k_idx != 3 && k_idx < 7",
           "k_idx < limits[head]",
           "!(k_idx > q_idx || q_idx - k_idx > 12)",
           "(k_idx >> 3) <= (q_idx >> 3)",
           "2 * k_idx <= q_idx",
           "k_idx <= q_idx && q_idx + k_idx < 60 && q_idx - k_idx < 7",
           "0",
           "1",
       }) {
    const Counts counts = compare_random(text, 31, 60);
    EXPECT_EQ(counts.missed_false, 0) << text << ": of " << counts.num_false;
    EXPECT_GT(counts.num_blocks, 500);
  }
}

TEST(ExprBounds, FullBlocksOfOneConditionAreExact) {
  for (const char* text :
       {"k_idx <= q_idx", "q_idx - k_idx <= 5 && k_idx - q_idx <= 20",
        "document[q_idx] == document[k_idx]", "abs(q_idx - k_idx) < 30", "k_idx < limits[head]",
        "k_idx <= q_idx && document[q_idx] == document[k_idx]", "q_idx / 8 == k_idx / 8"}) {
    const Counts counts = compare_random(text, 32, 60);
    EXPECT_EQ(counts.missed_true, 0) << text << ": of " << counts.num_true;
    EXPECT_GT(counts.num_true, 10) << text;
  }
}

TEST(ExprBounds, RandomMasksAreBoundedSoundly) {
  const Data data(33);
  std::mt19937_64 random(34);
  Counts counts;
  for (uint64_t seed = 0; seed < 700; ++seed) {
    Generator generator(seed, data,
                        {.score = seed % 2 == 0, .nonfinite = true, .large_ints = seed % 3 == 0});
    std::string text = generator.boolean(1 + static_cast<int>(seed % 4)).text;
    // A float that depends on the indices stands for the score.
    for (size_t at = text.find("score"); at != std::string::npos; at = text.find("score")) {
      text.replace(at, 5, "(0.3 * q_idx - 0.2 * k_idx)");
    }
    const Expr mask = parse_mask(text, Data::signatures());
    Bounds bounds(mask, data.views(mask), data.param_values(mask));
    Evaluator evaluator(mask, data.views(mask), data.param_values(mask));
    for (int n = 0; n < 3; ++n) {
      Variables at = testing::random_variables(random);
      at.seqlen_q = between(random, 1, 40);
      at.seqlen_k = between(random, 1, 40);
      compare(bounds, evaluator, at, between(random, 1, 9), between(random, 1, 9), text, &counts);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  // Not vacuous: most of what is wholly dropped or kept is seen.
  EXPECT_GT(counts.num_false, 5000);
  EXPECT_LT(counts.missed_false, counts.num_false / 4);
  EXPECT_LT(counts.missed_true, counts.num_true / 4);
}

TEST(ExprBounds, ValuesNearTheEndOf64BitsAreNotTrusted) {
  const Expr mask = parse_mask("q_idx + 9223372036854775800 < k_idx", {});
  Bounds bounds(mask, {}, {});
  Evaluator evaluator(mask, {}, {});
  Variables at;
  at.seqlen_q = at.seqlen_k = 30;
  Counts counts;
  compare(bounds, evaluator, at, 4, 4, "overflow", &counts);
  EXPECT_GT(counts.num_true, 0);  // sums that wrap around are below k_idx
}

TEST(ExprBounds, TensorWithoutDimensionsIsKnownExactly) {
  const int32_t limit = 40;
  const float scale = 0.5f;
  const std::vector<AuxSignature> signatures = {{"limit", 0, false}, {"scale", 0, true}};
  const std::vector<TensorView> tensors = {{&limit, DType::kI32, {}}, {&scale, DType::kF32, {}}};
  for (const char* text : {"k_idx < limit", "k_idx * scale < 20.0"}) {
    const Expr mask = parse_mask(text, signatures);
    std::vector<TensorView> read;
    for (const AuxSignature& aux : mask.aux) read.push_back(tensors[aux.name == "limit" ? 0 : 1]);
    Bounds bounds(mask, read, {});
    EXPECT_EQ(bounds.over({}, 0, 8, 0, 39), Truth::kTrue) << text;
    EXPECT_EQ(bounds.over({}, 0, 8, 32, 48), Truth::kMaybe) << text;
    EXPECT_EQ(bounds.over({}, 0, 8, 41, 64), Truth::kFalse) << text;
  }
}

TEST(ExprBounds, CopiesAreIndependent) {
  const Expr mask = parse_mask("k_idx <= q_idx", {});
  Bounds first(mask, {}, {});
  Bounds second = first;
  const Variables at;
  EXPECT_EQ(first.over(at, 0, 4, 4, 8), Truth::kFalse);
  EXPECT_EQ(second.over(at, 4, 8, 0, 4), Truth::kTrue);
  EXPECT_EQ(first.over(at, 0, 4, 0, 4), Truth::kMaybe);
  EXPECT_EQ(first.over(at, 4, 4, 0, 4), Truth::kFalse);  // empty
}

TEST(ExprInterval, IntOperationsHoldEveryValue) {
  std::mt19937_64 random(35);
  const Op ops[] = {Op::kNeg,   Op::kAbs,    Op::kAdd, Op::kSub,      Op::kMul,      Op::kMin,
                    Op::kMax,   Op::kDiv,    Op::kMod, Op::kFloorDiv, Op::kFloorMod, Op::kBitAnd,
                    Op::kBitOr, Op::kBitXor, Op::kShl, Op::kShr};
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const int64_t corners[] = {kMin, kMin + 1, -9, -2, -1, 0, 1, 2, 3, 7, 63, 64, kMax - 1, kMax};
  int64_t unknown = 0, total = 0;
  for (int n = 0; n < 40000; ++n) {
    const auto pick = [&] {
      return random() % 3 == 0 ? corners[random() % 14] : between(random, -40, 40);
    };
    const auto range = [&] {
      const int64_t a = pick(),
                    b = random() % 2 == 0 ? a + between(random, 0, a > kMax - 9 ? 0 : 9) : pick();
      return IntRange{std::min(a, b), std::max(a, b)};
    };
    const IntRange a = range(), b = range();
    for (const Op op : ops) {
      const IntRange out = bound_int_op(op, a, b);
      ASSERT_LE(out.lo, out.hi);
      ++total;
      unknown += out.lo == kMin && out.hi == kMax;
      for (int sample = 0; sample < 6; ++sample) {
        const auto inside = [&](IntRange r) {
          const uint64_t width = static_cast<uint64_t>(r.hi) - static_cast<uint64_t>(r.lo);
          if (sample == 0) return r.lo;
          if (sample == 1) return r.hi;
          return wrap(static_cast<uint64_t>(r.lo) +
                      (width == ~uint64_t{0} ? random() : random() % (width + 1)));
        };
        const int64_t x = inside(a), y = inside(b);
        const int64_t value = int_op(op, x, y);
        ASSERT_TRUE(out.lo <= value && value <= out.hi)
            << static_cast<int>(op) << ": " << x << " " << y << " gives " << value << " not in "
            << out.lo << " .. " << out.hi;
      }
    }
  }
  EXPECT_LT(unknown, total / 2);
}

TEST(ExprInterval, FloatOperationsHoldDoubleAndFloat32) {
  std::mt19937_64 random(36);
  const Op ops[] = {Op::kNeg,     Op::kAbs, Op::kAdd, Op::kSub,   Op::kMul,  Op::kMin,  Op::kMax,
                    Op::kDiv,     Op::kMod, Op::kExp, Op::kLog,   Op::kLog2, Op::kTanh, Op::kSqrt,
                    Op::kSigmoid, Op::kSin, Op::kCos, Op::kFloor, Op::kPow};
  const double corners[] = {0.0,  -0.0, 1.0,   -1.0,     1e38,      -1e38,
                            1e30, 88.5, 1e-40, INFINITY, -INFINITY, 0.1};
  for (int n = 0; n < 20000; ++n) {
    const auto pick = [&] {
      const double x = random() % 4 == 0 ? corners[random() % 12]
                                         : std::normal_distribution<double>(0, 4)(random);
      return static_cast<double>(static_cast<float>(x));
    };
    const auto range = [&] {
      const double a = pick(), b = random() % 3 == 0 ? a : pick();
      return Interval{std::min(a, b), std::max(a, b), false};
    };
    const Interval a = range(), b = range();
    for (const Op op : ops) {
      const Interval out = bound_float_op(op, a, b);
      for (int sample = 0; sample < 4; ++sample) {
        const auto inside = [&](Interval r) {
          if (sample < 2 || std::isinf(r.lo) || std::isinf(r.hi)) return random() % 2 ? r.lo : r.hi;
          const double x = r.lo + (r.hi - r.lo) * static_cast<double>(random() % 1000) / 1000;
          return static_cast<double>(static_cast<float>(x));
        };
        const double x = inside(a), y = inside(b);
        const double exact = float_op(op, x, y);
        for (const double value : {exact, static_cast<double>(static_cast<float>(exact))}) {
          ASSERT_TRUE(std::isnan(value) ? out.may_be_nan : out.lo <= value && value <= out.hi)
              << static_cast<int>(op) << ": " << x << " " << y << " gives " << value << " not in "
              << out.lo << " .. " << out.hi << " from " << a.lo << " .. " << a.hi << " and " << b.lo
              << " .. " << b.hi;
        }
      }
    }
  }
}

struct Largest {
  int64_t value;
  void merge(const Largest& other) { value = std::max(value, other.value); }
};

TEST(ExprRangeIndex, QueriesAgreeWithAScan) {
  std::mt19937_64 random(37);
  for (const int64_t length : {1, 31, 32, 33, 64, 65, 100, 500, 1023}) {
    std::vector<int64_t> values(static_cast<size_t>(2 * length));
    for (int64_t& x : values) x = static_cast<int64_t>(random() % 1000);
    const auto read = [&](int64_t line, int64_t n) {
      return Largest{values[static_cast<size_t>(line * length + n)]};
    };
    const RangeIndex<Largest, decltype(read)> index(2, length, read);
    for (int n = 0; n < 500; ++n) {
      const int64_t line = between(random, 0, 1);
      const int64_t begin = between(random, 0, length - 1);
      const int64_t end = between(random, begin + 1, length);
      const auto* first = values.data() + line * length;
      EXPECT_EQ(index.query(line, begin, end).value, *std::max_element(first + begin, first + end));
    }
  }
}

}  // namespace
}  // namespace flashtile::variant
