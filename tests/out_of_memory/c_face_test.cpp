// SPDX-License-Identifier: Apache-2.0
//
// The C face allocates nothing of its own either: a call like one before makes no allocation.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "counted_new.hpp"
#include "flashtile/flashtile.h"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

/// The description of a tensor for the C face; `tensor` has to outlive it.
flashtile_tensor described(const Tensor& tensor) {
  const TensorView& view = tensor.view();
  return flashtile_cpu_tensor(view.data, static_cast<flashtile_dtype>(view.dtype), view.ndim,
                              view.shape.data());
}

/// A context whose memory for temporaries is the caller's.
struct OwnMemory {
  explicit OwnMemory(const std::string& name) : implementation(name) {
    flashtile_context_init(&context, sizeof(context));
    context.max_workers = 1;
    context.workspace = workspace.data();
    context.workspace_bytes = workspace.size();
    context.implementation = implementation.c_str();
  }
  std::string implementation;
  std::vector<char> workspace = std::vector<char>(size_t{16} << 20);
  flashtile_context context;
};

/// Allocations of the third of three calls that differ in their number.
template <class Call>
int64_t allocations_of(const Call& call) {
  for (int64_t repeat = 0; repeat < 3; ++repeat) {
    num_made = 0;
    EXPECT_EQ(call(repeat), FLASHTILE_OK) << flashtile_last_error();
  }
  return num_made;
}

/// Both passes with texts, lists and names that no string holds in itself.
TEST(AllocationsOfC, OfTypedCallsAreNone) {
  const Tensor q = Tensor::random(DType::kBF16, {2, 100, 4, 32}, 1);
  const Tensor k = Tensor::random(DType::kBF16, {2, 100, 2, 32}, 2);
  const Tensor out = q.copy(), dq = q.copy(), dk = k.copy(), dv = k.copy();
  const Tensor lse(DType::kF32, {2, 4, 100});
  const Tensor gains = Tensor::random(DType::kF32, {4, 7}, 3);
  const Tensor dgains(DType::kF32, {4, 7});
  const Tensor documents = Tensor::filled(DType::kI32, {2, 100}, 1);
  const flashtile_tensor views[] = {
      described(q),  described(k),  described(out),   described(lse),    described(dq),
      described(dk), described(dv), described(gains), described(dgains), described(documents)};
  flashtile_aux aux[2];
  for (flashtile_aux& each : aux) flashtile_aux_init(&each, sizeof(each));
  aux[0].name = "gains_of_each_head_and_residue";
  aux[0].tensor = &views[7];
  aux[1].name = "documents_of_all_sequences";
  aux[1].tensor = &views[9];
  flashtile_param param;
  flashtile_param_init(&param, sizeof(param));
  param.name = "what_is_added_to_each_score";

  flashtile_attention_args args;
  flashtile_attention_args_init(&args, sizeof(args));
  args.q = &views[0];
  args.k = args.v = &views[1];
  args.out = &views[2];
  args.lse = &views[3];
  args.score =
      "score * gains_of_each_head_and_residue[head, q_idx % 7] + param.what_is_added_to_each_score";
  args.mask =
      "documents_of_all_sequences[batch, q_idx] == documents_of_all_sequences[batch, k_idx]";
  args.aux = aux;
  args.num_aux = 2;
  args.params = &param;
  args.num_params = 1;
  args.causal = 1;
  args.window_left = 60;
  args.softmax_scale = 0.25;
  args.present = FLASHTILE_HAS_WINDOW_LEFT | FLASHTILE_HAS_SOFTMAX_SCALE;
  flashtile_attention_args backward = args;
  backward.dout = &views[2];
  backward.dq = &views[4];
  backward.dk = &views[5];
  backward.dv = &views[6];
  flashtile_aux backward_aux[2] = {aux[0], aux[1]};
  backward_aux[0].gradient = &views[8];
  backward.aux = backward_aux;
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(
        allocations_of([&](int64_t) { return flashtile_attention_fwd(&memory.context, &args); }), 0)
        << implementation;
    EXPECT_EQ(allocations_of(
                  [&](int64_t) { return flashtile_attention_bwd(&memory.context, &backward); }),
              0)
        << implementation << ", backward";
    // In turn: what one call leaves serves the other.
    EXPECT_EQ(allocations_of([&](int64_t) {
                const flashtile_status status = flashtile_attention_fwd(&memory.context, &args);
                if (status != FLASHTILE_OK) return status;
                return flashtile_attention_bwd(&memory.context, &backward);
              }),
              0)
        << implementation << ", forward and backward";
  }
}

/// A token a call into a paged cache, whose lengths grow.
TEST(AllocationsOfC, OfDecodingAreNone) {
  const Tensor q = Tensor::random(DType::kBF16, {2, 1, 4, 64}, 1);
  const Tensor rows = Tensor::random(DType::kBF16, {2, 1, 2, 64}, 2);
  const Tensor k = Tensor::random(DType::kBF16, {16, 16, 2, 64}, 3), v = k.copy();
  const Tensor out = q.copy();
  const Tensor block_table(DType::kI32, {2, 8});
  const Tensor seqused_k = Tensor::ints({70, 30});
  for (int64_t n = 0; n < 16; ++n) {
    block_table.set({n / 8, n % 8}, static_cast<double>(n * 7 % 16));
  }
  const flashtile_tensor views[] = {described(q),        described(rows), described(k),
                                    described(v),        described(out),  described(block_table),
                                    described(seqused_k)};
  flashtile_attention_args args;
  flashtile_attention_args_init(&args, sizeof(args));
  args.q = &views[0];
  args.k_new = args.v_new = &views[1];
  args.k = &views[2];
  args.v = &views[3];
  args.out = &views[4];
  args.block_table = &views[5];
  args.seqused_k = &views[6];
  for (const std::string& implementation : all_kernels()) {
    OwnMemory memory(implementation);
    EXPECT_EQ(allocations_of([&](int64_t repeat) {
                seqused_k.set({0}, static_cast<double>(70 + repeat));
                seqused_k.set({1}, static_cast<double>(30 + repeat));
                return flashtile_attention_fwd(&memory.context, &args);
              }),
              0)
        << implementation;
  }
}

/// A step of an op by name, whose tensors are other ones each time.
TEST(AllocationsOfC, OfCallsByNameAreNone) {
  std::vector<Tensor> q;
  for (uint64_t n = 0; n < 3; ++n) q.push_back(Tensor::random(DType::kF32, {2, 2, 16}, n));
  const Tensor out(DType::kF32, {2, 2, 16});
  const Tensor state = Tensor::filled(DType::kF32, {2, 2, 16, 16}, 0);
  const Tensor g = Tensor::filled(DType::kF32, {2, 2}, -0.5);
  flashtile_call* call = flashtile_call_new("simple_gla_step");
  ASSERT_NE(call, nullptr) << flashtile_last_error();
  const auto set = [&](const char* name, const Tensor& tensor) {
    const flashtile_tensor view = described(tensor);
    return flashtile_call_set_tensor(call, name, &view);
  };
  ASSERT_EQ(set("out", out), FLASHTILE_OK) << flashtile_last_error();
  ASSERT_EQ(set("state", state), FLASHTILE_OK) << flashtile_last_error();
  ASSERT_EQ(set("g", g), FLASHTILE_OK) << flashtile_last_error();
  OwnMemory memory("simple_gla_step_scalar");
  EXPECT_EQ(allocations_of([&](int64_t repeat) {
              const Tensor& rows = q[static_cast<size_t>(repeat)];
              for (const char* name : {"q", "k", "v"}) {
                if (set(name, rows) != FLASHTILE_OK) return FLASHTILE_INVALID_ARGUMENT;
              }
              if (flashtile_call_set_float(call, "scale", 0.5) != FLASHTILE_OK) {
                return FLASHTILE_INVALID_ARGUMENT;
              }
              return flashtile_call_run(&memory.context, call);
            }),
            0);
  flashtile_call_free(call);
}

}  // namespace
}  // namespace flashtile::test
