// SPDX-License-Identifier: Apache-2.0
//
// Forward of scans on the CPU. A task is a block of channels of one sequence, chunk after chunk.
#include <algorithm>
#include <limits>

#include "core/executor.hpp"
#include "cpu/scan_call.hpp"

namespace flashtile::cpu {
namespace {

/// An exponential counts as this many multiply-adds.
constexpr double kExponentialWork = 10;

bool has_selective_state(const LinearOp& op) { return op.family == LinearFamily::kMamba1; }
bool has_mean_state(const LinearOp& op) { return op.family == LinearFamily::kRwkv4; }

/// Calls visit(address, row, column) for the elements of a block of a state: (sequences, channels),
/// (sequences, channels, rows) or, of rwkv4, (sequences, rows, channels).
template <class Visit>
void for_each_of_block(const LinearProblem& problem, const TensorView& tensor, int64_t state_idx,
                       const ScanBlock& block, const Visit& visit) {
  const int64_t size = dtype_bytes(tensor.dtype);
  const bool is_turned = has_mean_state(*problem.op);
  const int64_t channel_stride = tensor.strides[is_turned ? 2 : 1] * size;
  const int64_t row_stride = tensor.ndim < 3 ? 0 : tensor.strides[is_turned ? 1 : 2] * size;
  char* data = static_cast<char*>(tensor.data) + state_idx * tensor.strides[0] * size +
               block.first * channel_stride;
  for (int64_t r = 0; r < scan_state_rows(problem); ++r) {
    for (int64_t c = 0; c < block.count; ++c) {
      visit(data + r * row_stride + c * channel_stride, r, c);
    }
  }
}

struct ScanFwdMemory {
  float* state;
  float* parameters;
  char* scratch;

  ScanFwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                WorkspaceCursor& cursor) {
    state = cursor.take<float>(scan_state_rows(problem) * kScanChannels);
    parameters = cursor.take<float>(scan_parameter_rows(problem) * kScanChannels);
    scratch = cursor.take<char>(
        scan_kernels(isa, *problem.op).fwd_scratch_bytes(max_rows, problem.head_dim));
  }
};

}  // namespace

const ScanKernels& scan_kernels(const IsaEntry& isa, const LinearOp& op) {
  if (has_selective_state(op)) return isa.linear->mamba1;
  return has_mean_state(op) ? isa.linear->rwkv4 : isa.linear->hgrn;
}

int64_t num_scan_groups(const LinearProblem& problem) {
  return has_selective_state(*problem.op) ? problem.num_key_heads : 1;
}

KeptList<ScanBlock> scan_blocks(const LinearProblem& problem, int64_t group) {
  KeptList<ScanBlock> blocks;
  const int64_t channels = problem.num_state_heads / num_scan_groups(problem);
  for (int64_t c = 0; c < channels; c += kScanChannels) {
    blocks.push_back({group * channels + c, std::min(kScanChannels, channels - c)});
  }
  return blocks;
}

int64_t scan_state_rows(const LinearProblem& problem) {
  return has_mean_state(*problem.op) ? 3 : has_selective_state(*problem.op) ? problem.head_dim : 1;
}

int64_t scan_parameter_rows(const LinearProblem& problem) {
  return has_selective_state(*problem.op) ? 2 + problem.head_dim : 2;
}

double scan_work(const LinearProblem& problem) {
  return static_cast<double>(problem.num_rows * problem.num_state_heads *
                             scan_state_rows(problem)) *
         kExponentialWork;
}

ScanStream::ScanStream(const LinearProblem& problem, const LinearPlan& plan, const LinearArgs& args,
                       const LinearSequence& sequence, const ScanBlock& block, float* parameters)
    : problem_(problem),
      args_(args),
      sequence_(sequence),
      block_(block),
      max_rows_(plan.chunk_size),
      parameters_(parameters) {
  load_parameters(parameters);
}

void ScanStream::load_parameters(float* parameters) const {
  std::fill_n(parameters, scan_parameter_rows(problem_) * kScanChannels, 0.0f);
  const LinearTensors& in = args_.inputs;
  const bool is_selective = has_selective_state(*problem_.op);
  const auto load_row = [&](int64_t row, const TensorView& tensor, int64_t i) {
    for (int64_t c = 0; c < block_.count && tensor; ++c) {
      parameters[row * kScanChannels + c] =
          static_cast<float>(load_parameter(tensor, block_.first + c, i));
    }
  };
  if (has_mean_state(*problem_.op)) {
    load_row(0, in.g, 0);
    load_row(1, in.u_bonus, 0);
  } else if (is_selective) {
    load_row(0, in.D, 0);
    load_row(1, in.dt_bias, 0);
    for (int64_t n = 0; n < problem_.head_dim; ++n) load_row(2 + n, in.A, n);
  }
}

void ScanStream::load_state(const TensorView& tensor, bool is_gradient, float* state) const {
  std::fill_n(state, scan_state_rows(problem_) * kScanChannels, 0.0f);
  if (tensor) {
    for_each_of_block(problem_, tensor, sequence_.state_idx, block_,
                      [&](const char* at, int64_t row, int64_t column) {
                        state[row * kScanChannels + column] =
                            static_cast<float>(load_float(at, tensor.dtype));
                      });
  } else if (has_mean_state(*problem_.op) && !is_gradient) {
    std::fill_n(state + 2 * kScanChannels, kScanChannels, -std::numeric_limits<float>::infinity());
  }
}

void ScanStream::store_state(const TensorView& tensor, const float* state) const {
  if (!tensor) return;
  for_each_of_block(
      problem_, tensor, sequence_.state_idx, block_, [&](char* at, int64_t row, int64_t column) {
        store_float(at, tensor.dtype, static_cast<double>(state[row * kScanChannels + column]));
      });
}

ChunkRows ScanStream::rows(const TensorView& tensor, int64_t begin) const {
  const HeadRows of_channel = timed_rows(problem_, tensor, sequence_, block_.first);
  ChunkRows chunk = chunk_rows(of_channel, begin);
  if (tensor) chunk.stride = tensor.strides[static_cast<size_t>(tensor.ndim - 1)];
  return chunk;
}

ChunkRows ScanStream::group_rows(const TensorView& tensor, int64_t begin) const {
  if (!tensor) return chunk_rows({}, begin);
  return chunk_rows(timed_rows(problem_, tensor, sequence_, problem_.key_head_of(block_.first)),
                    begin);
}

ScanChunk ScanStream::make_chunk(int64_t n) const {
  const LinearTensors& in = args_.inputs;
  const int64_t begin = n * max_rows_;
  ScanChunk chunk{};
  chunk.rows = std::min(max_rows_, sequence_.length - begin);
  chunk.max_rows = max_rows_;
  chunk.channels = block_.count;
  chunk.head_dim = problem_.head_dim;
  chunk.has_softplus = args_.dt_softplus;
  chunk.v = rows(in.v, begin);
  if (has_selective_state(*problem_.op)) {
    chunk.dt = rows(in.dt, begin);
    chunk.z = rows(in.z, begin);
    chunk.B = group_rows(in.k, begin);
    chunk.C = group_rows(in.q, begin);
  } else if (has_mean_state(*problem_.op)) {
    chunk.k = rows(in.k, begin);
  } else {
    chunk.g = rows(in.g, begin);
  }
  chunk.parameters = parameters_;
  return chunk;
}

LinearPlan plan_scan_fwd(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = std::clamp<int64_t>(problem.max_seqlen, 1, kScanRows);
  const int64_t groups = num_scan_groups(problem);
  plan.num_tasks = 0;
  if (groups == 0) return plan;
  plan.num_tasks =
      problem.batch_size * groups * static_cast<int64_t>(scan_blocks(problem, 0).size());
  WorkspaceCursor cursor;
  ScanFwdMemory(isa, problem, plan.chunk_size, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_scan_fwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const Context& context) {
  if (plan.num_tasks == 0) return;
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(scan_work(problem), context);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  const ScanKernels& kernels = scan_kernels(isa, *problem.op);
  KeptList<ScanBlock> blocks;
  for (int64_t group = 0; group < num_scan_groups(problem); ++group) {
    for (const ScanBlock& block : scan_blocks(problem, group)) blocks.push_back(block);
  }
  const auto num_blocks = static_cast<int64_t>(blocks.size());
  parallel_for(limited, plan.num_tasks, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const ScanFwdMemory memory(isa, problem, plan.chunk_size, cursor);
    const ScanStream stream(problem, plan, args, sequences[static_cast<size_t>(task / num_blocks)],
                            blocks[static_cast<size_t>(task % num_blocks)], memory.parameters);
    stream.load_state(args.initial_states.state, /*is_gradient=*/false, memory.state);
    for (int64_t n = 0; n < stream.num_chunks(); ++n) {
      ScanChunk chunk = stream.make_chunk(n);
      chunk.out = stream.rows(args.out, n * plan.chunk_size);
      chunk.state = memory.state;
      chunk.scratch = memory.scratch;
      kernels.fwd_chunk(chunk);
    }
    stream.store_state(args.final_states.state, memory.state);
  });
}

}  // namespace flashtile::cpu
