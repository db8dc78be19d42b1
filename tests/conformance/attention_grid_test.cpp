// SPDX-License-Identifier: Apache-2.0
//
// Lengths, head counts, head dims and dtypes: every implementation against the reference in
// double, within twice the error of a plain implementation in the same precision. A forward block
// has 128 keys and a backward block 64, so lengths go over eight of either.
#include <gtest/gtest.h>

#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

std::string name_of(const testing::TestParamInfo<ProblemParam>& test) {
  return test_name(test.param.text);
}

const std::vector<std::string> kQuick = {
    ":b2:hq4:hkv2:sq67:sk131:d64:causal",
    ":b2:hq4:hkv2:sq67:sk131:d64:causal:bf16",
    ":b2:hq4:hkv2:sq67:sk131:d64:causal:f16",
    ":b1:hq3:hkv1:sq129:sk65:d33:dv17",
    ":b1:hq2:sq1:sk300:d64:bf16",
    ":b2:hq2:sq5:sk0:d8",
    ":b2:hq2:sq0:sk5:d8",
    ":b1:hq1:sq40:sk1090:d32:causal:bf16",
};

class AttentionGrid : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionGrid, AgreesWithReference) { expect_problem_conforms(GetParam().text); }
INSTANTIATE_TEST_SUITE_P(Quick, AttentionGrid, testing::ValuesIn(both_ways(kQuick)), name_of);

const std::vector<std::string> kLengths = {
    ":b0:hq2:sq5:sk5:d8",
    ":b2:hq2:sq0:sk0:d8",
    ":b1:hq2:sq1:sk1:d16",
    ":b1:hq2:sq1:sk1:d16:causal:bf16",
    ":b2:hq2:sq7:sk1:d16:causal",
    ":b2:hq2:sq1:sk7:d16:f16",
    ":b1:hq2:sq2:sk3:d5",
    ":b1:hq2:sq17:sk31:d16",
    ":b1:hq1:sq63:sk64:d16:causal",
    ":b1:hq1:sq64:sk63:d16:causal",
    ":b1:hq1:sq64:sk64:d16:causal:bf16",
    ":b1:hq1:sq65:sk127:d16:f16",
    ":b1:hq1:sq127:sk128:d16:causal",
    ":b1:hq1:sq128:sk129:d16:causal:bf16",
    ":b1:hq1:sq129:sk128:d16:causal",
    ":b1:hq2:sq191:sk193:d24:causal:f16",
    ":b1:hq1:sq256:sk256:d16",
    ":b1:hq1:sq257:sk511:d16:causal",
    ":b1:hq1:sq33:sk1024:d32",
    ":b1:hq1:sq33:sk1025:d32:bf16",
    ":b1:hq1:sq1025:sk33:d32:causal",
    ":b1:hq1:sq1030:sk1030:d16:causal",
    ":b1:hq1:sq513:sk1153:d16:causal:bf16",
    ":b1:hq1:sq520:sk1160:d16:causal:f16",
    ":b1:hq4:hkv1:sq1:sk2049:d64:bf16",
    ":b3:hq2:sq1:sk1100:d64",
    ":b1:hq1:sq600:sk600:d8:window_left=40:window_right=9",
};

const std::vector<std::string> kHeads = {
    ":b2:hq1:hkv1:sq70:sk90:d16",
    ":b2:hq4:hkv2:sq70:sk90:d16:causal",
    ":b2:hq6:hkv2:sq70:sk90:d16:causal:bf16",
    ":b1:hq10:hkv2:sq70:sk90:d16:f16",
    ":b1:hq16:hkv2:sq70:sk90:d16:causal",
    ":b1:hq8:hkv1:sq70:sk90:d16:bf16",
    ":b1:hq8:hkv1:sq8:sk260:d16",
    ":b2:hq12:hkv4:sq5:sk140:d40:causal:f16",
    ":b5:hq7:hkv7:sq9:sk11:d16:causal",
    ":b2:hq28:hkv4:sq1:sk256:d16:bf16",
    ":b2:hq24:hkv4:sq1:sk256:d128",
    ":b2:hq12:hkv2:sq1:sk512:d16:f16",
    ":b1:hq64:hkv4:sq1:sk256:d16:bf16",
    ":b1:hq64:hkv2:sq1:sk300:d16",
};

/// All dtypes at all head dims.
// flash-attention#1347, flashinfer#528, pytorch PR 90413
std::vector<std::string> head_dims() {
  std::vector<std::string> texts;
  for (const char* dtype : {"f32", "bf16", "f16"}) {
    for (const int dim : {1, 7, 33, 40, 64, 80, 96, 100, 112, 128, 192, 224, 256}) {
      texts.push_back(":b1:hq2:hkv1:sq67:sk133:d" + std::to_string(dim) + ":causal:" + dtype);
    }
    for (const char* dims : {"d100:dv112", "d32:dv64", "d64:dv32", "d128:dv96", "d128:dv8",
                             "d192:dv128", "d224:dv1", "d1:dv65", "d33:dv31"}) {
      texts.push_back(std::string(":b1:hq2:hkv1:sq70:sk130:") + dims + ":" + dtype);
    }
    texts.push_back(std::string(":b1:hq2:hkv1:sq35:sk70:d512:") + dtype);
    texts.push_back(std::string(":b1:hq2:hkv1:sq35:sk70:d576:dv512:causal:") + dtype);
    texts.push_back(std::string(":b1:hq1:sq20:sk40:d1024:") + dtype);
    texts.push_back(std::string(":b1:hq1:sq20:sk40:d3:dv1024:") + dtype);
  }
  return texts;
}

class AttentionGridFull : public testing::TestWithParam<ProblemParam> {};
TEST_P(AttentionGridFull, AgreesWithReference) { expect_problem_conforms(GetParam().text); }
INSTANTIATE_TEST_SUITE_P(Lengths, AttentionGridFull, testing::ValuesIn(both_ways(kLengths)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Heads, AttentionGridFull, testing::ValuesIn(both_ways(kHeads)), name_of);
INSTANTIATE_TEST_SUITE_P(HeadDims, AttentionGridFull, testing::ValuesIn(both_ways(head_dims())),
                         name_of);

}  // namespace
}  // namespace flashtile::test
