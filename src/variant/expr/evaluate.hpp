// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flashtile/tensor.hpp"
#include "variant/expr/expr.hpp"

namespace flashtile::variant {

/// One value for each Variable.
struct Variables {
  double score = 0;
  int64_t batch = 0;
  int64_t head = 0;
  int64_t head_kv = 0;
  int64_t q_idx = 0;
  int64_t k_idx = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t query_offset = 0;
  int64_t leftpad = 0;

  /// The value of any variable but the score.
  int64_t integer(Variable variable) const;
};

/// An index that was outside its aux tensor.
struct IndexError {
  std::string aux;
  int dimension = 0;
  int64_t index = 0;
  int64_t size = 0;
};

/// Evaluates an expression for one score at a time, in double: the meaning that everything faster
/// is tested against. A branch that is not taken, and the right side of && and || where the left
/// one decides, has no effect: nothing is read for it. Not for two threads at once; copies are
/// free.
class Evaluator {
 public:
  /// `aux` and `params` in the order of `expr.aux` and `expr.params`. Tensors are in host memory,
  /// with any strides: f64, f32, f16 or bf16 where the signature says float, i32 or i64 else.
  Evaluator(const Expr& expr, std::span<const TensorView> aux, std::span<const double> params);

  const Expr& expr() const { return expr_; }

  /// Other tensors of the same kind; forgets an index error.
  void bind(std::span<const TensorView> aux);

  double number(const Variables& at);
  int64_t integer(const Variables& at);
  bool truth(const Variables& at);

  /// The first index out of range since this was made or cleared, or null. Such an element was not
  /// read; its value was 0.
  const IndexError* index_error() const { return has_error_ ? &error_ : nullptr; }
  void clear_error() { has_error_ = false; }

 private:
  union Value {
    int64_t i;
    double f;
  };

  Value run(const Variables& at);
  Value eval(int32_t idx);
  Value compute(const Node& node, std::span<const int32_t> args);
  Value load(const Node& node, std::span<const int32_t> args);

  Expr expr_;
  std::vector<TensorView> aux_;
  std::vector<double> params_;
  Variables at_;
  // Each node is worked out at most once a run: done_[n] is the run that values_[n] is of.
  std::vector<Value> values_;
  std::vector<uint64_t> done_;
  uint64_t run_ = 0;
  bool has_error_ = false;
  IndexError error_;
};

/// Element `offset` (in elements) of a tensor, as a double; any dtype with a value.
double read_float(const TensorView& tensor, int64_t offset);

/// The same for integers (i32, i64).
int64_t read_int(const TensorView& tensor, int64_t offset);

}  // namespace flashtile::variant
