// SPDX-License-Identifier: Apache-2.0
//
// Do two strided views share memory? Judged by the element, since interleaved slices of one buffer
// are legal outputs.
//
// Both views together are one question: is there an x with 0 <= x_k <= n_k and
// low <= sum x_k s_k <= high, all s_k > 0, where the x_k are the indices of both views and [low,
// high] is where their elements touch? Dimensions whose steps together reach every multiple of the
// smaller step are merged, which leaves two or three for slices of a packed buffer. The rest is a
// depth-first search from the largest step, pruned by range and by greatest common divisor.
#include <algorithm>
#include <array>

#include "core/validate.hpp"

namespace flashtile {
namespace {

// Byte offsets of 64-bit views need a little more than 64 bits while they are added up.
__extension__ using Wide = __int128;

/// Terms x * step with 0 <= x <= count, and what the ones from here on can reach.
struct Term {
  Wide step = 0;
  Wide count = 0;
  Wide range = 0;    ///< largest sum of this term and all behind it
  Wide divisor = 0;  ///< greatest common divisor of their steps
};

Wide gcd(Wide a, Wide b) {
  while (b != 0) {
    const Wide rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

Wide floor_div(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }
Wide ceil_div(Wide a, Wide b) { return -floor_div(-a, b); }

class SumSearch {
 public:
  explicit SumSearch(int64_t max_work) : work_left_(max_work) {}

  void add(Wide step, Wide count) {
    if (step > 0 && count > 0) terms_[num_terms_++] = {step, count, 0, 0};
  }

  /// True when a sum lies in [low, high], or when the search is too long to tell.
  bool reaches(Wide low, Wide high) {
    prepare();
    return search(0, low, high);
  }

 private:
  void prepare() {
    const auto begin = terms_.begin();
    std::sort(begin, begin + static_cast<ptrdiff_t>(num_terms_),
              [](const Term& a, const Term& b) { return a.step < b.step; });
    // {x s + y k s} with y's step k at most one more than x's count is all multiples of s.
    size_t num_merged = 0;
    for (size_t i = 0; i < num_terms_; ++i) {
      const Term next = terms_[i];
      if (num_merged > 0) {
        Term& last = terms_[num_merged - 1];
        if (next.step % last.step == 0 && next.step / last.step <= last.count + 1) {
          last.count += next.count * (next.step / last.step);
          continue;
        }
      }
      terms_[num_merged++] = next;
    }
    num_terms_ = num_merged;
    Wide range = 0;
    Wide divisor = 0;
    for (size_t i = 0; i < num_terms_; ++i) {
      range += terms_[i].step * terms_[i].count;
      divisor = gcd(terms_[i].step, divisor);
      terms_[i].range = range;
      terms_[i].divisor = divisor;
    }
    std::reverse(begin, begin + static_cast<ptrdiff_t>(num_terms_));
  }

  bool search(size_t level, Wide low, Wide high) {
    if (level == num_terms_) return low <= 0 && 0 <= high;
    const Term& term = terms_[level];
    low = std::max<Wide>(low, 0);
    high = std::min(high, term.range);
    // One step size is left, or none of the multiples that the rest can make lies inside.
    if (low > high || ceil_div(low, term.divisor) * term.divisor > high) return false;
    if (level + 1 == num_terms_) return true;
    const Wide rest = terms_[level + 1].range;
    const Wide first = std::max<Wide>(ceil_div(low - rest, term.step), 0);
    const Wide last = std::min(floor_div(high, term.step), term.count);
    for (Wide x = first; x <= last; ++x) {
      if (--work_left_ < 0) return true;
      if (search(level + 1, low - x * term.step, high - x * term.step)) return true;
    }
    return false;
  }

  // Two views of kMaxDims dimensions each.
  std::array<Term, 2 * TensorView::kMaxDims> terms_{};
  size_t num_terms_ = 0;
  int64_t work_left_;
};

bool is_empty(const TensorView& view) {
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    if (view.shape[i] <= 0) return true;
  }
  return !view;
}

/// First bytes of the lowest and the highest element.
struct Extent {
  Wide first;
  Wide last;
};

Extent extent_of(const TensorView& view) {
  const auto address = static_cast<Wide>(reinterpret_cast<uintptr_t>(view.data));
  Extent extent{address, address};
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    const Wide span = Wide{view.strides[i]} * (view.shape[i] - 1) * dtype_bytes(view.dtype);
    (span < 0 ? extent.first : extent.last) += span;
  }
  return extent;
}

void add_dims(SumSearch& sum, const TensorView& view) {
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    const Wide step = Wide{view.strides[i]} * dtype_bytes(view.dtype);
    sum.add(step < 0 ? -step : step, view.shape[i] - 1);
  }
}

}  // namespace

bool views_overlap(const TensorView& a, const TensorView& b, int64_t max_work) {
  if (is_empty(a) || is_empty(b) || a.device != b.device) return false;
  const Extent in_a = extent_of(a);
  const Extent in_b = extent_of(b);
  const Wide bytes_a = dtype_bytes(a.dtype);
  const Wide bytes_b = dtype_bytes(b.dtype);
  if (in_a.last + bytes_a <= in_b.first || in_b.last + bytes_b <= in_a.first) return false;
  // An element of a at in_a.first + x and one of b at in_b.last - y touch when their distance is
  // less than an element: x + y - (in_b.last - in_a.first) lies in (-bytes_a, bytes_b).
  SumSearch sum(max_work);
  add_dims(sum, a);
  add_dims(sum, b);
  const Wide distance = in_b.last - in_a.first;
  return sum.reaches(distance - bytes_a + 1, distance + bytes_b - 1);
}

bool is_leading_part(const TensorView& part, const TensorView& whole) {
  if (part.data != whole.data || part.dtype != whole.dtype || part.device != whole.device ||
      part.ndim != whole.ndim || part.ndim < 2) {
    return false;
  }
  const auto last = static_cast<size_t>(part.ndim - 1);
  bool has_rows = part.data != nullptr;
  for (size_t d = 0; d < last; ++d) {
    if (part.shape[d] != whole.shape[d]) return false;
    if (part.shape[d] <= 1) continue;
    if (part.strides[d] != whole.strides[d]) return false;
    has_rows = true;
  }
  return has_rows && part.shape[last] > 0 && part.shape[last] < whole.shape[last] &&
         (part.shape[last] == 1 || part.strides[last] == whole.strides[last]);
}

bool overlaps_itself(const TensorView& view, int64_t max_work) {
  if (is_empty(view)) return false;
  std::array<Term, TensorView::kMaxDims> dims{};
  size_t num_dims = 0;
  for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
    if (view.shape[i] <= 1) continue;
    const Wide step = view.strides[i] < 0 ? -Wide{view.strides[i]} : Wide{view.strides[i]};
    if (step == 0) return true;
    dims[num_dims++] = {step, view.shape[i] - 1, 0, 0};
  }
  std::sort(dims.begin(), dims.begin() + static_cast<ptrdiff_t>(num_dims),
            [](const Term& a, const Term& b) { return a.step < b.step; });
  Wide below = 0;
  for (size_t k = 0; k < num_dims; ++k) {
    // Two elements whose indices differ in dimension k and in no larger one: a sum of index
    // differences of the smaller ones, in [-count, count], makes up for 1 to count steps of k.
    if (dims[k].step <= below) {
      SumSearch sum(max_work);
      for (size_t i = 0; i < k; ++i) sum.add(dims[i].step, 2 * dims[i].count);
      sum.add(dims[k].step, dims[k].count - 1);
      const Wide target = below - dims[k].step;
      if (sum.reaches(target, target)) return true;
    }
    below += dims[k].step * dims[k].count;
  }
  return false;
}

}  // namespace flashtile
