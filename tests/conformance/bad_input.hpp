// SPDX-License-Identifier: Apache-2.0
//
// Calls that are right but for one thing: what bad_input_test.cpp makes.
#pragma once

#include <cmath>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "ops/attention/implementations.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {

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

struct BadInputCase {
  const char* name;
  std::vector<std::string> fragments;  ///< that the text has to contain
  std::function<void(ValidCall&)> spoil;
  Ops ops = Ops::kBoth;
  ErrorCode code = ErrorCode::kInvalidArgument;
};
inline void PrintTo(const BadInputCase& test, std::ostream* stream) { *stream << test.name; }

std::vector<BadInputCase> bad_shapes();
std::vector<BadInputCase> bad_dtypes_and_memory();
std::vector<BadInputCase> bad_lengths();
std::vector<BadInputCase> bad_options();

}  // namespace flashtile::test
