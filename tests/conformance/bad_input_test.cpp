// SPDX-License-Identifier: Apache-2.0
//
// What is wrong is an error that names op, argument, what was found and what was expected, before
// anything is written.
#include <gtest/gtest.h>

#include <functional>

#include "flashtile/error.hpp"
#include "ops/attention/implementations.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// A right call of either op, small, dense: 2 sequences, 4 heads on 2, 6 queries, 10 keys.
class ValidCall {
 public:
  explicit ValidCall(bool is_backward) : is_backward_(is_backward) {
    args.q = keep(Tensor::random(DType::kF32, {2, 6, 4, 8}, 1));
    args.k = keep(Tensor::random(DType::kF32, {2, 10, 2, 8}, 2));
    args.v = keep(Tensor::random(DType::kF32, {2, 10, 2, 8}, 3));
    args.out = keep(Tensor(DType::kF32, {2, 6, 4, 8}));
    args.lse = keep(Tensor(DType::kF32, {2, 4, 6}));
    if (!is_backward) return;
    kept_[3].fill(1);
    kept_[4].fill(2);
    args.dout = keep(Tensor::random(DType::kF32, {2, 6, 4, 8}, 4));
    args.dq = keep(Tensor(DType::kF32, {2, 6, 4, 8}));
    args.dk = keep(Tensor(DType::kF32, {2, 10, 2, 8}));
    args.dv = keep(Tensor(DType::kF32, {2, 10, 2, 8}));
  }

  const TensorView& keep(const Tensor& tensor) {
    kept_.push_back(tensor);
    return kept_.back();
  }
  TensorView zeros(DType dtype, std::initializer_list<int64_t> shape) {
    return keep(Tensor::filled(dtype, shape, 0));
  }
  TensorView ints(std::initializer_list<int> values) { return keep(Tensor::ints(values)); }

  /// Packed forms of the same sizes.
  void pack_queries(std::initializer_list<int> cu_seqlens) {
    args.q = zeros(DType::kF32, {12, 4, 8});
    args.out = keep(Tensor(DType::kF32, {12, 4, 8}));
    args.lse = keep(Tensor(DType::kF32, {4, 12}));
    args.cu_seqlens_q = ints(cu_seqlens);
    if (!is_backward_) return;
    args.dout = zeros(DType::kF32, {12, 4, 8});
    args.dq = keep(Tensor(DType::kF32, {12, 4, 8}));
  }
  void pack_keys(std::initializer_list<int> cu_seqlens) {
    args.k = args.v = zeros(DType::kF32, {20, 2, 8});
    args.cu_seqlens_k = ints(cu_seqlens);
    if (!is_backward_) return;
    args.dk = keep(Tensor(DType::kF32, {20, 2, 8}));
    args.dv = keep(Tensor(DType::kF32, {20, 2, 8}));
  }
  /// Two pages of 8 keys for each sequence, of 5.
  void page(std::initializer_list<double> table) {
    args.k = args.v = zeros(DType::kF32, {5, 8, 2, 8});
    args.block_table = keep(Tensor::of(DType::kI32, {2, 2}, std::vector<double>(table)));
  }
  void list_blocks(std::initializer_list<double> counts, std::initializer_list<double> indices) {
    args.block_rows = 3;
    args.block_cols = 5;
    args.block_counts = keep(Tensor::of(DType::kI32, {1, 1, 2}, std::vector<double>(counts)));
    args.block_indices = keep(Tensor::of(DType::kI32, {1, 1, 2, 2}, std::vector<double>(indices)));
  }

  void run() const { run_attention(args, is_backward_, one_worker()); }

  /// True when some byte of a tensor that is kept has changed since `before`.
  std::vector<std::vector<double>> contents() const {
    std::vector<std::vector<double>> all;
    for (const Tensor& tensor : kept_) {
      std::vector<double> numbers = tensor.numbers();
      for (double& x : numbers) {
        if (std::isnan(x)) x = -123456;  // NaN is not equal to itself
      }
      all.push_back(numbers);
    }
    return all;
  }

  AttentionArgs args;

 private:
  bool is_backward_;
  std::vector<Tensor> kept_;
};

enum class Ops : uint8_t { kBoth, kForward, kBackward };

struct Case {
  const char* name;
  std::vector<std::string> fragments;  ///< that the text has to contain
  std::function<void(ValidCall&)> spoil;
  Ops ops = Ops::kBoth;
  ErrorCode code = ErrorCode::kInvalidArgument;
};
void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

TensorView reshaped(const TensorView& view, std::initializer_list<int64_t> shape,
                    std::initializer_list<int64_t> strides) {
  return {view.data, view.dtype, std::span(shape.begin(), shape.size()),
          std::span(strides.begin(), strides.size())};
}

using C = ValidCall;

std::vector<Case> shape_cases() {
  return {
      {"MissingQueries", {"q is missing"}, [](C& c) { c.args.q = {}; }},
      {"MissingOut", {"out is missing"}, [](C& c) { c.args.out = {}; }},
      {"MissingLse", {"lse is missing"}, [](C& c) { c.args.lse = {}; }, Ops::kBackward},
      {"MissingDout", {"dout is missing"}, [](C& c) { c.args.dout = {}; }, Ops::kBackward},
      {"TooFewDimensions",
       {"q", "dimensions", "2", "4"},
       [](C& c) {
         c.args.q = c.zeros(DType::kF32, {6, 8});
       }},
      {"OtherHeadDimOfKeys",
       {"k", "head_dim", "9", "8"},
       [](C& c) {
         c.args.k = c.zeros(DType::kF32, {2, 10, 2, 9});
       }},
      {"OtherBatchSizeOfKeys",
       {"k", "batch_size", "3", "2"},
       [](C& c) {
         c.args.k = c.zeros(DType::kF32, {3, 10, 2, 8});
       }},
      {"OtherLengthOfValues",
       {"v", "seqlen_k", "11", "10"},
       [](C& c) {
         c.args.v = c.zeros(DType::kF32, {2, 11, 2, 8});
       }},
      {"OtherHeadsOfValues",
       {"v", "num_heads_kv", "4", "2"},
       [](C& c) {
         c.args.v = c.zeros(DType::kF32, {2, 10, 4, 8});
       }},
      {"HeadRatio",
       {"q has 4 heads", "multiple", "3 heads of k"},
       [](C& c) {
         c.args.k = c.args.v = c.zeros(DType::kF32, {2, 10, 3, 8});
         c.args.dk = c.args.dv = {};
       }},
      {"NoHeadsOfKeys",
       {"0 heads of k"},
       [](C& c) {
         c.args.k = c.args.v = c.zeros(DType::kF32, {2, 10, 0, 8});
         c.args.dk = c.args.dv = {};
       }},
      {"HeadDimOfZero",
       {"head_dim is 0", "1 to 1024"},
       [](C& c) {
         c.args.q = c.zeros(DType::kF32, {2, 6, 4, 0});
         c.args.k = c.zeros(DType::kF32, {2, 10, 2, 0});
         c.args.dq = c.args.dk = {};
       }},
      {"HeadDimBeyondTheLimit",
       {"head_dim is 1025", "1 to 1024"},
       [](C& c) {
         c.args.q = c.zeros(DType::kF32, {2, 6, 4, 1025});
         c.args.k = c.zeros(DType::kF32, {2, 10, 2, 1025});
         c.args.dq = c.args.dk = {};
       }},
      {"NegativeLength",
       {"dimension 1 of q is -6", "at least 0"},
       [](C& c) { c.args.q.shape[1] = -6; }},
      {"OtherShapeOfOut",
       {"out", "head_dim_v", "7", "8"},
       [](C& c) {
         c.args.out = c.keep(Tensor(DType::kF32, {2, 6, 4, 7}));
       }},
      {"OtherShapeOfLse",
       {"lse", "seqlen_q", "7", "6"},
       [](C& c) {
         c.args.lse = c.keep(Tensor(DType::kF32, {2, 4, 7}));
       }},
      {"OtherShapeOfDq",
       {"shape of dq is (2, 7, 4, 8)", "that of q (2, 6, 4, 8)"},
       [](C& c) {
         c.args.dq = c.keep(Tensor(DType::kF32, {2, 7, 4, 8}));
       },
       Ops::kBackward},
      {"OtherShapeOfDout",
       {"dout", "seqlen_q", "7", "6"},
       [](C& c) {
         c.args.dout = c.zeros(DType::kF32, {2, 7, 4, 8});
       },
       Ops::kBackward},
      {"BiasOfOtherHeads",
       {"bias", "num_heads", "3", "4"},
       [](C& c) {
         c.args.bias = c.zeros(DType::kF32, {1, 3, 6, 10});
       }},
      {"BiasOfOtherKeys",
       {"bias", "seqlen_k", "9", "10"},
       [](C& c) {
         c.args.bias = c.zeros(DType::kF32, {1, 1, 6, 9});
       }},
      {"SlopesOfOtherHeads",
       {"alibi_slopes", "num_heads", "2", "4"},
       [](C& c) { c.args.alibi_slopes = c.zeros(DType::kF32, {2}); }},
      {"SinkOfOtherHeads",
       {"sink", "num_heads", "2", "4"},
       [](C& c) { c.args.sink = c.zeros(DType::kF32, {2}); }},
      {"GradientOfNothing",
       {"dsink", "without sink"},
       [](C& c) { c.args.dsink = c.zeros(DType::kF32, {4}); },
       Ops::kBackward},
      {"GradientOfOtherShape",
       {"shape of dbias is (1, 4, 6, 10)", "that of bias (1, 1, 6, 10)"},
       [](C& c) {
         c.args.bias = c.zeros(DType::kF32, {1, 1, 6, 10});
         c.args.dbias = c.keep(Tensor(DType::kF32, {1, 4, 6, 10}));
       },
       Ops::kBackward},
      {"SizesThatOverflow",
       {"k", "64 bits"},
       [](C& c) {
         const int64_t huge = int64_t{1} << 40;
         c.args.k = reshaped(c.args.k, {2, huge, 2, huge}, {0, 0, 0, 0});
       }},
      {"StridesThatOverflow",
       {"k", "64 bits"},
       [](C& c) { c.args.k.strides[1] = int64_t{1} << 60; }},
  };
}

std::vector<Case> dtype_and_memory_cases() {
  return {
      {"DtypeOfKeys",
       {"dtype of k is f16", "that of q (f32)"},
       [](C& c) {
         c.args.k = c.zeros(DType::kF16, {2, 10, 2, 8});
       }},
      {"DtypeOfQueries",
       {"dtype of q is i32", "f32, f16, bf16 or f64"},
       [](C& c) {
         c.args.q = c.zeros(DType::kI32, {2, 6, 4, 8});
       }},
      {"ReservedDtype", {"dtype of q is e4m3"}, [](C& c) { c.args.q.dtype = DType::kE4M3; }},
      {"UnknownDtype", {"dtype of q", "99"}, [](C& c) { c.args.q.dtype = DType{99}; }},
      {"DtypeOfOut",
       {"dtype of out is bf16", "that of q (f32)"},
       [](C& c) {
         c.args.out = c.keep(Tensor(DType::kBF16, {2, 6, 4, 8}));
       }},
      {"DtypeOfLse",
       {"dtype of lse is f16", "f32"},
       [](C& c) {
         c.args.lse = c.keep(Tensor(DType::kF16, {2, 4, 6}));
       }},
      {"DoubleLse",
       {"lse is f64", "f32"},
       [](C& c) {
         c.args.lse = c.keep(Tensor(DType::kF64, {2, 4, 6}));
       }},
      {"DtypeOfSink",
       {"dtype of sink is f16", "f32"},
       [](C& c) { c.args.sink = c.zeros(DType::kF16, {4}); }},
      {"DtypeOfLengths",
       {"dtype of seqused_k is i64", "i32"},
       [](C& c) { c.args.seqused_k = c.zeros(DType::kI64, {2}); }},
      {"DtypeOfAux",
       {"dtype of aux.t is f16", "f32, i32 or i64"},
       [](C& c) {
         c.args.mask = "t[k_idx] > 0";
         c.args.aux = {{"t", c.zeros(DType::kF16, {10}), {}}};
       }},
      {"NullPointer",
       {"data of k is null", "memory for 320 elements"},
       [](C& c) { c.args.k.data = nullptr; }},
      {"NullOut", {"data of out is null"}, [](C& c) { c.args.out.data = nullptr; }},
      {"UnalignedElements",
       {"data of v lies 2 bytes", "element size, 4"},
       [](C& c) {
         const TensorView wide = c.zeros(DType::kF32, {400});
         c.args.v.data = static_cast<char*>(wide.data) + 2;
       }},
      {"OtherDevice",
       {"device of k is cuda:0", "of q cpu:0"},
       [](C& c) {
         c.args.k.device = {DeviceType::kCuda, 0};
       }},
      {"SecondCpu",
       {"device of q is cpu:3", "cpu:0 or cuda:N"},
       [](C& c) { c.args.q.device.index = 3; }},
      {"UnknownDevice",
       {"device of k is type 7:0", "cpu:0 or cuda:N"},
       [](C& c) {
         c.args.k.device = {DeviceType{7}, 0};
       }},
      {"OutIsAnInput",
       {"output out shares memory with q"},
       [](C& c) { c.args.out = c.args.q; },
       Ops::kForward},
      {"OutOverlapsInPart",
       {"output out shares memory with v"},
       [](C& c) {
         c.args.out = c.keep(Tensor(DType::kF32, {3, 6, 4, 8})).sliced(0, 0, 2);
         c.args.v = reshaped(c.args.out, {2, 10, 2, 8}, {0, 16, 8, 1});
         c.args.v.data = static_cast<char*>(c.args.v.data) + 4 * 300;
       },
       Ops::kForward},
      {"GradientsOverlap",
       {"output dk shares memory with dv"},
       [](C& c) { c.args.dv = c.args.dk; },
       Ops::kBackward},
      {"LseInsideOut",
       {"output out shares memory with lse"},
       [](C& c) {
         c.args.lse = reshaped(c.args.out, {2, 4, 6}, {24, 6, 1});
       },
       Ops::kForward},
      {"OutputOfStrideZero",
       {"elements of output out share memory"},
       [](C& c) { c.args.out.strides[1] = 0; },
       Ops::kForward},
      {"OutputThatOverlapsItself",
       {"elements of output dq share memory"},
       [](C& c) { c.args.dq.strides[2] = 4; },
       Ops::kBackward},
  };
}

std::vector<Case> length_cases() {
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

std::vector<Case> option_cases() {
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

class BadInput : public testing::TestWithParam<Case> {};

TEST_P(BadInput, IsAnErrorThatNamesItAndNothingIsWritten) {
  for (const bool is_backward : {false, true}) {
    if (GetParam().ops == Ops::kForward && is_backward) continue;
    if (GetParam().ops == Ops::kBackward && !is_backward) continue;
    ValidCall call(is_backward);
    ASSERT_NO_THROW(call.run());  // it is right before it is spoilt
    ValidCall spoilt(is_backward);
    GetParam().spoil(spoilt);
    const auto before = spoilt.contents();
    try {
      spoilt.run();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.code(), GetParam().code) << text;
      EXPECT_TRUE(text.starts_with(is_backward ? "attention_bwd: " : "attention_fwd: ")) << text;
      for (const std::string& fragment : GetParam().fragments) {
        EXPECT_NE(text.find(fragment), std::string::npos) << "'" << fragment << "' in: " << text;
      }
    }
    EXPECT_EQ(spoilt.contents(), before);
  }
}

std::string case_name(const testing::TestParamInfo<Case>& test) { return test.param.name; }
INSTANTIATE_TEST_SUITE_P(Shapes, BadInput, testing::ValuesIn(shape_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(DtypesAndMemory, BadInput, testing::ValuesIn(dtype_and_memory_cases()),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Lengths, BadInput, testing::ValuesIn(length_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Options, BadInput, testing::ValuesIn(option_cases()), case_name);

/// A call that reads t of 9 elements, with outputs of a known content.
struct IndexCase {
  const char* name;
  const char* mask;
  const char* score;
  const char* expected;  ///< a part of the error; empty: the call is right
  bool is_causal = false;
};

constexpr const char* kSigns = "an expression reads t at 9 in dimension 0, which has size 9";

const IndexCase kIndexCases[] = {
    {"InMask", "t[k_idx] > 0.0", "", kSigns},
    {"InScore", "", "score * t[k_idx]", kSigns},
    {"BelowZero", "t[k_idx - 1] > 0.0", "", "t at -1 in dimension 0"},
    // Bounds could decide these masks without the element that is not there.
    {"InASeenBlock", "k_idx < 20 && t[q_idx + 6] < 100.0", "", "t at 9 in"},
    {"InASeenBlockByOr", "t[q_idx + 6] > -100.0 || k_idx < 0", "", "t at 9 in"},
    {"InAHiddenBlock", "k_idx < 400 && t[min(k_idx, 9)] > 5.0", "", "t at 9 in"},
    {"OfAnElementThatIsRead", "t[int(t[k_idx % 9]) * 9] > 0.0", "", "t at 9 in"},
    {"ByTheScore", "", "score + t[int(score * 0.0) + 9]", "t"},
    // Right, because nothing asks for the element that is not there.
    {"BehindAnd", "k_idx < 9 && t[k_idx] > 0.0", "", ""},
    {"BehindOr", "k_idx >= 9 || t[k_idx] > 0.0", "", ""},
    {"BehindAPosition", "k_idx <= q_idx + 6 && t[min(q_idx + 6 - k_idx, 8)] > 0.0", "", ""},
    {"BehindTheCausalMask", "t[min(q_idx + query_offset - k_idx, 8)] > 0.0", "", "", true},
    {"BehindAMask", "k_idx < 9", "score * t[k_idx]", ""},
    {"BehindACondition", "", "k_idx < 9 ? score * t[k_idx] : score", ""},
    {"BehindAnyScore", "", "score > 0.0 ? score + t[min(k_idx, 8)] : score", ""},
    {"ByTheScoreWithinLimits", "", "score + t[min(max(int(score), 0), 8)]", ""},
};

/// Nothing is written before an index is known to be right, unless it depends on the score itself.
TEST(IndexOutOfRange, IsAnErrorBeforeAnythingIsWritten) {
  const std::vector<double> signs = {1, -1, 1, 1, -1, 1, -1, -1, 1};
  const Tensor table = Tensor::of(DType::kF32, {9}, signs);
  const Tensor q = Tensor::random(DType::kF32, {1, 4, 1, 8}, 1);
  const Tensor k = Tensor::random(DType::kF32, {1, 10, 1, 8}, 2);
  for (const std::string& implementation : all_implementations()) {
    for (const IndexCase& test : kIndexCases) {
      const std::string where = std::string(test.name) + "@" + implementation;
      const Tensor out = Tensor::filled(DType::kF32, {1, 4, 1, 8}, 77);
      AttentionOptions options;
      options.mask = test.mask;
      options.score = test.score;
      options.causal = test.is_causal;
      options.aux = {{"t", table, {}}};
      Context context;
      context.implementation = implementation;
      const std::string expected = test.expected;
      try {
        attention_fwd(q, k, k, out, {}, options, context);
        EXPECT_EQ(expected, "") << where;
        EXPECT_NE(out.get({0, 3, 0, 7}), 77) << where;
      } catch (const Error& error) {
        const std::string text = error.what();
        EXPECT_NE(expected, "") << where << ": " << text;
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
        EXPECT_TRUE(text.starts_with("attention_fwd: ")) << text;
        EXPECT_NE(text.find(expected), std::string::npos) << where << ": " << text;
        if (std::string(test.name) == "ByTheScore") continue;
        for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(out.get({0, i, 0, 0}), 77) << where;
      }
    }
  }
}

TEST(UnknownImplementation, IsAnErrorThatNamesIt) {
  ValidCall call(/*is_backward=*/false);
  Context context;
  context.implementation = "warp_drive";
  try {
    run_attention(call.args, false, context);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "attention_fwd: no implementation is called 'warp_drive'");
  }
}

TEST(MentionedNames, AreReadAlsoWhereTheyHaveNoEffect) {
  for (const bool is_backward : {false, true}) {
    ValidCall call(is_backward);
    call.args.mask = "1 || t[k_idx] > 0.0";
    call.args.score = "1 ? score : score * param.x";
    call.args.aux = {{"t", call.zeros(DType::kF32, {10}), {}}};
    call.args.params = {{"x", 3}};
    EXPECT_NO_THROW(call.run());
  }
}

TEST(RefusedProblem, ListsEveryImplementationAndWhy) {
  const Tensor q = Tensor::random(DType::kF64, {1, 3, 1, 8}, 1);
  for (const std::string& implementation : all_kernels()) {
    try {
      run({q, q, q, {}, {}}, implementation);
      ADD_FAILURE() << implementation;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      const std::string text = error.what();
      for (const std::string& name : all_kernels()) {
        EXPECT_NE(text.find("attention_fwd_" + name + ": "), std::string::npos) << text;
      }
      EXPECT_NE(text.find("f64"), std::string::npos) << text;
    }
  }
  EXPECT_NO_THROW(run({q, q, q, {}, {}}, ""));  // the reference takes it
}

}  // namespace
}  // namespace flashtile::test
