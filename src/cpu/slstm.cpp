// SPDX-License-Identifier: Apache-2.0
//
// sLSTM on the CPU. A task is one head of some sequences, whose rows follow one another: its weight
// is brought into the kernels' form once. A backward keeps the state before each chunk.
#include <algorithm>
#include <limits>

#include "core/executor.hpp"
#include "cpu/scan_call.hpp"
#include "ops/linear/parameter_sums.hpp"

namespace flashtile::cpu {
namespace {

using Gates = std::array<const TensorView*, kSlstmGates>;

Gates gates_of(const LinearTensors& tensors) {
  return {&tensors.i, &tensors.f, &tensors.z, &tensors.o};
}

struct SlstmMemory {
  int64_t ld;
  int64_t state_floats, weight_floats;
  float *by_hidden, *by_gate, *dweight;
  float *state, *dstate;
  float* kept;  ///< the state before each chunk
  char* scratch;

  SlstmMemory(const IsaEntry& isa, const LinearProblem& problem, int64_t max_rows,
              WorkspaceCursor& cursor) {
    const SlstmKernels& kernels = isa.linear->slstm;
    const bool is_backward = problem.pass == LinearPass::kBackward;
    ld = kernels.ld(problem.head_dim);
    state_floats = kSlstmGates * ld;
    weight_floats = kSlstmGates * problem.head_dim * ld;
    by_hidden = cursor.take<float>(weight_floats);
    by_gate = cursor.take<float>(is_backward ? weight_floats : 0);
    dweight = cursor.take<float>(is_backward ? weight_floats : 0);
    state = cursor.take<float>(state_floats);
    dstate = cursor.take<float>(state_floats);
    const int64_t num_kept = is_backward ? ceil_div(problem.max_seqlen, max_rows) : 0;
    kept = cursor.take<float>(num_kept * state_floats);
    scratch = cursor.take<char>(kernels.scratch_bytes(max_rows, problem.head_dim));
  }
};

/// One head of one sequence.
class SlstmStream {
 public:
  SlstmStream(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
              const LinearArgs& args, const LinearSequence& sequence, int64_t head,
              const SlstmMemory& memory)
      : kernels_(isa.linear->slstm),
        problem_(problem),
        args_(args),
        sequence_(sequence),
        head_(head),
        max_rows_(plan.chunk_size),
        memory_(memory) {}

  void run_forward() {
    load(args_.initial_states, /*is_gradient=*/false, memory_.state);
    for (int64_t n = 0; n < num_chunks(); ++n) {
      SlstmChunk chunk = make_chunk(n, memory_.state);
      chunk.out = rows(args_.out, n * max_rows_);
      kernels_.fwd_chunk(chunk);
    }
    store(args_.final_states, memory_.state);
    store_vector(args_.final_states.max, memory_.state + 2 * memory_.ld);
  }

  void run_backward(ParameterSums& sums) {
    const auto kept = [&](int64_t n) { return memory_.kept + n * memory_.state_floats; };
    load(args_.initial_states, /*is_gradient=*/false, memory_.state);
    for (int64_t n = 0; n < num_chunks(); ++n) {
      std::copy_n(memory_.state, memory_.state_floats, kept(n));
      if (n + 1 < num_chunks()) kernels_.fwd_chunk(make_chunk(n, memory_.state));
    }
    load(args_.dfinal_states, /*is_gradient=*/true, memory_.dstate);
    std::fill_n(memory_.dweight, memory_.weight_floats, 0.0f);
    for (int64_t n = num_chunks() - 1; n >= 0; --n) {
      SlstmChunk chunk = make_chunk(n, kept(n));
      const Gates gradients = gates_of(args_.gradients);
      for (size_t gate = 0; gate < kSlstmGates; ++gate) {
        chunk.dgates[gate] = rows(*gradients[gate], n * max_rows_);
      }
      chunk.dout = rows(args_.dout, n * max_rows_);
      chunk.dstate = memory_.dstate;
      chunk.dweight = args_.gradients.weight ? memory_.dweight : nullptr;
      kernels_.bwd_chunk(chunk);
    }
    store(args_.dinitial_states, memory_.dstate);
    add_weight(sums);
  }

 private:
  int64_t num_chunks() const { return ceil_div(sequence_.length, max_rows_); }
  ChunkRows rows(const TensorView& tensor, int64_t begin) const {
    return chunk_rows(timed_rows(problem_, tensor, sequence_, head_), begin);
  }

  void load_vector(const TensorView& tensor, float* to) const {
    load_state_vector(tensor, sequence_.state_idx, head_, 1, to);
  }
  void store_vector(const TensorView& tensor, const float* from) const {
    store_state_vector(tensor, sequence_.state_idx, head_, 1, from);
  }
  /// Rows c, n, m, h; an absent m is -inf.
  void load(const LinearStates& states, bool is_gradient, float* to) const {
    const int64_t ld = memory_.ld;
    std::fill_n(to, memory_.state_floats, 0.0f);
    load_vector(states.state, to);
    load_vector(states.norm, to + ld);
    load_vector(states.hidden, to + 3 * ld);
    if (is_gradient) return;
    std::fill_n(to + 2 * ld, ld, -std::numeric_limits<float>::infinity());
    load_vector(states.max, to + 2 * ld);
  }
  void store(const LinearStates& states, const float* from) const {
    store_vector(states.state, from);
    store_vector(states.norm, from + memory_.ld);
    store_vector(states.hidden, from + 3 * memory_.ld);
  }

  SlstmChunk make_chunk(int64_t n, float* state) const {
    const Gates gates = gates_of(args_.inputs);
    SlstmChunk chunk{};
    chunk.rows = std::min(max_rows_, sequence_.length - n * max_rows_);
    chunk.max_rows = max_rows_;
    chunk.dim = problem_.head_dim;
    chunk.ld = memory_.ld;
    for (size_t gate = 0; gate < kSlstmGates; ++gate) {
      chunk.gates[gate] = rows(*gates[gate], n * max_rows_);
    }
    chunk.by_hidden = memory_.by_hidden;
    chunk.by_gate = memory_.by_gate;
    chunk.state = state;
    chunk.scratch = memory_.scratch;
    return chunk;
  }

  void add_weight(ParameterSums& sums) const {
    const TensorView& gradient = args_.gradients.weight;
    const int64_t dim = problem_.head_dim;
    for (int64_t row = 0; gradient && row < kSlstmGates * dim; ++row) {
      for (int64_t i = 0; i < dim; ++i) {
        sums.add(gradient, sequence_.batch_idx, head_, row * dim + i,
                 static_cast<double>(memory_.dweight[row * memory_.ld + i]));
      }
    }
  }

  const SlstmKernels& kernels_;
  const LinearProblem& problem_;
  const LinearArgs& args_;
  const LinearSequence& sequence_;
  int64_t head_;
  int64_t max_rows_;
  const SlstmMemory& memory_;
};

/// R of a head in the kernels' forms.
void load_weight(const IsaEntry& isa, const LinearProblem& problem, const TensorView& weight,
                 int64_t head, const SlstmMemory& memory) {
  const int64_t dim = problem.head_dim;
  const int64_t size = dtype_bytes(weight.dtype);
  KeptList<float> rounded;
  for (int64_t gate = 0; gate < kSlstmGates; ++gate) {
    ChunkRows rows{parameter_at(weight, head, gate * dim * dim), weight.strides[2] * size,
                   weight.strides[3], weight.dtype};
    if (weight.dtype == DType::kF64) {
      rounded.clear();
      for (int64_t n = 0; n < dim * dim; ++n) {
        rounded.push_back(static_cast<float>(load_parameter(weight, head, gate * dim * dim + n)));
      }
      rows = {reinterpret_cast<char*>(rounded.data()), dim * 4, 1, DType::kF32};
    }
    const int64_t first = gate * dim * memory.ld;
    const bool is_backward = problem.pass == LinearPass::kBackward;
    isa.linear->slstm.pack_weight(rows, dim, memory.by_hidden + first,
                                  is_backward ? memory.by_gate + first : nullptr);
  }
}

double slstm_work(const LinearProblem& problem) {
  return static_cast<double>(problem.num_rows * problem.num_state_heads) *
         static_cast<double>(kSlstmGates * problem.head_dim * problem.head_dim);
}

}  // namespace

LinearPlan plan_slstm(const IsaEntry& isa, const LinearProblem& problem) {
  LinearPlan plan;
  plan.implementation = isa_name(isa.isa);
  plan.chunk_size = std::clamp<int64_t>(problem.max_seqlen, 1, kScanRows);
  plan.num_tasks = problem.batch_size * problem.num_state_heads;
  WorkspaceCursor cursor;
  SlstmMemory(isa, problem, plan.chunk_size, cursor);
  plan.bytes_a_worker = cursor.used();
  return plan;
}

void launch_slstm(const IsaEntry& isa, const LinearProblem& problem, const LinearPlan& plan,
                  const LinearArgs& args, const Context& context) {
  if (problem.num_state_heads == 0) return;
  const bool is_backward = problem.pass == LinearPass::kBackward;
  const KeptList<LinearSequence> sequences = linear_sequences(problem, args);
  const std::string_view op = linear_op_name(*problem.op, problem.pass);
  const Context limited = with_workers_for((is_backward ? 4 : 1) * slstm_work(problem), context);
  const int64_t num_workers = num_workers_of(limited);
  const Workspace workspace(op, context, plan.bytes_for(op, num_workers));
  ParameterSums sums(problem, args);
  // As many parts of the batch as give each worker two tasks.
  const int64_t parts = std::clamp<int64_t>(ceil_div(2 * num_workers, problem.num_state_heads), 1,
                                            std::max<int64_t>(problem.batch_size, 1));
  parallel_for(limited, problem.num_state_heads * parts, [&](int64_t task, int worker) {
    WorkspaceCursor cursor(workspace.data() + worker * plan.bytes_a_worker);
    const SlstmMemory memory(isa, problem, plan.chunk_size, cursor);
    const int64_t head = task / parts;
    load_weight(isa, problem, args.inputs.weight, head, memory);
    const int64_t end = (task % parts + 1) * problem.batch_size / parts;
    for (int64_t b = task % parts * problem.batch_size / parts; b < end; ++b) {
      SlstmStream stream(isa, problem, plan, args, sequences[static_cast<size_t>(b)], head, memory);
      if (is_backward) {
        stream.run_backward(sums);
      } else {
        stream.run_forward();
      }
    }
  });
  sums.store();
}

}  // namespace flashtile::cpu
