// SPDX-License-Identifier: Apache-2.0
//
// What no query sees is never read into a result: keys, values, queries and incoming gradients that
// play no part may hold NaN, and get gradients of exactly 0.
#include <gtest/gtest.h>

#include <functional>

#include "op_runs.hpp"
#include "random_problem.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

/// Which stored rows of k and v (first two indices; packed: 0 and the row) no query sees, and which
/// queries see no key.
struct Case {
  const char* name;
  std::string text;  ///< behind the op's name
  std::function<bool(int64_t line, int64_t row)> is_unseen_key;
  std::function<bool(int64_t line, int64_t row)> is_blind_query = [](int64_t, int64_t) {
    return false;
  };
  /// Sets tensors that random numbers do not serve.
  std::function<void(const OpCall&)> prepare = [](const OpCall&) {};
};
void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

void set_values(const OpCall& call, const char* name, const std::vector<double>& values) {
  cli::from_numbers(values, call.tensor(name));
}

const auto kNone = [](int64_t, int64_t) { return false; };

std::vector<Case> cases() {
  return {
      {"Seqused", ":b3:hq4:hkv2:sq20:sk200:d16:seqused_k={200,0,64}:bf16",
       [](int64_t b, int64_t j) {
         return j >= (b == 0 ? 200 : b == 1 ? 0 : 64);
       },
       [](int64_t b, int64_t) { return b == 1; }},
      {"Leftpad", ":b2:hq2:sq20:sk200:d16:leftpad_k={3,150}:causal",
       [](int64_t b, int64_t j) { return j < (b == 0 ? 3 : 150); }},
      {"LeftpadAndSeqused", ":b2:hq2:sq20:sk200:d16:leftpad_k={3,150}:seqused_k={100,180}:f16",
       [](int64_t b, int64_t j) { return b == 0 ? j < 3 || j >= 100 : j < 150 || j >= 180; }},
      {"PackedTail", ":hq2:d16:cu_seqlens_q={0,33,70}:cu_seqlens_k={0,33,90}:tq90:tk100",
       [](int64_t, int64_t j) { return j >= 90; }, [](int64_t, int64_t i) { return i >= 70; }},
      {"PackedWithoutQueries", ":hq2:d16:cu_seqlens_q={0,33,33,70}:cu_seqlens_k={0,40,60,100}:f16",
       [](int64_t, int64_t j) { return j >= 40 && j < 60; }},
      {"PackedSequused",
       ":hq2:d16:cu_seqlens_q={0,33,70}:cu_seqlens_k={0,40,190}:seqused_k={10,149}:bf16",
       [](int64_t, int64_t j) { return (j >= 10 && j < 40) || j == 189; }},
      {"WindowRight", ":b1:hq2:sq20:sk300:d16:window_right=4:query_offset=0",
       [](int64_t, int64_t j) { return j > 23; }},
      {"WindowLeft", ":b1:hq2:sq20:sk300:d16:window_left=9:causal:bf16",
       [](int64_t, int64_t j) { return j < 300 - 20 - 9; }},
      {"CausalFromTheTop", ":b1:hq2:sq70:sk300:d16:causal:query_offset=0:f16",
       [](int64_t, int64_t j) { return j >= 70; }},
      // Both ends in the middle of a pair of keys, which bf16 products read together.
      {"OddCausal", ":b1:hq2:sq40:sk40:d16:causal:query_offset=-7:bf16",
       [](int64_t, int64_t j) { return j >= 33; }, [](int64_t, int64_t i) { return i < 7; }},
      {"OddWindow", ":b1:hq2:sq21:sk300:d16:window_left=9:window_right=3:query_offset=70:bf16",
       [](int64_t, int64_t j) { return j < 61 || j > 93; }},
      {"MoreQueriesThanKeys", ":b1:hq2:sq300:sk70:d16:causal", kNone,
       [](int64_t, int64_t i) { return i < 230; }},
      {"Chunk", ":b1:hq2:sq20:sk300:d16:attention_chunk=64:query_offset=70",
       [](int64_t, int64_t j) { return j < 64 || j >= 128; }},
      {"SinkAndBlindQueries", ":b1:hq2:sq300:sk70:d16:causal:sink:bf16", kNone,
       [](int64_t, int64_t i) { return i < 230; }},
      {"BlockList",
       ":b1:hq2:sq64:sk200:d16:block_rows=32:block_cols=16:block_counts[1,1,2]:"
       "block_indices[1,1,2,3]",
       [](int64_t, int64_t j) { return j / 16 != 5 && j / 16 != 11; },
       [](int64_t, int64_t i) { return i >= 32; },
       [](const OpCall& call) {
         set_values(call, "block_counts", {2, 0});
         set_values(call, "block_indices", {11, 5, 3, 9, 1, 7});
       }},
      {"MaskOfKeys", ":b1:hq2:sq70:sk300:d16:mask='k_idx % 3 != 1'",
       [](int64_t, int64_t j) { return j % 3 == 1; }},
      {"MaskOfQueries", ":b1:hq2:sq70:sk300:d16:mask='q_idx % 5 != 2':bf16", kNone,
       [](int64_t, int64_t i) { return i % 5 == 2; }},
      {"MaskOfBlocks", ":b1:hq2:sq70:sk600:d16:mask='k_idx < 10 || k_idx >= 590':f16",
       [](int64_t, int64_t j) { return j >= 10 && j < 590; }},
      {"MaskOfElements", ":b2:hq2:sq70:sk300:d16:mask='m[batch, k_idx] > 0':aux.m.i32[b,sk]",
       [](int64_t b, int64_t j) { return (j * 7 + b) % 4 == 0; }, kNone,
       [](const OpCall& call) {
         std::vector<double> keeps(600);
         for (int64_t n = 0; n < 600; ++n) {
           keeps[static_cast<size_t>(n)] = (n % 300 * 7 + n / 300) % 4 == 0 ? 0 : 1;
         }
         set_values(call, "aux.m", keeps);
       }},
      {"BiasOfMinusInfinity", ":b1:hq2:sq70:sk300:d16:bias[1,1,1,sk]",
       [](int64_t, int64_t j) { return j == 0 || j == 130 || j > 250; }, kNone,
       [](const OpCall& call) {
         const TensorView bias = call.tensor("bias");
         for (int64_t j = 0; j < 300; ++j) {
           if (j == 0 || j == 130 || j > 250) set(bias, {0, 0, 0, j}, -kInf);
         }
       }},
      {"BiasHidesRows", ":b1:hq2:sq70:sk150:d16:bias[1,1,sq,sk]:bf16", kNone,
       [](int64_t, int64_t i) { return i % 9 == 0; },
       [](const OpCall& call) {
         const TensorView bias = call.tensor("bias");
         for (int64_t i = 0; i < 70; i += 9) {
           for (int64_t j = 0; j < 150; ++j) set(bias, {0, 0, i, j}, -kInf);
         }
       }},
      {"EverythingHidden", ":b1:hq2:sq70:sk150:d16:mask='0':dropout_p=0.1:softcap=3",
       [](int64_t, int64_t) { return true; }, [](int64_t, int64_t) { return true; }},
      {"ScoreOfHiddenKeys",
       ":b1:hq2:sq70:sk150:d16:mask='k_idx > 20':score='score * exp(score)':f16",
       [](int64_t, int64_t j) { return j <= 20; }},
      {"AlibiAndHiddenKeys", ":b2:hq2:sq70:sk150:d16:alibi_slopes[b,hq]:seqused_k={150,60}",
       [](int64_t b, int64_t j) { return b == 1 && j >= 60; }},
  };
}

/// Writes `value` into the chosen rows of a (line, row, head, dim) or (row, head, dim) tensor.
void fill_rows(const TensorView& tensor, const std::function<bool(int64_t, int64_t)>& is_chosen,
               double value) {
  if (!tensor) return;
  const bool is_packed = tensor.ndim == 3;
  const int64_t lines = is_packed ? 1 : tensor.shape[0];
  const int64_t rows = tensor.shape[is_packed ? 0 : 1];
  for (int64_t line = 0; line < lines; ++line) {
    for (int64_t row = 0; row < rows; ++row) {
      if (!is_chosen(line, row)) continue;
      TensorView part = tensor.sliced(is_packed ? 0 : 1, row, row + 1);
      if (!is_packed) part = part.sliced(0, line, line + 1);
      cli::from_numbers(std::vector<double>(static_cast<size_t>(part.numel()), value), part);
    }
  }
}

/// True when the chosen rows are exactly 0.
bool rows_are_zero(const TensorView& tensor,
                   const std::function<bool(int64_t, int64_t)>& is_chosen) {
  const Tensor copy = copy_of(tensor);
  fill_rows(copy, is_chosen, 0);
  return same_bits(copy, tensor) || max_difference(copy, tensor) == 0;
}

/// The same bits. A GPU works a tile out again whose result is not finite, with a reference of the
/// exponentials that moves, so that there all but the last bits are the same.
bool is_unchanged(const TensorView& clean, const TensorView& poisoned) {
  if (same_bits(clean, poisoned)) return true;
  if (test_context().device.type == DeviceType::kCpu) return false;
  double largest = 0;
  for (const double x : cli::to_numbers(clean)) {
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  }
  const double rounding = clean.dtype == DType::kF32   ? 1e-5
                          : clean.dtype == DType::kF16 ? 4e-3
                                                       : 3e-2;
  return max_difference(clean, poisoned) <= rounding * largest;
}

class UnseenMemory : public testing::TestWithParam<Case> {
 protected:
  /// Inputs of a call with `value` in all that is not seen.
  static cli::OwnedCall make(const std::string& text, double value) {
    cli::OwnedCall owned = cli::random_call(parse_problem(text), 3);
    GetParam().prepare(owned.call);
    for (const char* name : {"k", "v"}) {
      fill_rows(owned.call.tensor(name), GetParam().is_unseen_key, value);
    }
    for (const char* name : {"q", "dout"}) {
      if (owned.call.spec().find_tensor(name) == nullptr) continue;
      fill_rows(owned.call.tensor(name), GetParam().is_blind_query, value);
    }
    return owned;
  }
};

TEST_P(UnseenMemory, IsNotReadByForward) {
  const std::string text = "attention_fwd:lse" + GetParam().text;
  const cli::OwnedCall clean = make(text, 0);
  const cli::OwnedCall poisoned = make(text, kNan);
  for (const std::string& implementation : implementations_for(clean.call)) {
    cli::poison(clean.call.tensor("out"));
    cli::poison(poisoned.call.tensor("out"));
    ASSERT_EQ(cli::run_forced(clean.call, implementation, test_context()).text, "");
    ASSERT_EQ(cli::run_forced(poisoned.call, implementation, test_context()).text, "");
    for (const char* name : {"out", "lse"}) {
      EXPECT_TRUE(is_unchanged(clean.call.tensor(name), poisoned.call.tensor(name)))
          << name << " of " << implementation;
    }
    EXPECT_TRUE(rows_are_zero(clean.call.tensor("out"), GetParam().is_blind_query))
        << implementation;
  }
}

TEST_P(UnseenMemory, IsNotReadByBackwardAndHasNoGradient) {
  const std::string text = "attention_bwd" + GetParam().text;
  for (const double value : {kNan, kInf}) {
    const cli::OwnedCall clean = make(text, 0);
    const cli::OwnedCall poisoned = make(text, value);
    for (const std::string& implementation : implementations_for(clean.call)) {
      for (const OpCall* call : {&clean.call, &poisoned.call}) {
        cli::run_forward_of(*call, cli::implementation_suffix(call->spec(), implementation),
                            test_context());
        for (const char* name : {"dq", "dk", "dv"}) cli::poison(call->tensor(name));
        ASSERT_EQ(cli::run_forced(*call, implementation, test_context()).text, "");
      }
      for (const std::string& name : clean.call.tensor_names()) {
        if (clean.call.spec().find_tensor(name)->direction != Direction::kOut) continue;
        if (may_differ_in_last_bits(name)) {  // two bits of bf16; NaN is infinitely far away
          EXPECT_LT(max_difference(clean.call.tensor(name), poisoned.call.tensor(name)), 0.02)
              << implementation << " with " << value;
          continue;
        }
        EXPECT_TRUE(is_unchanged(clean.call.tensor(name), poisoned.call.tensor(name)))
            << name << " of " << implementation << " with " << value;
      }
      EXPECT_TRUE(rows_are_zero(poisoned.call.tensor("dq"), GetParam().is_blind_query))
          << implementation;
      EXPECT_TRUE(rows_are_zero(poisoned.call.tensor("dk"), GetParam().is_unseen_key))
          << implementation;
      EXPECT_TRUE(rows_are_zero(poisoned.call.tensor("dv"), GetParam().is_unseen_key))
          << implementation;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Options, UnseenMemory, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& test) { return test.param.name; });

/// Pages that no block table names, and slots of used pages behind the last key.
TEST(UnseenPages, AreNotRead) {
  const std::string text =
      "attention_fwd:b2:hq4:hkv2:sq5:sk64:d16:block_table[2,4]={7,2,9,0,5,1,0,0}:page_size=16:np11:"
      "seqused_k={50,17}:causal:lse:bf16";
  const auto is_unseen = [](int64_t page, int64_t slot) {
    if (page == 7 || page == 2 || page == 9 || page == 5) return false;
    if (page == 0) return slot >= 2;  // keys 48 and 49 of sequence 0
    if (page == 1) return slot >= 1;  // key 16 of sequence 1
    return true;
  };
  const auto make = [&](double value) {
    cli::OwnedCall owned = cli::random_call(parse_problem(text), 3);
    fill_rows(owned.call.tensor("k"), is_unseen, value);
    fill_rows(owned.call.tensor("v"), is_unseen, value);
    return owned;
  };
  const cli::OwnedCall clean = make(0);
  const cli::OwnedCall poisoned = make(kNan);
  for (const std::string& implementation : implementations_for(clean.call)) {
    ASSERT_EQ(cli::run_forced(clean.call, implementation, test_context()).text, "");
    ASSERT_EQ(cli::run_forced(poisoned.call, implementation, test_context()).text, "");
    EXPECT_TRUE(same_bits(clean.call.tensor("out"), poisoned.call.tensor("out")));
    EXPECT_TRUE(same_bits(clean.call.tensor("lse"), poisoned.call.tensor("lse")));
  }
}

/// NaN that is seen is not hidden.
TEST(SeenNan, ReachesWhatDependsOnIt) {
  for (const char* text : {"attention_fwd:b1:hq2:sq70:sk150:d16:causal:lse",
                           "attention_fwd:b1:hq2:sq70:sk150:d16:causal:lse:softcap=5:bf16"}) {
    for (const char* name : {"q", "k", "v"}) {
      const cli::OwnedCall owned = cli::random_call(parse_problem(text), 3);
      // Query 20 has position 100 and sees keys 0 to 100.
      set(owned.call.tensor(name), {0, *name == 'q' ? 20 : 100, 1, 3}, kNan);
      for (const std::string& implementation : implementations_for(owned.call)) {
        ASSERT_EQ(cli::run_forced(owned.call, implementation, test_context()).text, "");
        EXPECT_TRUE(std::isnan(get(owned.call.tensor("out"), {0, 20, 1, 3})))
            << name << " in " << implementation;
        EXPECT_FALSE(std::isnan(get(owned.call.tensor("out"), {0, 20, 0, 3})))
            << name << " in " << implementation;
        EXPECT_EQ(std::isnan(get(owned.call.tensor("lse"), {0, 1, 20})), *name != 'v')
            << name << " in " << implementation;
        EXPECT_FALSE(std::isnan(get(owned.call.tensor("lse"), {0, 1, 19})))
            << name << " in " << implementation;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::test
