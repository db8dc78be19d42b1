// SPDX-License-Identifier: Apache-2.0
//
// Keys and values that a call appends to its caches, and rotary embedding.
#include <gtest/gtest.h>

#include <cmath>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

const std::vector<std::string> kTexts = {
    ":b2:hq4:hkv2:sq1:sk70:d16:k_new:v_new:seqused_k={5,69}:bf16",
    ":b2:hq4:hkv2:sq3:sk70:d16:sn3:k_new:v_new:seqused_k={5,67}:causal:f16",
    ":b2:hq4:hkv2:sq2:sk70:d16:sn5:k_new:v_new:seqused_k:causal",
    ":b2:hq4:hkv2:sq3:sk200:d32:sn3:k_new:v_new:seqused_k={150,0}:rotary_cos:rotary_sin:rp16:"
    "causal:bf16",
    ":b2:hq4:hkv2:sq3:sk64:d32:sn2:k_new:v_new:seqused_k:rotary_cos:rotary_sin:rp4:"
    "rotary_interleaved:window_left=20:f16",
    ":b2:hq2:sq2:sk64:d17:dv9:sn2:k_new:v_new:seqused_k:rotary_cos:rotary_sin:rp8",
    ":b2:hq2:sq2:sk64:d16:sn2:k_new:v_new:seqused_k:rotary_cos:rotary_sin:rp8:rotary_seqlens={0,9}",
    ":b3:hq4:hkv2:sq2:sk100:d32:sn2:block_table:page_size=16:k_new:v_new:seqused_k={98,17,64}:"
    "rotary_cos.f32:rotary_sin.f32:pos100:rp8:causal:bf16",
    ":b2:hq4:hkv2:sq2:sk60:d32:lines5:cache_batch_idx:k_new:v_new:seqused_k:leftpad_k={0,0}",
    ":hq4:hkv2:sk96:d32:block_table:page_size=16:cu_seqlens_q={0,40,41,43}:"
    "cu_seqlens_new={0,40,41,43}:k_new:v_new:seqused_k={0,70,2}:causal:bf16",
};

class AttentionAppend : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionAppend, AgreesWithReference) { expect_problem_conforms(GetParam().text); }
INSTANTIATE_TEST_SUITE_P(Texts, AttentionAppend, testing::ValuesIn(forward_only(kTexts)),
                         [](const auto& test) { return test_name(test.param.text); });

/// Two sequences with room for 12 keys, of which 5 and 8 are in use, and 2 new ones each.
struct Case {
  Inputs inputs;
  Tensor k_new, v_new, seqused, cos, sin;
};

constexpr int64_t kRoom = 12, kHeadsKv = 2, kDim = 8, kNew = 2;

Case make_case(DType dtype) {
  Case c;
  c.inputs.q = Tensor::random(dtype, {2, kNew, 4, kDim}, 1);
  c.inputs.k = Tensor::random(dtype, {2, kRoom, kHeadsKv, kDim}, 2);
  c.inputs.v = Tensor::random(dtype, {2, kRoom, kHeadsKv, kDim}, 3);
  c.k_new = Tensor::random(dtype, {2, kNew, kHeadsKv, kDim}, 4);
  c.v_new = Tensor::random(dtype, {2, kNew, kHeadsKv, kDim}, 5);
  c.seqused = Tensor::ints({5, 8});
  c.inputs.options.k_new = c.k_new;
  c.inputs.options.v_new = c.v_new;
  c.inputs.options.seqused_k = c.seqused;
  c.inputs.options.causal = true;
  return c;
}

void add_rotary(Case& c, int64_t pairs) {
  c.cos = Tensor(DType::kF32, {kRoom, pairs});
  c.sin = Tensor(DType::kF32, {kRoom, pairs});
  for (int64_t row = 0; row < kRoom; ++row) {
    for (int64_t n = 0; n < pairs; ++n) {
      const double angle = static_cast<double>(row) / std::pow(10.0, static_cast<double>(n));
      c.cos.set({row, n}, std::cos(angle));
      c.sin.set({row, n}, std::sin(angle));
    }
  }
  c.inputs.options.rotary_cos = c.cos;
  c.inputs.options.rotary_sin = c.sin;
}

/// The same call with the keys stored and everything turned by hand.
Inputs by_hand(const Case& c, bool is_interleaved, int64_t pairs, std::vector<int64_t>* lengths) {
  Inputs inputs = c.inputs;
  inputs.options = {};
  inputs.options.causal = c.inputs.options.causal;
  inputs.q = c.inputs.q.copy();
  inputs.k = c.inputs.k.copy();
  inputs.v = c.inputs.v.copy();
  const auto turn = [&](const Tensor& from, const Tensor& to, int64_t b, int64_t i, int64_t slot,
                        int64_t h, int64_t position) {
    for (int64_t d = 0; d < kDim; ++d) to.set({b, slot, h, d}, from.get({b, i, h, d}));
    for (int64_t n = 0; n < pairs; ++n) {
      const int64_t x = is_interleaved ? 2 * n : n;
      const int64_t y = is_interleaved ? 2 * n + 1 : n + pairs;
      const double cos = c.cos.get({position, n}), sin = c.sin.get({position, n});
      const double a = from.get({b, i, h, x}), e = from.get({b, i, h, y});
      to.set({b, slot, h, x}, a * cos - e * sin);
      to.set({b, slot, h, y}, e * cos + a * sin);
    }
  };
  lengths->clear();
  for (int64_t b = 0; b < 2; ++b) {
    const auto used = static_cast<int64_t>(c.seqused.get({b}));
    for (int64_t n = 0; n < kNew; ++n) {
      for (int64_t h = 0; h < 4; ++h) {
        turn(c.inputs.q, inputs.q, b, n, n, h, c.inputs.options.causal ? used + n : used);
      }
      for (int64_t h = 0; h < kHeadsKv; ++h) {
        turn(c.k_new, inputs.k, b, n, used + n, h, used + n);
        for (int64_t d = 0; d < kDim; ++d) {
          inputs.v.set({b, used + n, h, d}, c.v_new.get({b, n, h, d}));
        }
      }
    }
    lengths->push_back(used + kNew);
  }
  return inputs;
}

void expect_same_as_by_hand(Case c, bool is_interleaved, int64_t pairs) {
  for (const std::string& implementation : all_implementations()) {
    std::vector<int64_t> lengths;
    Inputs expected = by_hand(c, is_interleaved, pairs, &lengths);
    const Tensor used = Tensor::ints(lengths);
    expected.options.seqused_k = used;
    Inputs appended = c.inputs;
    appended.k = c.inputs.k.copy();
    appended.v = c.inputs.v.copy();
    EXPECT_EQ(differing(run(appended, implementation), run(expected, implementation)), "")
        << implementation;
    // Slots that are not new keep their bits.
    EXPECT_TRUE(same_bits(appended.k, expected.k)) << implementation;
    EXPECT_TRUE(same_bits(appended.v, expected.v)) << implementation;
  }
}

TEST(AttentionAppendByHand, StoresAndAttendsToNewKeys) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    expect_same_as_by_hand(make_case(dtype), /*is_interleaved=*/false, 0);
  }
}

TEST(AttentionAppendByHand, TurnsHalvesAndNeighbours) {
  for (const bool is_interleaved : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Case c = make_case(dtype);
      add_rotary(c, 3);
      c.inputs.options.rotary_interleaved = is_interleaved;
      expect_same_as_by_hand(c, is_interleaved, 3);
    }
  }
}

TEST(AttentionAppendByHand, TurnsAllQueriesAlikeWithoutCausalOrWindow) {
  Case c = make_case(DType::kF32);
  add_rotary(c, 4);
  c.inputs.options.causal = false;
  expect_same_as_by_hand(c, /*is_interleaved=*/false, 4);
}

TEST(AttentionAppend, TwiceGivesTheSameCaches) {
  Case c = make_case(DType::kBF16);
  add_rotary(c, 4);
  const std::string implementation = all_implementations().front();
  const Results once = run(c.inputs, implementation);
  const Tensor k = c.inputs.k.copy();
  EXPECT_EQ(differing(run(c.inputs, implementation), once), "");
  EXPECT_TRUE(same_bits(c.inputs.k, k));
}

std::string error_of(const Inputs& inputs) {
  try {
    run(inputs, all_implementations().front());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void expect_error(const Case& c, const std::string& part) {
  const Tensor k = c.inputs.k.copy();
  EXPECT_NE(error_of(c.inputs).find(part), std::string::npos) << error_of(c.inputs);
  EXPECT_TRUE(same_bits(c.inputs.k, k)) << part;
}

TEST(AttentionAppendErrors, NameWhatIsWrong) {
  Case c = make_case(DType::kF32);
  c.inputs.options.seqused_k = {};
  expect_error(c, "k_new needs seqused_k");
  c = make_case(DType::kF32);
  c.inputs.options.v_new = {};
  expect_error(c, "k_new and v_new must be given together");
  c = make_case(DType::kF32);
  const Tensor full = Tensor::ints({11, 8});
  c.inputs.options.seqused_k = full;
  expect_error(c, "seqused_k[0] is 11 and there are 2 new keys, expected at most 12 together");
  c = make_case(DType::kF32);
  add_rotary(c, 5);
  expect_error(c, "rotary_cos has 5 columns, expected at most half of the 8 of head_dim");
  c = make_case(DType::kF32);
  add_rotary(c, 4);
  c.inputs.options.rotary_sin = {};
  expect_error(c, "rotary_cos and rotary_sin must be given together");
  c = make_case(DType::kF32);
  add_rotary(c, 4);
  const Tensor late = Tensor::ints({11, 0});
  c.inputs.options.rotary_seqlens = late;
  expect_error(c, "sequence 0 turns by rows 11 to 12 of rotary_cos, which has 12");
  c = make_case(DType::kF32);
  c.inputs.options.rotary_interleaved = true;
  expect_error(c, "rotary_interleaved is given without rotary_cos");
}

TEST(AttentionAppendErrors, RefuseToWriteASlotTwice) {
  Case c = make_case(DType::kF32);
  const Tensor lines = Tensor::ints({1, 1});
  const Tensor used = Tensor::ints({5, 6});
  c.inputs.options.cache_batch_idx = lines;
  c.inputs.options.seqused_k = used;
  expect_error(c, "sequences 0 and 1 append new keys to the same slot of k");
}

TEST(AttentionAppendErrors, RefuseKeysThatAreValues) {
  Case c = make_case(DType::kF32);
  c.inputs.v = c.inputs.k;
  expect_error(c, "shares memory with");
  c.inputs.options.k_new = c.inputs.options.v_new = {};
  EXPECT_EQ(error_of(c.inputs), "no error");
}

TEST(AttentionAppendErrors, HasNoBackward) {
  Case c = make_case(DType::kF32);
  const Tensor out(DType::kF32, {2, kNew, 4, kDim});
  const Tensor lse(DType::kF32, {2, 4, kNew});
  const Tensor dq(DType::kF32, {2, kNew, 4, kDim});
  try {
    attention_bwd(c.inputs.q, c.inputs.q, c.inputs.k, c.inputs.v, out, lse, dq, {}, {},
                  c.inputs.options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("k_new) have no backward"), std::string::npos);
  }
}

}  // namespace
}  // namespace flashtile::test
