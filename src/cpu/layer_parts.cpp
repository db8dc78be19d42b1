// SPDX-License-Identifier: Apache-2.0
//
// What layers have around their recurrence, on the CPU. Blocks of rows do not depend on each other:
// a task is some of them in order, for all columns, so that memory is read as it lies. Gradients of
// parameters are summed by task, and then over tasks in their order.
#include <algorithm>
#include <numeric>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/layer_part_call.hpp"

namespace flashtile::cpu {
namespace {

/// Rows and columns of a chunk; a head whose elements mix is not cut.
constexpr int64_t kLayerPartRows = 32;
constexpr int64_t kLayerPartColumns = 128;
/// Lanes of the longest vectors.
constexpr int64_t kMostLanes = 16;
/// Tasks at most; each of a backward's has sums of its own.
constexpr int64_t kMaxFwdTasks = 64;
constexpr int64_t kMaxBwdTasks = 16;
/// An element counts as this many multiply-adds: an exponential and a division.
constexpr double kElementWork = 20;
/// More than a vector of any instruction set, read and written behind the last column.
constexpr int64_t kRoom = 16;

const LayerPartKernels& layer_part_kernels(const IsaEntry& isa, LinearFamily part) {
  switch (part) {
    case LinearFamily::kShortConv:
      return isa.linear->short_conv;
    case LinearFamily::kLogDecayGate:
      return isa.linear->log_decay_gate;
    case LinearFamily::kGatedNorm:
      return isa.linear->gated_norm;
    default:
      return isa.linear->feature_map;
  }
}

FeatureMap feature_map_of(std::string_view name) {
  if (name == "relu") return FeatureMap::kRelu;
  if (name == "relu2") return FeatureMap::kReluSquared;
  return name == "softmax" ? FeatureMap::kSoftmax : FeatureMap::kElu;
}

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

LayerPartOptions layer_part_options(const LinearProblem& problem, const LinearArgs& args) {
  LayerPartOptions options{};
  options.num_past = problem.num_past;
  options.has_silu = args.silu;
  options.has_residual = args.residual;
  options.map = feature_map_of(args.feature_map);
  options.has_rate = bool(args.inputs.A_log);
  options.has_lower_bound = args.lower_bound.has_value();
  options.lower_bound = static_cast<float>(args.lower_bound.value_or(0));
  options.factor = static_cast<float>(1 / args.divisor);
  options.has_gate = bool(args.inputs.z);
  options.is_gate_first = args.gate_first;
  options.is_sigmoid = args.is_sigmoid;
  options.eps = static_cast<float>(args.eps);
  return options;
}

/// Sizes that a problem gives.
struct PartSizes {
  LinearFamily part;
  int64_t head_dim, num_columns;
  int64_t ld;  ///< of scratch and states
  int64_t rows_in_one;
  int64_t num_parameters, parameter_ld;
  bool has_sums;

  explicit PartSizes(const LinearProblem& problem)
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
  int64_t parameter_numbers() const { return num_parameters * parameter_ld; }
};

/// What all tasks share: parameters as floats, and the sums of each task.
struct PartShared {
  float* parameters;
  double* sums;

  PartShared(const PartSizes& sizes, int64_t num_tasks, WorkspaceCursor& cursor) {
    parameters = cursor.take<float>(sizes.parameter_numbers());
    sums = cursor.take<double>(sizes.has_sums ? num_tasks * sizes.parameter_numbers() : 0);
  }
};

/// What a worker needs for a chunk. Rows of states are those of short_conv.
struct PartMemory {
  float *past, *final_past, *dpast, *dfinal;
  char* scratch;

  PartMemory(const IsaEntry& isa, const LinearProblem& problem, const PartSizes& sizes,
             WorkspaceCursor& cursor) {
    for (float** rows : {&past, &final_past, &dpast, &dfinal}) {
      *rows = cursor.take<float>(problem.num_past * sizes.ld);
    }
    scratch = cursor.take<char>(layer_part_kernels(isa, sizes.part)
                                    .scratch_bytes(kLayerPartRows, sizes.ld, problem.num_past));
  }
};

/// `in_one` rows at a time, `count` times.
struct RowBlock {
  LinearSequence sequence;
  int64_t begin;
  int64_t count;
  int64_t in_one;
};

/// Columns [first, first + count) of a head; of all heads side by side where they are taken so.
struct ColumnBlock {
  int64_t head;
  int64_t first;
  int64_t count;
};

/// An op without a state takes rows of a step, or packed ones, as those of one sequence.
KeptList<LinearSequence> part_sequences(const LinearProblem& problem, const LinearArgs& args) {
  if (problem.is_packed && problem.op->states.empty()) return {{0, 0, problem.num_rows, 0}};
  return linear_sequences(problem, args);
}

LinearProblem without_steps(LinearProblem problem) {
  if (problem.pass == LinearPass::kStep) problem.is_packed = true;
  return problem;
}

class LayerPartLaunch {
 public:
  LayerPartLaunch(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                  const LinearArgs& args, char* memory)
      : isa_(isa),
        problem_(without_steps(problem)),
        plan_(plan),
        args_(args),
        memory_(memory),
        sizes_(problem),
        kernels_(layer_part_kernels(isa, sizes_.part)),
        options_(layer_part_options(problem, args)),
        shared_(shared_of(sizes_, plan, memory)),
        heads_are_rows_(have_heads_as_rows()),
        rows_in_one_(heads_are_rows_ || mixes_elements() ? 1 : sizes_.rows_in_one) {
    list_columns();
    list_rows();
    load_parameters();
  }

  void run(const Context& context) {
    parallel_for(context, plan_.num_tasks,
                 [&](int64_t task, int worker) { run_task(task, worker); });
    if (sizes_.has_sums) store_sums();
  }

 private:
  static PartShared shared_of(const PartSizes& sizes, const LinearPlan& plan, char* memory) {
    WorkspaceCursor cursor(memory);
    return PartShared(sizes, plan.num_tasks, cursor);
  }

  void list_rows() {
    for (const LinearSequence& sequence : part_sequences(problem_, args_)) {
      // The states of an empty sequence are passed on.
      const int64_t length =
          std::max<int64_t>(sequence.length, problem_.op->states.empty() ? 0 : 1);
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

  bool mixes_elements() const {
    return sizes_.part == LinearFamily::kGatedNorm || options_.map == FeatureMap::kSoftmax;
  }
  /// True where the elements of all heads lie at one distance.
  bool is_one_row(const TensorView& tensor) const {
    if (!tensor || tensor.ndim < time() + 3 || sizes_.head_dim == 1) return true;
    const auto head = static_cast<size_t>(time() + 1);
    return tensor.strides[head] == sizes_.head_dim * tensor.strides[head + 1];
  }
  int time() const { return problem_.is_packed ? 0 : 1; }

  /// True where rows of all heads lie at one distance.
  bool is_one_column(const TensorView& tensor) const {
    if (!tensor) return true;
    if (tensor.ndim < time() + 3) return false;
    const auto head = static_cast<size_t>(time() + 1);
    return tensor.strides[head - 1] == problem_.num_state_heads * tensor.strides[head];
  }
  /// True where each head's rows can be taken as rows of one head, so that memory is read as it
  /// lies: they have no parameters or the same ones, and no sums, whose order is not for strides to
  /// decide.
  bool have_heads_as_rows() const {
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

  void list_columns() {
    if (heads_are_rows_) {
      dim_ = sizes_.head_dim;
      columns_.push_back({0, 0, dim_});
      return;
    }
    bool is_one = !mixes_elements();
    for (const TensorView* tensor :
         {&args_.inputs.v, &args_.out, &args_.dout, &args_.gradients.v}) {
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

  /// Where the parameter of column n is for row `row` of those that are taken as one: columns that
  /// lie side by side do so for each row.
  int64_t parameter_index(int64_t n, int64_t row) const {
    return (n / dim_ * rows_in_one_ + row) * dim_ + n % dim_;
  }
  /// Brings a row of parameters, one for each column, to their places for all rows.
  void spread_parameters(float* row) const {
    for (int64_t n = sizes_.num_columns - 1; rows_in_one_ > 1 && n >= 0; --n) {
      const float value = row[n];
      for (int64_t r = 0; r < rows_in_one_; ++r) row[parameter_index(n, r)] = value;
    }
  }

  /// Element i of every head, or of head 0 alone where parameters have no heads.
  void load_parameter_row(const TensorView& tensor, int64_t i, float* to, int64_t step) const {
    if (!tensor) return;
    const int64_t stride = tensor.strides[0] * dtype_bytes(tensor.dtype);
    const char* at = parameter_at(tensor, 0, i);
    for (int64_t n = 0; n < tensor.shape[0]; ++n) {
      to[n * step] = static_cast<float>(load_float(at + n * stride, tensor.dtype));
    }
  }

  void load_parameters() const {
    float* const rows = shared_.parameters;
    const LinearTensors& in = args_.inputs;
    std::fill_n(rows, sizes_.parameter_numbers(), 0.0f);
    if (sizes_.part == LinearFamily::kShortConv) {
      for (int64_t p = 0; p <= problem_.num_past; ++p) {
        load_parameter_row(in.weight, p, rows + p * sizes_.parameter_ld, 1);
      }
      load_parameter_row(in.bias, 0, rows + (problem_.num_past + 1) * sizes_.parameter_ld, 1);
    } else if (sizes_.part == LinearFamily::kGatedNorm) {
      if (!in.weight) std::fill_n(rows, sizes_.head_dim, 1.0f);
      load_parameter_row(in.weight, 0, rows, 1);
    } else if (sizes_.part == LinearFamily::kLogDecayGate) {
      float* const rates = rows + sizes_.parameter_ld;
      for (int64_t i = 0; i < sizes_.head_dim; ++i) {
        load_parameter_row(in.bias, i, rows + i, sizes_.head_dim);
      }
      for (int64_t n = 0; n < sizes_.num_columns; ++n) {
        rates[n] = in.A_log
                       ? static_cast<float>(std::exp(load_parameter(in.A_log, n / sizes_.head_dim)))
                       : 1.0f;
      }
      spread_parameters(rows);
      spread_parameters(rates);
    }
  }

  ChunkRows rows(const TensorView& tensor, const RowBlock& block,
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

  void run_task(int64_t task, int64_t worker) {
    WorkspaceCursor cursor(memory_ + plan_.bytes + worker * plan_.bytes_a_worker);
    const PartMemory memory(isa_, problem_, sizes_, cursor);
    double* sums = nullptr;
    if (sizes_.has_sums) {
      sums = shared_.sums + task * sizes_.parameter_numbers();
      std::fill_n(sums, sizes_.parameter_numbers(), 0.0);
    }
    const auto num_blocks = static_cast<int64_t>(rows_.size());
    const int64_t end = (task + 1) * num_blocks / plan_.num_tasks;
    for (int64_t n = task * num_blocks / plan_.num_tasks; n < end; ++n) {
      for (const ColumnBlock& columns : columns_) {
        run_chunk(rows_[static_cast<size_t>(n)], columns, memory, sums);
      }
    }
  }

  void run_chunk(const RowBlock& block, const ColumnBlock& columns, const PartMemory& memory,
                 double* sums) const {
    LayerPartChunk chunk{};
    chunk.options = &options_;
    chunk.rows = block.count;
    chunk.columns = columns.count * block.in_one;
    chunk.rows_in_one = block.in_one;
    chunk.max_rows = kLayerPartRows;
    chunk.ld = sizes_.ld;
    chunk.x = rows(args_.inputs.v, block, columns);
    chunk.z = rows(args_.inputs.z, block, columns);
    chunk.out = rows(args_.out, block, columns);
    chunk.dout = rows(args_.dout, block, columns);
    chunk.dx = rows(args_.gradients.v, block, columns);
    chunk.dz = rows(args_.gradients.z, block, columns);
    const int64_t parameter =
        sizes_.part == LinearFamily::kGatedNorm
            ? 0
            : parameter_index(columns.head * sizes_.head_dim, 0) + columns.first;
    chunk.parameters = shared_.parameters + parameter;
    chunk.parameter_ld = sizes_.parameter_ld;
    if (sums != nullptr) chunk.dparameters = sums + parameter;
    chunk.scratch = memory.scratch;
    if (sizes_.part == LinearFamily::kShortConv) load_states(block, columns, memory, chunk);
    (sizes_.has_sums ? kernels_.bwd_chunk : kernels_.fwd_chunk)(chunk);
    if (sizes_.part == LinearFamily::kShortConv) store_states(block, columns, memory, chunk);
  }

  /// Calls visit(address, place among rows of ld) for a block's elements of (sequences, channels,
  /// num_past).
  template <class Visit>
  void for_each_of_state(const TensorView& tensor, const RowBlock& block,
                         const ColumnBlock& columns, const Visit& visit) const {
    const int64_t size = dtype_bytes(tensor.dtype);
    char* const data =
        static_cast<char*>(tensor.data) +
        (block.sequence.state_idx * tensor.strides[0] + columns.first * tensor.strides[1]) * size;
    for (int64_t c = 0; c < columns.count; ++c) {
      for (int64_t p = 0; p < problem_.num_past; ++p) {
        visit(data + (c * tensor.strides[1] + p * tensor.strides[2]) * size, p * sizes_.ld + c);
      }
    }
  }
  void load_state(const TensorView& tensor, const RowBlock& block, const ColumnBlock& columns,
                  float* to) const {
    std::fill_n(to, problem_.num_past * sizes_.ld, 0.0f);
    if (!tensor) return;
    for_each_of_state(tensor, block, columns, [&](const char* at, int64_t n) {
      to[n] = static_cast<float>(load_float(at, tensor.dtype));
    });
  }
  void store_state(const TensorView& tensor, const RowBlock& block, const ColumnBlock& columns,
                   const float* from) const {
    if (!tensor) return;
    for_each_of_state(tensor, block, columns, [&](char* at, int64_t n) {
      store_float(at, tensor.dtype, static_cast<double>(from[n]));
    });
  }

  void load_states(const RowBlock& block, const ColumnBlock& columns, const PartMemory& memory,
                   LayerPartChunk& chunk) const {
    const int64_t left = block.sequence.length - block.begin - block.count;
    chunk.is_first = block.begin == 0;
    chunk.rows_before = std::min(problem_.num_past, block.begin);
    chunk.rows_after = std::min(problem_.num_past, left);
    chunk.past = memory.past;
    if (chunk.rows_before < problem_.num_past) {
      load_state(args_.initial_states.state, block, columns, memory.past);
    }
    if (!sizes_.has_sums) {
      if (left == 0 && args_.final_states.state) chunk.final_past = memory.final_past;
      return;
    }
    chunk.dpast = memory.dpast;
    if (left >= problem_.num_past || !args_.dfinal_states.state) return;
    load_state(args_.dfinal_states.state, block, columns, memory.dfinal);
    chunk.dfinal = memory.dfinal;
  }

  void store_states(const RowBlock& block, const ColumnBlock& columns, const PartMemory& memory,
                    const LayerPartChunk& chunk) const {
    if (sizes_.has_sums) {
      if (chunk.is_first) store_state(args_.dinitial_states.state, block, columns, memory.dpast);
    } else if (chunk.final_past != nullptr) {
      store_state(args_.final_states.state, block, columns, memory.final_past);
    }
  }

  /// Of element n of row `row` of the parameters, over all tasks.
  double sum_of(int64_t row, int64_t n) const {
    double sum = 0;
    for (int64_t task = 0; task < plan_.num_tasks; ++task) {
      const double* sums =
          shared_.sums + task * sizes_.parameter_numbers() + row * sizes_.parameter_ld;
      for (int64_t r = 0; r < rows_in_one_; ++r) sum += sums[parameter_index(n, r)];
    }
    return sum;
  }
  static void store_sum(const TensorView& gradient, int64_t head, int64_t i, double sum) {
    if (gradient) store_float(parameter_at(gradient, head, i), gradient.dtype, sum);
  }

  void store_sums() const {
    const LinearTensors& gradients = args_.gradients;
    if (sizes_.part == LinearFamily::kShortConv) {
      for (int64_t n = 0; n < sizes_.num_columns; ++n) {
        for (int64_t p = 0; p <= problem_.num_past; ++p) {
          store_sum(gradients.weight, n, p, sum_of(p, n));
        }
        store_sum(gradients.bias, n, 0, sum_of(problem_.num_past + 1, n));
      }
    } else if (sizes_.part == LinearFamily::kGatedNorm) {
      for (int64_t i = 0; i < sizes_.head_dim; ++i) store_sum(gradients.weight, i, 0, sum_of(0, i));
    } else if (sizes_.part == LinearFamily::kLogDecayGate) {
      for (int64_t head = 0; head < problem_.num_state_heads; ++head) {
        double dA_log = 0;
        for (int64_t i = 0; i < sizes_.head_dim; ++i) {
          const int64_t n = head * sizes_.head_dim + i;
          store_sum(gradients.bias, head, i, sum_of(0, n));
          dA_log += sum_of(1, n);
        }
        store_sum(gradients.A_log, head, 0, dA_log);
      }
    }
  }

  const IsaEntry& isa_;
  const LinearProblem problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  char* memory_;
  PartSizes sizes_;
  const LayerPartKernels& kernels_;
  LayerPartOptions options_;
  PartShared shared_;
  bool heads_are_rows_;
  int64_t rows_in_one_;
  int64_t dim_ = 0;  ///< columns that lie side by side: of a head, or of all
  KeptList<RowBlock> rows_;
  KeptList<ColumnBlock> columns_;
};

}  // namespace

LinearPlan plan_layer_part(const IsaEntry& isa, const LinearProblem& problem) {
  const PartSizes sizes(problem);
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = kLayerPartRows;
  plan.num_tasks =
      std::clamp<int64_t>(ceil_div(problem.num_rows, kLayerPartRows * sizes.rows_in_one), 1,
                          sizes.has_sums ? kMaxBwdTasks : kMaxFwdTasks);
  WorkspaceCursor shared;
  PartShared(sizes, plan.num_tasks, shared);
  plan.bytes = shared.used();
  WorkspaceCursor cursor;
  PartMemory(isa, problem, sizes, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_layer_part(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                       const LinearArgs& args, const Context& context) {
  const double work = static_cast<double>(problem.num_rows * problem.num_state_heads) *
                      static_cast<double>(problem.head_dim) * kElementWork;
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(work, context);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  LayerPartLaunch(isa, problem, plan, args, workspace.data()).run(limited);
}

}  // namespace flashtile::cpu
