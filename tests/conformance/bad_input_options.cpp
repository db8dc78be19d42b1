// SPDX-License-Identifier: Apache-2.0
//
// Bad lengths, tables, lists and options.
#include "bad_input.hpp"

namespace flashtile::test {
namespace {

using C = ValidCall;

}  // namespace

std::vector<BadInputCase> bad_lengths() {
  return {
      {"CuSeqlensFallBack",
       {"cu_seqlens_q[2] is 5", "less than 7 before it"},
       [](C& c) {
         c.pack_queries({0, 7, 5});
         c.args.k = c.args.v = c.zeros(DType::kF32, {2, 10, 2, 8});
       }},
      {"CuSeqlensStartLate",
       {"cu_seqlens_k[0] is 1", "expected 0"},
       [](C& c) {
         c.pack_keys({1, 10, 20});
       }},
      {"CuSeqlensBeyondTheTensor",
       {"cu_seqlens_k ends at 21", "20 rows"},
       [](C& c) {
         c.pack_keys({0, 10, 21});
       }},
      {"CuSeqlensOfOtherBatch",
       {"batch_size of cu_seqlens_k is 3", "of cu_seqlens_q 2"},
       [](C& c) {
         c.pack_queries({0, 6, 12});
         c.pack_keys({0, 5, 10, 20});
       }},
      {"EmptyCuSeqlens",
       {"cu_seqlens_q"},
       [](C& c) {
         c.pack_queries({0, 6, 12});
         c.args.cu_seqlens_q = c.zeros(DType::kI32, {0});
       }},
      {"MaxSeqlenTooSmall",
       {"max_seqlen_q is 6", "has 7"},
       [](C& c) {
         c.pack_queries({0, 5, 12});
         c.args.max_seqlen_q = 6;
       }},
      {"MaxSeqlenOfUnpackedQueries",
       {"max_seqlen_q is given without cu_seqlens_q"},
       [](C& c) { c.args.max_seqlen_q = 6; }},
      {"MaxSeqlenOfUnpackedKeys",
       {"max_seqlen_k is given without cu_seqlens_k"},
       [](C& c) { c.args.max_seqlen_k = 10; }},
      {"MaxSeqlenOfPages",
       {"max_seqlen_k is given without cu_seqlens_k"},
       [](C& c) {
         c.page({0, 1, 2, 3});
         c.args.max_seqlen_k = 16;
       },
       Ops::kForward},
      {"SequsedBeyondTheKeys",
       {"seqused_k[1] is 11", "0 to 10"},
       [](C& c) {
         c.args.seqused_k = c.ints({3, 11});
       }},
      {"NegativeSeqused",
       {"seqused_k[0] is -1", "0 to 10"},
       [](C& c) {
         c.args.seqused_k = c.ints({-1, 10});
       }},
      {"LeftpadBeyondTheUsedKeys",
       {"leftpad_k[0] is 5", "0 to 4"},
       [](C& c) {
         c.args.seqused_k = c.ints({4, 10});
         c.args.leftpad_k = c.ints({5, 0});
       }},
      {"NegativeLeftpad",
       {"leftpad_k[1] is -2", "0 to 10"},
       [](C& c) {
         c.args.leftpad_k = c.ints({0, -2});
       }},
      {"PageBeyondThePool",
       {"block_table[1, 0] is 5", "5 pages"},
       [](C& c) {
         c.page({0, 1, 5, 2});
       },
       Ops::kForward},
      {"NegativePage",
       {"block_table[0, 1] is -1", "5 pages"},
       [](C& c) {
         c.page({0, -1, 3, 2});
       },
       Ops::kForward},
      {"KeysBeyondTheTable",
       {"seqused_k[1] is 17", "0 to 16"},
       [](C& c) {
         c.page({0, 1, 2, 3});
         c.args.seqused_k = c.ints({16, 17});
       },
       Ops::kForward},
      {"PagedAndPacked",
       {"block_table", "cu_seqlens_k"},
       [](C& c) {
         c.page({0, 1, 2, 3});
         c.args.cu_seqlens_k = c.ints({0, 10, 20});
       },
       Ops::kForward},
      {"LineBeyondTheCache",
       {"cache_batch_idx[1] is 2", "0 to 1"},
       [](C& c) {
         c.args.cache_batch_idx = c.ints({0, 2});
       },
       Ops::kForward},
      {"LinesOfPages",
       {"cache_batch_idx"},
       [](C& c) {
         c.page({0, 1, 2, 3});
         c.args.cache_batch_idx = c.ints({0, 1});
       },
       Ops::kForward},
      {"BackwardOfPages",
       {"block_table", "no backward"},
       [](C& c) {
         c.page({0, 1, 2, 3});
         c.args.dk = c.args.dv = {};
       },
       Ops::kBackward,
       ErrorCode::kUnsupported},
      {"BackwardOfLines",
       {"cache_batch_idx", "no backward"},
       [](C& c) {
         c.args.cache_batch_idx = c.ints({0, 1});
       },
       Ops::kBackward,
       ErrorCode::kUnsupported},
      {"CountBeyondTheList",
       {"block_counts[0, 0, 1] is 3", "2"},
       [](C& c) {
         c.list_blocks({1, 3}, {0, 1, 0, 1});
       }},
      {"NegativeCount",
       {"block_counts[0, 0, 0] is -1"},
       [](C& c) {
         c.list_blocks({-1, 0}, {0, 1, 0, 1});
       }},
      {"ListedBlockBeyondTheKeys",
       {"block_indices[0, 0, 1, 0] is 2", "2 blocks of 5 keys"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 9, 2, 9});
       }},
      {"ListedBlockOfASequenceThatSharesItsCounts",
       {"block_indices[1, 0, 1, 0] is -7", "2 blocks of 5 keys"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 9, 1, 9});
         c.args.block_indices = c.keep(
             Tensor::of(DType::kI32, {2, 1, 2, 2}, std::vector<double>{0, 9, 1, 9, 0, 9, -7, 9}));
       }},
      {"ListedBlockOfAHeadThatSharesItsCounts",
       {"block_indices[0, 3, 0, 0] is 2", "2 blocks of 5 keys"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 9, 1, 9});
         c.args.block_indices = c.keep(
             Tensor::of(DType::kI32, {1, 4, 2, 1}, std::vector<double>{0, 1, 1, 0, 0, 0, 2, 1}));
       }},
      {"CountOfASequenceThatSharesItsIndices",
       {"block_counts[1, 0, 0] is 3", "room for 2"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 1, 1, 0});
         c.args.block_counts =
             c.keep(Tensor::of(DType::kI32, {2, 1, 2}, std::vector<double>{1, 2, 3, 1}));
       }},
      {"SharedEntryBeyondACountOfOneSequenceAlone",
       {"block_indices[0, 0, 1, 1] is 9"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 9, 1, 9});
         c.args.block_counts =
             c.keep(Tensor::of(DType::kI32, {2, 1, 2}, std::vector<double>{1, 1, 1, 2}));
       }},
      {"CountsWithoutIndices",
       {"block_counts and block_indices"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 1, 0, 1});
         c.args.block_indices = {};
       }},
      {"ListsWithoutBlockSize",
       {"block_rows is 0"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 1, 0, 1});
         c.args.block_rows = 0;
       }},
      {"BlockSizeWithoutLists",
       {"block_rows and block_cols need"},
       [](C& c) { c.args.block_rows = c.args.block_cols = 4; }},
      {"TooFewBlockRows",
       {"block_counts", "up to 6 queries"},
       [](C& c) {
         c.list_blocks({1, 1}, {0, 1, 0, 1});
         c.args.block_rows = 2;
       }},
  };
}

std::vector<BadInputCase> bad_options() {
  const auto mask = [](const char* text) { return [text](C& c) { c.args.mask = text; }; };
  return {
      {"NegativeWindow",
       {"window_left is -1", "at least 0"},
       [](C& c) { c.args.window_left = -1; }},
      {"NegativeRightWindow",
       {"window_right is -3", "at least 0"},
       [](C& c) { c.args.window_right = -3; }},
      {"ChunkOfZero",
       {"attention_chunk is 0", "at least 1"},
       [](C& c) { c.args.attention_chunk = 0; }},
      {"NegativeSoftcap", {"softcap is -1"}, [](C& c) { c.args.softcap = -1; }},
      {"SoftcapOfZero", {"softcap is 0"}, [](C& c) { c.args.softcap = 0; }},
      {"SoftcapOfNan", {"softcap is nan"}, [](C& c) { c.args.softcap = kNan; }},
      {"ScaleOfNan", {"softmax_scale is nan"}, [](C& c) { c.args.softmax_scale = kNan; }},
      {"ScaleOfInfinity",
       {"softmax_scale is inf, expected a finite number"},
       [](C& c) { c.args.softmax_scale = kInf; }},
      {"SoftcapOfInfinity",
       {"softcap is inf, expected a finite number, at least 1e-30"},
       [](C& c) { c.args.softcap = kInf; }},
      {"ParamOfInfinity",
       {"param.x is -inf, expected a finite number"},
       [](C& c) {
         c.args.score = "score * param.x";
         c.args.params = {{"x", -kInf}};
       }},
      {"DropoutOfOne", {"dropout_p is 1", "below 1"}, [](C& c) { c.args.dropout_p = 1; }},
      {"NegativeDropout", {"dropout_p is -0.1"}, [](C& c) { c.args.dropout_p = -0.1; }},
      {"DropoutOfNan", {"dropout_p is nan"}, [](C& c) { c.args.dropout_p = kNan; }},
      {"DropoutOffset",
       {"dropout_offset is 4294967296"},
       [](C& c) {
         c.args.dropout_p = 0.1;
         c.args.dropout_offset = int64_t{1} << 32;
       }},
      {"QueryOffsetThatOverflows",
       {"query_offset is 9223372036854775807",
        "at least -4503599627370496 and at most 4503599627370496"},
       [](C& c) { c.args.query_offset = INT64_MAX; }},
      {"UnknownName", {"mask expression", "column 1", "'frobnicate'"}, mask("frobnicate > 0")},
      {"OpenBracket", {"mask expression", "column", "'('"}, mask("(k_idx > 0")},
      {"EmptyExpression", {"mask expression", "column"}, mask("   ")},
      {"ScoreInMask", {"mask expression", "column 1", "score"}, mask("score > 0")},
      {"TooManyIndices",
       {"mask expression", "column 1", "'t'", "1"},
       [](C& c) {
         c.args.mask = "t[k_idx, q_idx] > 0";
         c.args.aux = {{"t", c.zeros(DType::kF32, {10}), {}}};
       }},
      {"BadScore", {"score expression", "column 9"}, [](C& c) { c.args.score = "score * "; }},
      {"MissingParam", {"param.t"}, [](C& c) { c.args.score = "score * param.t"; }},
      {"ParamThatNobodyReads",
       {"param.y is given, but read by no expression"},
       [](C& c) {
         c.args.score = "score * param.x";
         c.args.params = {{"x", 1}, {"y", 1}};
       }},
      {"ParamWithoutExpressions",
       {"param.x is given, but read by no expression"},
       [](C& c) {
         c.args.params = {{"x", 1}};
       }},
      {"AuxThatNobodyReads",
       {"aux.u is given, but read by no expression"},
       [](C& c) {
         c.args.mask = "t[k_idx] >= 0.0";
         const TensorView t = c.zeros(DType::kF32, {10});
         c.args.aux = {{"t", t, {}}, {"u", t, {}}};
       }},
      {"AuxCalledAsAVariable",
       {"aux.head is given, but read by no expression"},
       [](C& c) {
         c.args.mask = "head >= 0";
         c.args.aux = {{"head", c.zeros(DType::kI32, {4}), {}}};
       }},
      {"TwoParamsOfOneName",
       {"two params are called 'x'"},
       [](C& c) {
         c.args.score = "score * param.x";
         c.args.params = {{"x", 1}, {"x", 2}};
       }},
      {"ParamCalledAsTheSoftcapInside",
       {"a param is called '.softcap'", "letters"},
       [](C& c) {
         c.args.softcap = 30;
         c.args.params = {{".softcap", 0.001}};
       }},
      {"ParamWithoutName",
       {"a param is called ''"},
       [](C& c) {
         c.args.params = {{"", 1}};
       }},
      {"AuxWithABlankInItsName",
       {"an aux tensor is called 'my t'"},
       [](C& c) {
         c.args.aux = {{"my t", c.zeros(DType::kF32, {10}), {}}};
       }},
      {"AuxCalledAsTheBiasInside",
       {"an aux tensor is called '.bias'"},
       [](C& c) {
         c.args.aux = {{".bias", c.zeros(DType::kF32, {10}), {}}};
       }},
      {"TwoAuxOfOneName",
       {"two aux tensors are called 't'"},
       [](C& c) {
         c.args.mask = "t[k_idx] > 0";
         const TensorView t = c.zeros(DType::kF32, {10});
         c.args.aux = {{"t", t, {}}, {"t", t, {}}};
       }},
      {"AuxWithoutTensor",
       {"'t'"},
       [](C& c) {
         c.args.mask = "t[k_idx] > 0";
         c.args.aux = {{"t", {}, {}}};
       }},
      {"GradientOfIntegers",
       {"daux.t", "i32", "f32"},
       [](C& c) {
         c.args.score = "score * t[k_idx]";
         c.args.aux = {{"t", c.zeros(DType::kI32, {10}), c.keep(Tensor(DType::kF32, {10}))}};
       },
       Ops::kBackward},
      {"GradientOfOtherAuxShape",
       {"shape of daux.t is (11)", "that of aux.t (10)"},
       [](C& c) {
         c.args.score = "score * t[k_idx]";
         c.args.aux = {{"t", c.zeros(DType::kF32, {10}), c.keep(Tensor(DType::kF32, {11}))}};
       },
       Ops::kBackward},
  };
}

}  // namespace flashtile::test
