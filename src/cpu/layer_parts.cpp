// SPDX-License-Identifier: Apache-2.0
//
// What layers have around their recurrence, on the CPU. Blocks of rows do not depend on each other:
// a task is some of them in order, for all columns, so that memory is read as it lies. Gradients of
// parameters are summed by task, and then over tasks in their order.
#include <algorithm>

#include "core/executor.hpp"
#include "core/workspace.hpp"
#include "cpu/layer_part_parameters.hpp"

namespace flashtile::cpu {
namespace {

/// Tasks at most; each of a backward's has sums of its own.
constexpr int64_t kMaxFwdTasks = 64;
constexpr int64_t kMaxBwdTasks = 16;
/// An element counts as this many multiply-adds: an exponential and a division.
constexpr double kElementWork = 20;

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

LayerPartOptions layer_part_options(const LinearProblem& problem, const LinearArgs& args) {
  LayerPartOptions options{};
  options.num_past = problem.num_past;
  options.has_silu = args.silu;
  options.has_residual = args.residual;
  options.map = feature_map_of(args.feature_map);
  options.has_rate = bool(args.inputs.A_log);
  options.has_lower_bound = args.lower_bound.has_value();
  options.is_rate_large = has_large_rate(args);
  options.lower_bound = static_cast<float>(args.lower_bound.value_or(0));
  options.factor = static_cast<float>(1 / args.divisor);
  options.has_gate = bool(args.inputs.z);
  options.is_gate_first = args.gate_first;
  options.is_sigmoid = args.is_sigmoid;
  options.eps = static_cast<float>(args.eps);
  return options;
}

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

class LayerPartLaunch {
 public:
  LayerPartLaunch(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                  const LinearArgs& args, char* memory)
      : isa_(isa),
        problem_(problem),
        plan_(plan),
        args_(args),
        memory_(memory),
        layout_(problem, args),
        sizes_(layout_.sizes()),
        kernels_(layer_part_kernels(isa, sizes_.part)),
        options_(layer_part_options(problem, args)),
        parameters_(problem, args, layout_, shared_of(sizes_, plan, memory), plan.num_tasks) {}

  void run(const Context& context) const {
    parameters_.load();
    parallel_for(context, plan_.num_tasks,
                 [&](int64_t task, int worker) { run_task(task, worker); });
    if (sizes_.has_sums) parameters_.store_sums();
  }

 private:
  static PartShared shared_of(const PartSizes& sizes, const LinearPlan& plan, char* memory) {
    WorkspaceCursor cursor(memory);
    return PartShared(sizes, plan.num_tasks, cursor);
  }

  void run_task(int64_t task, int64_t worker) const {
    WorkspaceCursor cursor(memory_ + plan_.bytes + worker * plan_.bytes_a_worker);
    const PartMemory memory(isa_, problem_, sizes_, cursor);
    double* sums = nullptr;
    if (sizes_.has_sums) {
      sums = parameters_.sums_of(task);
      std::fill_n(sums, sizes_.parameter_numbers(), 0.0);
    }
    const auto num_blocks = static_cast<int64_t>(layout_.rows().size());
    const int64_t end = (task + 1) * num_blocks / plan_.num_tasks;
    for (int64_t n = task * num_blocks / plan_.num_tasks; n < end; ++n) {
      for (const ColumnBlock& columns : layout_.columns()) {
        run_chunk(layout_.rows()[static_cast<size_t>(n)], columns, memory, sums);
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
    chunk.x = layout_.rows_of(args_.inputs.v, block, columns);
    chunk.z = layout_.rows_of(args_.inputs.z, block, columns);
    chunk.out = layout_.rows_of(args_.out, block, columns);
    chunk.dout = layout_.rows_of(args_.dout, block, columns);
    chunk.dx = layout_.rows_of(args_.gradients.v, block, columns);
    chunk.dz = layout_.rows_of(args_.gradients.z, block, columns);
    const int64_t parameter = parameters_.index_of(columns);
    chunk.parameters = parameters_.values() + parameter;
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

  const IsaEntry& isa_;
  const LinearProblem& problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  char* memory_;
  PartLayout layout_;
  const PartSizes& sizes_;
  const LayerPartKernels& kernels_;
  LayerPartOptions options_;
  PartParameters parameters_;
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
