// SPDX-License-Identifier: Apache-2.0
#include "cpu/layer_part_layout.hpp"

#include <algorithm>
#include <numeric>

namespace flashtile::cpu {
namespace {

/// Lanes of the longest vectors.
constexpr int64_t kMostLanes = 16;
/// More than a vector of any instruction set, read and written behind the last column.
constexpr int64_t kRoom = 16;

/// Rows that are taken as one where a row has few columns: whole vectors where there is room. It
/// does not depend on strides, for gradients of parameters are summed in its order.
int64_t rows_taken_as_one(LinearFamily part, int64_t num_columns, int64_t num_rows) {
  const bool is_elementwise =
      part == LinearFamily::kLogDecayGate || part == LinearFamily::kFeatureMap;
  if (!is_elementwise || num_columns < 1 || 2 * num_columns > kLayerPartColumns) return 1;
  const int64_t most = kLayerPartColumns / num_columns;
  const int64_t step = kMostLanes / std::gcd(kMostLanes, num_columns);
  return std::clamp<int64_t>(num_rows, 1, most < step ? most : most / step * step);
}

/// An op without a state takes rows of a step, or packed ones, as those of one sequence.
KeptList<LinearSequence> part_sequences(const LinearProblem& problem, const LinearArgs& args) {
  if (problem.is_packed && problem.op->states.empty()) return {{0, 0, problem.num_rows, 0}};
  return linear_sequences(problem, args);
}

LinearProblem without_steps(LinearProblem problem) {
  if (problem.pass == LinearPass::kStep) problem.is_packed = true;
  return problem;
}

}  // namespace

PartSizes::PartSizes(const LinearProblem& problem)
    : part(problem.op->family),
      head_dim(problem.head_dim),
      num_columns(problem.num_state_heads * problem.head_dim),
      ld(ceil_div(std::max(kLayerPartColumns, head_dim), kRoom) * kRoom),
      rows_in_one(rows_taken_as_one(part, num_columns, problem.num_rows)) {
  const bool is_norm = part == LinearFamily::kGatedNorm;
  num_parameters = part == LinearFamily::kShortConv      ? problem.num_past + 2
                   : part == LinearFamily::kLogDecayGate ? 2
                   : is_norm                             ? 1
                                                         : 0;
  const int64_t numbers = is_norm ? head_dim : rows_in_one * num_columns;
  parameter_ld = ceil_div(numbers + kRoom, kRoom) * kRoom;
  has_sums = problem.pass == LinearPass::kBackward;
}

PartLayout::PartLayout(const LinearProblem& problem, const LinearArgs& args)
    : problem_(without_steps(problem)),
      args_(args),
      sizes_(problem),
      heads_are_rows_(have_heads_as_rows()),
      rows_in_one_(heads_are_rows_ || mixes_elements() ? 1 : sizes_.rows_in_one) {
  list_columns();
  list_rows();
}

void PartLayout::list_rows() {
  for (const LinearSequence& sequence : part_sequences(problem_, args_)) {
    // The states of an empty sequence are passed on.
    const int64_t length = std::max<int64_t>(sequence.length, problem_.op->states.empty() ? 0 : 1);
    const int64_t heads = heads_are_rows_ ? problem_.num_state_heads : 1;
    const int64_t end = sequence.length * heads;
    for (int64_t begin = 0; begin < length * heads;) {
      const int64_t in_one = std::clamp<int64_t>(end - begin, 1, rows_in_one_);
      const int64_t count = std::min(kLayerPartRows, (end - begin) / in_one);
      rows_.push_back({sequence, begin, count, in_one});
      begin += std::max<int64_t>(count, 1) * in_one;
    }
  }
}

bool PartLayout::mixes_elements() const {
  return sizes_.part == LinearFamily::kGatedNorm || args_.feature_map == "softmax";
}

/// True where the elements of all heads lie at one distance.
bool PartLayout::is_one_row(const TensorView& tensor) const {
  if (!tensor || tensor.ndim < time() + 3 || sizes_.head_dim == 1) return true;
  const auto head = static_cast<size_t>(time() + 1);
  return tensor.strides[head] == sizes_.head_dim * tensor.strides[head + 1];
}

/// True where rows of all heads lie at one distance.
bool PartLayout::is_one_column(const TensorView& tensor) const {
  if (!tensor) return true;
  if (tensor.ndim < time() + 3) return false;
  const auto head = static_cast<size_t>(time() + 1);
  return tensor.strides[head - 1] == problem_.num_state_heads * tensor.strides[head];
}

/// True where each head's rows can be taken as rows of one head, so that memory is read as it
/// lies: they have no parameters or the same ones, and no sums, whose order is not for strides to
/// decide.
bool PartLayout::have_heads_as_rows() const {
  const bool is_norm = sizes_.part == LinearFamily::kGatedNorm && !sizes_.has_sums;
  const bool is_map =
      sizes_.part == LinearFamily::kFeatureMap && 2 * sizes_.head_dim >= kLayerPartColumns;
  bool result = is_norm || is_map;
  const LinearTensors& gradients = args_.gradients;
  for (const TensorView* tensor :
       {&args_.inputs.v, &args_.inputs.z, &args_.out, &args_.dout, &gradients.v, &gradients.z}) {
    result = result && is_one_column(*tensor);
  }
  return result;
}

void PartLayout::list_columns() {
  if (heads_are_rows_) {
    dim_ = sizes_.head_dim;
    columns_.push_back({0, 0, dim_});
    return;
  }
  bool is_one = !mixes_elements();
  for (const TensorView* tensor : {&args_.inputs.v, &args_.out, &args_.dout, &args_.gradients.v}) {
    is_one = is_one && is_one_row(*tensor);
  }
  dim_ = is_one ? sizes_.num_columns : sizes_.head_dim;
  const int64_t step = mixes_elements() ? std::max<int64_t>(dim_, 1) : kLayerPartColumns;
  for (int64_t head = 0; head < (is_one ? 1 : problem_.num_state_heads); ++head) {
    for (int64_t first = 0; first < dim_; first += step) {
      columns_.push_back({head, first, std::min(step, dim_ - first)});
    }
  }
}

ChunkRows PartLayout::rows_of(const TensorView& tensor, const RowBlock& block,
                              const ColumnBlock& columns) const {
  ChunkRows rows = chunk_rows(timed_rows(problem_, tensor, block.sequence, columns.head),
                              heads_are_rows_ ? 0 : block.begin);
  if (!tensor) return rows;
  if (heads_are_rows_) {
    rows.row_stride = tensor.strides[static_cast<size_t>(time() + 1)] * dtype_bytes(tensor.dtype);
    rows.data += block.begin * rows.row_stride;
    return rows;
  }
  if (sizes_.head_dim == 1) rows.stride = tensor.strides[static_cast<size_t>(time() + 1)];
  rows.data += columns.first * rows.stride * dtype_bytes(tensor.dtype);
  return rows;
}

}  // namespace flashtile::cpu
