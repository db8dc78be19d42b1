// SPDX-License-Identifier: Apache-2.0
//
// What a caller may do with memory: hand over the workspace, let outputs be slices of one buffer,
// let inputs share memory or repeat themselves, start anywhere.
#include <gtest/gtest.h>

#include <cstring>

#include "flashtile/error.hpp"
#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/guarded_memory.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::test {
namespace {

constexpr const char* kWorkspaceProblems[] = {
    "attention_fwd:b2:hq4:hkv2:sq70:sk300:d40:causal:lse",
    "attention_fwd:b1:hq2:sq5:sk1100:d64:softcap=3:dropout_p=0.1:lse:bf16",
    "attention_fwd:b5:hq2:hkv1:sq20:sk64:d16:bias[b,hq,sq,sk]:weights:lse:f16",
    "attention_bwd:b2:hq4:hkv2:sq70:sk300:d40:causal",
    "attention_bwd:b1:hq8:hkv2:sq150:sk130:d64:bias[1,1,sq,sk]:alibi_slopes[hq]:sink:bf16",
    "attention_bwd:b5:hq2:hkv1:sq20:sk64:d16:score='score * t[k_idx % 3]':aux.t[3]:f16",
};

/// What the explanation of an implementation asks for.
size_t planned_bytes(const OpCall& call, const std::string& implementation, int num_workers,
                     Executor* executor = nullptr) {
  Context context;
  context.implementation = implementation;
  context.max_workers = num_workers;
  context.executor = executor;
  const Explanation explanation = call.explain(context);
  EXPECT_EQ(explanation.chosen, implementation);
  return static_cast<size_t>(explanation.workspace_bytes);
}

/// Some memory as a caller's workspace, `num_workers` workers.
Context with_workspace(char* data, size_t bytes, int num_workers) {
  Context context;
  context.max_workers = num_workers;
  context.workspace = data;
  context.workspace_bytes = bytes;
  return context;
}

std::string label(const std::string& problem, const std::string& implementation) {
  return problem + "@" + implementation;
}

TEST(CallersWorkspace, MayHoldNanAndHasTheSizeOfThePlan) {
  for (const char* text : kWorkspaceProblems) {
    const cli::OwnedCall owned = random_problem_call(text);
    for (const std::string& implementation : owned.call.spec().implementations()) {
      const cli::OwnedCall expected = cli::with_own_outputs(owned.call);
      cli::run_forward_of(expected.call, "reference", one_worker());
      ASSERT_EQ(cli::run_forced(expected.call, implementation, one_worker()).text, "");
      for (const int num_workers : {1, 2}) {
        // Aligned to a page, which is a multiple of 64; the byte behind it faults.
        const size_t bytes =
            (planned_bytes(owned.call, implementation, num_workers) + 63) / 64 * 64;
        const GuardedMemory memory(bytes, Placement::kEndsAtGuard);
        const cli::OwnedCall own = cli::with_own_outputs(expected.call);
        cli::run_forward_of(own.call, "reference", one_worker());
        const Context context = with_workspace(memory.data(), bytes, num_workers);
        ASSERT_EQ(cli::run_forced(own.call, implementation, context).text, "")
            << label(text, implementation);
        for (const std::string& name : own.call.tensor_names()) {
          EXPECT_TRUE(same_bits(own.call.tensor(name), expected.call.tensor(name)))
              << name << " of " << label(text, implementation);
        }
      }
    }
  }
}

/// A pool of 64 whose one thread has the last number.
class LastWorkerExecutor final : public Executor {
 public:
  int num_workers() const override { return 64; }
  void run(int64_t num_tasks, Task task, void* state) override {
    for (int64_t i = 0; i < num_tasks; ++i) task(state, i, 63);
  }
};

TEST(CallersWorkspace, HasRoomForAllowedWorkersWhateverTheirNumberInThePool) {
  LastWorkerExecutor executor;
  for (const char* text : kWorkspaceProblems) {
    const cli::OwnedCall owned = random_problem_call(text);
    for (const std::string& implementation : owned.call.spec().implementations()) {
      const size_t bytes = (planned_bytes(owned.call, implementation, 2, &executor) + 63) / 64 * 64;
      const GuardedMemory memory(bytes, Placement::kEndsAtGuard);
      const cli::OwnedCall own = cli::with_own_outputs(owned.call);
      cli::run_forward_of(own.call, "reference", one_worker());
      Context context = with_workspace(memory.data(), bytes, 2);
      context.executor = &executor;
      EXPECT_EQ(cli::run_forced(own.call, implementation, context).text, "")
          << label(text, implementation);
    }
  }
}

TEST(CallersWorkspace, MayStartAtAnyByte) {
  const cli::OwnedCall owned = random_problem_call(kWorkspaceProblems[0]);
  for (const std::string& implementation : owned.call.spec().implementations()) {
    const size_t bytes = planned_bytes(owned.call, implementation, 1) + 64;
    const GuardedMemory memory(bytes + 1, Placement::kStartsAtGuard);
    const Context context = with_workspace(memory.data() + 1, bytes, 1);
    EXPECT_EQ(cli::run_forced(owned.call, implementation, context).text, "") << implementation;
  }
}

TEST(CallersWorkspace, IsAnErrorWhenItIsTooSmall) {
  for (const char* text : kWorkspaceProblems) {
    const cli::OwnedCall owned = random_problem_call(text);
    for (const std::string& implementation : owned.call.spec().implementations()) {
      const size_t needed = planned_bytes(owned.call, implementation, 1);
      if (needed == 0) continue;  // the reference asks for none
      const GuardedMemory memory(needed, Placement::kStartsAtGuard);
      const cli::OwnedCall own = cli::with_own_outputs(owned.call);
      cli::run_forward_of(own.call, "reference", one_worker());
      Context context = with_workspace(memory.data(), needed - 1, 1);
      context.implementation = implementation;
      try {
        own.call.run(context);
        ADD_FAILURE() << label(text, implementation);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
        const std::string what = error.what();
        EXPECT_NE(what.find(std::to_string(needed - 1)), std::string::npos) << what;
        EXPECT_NE(what.find(std::to_string(needed)), std::string::npos) << what;
      }
      for (const std::string& name : own.call.tensor_names()) {
        if (own.call.spec().find_tensor(name)->direction != Direction::kOut) continue;
        EXPECT_TRUE(std::isnan(cli::to_numbers(own.call.tensor(name)).front()))
            << name << " of " << label(text, implementation);
      }
    }
  }
}

/// (batch, seqlen, heads, dim) slices of a (batch, seqlen, heads, 3 dim) buffer.
TensorView slice_of(const Tensor& buffer, int64_t n, int64_t dim) {
  return buffer.view().sliced(3, n * dim, (n + 1) * dim);
}

TEST(SharedBuffers, TakeGradientsAndHoldInputsSideBySide) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const int64_t dim = 17;
    const Tensor inputs_buffer = Tensor::random(dtype, {2, 70, 4, 3 * dim}, 1);
    const Tensor dout = Tensor::random(dtype, {2, 70, 4, dim}, 2);
    const Inputs packed{slice_of(inputs_buffer, 0, dim),
                        slice_of(inputs_buffer, 1, dim),
                        slice_of(inputs_buffer, 2, dim),
                        dout,
                        {}};
    const Inputs separate{copy_of(packed.q), copy_of(packed.k), copy_of(packed.v), dout, {}};
    for (const std::string& implementation : all_implementations()) {
      const Results expected = run(separate, implementation);
      const Tensor gradients(dtype, {2, 70, 4, 3 * dim});
      const TensorView dq = slice_of(gradients, 0, dim);
      const TensorView dk = slice_of(gradients, 1, dim);
      const TensorView dv = slice_of(gradients, 2, dim);
      Context context = one_worker();
      context.implementation = implementation;
      attention_bwd(dout, packed.q, packed.k, packed.v, expected.out, expected.lse, dq, dk, dv, {},
                    context);
      EXPECT_TRUE(same_bits(dq, expected.dq)) << implementation;
      EXPECT_TRUE(same_bits(dk, expected.dk)) << implementation;
      EXPECT_TRUE(same_bits(dv, expected.dv)) << implementation;
      EXPECT_EQ(differing(run(packed, implementation), expected), "") << implementation;
    }
  }
}

TEST(SharedBuffers, ValuesMayBeTheFirstPartOfKeys) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor q = Tensor::random(dtype, {1, 20, 4, 96}, 1);
    const Tensor k = Tensor::random(dtype, {1, 300, 1, 96}, 2);
    const Tensor dout = Tensor::random(dtype, {1, 20, 4, 64}, 3);
    const Inputs aliased{q, k, k.view().sliced(3, 0, 64), dout, {}};
    const Inputs separate{q, k, copy_of(aliased.v), dout, {}};
    for (const std::string& implementation : all_implementations()) {
      EXPECT_EQ(differing(run(aliased, implementation), run(separate, implementation)), "")
          << implementation;
    }
  }
}

TEST(RepeatedInputs, HaveStrideZero) {
  const Tensor q = Tensor::random(DType::kF32, {2, 30, 4, 24}, 1);
  const Tensor keys = Tensor::random(DType::kF32, {1, 150, 1, 24}, 2);
  const Tensor values = Tensor::random(DType::kF32, {1, 1, 1, 24}, 3);
  const Tensor one = Tensor::filled(DType::kF32, {1}, 0.75);
  const auto repeated = [](const TensorView& source, std::initializer_list<int64_t> shape,
                           std::initializer_list<int64_t> strides) {
    return TensorView(source.data, source.dtype, std::span(shape.begin(), shape.size()),
                      std::span(strides.begin(), strides.size()));
  };
  const Inputs strided{q,
                       repeated(keys, {2, 150, 2, 24}, {0, 24, 0, 1}),
                       repeated(values, {2, 150, 2, 24}, {0, 0, 0, 1}),
                       repeated(one, {2, 30, 4, 24}, {0, 0, 0, 0}),
                       {}};
  const Inputs plain{q, copy_of(strided.k), copy_of(strided.v), copy_of(strided.dout), {}};
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(strided, implementation), run(plain, implementation)), "")
        << implementation;
  }
}

TEST(RepeatedInputs, MayBeABiasAndLengths) {
  const Tensor q = Tensor::random(DType::kF16, {2, 30, 2, 24}, 1);
  const Tensor k = Tensor::random(DType::kF16, {2, 50, 2, 24}, 2);
  const Tensor row = Tensor::random(DType::kF16, {50}, 3);
  const Tensor length = Tensor::ints({33});
  Inputs strided{q, k, k, {}, {}};
  const int64_t shape[] = {2, 2, 30, 50};
  const int64_t strides[] = {0, 0, 0, 1};
  strided.options.bias = TensorView(row.view().data, DType::kF16, shape, strides);
  const int64_t batch[] = {2};
  const int64_t zero[] = {0};
  strided.options.seqused_k = TensorView(length.view().data, DType::kI32, batch, zero);
  Inputs plain = strided;
  const Tensor bias = copy_of(strided.options.bias);
  const Tensor lengths = Tensor::ints({33, 33});
  plain.options.bias = bias;
  plain.options.seqused_k = lengths;
  for (const std::string& implementation : all_implementations()) {
    EXPECT_EQ(differing(run(strided, implementation), run(plain, implementation)), "")
        << implementation;
  }
}

/// Inputs are not copied before they are checked: a view that starts at an odd element of a buffer
/// and ends at its last byte.
TEST(MisalignedStart, WorksAtEveryElement) {
  const int64_t shape[] = {1, 40, 2, 24};
  const int64_t count = 40 * 2 * 24;
  const Tensor q = Tensor::random(DType::kBF16, {1, 40, 2, 24}, 1);
  const Tensor dout = Tensor::random(DType::kBF16, {1, 40, 2, 24}, 2);
  const Inputs plain{q, q, q, dout, {}};
  for (const std::string& implementation : all_implementations()) {
    const Results expected = run(plain, implementation);
    for (const size_t shift : {1u, 3u, 5u, 17u}) {
      const GuardedMemory memory(2 * (shift + count), Placement::kStartsAtGuard);
      std::memcpy(memory.data() + 2 * shift, q.view().data, 2 * count);
      const TensorView shifted(memory.data() + 2 * shift, DType::kBF16, shape);
      EXPECT_EQ(differing(run({shifted, shifted, shifted, dout, {}}, implementation), expected), "")
          << implementation << " at element " << shift;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
