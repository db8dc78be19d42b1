// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "flashtile/tensor.hpp"
#include "variant/expr/interval.hpp"
#include "variant/expr/range_index.hpp"

namespace flashtile::variant {

/// A tensor seen as lines along one dimension: where each begins.
struct Lines {
  Lines(const TensorView& tensor, int along);

  TensorView view;
  int dim = 0;
  int64_t length = 0;
  std::vector<int64_t> begins;        ///< offset of each line, in elements
  std::vector<int64_t> line_strides;  ///< of each dimension in the number of the line; 0 for dim

  int64_t num_lines() const { return static_cast<int64_t>(begins.size()); }
  int64_t offset(int64_t line, int64_t n) const {
    return begins[static_cast<size_t>(line)] + n * view.strides[static_cast<size_t>(dim)];
  }
  /// The line of an index; index[dim] is ignored, the others are points.
  int64_t line(const IntRange* index) const;
};

struct IntSummary {
  IntRange range;
  void merge(const IntSummary& other) { range = hull(range, other.range); }
};

struct FloatSummary {
  Interval range;  ///< lo > hi where there is nothing but NaN
  void merge(const FloatSummary& other) { range = hull(range, other.range); }
};

/// Bounds of the elements of an aux tensor over a box of indices.
class AuxIndex {
 public:
  /// `varying` is the one dimension whose index is expected to be a range, for which minima and
  /// maxima of its parts are prepared; -1 if there is no such dimension. Other boxes are scanned if
  /// they are small, or else bounded by the whole tensor if that has at most 2^20 elements.
  AuxIndex(const TensorView& tensor, bool is_float, int varying);
  AuxIndex(const AuxIndex&) = delete;
  AuxIndex& operator=(const AuxIndex&) = delete;

  /// Reads a tensor that lies as the first one does, in the memory that there is.
  void read(const TensorView& tensor);

  /// `index` has a range for each dimension; what lies outside the tensor is cut off.
  IntRange ints(const IntRange* index) const;
  Interval floats(const IntRange* index) const;

 private:
  struct ReadInt {
    const Lines* lines;
    IntSummary operator()(int64_t line, int64_t n) const;
  };
  struct ReadFloat {
    const Lines* lines;
    FloatSummary operator()(int64_t line, int64_t n) const;
  };
  template <typename Summary, typename Read>
  void summarize(Read read, std::optional<RangeIndex<Summary, Read>>* index, Summary* whole);
  template <typename Summary, typename Read>
  Summary bound(const IntRange* box, const Read& read,
                const std::optional<RangeIndex<Summary, Read>>& index, const Summary& whole) const;
  bool clip(const IntRange* index, IntRange* box) const;

  bool is_float_;
  int varying_;
  std::optional<Lines> lines_;
  std::optional<RangeIndex<IntSummary, ReadInt>> int_index_;
  std::optional<RangeIndex<FloatSummary, ReadFloat>> float_index_;
  IntSummary whole_ints_;  // everything, as long as it is not known
  FloatSummary whole_floats_;
};

/// Numbers of values in the order of their first occurrence.
class ValueNumbers {
 public:
  /// Forgets all values, but keeps the memory for them.
  void clear();
  int32_t number_of(int64_t value);

 private:
  struct Slot {
    int64_t value = 0;
    uint64_t generation = 0;  ///< which clear() it was written after; another one: empty
    int32_t number = 0;
  };
  Slot& find(int64_t value);

  std::vector<Slot> slots_;  ///< a power of two of them, half of them empty
  uint64_t generation_ = 1;
  int32_t count_ = 0;
};

/// Whether parts of two lines of integers have a value in common. Exact where values come in runs,
/// as the numbers of documents do, and where there are at most 64 different ones.
class EqualityIndex {
 public:
  /// With `same_line`, a and b are one tensor and always asked for the same line.
  EqualityIndex(const TensorView& a, int dim_a, const TensorView& b, int dim_b, bool same_line);
  EqualityIndex(const EqualityIndex&) = delete;
  EqualityIndex& operator=(const EqualityIndex&) = delete;

  /// Reads tensors that lie as the first ones do, in the memory that there is.
  void read(const TensorView& a, const TensorView& b);

  /// False if no element of a's box equals one of b's. Boxes are ranges in the dimensions given and
  /// points in the others; true is the answer for all that is not so.
  bool may_be_equal(const IntRange* a, const IntRange* b) const;

 private:
  // Values are numbered in the order of their first occurrence, which turns runs of any values into
  // a rising sequence.
  struct LabelSummary {
    int32_t lo;
    int32_t hi;
    uint64_t bits;  // label modulo 64
    void merge(const LabelSummary& other) {
      lo = std::min(lo, other.lo);
      hi = std::max(hi, other.hi);
      bits |= other.bits;
    }
  };
  struct ReadLabel {
    const std::vector<int32_t>* labels;
    int64_t length;
    LabelSummary operator()(int64_t line, int64_t n) const;
  };
  struct Side {
    explicit Side(int along) : dim(along) {}
    void read(const TensorView& tensor, bool same_line, ValueNumbers& numbers);

    int dim;
    std::optional<Lines> lines;
    std::vector<int32_t> labels;
    std::optional<RangeIndex<LabelSummary, ReadLabel>> index;
  };
  static bool query(const Side& side, const IntRange* box, LabelSummary* summary);

  bool same_line_;
  bool b_is_a_ = false;
  ValueNumbers numbers_;
  Side a_;
  Side b_;
};

}  // namespace flashtile::variant
