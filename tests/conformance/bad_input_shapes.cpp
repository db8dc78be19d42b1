// SPDX-License-Identifier: Apache-2.0
//
// Bad shapes, dtypes and memory.
#include "bad_input.hpp"

namespace flashtile::test {
namespace {

TensorView reshaped(const TensorView& view, std::initializer_list<int64_t> shape,
                    std::initializer_list<int64_t> strides) {
  return {view.data, view.dtype, std::span(shape.begin(), shape.size()),
          std::span(strides.begin(), strides.size())};
}

using C = ValidCall;

}  // namespace

std::vector<BadInputCase> bad_shapes() {
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

std::vector<BadInputCase> bad_dtypes_and_memory() {
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

}  // namespace flashtile::test
