// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/aux_index.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "variant/expr/evaluate.hpp"

namespace flashtile::variant {
namespace {

constexpr int64_t kLargestScan = 64;
constexpr int64_t kLargestWhole = int64_t{1} << 20;

bool same_memory(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.ndim == b.ndim && a.shape == b.shape &&
         a.strides == b.strides;
}

}  // namespace

Lines::Lines(const TensorView& tensor, int along) : view(tensor), dim(along), begins{0} {
  length = tensor.shape[static_cast<size_t>(dim)];
  line_strides.assign(static_cast<size_t>(tensor.ndim), 0);
  for (int other = tensor.ndim - 1; other >= 0; --other) {
    if (other == dim) continue;
    const auto place = static_cast<size_t>(other);
    line_strides[place] = num_lines();
    const std::vector<int64_t> inner = std::move(begins);
    begins.clear();
    for (int64_t n = 0; n < tensor.shape[place]; ++n) {
      for (const int64_t begin : inner) begins.push_back(begin + n * tensor.strides[place]);
    }
  }
}

int64_t Lines::line(const IntRange* index) const {
  int64_t line = 0;
  for (size_t d = 0; d < line_strides.size(); ++d) line += index[d].lo * line_strides[d];
  return line;
}

IntSummary AuxIndex::ReadInt::operator()(int64_t line, int64_t n) const {
  const int64_t value = read_int(lines->view, lines->offset(line, n));
  return {{value, value}};
}

FloatSummary AuxIndex::ReadFloat::operator()(int64_t line, int64_t n) const {
  const double value = read_float(lines->view, lines->offset(line, n));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (std::isnan(value)) return {{kInfinity, -kInfinity, true}};
  return {bound_float_value(value)};
}

AuxIndex::AuxIndex(const TensorView& tensor, bool is_float, int varying)
    : is_float_(is_float), varying_(varying) {
  if (tensor.numel() > 0 && tensor.ndim > 0) {
    lines_.emplace(tensor, varying >= 0 ? varying : tensor.ndim - 1);
  }
  read(tensor);
}

void AuxIndex::read(const TensorView& tensor) {
  if (tensor.numel() == 0) return;
  if (tensor.ndim == 0) {
    whole_ints_.range = is_float_ ? IntRange{} : IntRange{read_int(tensor, 0), read_int(tensor, 0)};
    if (is_float_) whole_floats_.range = bound_float_value(read_float(tensor, 0));
    return;
  }
  lines_->view = tensor;
  if (is_float_) {
    summarize(ReadFloat{&*lines_}, &float_index_, &whole_floats_);
  } else {
    summarize(ReadInt{&*lines_}, &int_index_, &whole_ints_);
  }
}

template <typename Summary, typename Read>
void AuxIndex::summarize(Read read, std::optional<RangeIndex<Summary, Read>>* index,
                         Summary* whole) {
  if (*index) {
    (*index)->build();
  } else if (varying_ >= 0) {
    index->emplace(lines_->num_lines(), lines_->length, read);
  }
  if (lines_->view.numel() > kLargestWhole) return;
  *whole = read(0, 0);
  for (int64_t line = 0; line < lines_->num_lines(); ++line) {
    for (int64_t n = 0; n < lines_->length; ++n) whole->merge(read(line, n));
  }
}

bool AuxIndex::clip(const IntRange* index, IntRange* box) const {
  for (int d = 0; d < lines_->view.ndim; ++d) {
    const int64_t size = lines_->view.shape[static_cast<size_t>(d)];
    box[d] = {std::max<int64_t>(index[d].lo, 0), std::min(index[d].hi, size - 1)};
    if (box[d].lo > box[d].hi) return false;
  }
  return true;
}

template <typename Summary, typename Read>
Summary AuxIndex::bound(const IntRange* box, const Read& read,
                        const std::optional<RangeIndex<Summary, Read>>& index,
                        const Summary& whole) const {
  const int ndim = lines_->view.ndim;
  int64_t count = 1;
  bool is_line = true;
  for (int d = 0; d < ndim; ++d) {
    const int64_t size = box[d].hi - box[d].lo + 1;
    count = std::min(count, kLargestScan) * std::min(size, kLargestScan + 1);
    is_line = is_line && (d == lines_->dim || size == 1);
  }
  const IntRange& along = box[lines_->dim];
  if (is_line && index) return index->query(lines_->line(box), along.lo, along.hi + 1);
  if (count > kLargestScan) return whole;
  IntRange at[TensorView::kMaxDims];
  for (int d = 0; d < ndim; ++d) at[d] = {box[d].lo, box[d].lo};
  Summary summary = read(lines_->line(at), at[lines_->dim].lo);
  for (;;) {
    int d = 0;  // the next element, counting up from the first dimension
    while (d < ndim && at[d].lo == box[d].hi) {
      at[d] = {box[d].lo, box[d].lo};
      ++d;
    }
    if (d == ndim) return summary;
    at[d] = {at[d].lo + 1, at[d].lo + 1};
    summary.merge(read(lines_->line(at), at[lines_->dim].lo));
  }
}

IntRange AuxIndex::ints(const IntRange* index) const {
  IntRange box[TensorView::kMaxDims];
  if (!lines_) return whole_ints_.range;
  if (!clip(index, box)) return {};
  return bound(box, ReadInt{&*lines_}, int_index_, whole_ints_).range;
}

Interval AuxIndex::floats(const IntRange* index) const {
  IntRange box[TensorView::kMaxDims];
  if (!lines_) return whole_floats_.range;
  if (!clip(index, box)) return {};
  const Interval range = bound(box, ReadFloat{&*lines_}, float_index_, whole_floats_).range;
  return range.lo > range.hi ? Interval{} : range;
}

EqualityIndex::LabelSummary EqualityIndex::ReadLabel::operator()(int64_t line, int64_t n) const {
  const int32_t number = (*labels)[static_cast<size_t>(line * length + n)];
  return {number, number, uint64_t{1} << (number & 63)};
}

void ValueNumbers::clear() {
  ++generation_;
  count_ = 0;
}

ValueNumbers::Slot& ValueNumbers::find(int64_t value) {
  constexpr uint64_t kSpread = 0x9E3779B97F4A7C15;  // odd, and as good as random
  const size_t last = slots_.size() - 1;
  const int shift = 64 - std::countr_zero(slots_.size());
  auto at = static_cast<size_t>((static_cast<uint64_t>(value) * kSpread) >> shift);
  while (slots_[at].generation == generation_ && slots_[at].value != value) at = (at + 1) & last;
  return slots_[at];
}

int32_t ValueNumbers::number_of(int64_t value) {
  if (2 * (static_cast<size_t>(count_) + 1) > slots_.size()) {
    const std::vector<Slot> before = std::move(slots_);
    slots_.assign(std::max<size_t>(64, 2 * before.size()), {});
    for (const Slot& slot : before) {
      if (slot.generation == generation_) find(slot.value) = slot;
    }
  }
  Slot& slot = find(value);
  if (slot.generation != generation_) slot = {value, generation_, count_++};
  return slot.number;
}

EqualityIndex::EqualityIndex(const TensorView& a, int dim_a, const TensorView& b, int dim_b,
                             bool same_line)
    : same_line_(same_line), a_(dim_a), b_(dim_b) {
  read(a, b);
}

void EqualityIndex::read(const TensorView& a, const TensorView& b) {
  numbers_.clear();
  a_.read(a, same_line_, numbers_);
  b_is_a_ = same_memory(a, b) && a_.dim == b_.dim;
  if (!b_is_a_) b_.read(b, same_line_, numbers_);
}

void EqualityIndex::Side::read(const TensorView& tensor, bool same_line, ValueNumbers& numbers) {
  if (tensor.ndim == 0 || tensor.numel() == 0) return;
  if (!lines) lines.emplace(tensor, dim);
  lines->view = tensor;
  labels.clear();
  labels.reserve(static_cast<size_t>(lines->num_lines() * lines->length));
  for (int64_t line = 0; line < lines->num_lines(); ++line) {
    if (same_line) numbers.clear();
    for (int64_t n = 0; n < lines->length; ++n) {
      labels.push_back(numbers.number_of(read_int(tensor, lines->offset(line, n))));
    }
  }
  if (index) {
    index->build();
  } else {
    index.emplace(lines->num_lines(), lines->length, ReadLabel{&labels, lines->length});
  }
}

bool EqualityIndex::query(const Side& side, const IntRange* box, LabelSummary* summary) {
  if (!side.lines) return false;
  const Lines& lines = *side.lines;
  for (int d = 0; d < lines.view.ndim; ++d) {
    const int64_t size = lines.view.shape[static_cast<size_t>(d)];
    if (box[d].lo < 0 || box[d].hi >= size || (d != lines.dim && !box[d].is_point())) return false;
  }
  const IntRange& along = box[lines.dim];
  *summary = side.index->query(lines.line(box), along.lo, along.hi + 1);
  return true;
}

bool EqualityIndex::may_be_equal(const IntRange* a, const IntRange* b) const {
  LabelSummary of_a;
  LabelSummary of_b;
  if (!query(a_, a, &of_a) || !query(b_is_a_ ? a_ : b_, b, &of_b)) return true;
  return of_a.lo <= of_b.hi && of_b.lo <= of_a.hi && (of_a.bits & of_b.bits) != 0;
}

}  // namespace flashtile::variant
