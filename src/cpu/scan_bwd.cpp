// SPDX-License-Identifier: Apache-2.0
//
// Backward of scans on the CPU. A task is some blocks of channels of one sequence, each forward
// once for the states before its chunks and then back through them. What mamba1's channels share,
// dB and dC, is summed over the blocks of a task, and then over tasks in their order.
#include <algorithm>

#include "core/executor.hpp"
#include "cpu/scan_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

/// Into how many parts a group's blocks fall at most; each has sums of dB and dC of its own.
constexpr int64_t kMaxParts = 8;

/// What a worker needs for a block.
struct ScanBwdMemory {
  float* state;
  float* dstate;
  float* kept;  ///< the state before each chunk
  float* parameters;
  double* dparameters;
  char* scratch;

  ScanBwdMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
                WorkspaceCursor& cursor) {
    const ScanKernels& kernels = scan_kernels(isa, *problem.op);
    const int64_t size = scan_state_rows(problem) * kScanChannels;
    const int64_t num_parameters = scan_parameter_rows(problem) * kScanChannels;
    state = cursor.take<float>(size);
    dstate = cursor.take<float>(size);
    kept = cursor.take<float>(ceil_div(problem.max_seqlen, max_rows) * size);
    parameters = cursor.take<float>(num_parameters);
    dparameters = cursor.take<double>(num_parameters);
    scratch = cursor.take<char>(std::max(kernels.fwd_scratch_bytes(max_rows, problem.head_dim),
                                         kernels.bwd_scratch_bytes(max_rows, problem.head_dim)));
  }
};

class ScanBwdLaunch {
 public:
  ScanBwdLaunch(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                const LinearArgs& args, const Context& context, char* memory)
      : isa_(isa),
        kernels_(scan_kernels(isa, *problem.op)),
        problem_(problem),
        plan_(plan),
        args_(args),
        context_(context),
        memory_(memory),
        sequences_(linear_sequences(problem, args)),
        sums_(problem, args) {}

  /// Tasks of a (sequence, group).
  static int64_t num_parts(const LinearProblem& problem) {
    return std::min<int64_t>(kMaxParts, static_cast<int64_t>(scan_blocks(problem, 0).size()));
  }
  /// Of the sums of dB and dC of all rows, by part and group.
  static int64_t shared_floats(const LinearProblem& problem) {
    if (problem.op->gate != LinearGate::kStep) return 0;
    return 2 * num_parts(problem) * num_scan_groups(problem) * problem.num_rows * problem.head_dim;
  }

  void run() {
    parallel_for(context_, plan_.num_tasks,
                 [&](int64_t task, int worker) { run_part(task, worker); });
    if (problem_.op->gate == LinearGate::kStep) {
      const int64_t count = problem_.batch_size * num_scan_groups(problem_);
      parallel_for(context_, count, [&](int64_t task, int) { store_shared(task); });
    }
    sums_.store();
  }

 private:
  /// First row of a sequence among all.
  int64_t first_row(const LinearSequence& sequence) const {
    return problem_.is_packed ? sequence.begin : sequence.batch_idx * problem_.max_seqlen;
  }
  float* shared(int64_t part, int64_t group, bool is_C, int64_t row) const {
    const int64_t block = (part * num_scan_groups(problem_) + group) * 2 + (is_C ? 1 : 0);
    return reinterpret_cast<float*>(memory_) +
           (block * problem_.num_rows + row) * problem_.head_dim;
  }

  void run_part(int64_t task, int64_t worker) {
    WorkspaceCursor cursor(memory_ + plan_.bytes + worker * plan_.bytes_a_worker);
    const ScanBwdMemory memory(isa_, problem_, plan_.chunk_size, cursor);
    const int64_t parts = num_parts(problem_);
    const int64_t groups = num_scan_groups(problem_);
    const int64_t part = task % parts;
    const int64_t group = task / parts % groups;
    const LinearSequence& sequence = sequences_[static_cast<size_t>(task / parts / groups)];
    const KeptList<ScanBlock> blocks = scan_blocks(problem_, group);
    const auto num_blocks = static_cast<int64_t>(blocks.size());
    const int64_t begin = part * num_blocks / parts;
    const int64_t end = (part + 1) * num_blocks / parts;
    for (int64_t n = begin; n < end; ++n) {
      run_block(sequence, part, group, n == begin, blocks[static_cast<size_t>(n)], memory);
    }
  }

  void run_block(const LinearSequence& sequence, int64_t part, int64_t group, bool is_first,
                 const ScanBlock& block, const ScanBwdMemory& memory) {
    const ScanStream stream(problem_, plan_, args_, sequence, block, memory.parameters);
    const int64_t size = scan_state_rows(problem_) * kScanChannels;
    stream.load_state(args_.initial_states.state, /*is_gradient=*/false, memory.state);
    for (int64_t n = 0; n < stream.num_chunks(); ++n) {
      std::copy_n(memory.state, size, memory.kept + n * size);
      ScanChunk chunk = stream.make_chunk(n);
      chunk.state = memory.state;
      chunk.scratch = memory.scratch;
      kernels_.fwd_chunk(chunk);
    }
    stream.load_state(args_.dfinal_states.state, /*is_gradient=*/true, memory.dstate);
    std::fill_n(memory.dparameters, scan_parameter_rows(problem_) * kScanChannels, 0.0);
    for (int64_t n = stream.num_chunks() - 1; n >= 0; --n) {
      ScanChunk chunk = stream.make_chunk(n);
      const int64_t row = n * plan_.chunk_size;
      add_gradients(stream, row, chunk);
      chunk.is_first = is_first;
      chunk.state = memory.kept + n * size;
      chunk.dstate = memory.dstate;
      chunk.dparameters = memory.dparameters;
      chunk.scratch = memory.scratch;
      if (problem_.op->gate == LinearGate::kStep) {
        chunk.dB = shared(part, group, /*is_C=*/false, first_row(sequence) + row);
        chunk.dC = shared(part, group, /*is_C=*/true, first_row(sequence) + row);
      }
      kernels_.bwd_chunk(chunk);
    }
    stream.store_state(args_.dinitial_states.state, memory.dstate);
    add_parameters(sequence, block, memory.dparameters);
  }

  void add_gradients(const ScanStream& stream, int64_t row, ScanChunk& chunk) const {
    const LinearTensors& gradients = args_.gradients;
    chunk.dout = stream.rows(args_.dout, row);
    chunk.dv = stream.rows(gradients.v, row);
    if (problem_.op->gate == LinearGate::kStep) {
      chunk.ddt = stream.rows(gradients.dt, row);
      chunk.dz = stream.rows(gradients.z, row);
    } else if (problem_.op->gate == LinearGate::kExponential) {
      chunk.dk = stream.rows(gradients.k, row);
    } else {
      chunk.dg = stream.rows(gradients.g, row);
    }
  }

  void add_parameters(const LinearSequence& sequence, const ScanBlock& block,
                      const double* dparameters) {
    const LinearTensors& gradients = args_.gradients;
    const auto add_row = [&](int64_t row, const TensorView& gradient, int64_t i) {
      for (int64_t c = 0; c < block.count; ++c) {
        sums_.add(gradient, sequence.batch_idx, block.first + c, i,
                  dparameters[row * kScanChannels + c]);
      }
    };
    if (problem_.op->gate == LinearGate::kExponential) {
      add_row(0, gradients.g, 0);
      add_row(1, gradients.u_bonus, 0);
    } else if (problem_.op->gate == LinearGate::kStep) {
      add_row(0, gradients.D, 0);
      add_row(1, gradients.dt_bias, 0);
      for (int64_t n = 0; n < problem_.head_dim; ++n) add_row(2 + n, gradients.A, n);
    }
  }

  /// dB and dC of a group of a sequence.
  void store_shared(int64_t task) const {
    const int64_t parts = num_parts(problem_);
    const int64_t group = task % num_scan_groups(problem_);
    const LinearSequence& sequence =
        sequences_[static_cast<size_t>(task / num_scan_groups(problem_))];
    for (const bool is_C : {false, true}) {
      const HeadRows target =
          timed_rows(problem_, is_C ? args_.gradients.q : args_.gradients.k, sequence, group);
      if (!target) continue;
      for (int64_t t = 0; t < sequence.length; ++t) {
        for (int64_t i = 0; i < problem_.head_dim; ++i) {
          double sum = 0;
          for (int64_t part = 0; part < parts; ++part) {
            sum += shared(part, group, is_C, first_row(sequence) + t)[i];
          }
          target.store(t, i, sum);
        }
      }
    }
  }

  const IsaEntry& isa_;
  const ScanKernels& kernels_;
  const LinearProblem& problem_;
  const LinearPlan& plan_;
  const LinearArgs& args_;
  const Context& context_;
  char* memory_;
  KeptList<LinearSequence> sequences_;
  ParameterSums sums_;
};

}  // namespace

LinearPlan plan_scan_bwd(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = std::clamp<int64_t>(problem.max_seqlen, 1, kScanRows);
  plan.num_tasks = 0;
  if (num_scan_groups(problem) == 0) return plan;
  plan.num_tasks =
      problem.batch_size * num_scan_groups(problem) * ScanBwdLaunch::num_parts(problem);
  WorkspaceCursor shared;
  shared.take<float>(ScanBwdLaunch::shared_floats(problem));
  plan.bytes = shared.used();
  WorkspaceCursor cursor;
  ScanBwdMemory(isa, problem, plan.chunk_size, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_scan_bwd(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                     const LinearArgs& args, const Context& context) {
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for(3 * scan_work(problem), context);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers_of(limited)));
  ScanBwdLaunch(isa, problem, plan, args, limited, workspace.data()).run();
}

}  // namespace flashtile::cpu
