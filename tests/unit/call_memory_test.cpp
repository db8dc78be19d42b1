// SPDX-License-Identifier: Apache-2.0
//
// Which calls are taken to be alike. No GPU is needed: keys hold no memory.
#include "ops/attention/call_memory.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "flashtile/error.hpp"
#include "support/attention_runs.hpp"

namespace flashtile {
namespace {

/// A view of made-up device memory; nothing reads it.
TensorView device_view(uintptr_t address, std::initializer_list<int64_t> shape,
                       DType dtype = DType::kBF16) {
  TensorView view(reinterpret_cast<void*>(address), dtype, shape);
  view.device = {DeviceType::kCuda, 0};
  return view;
}

constexpr uintptr_t kBase = uintptr_t{1} << 40;
constexpr uintptr_t kStep = uintptr_t{1} << 20;

AttentionArgs plain_args(uintptr_t base = kBase) {
  AttentionArgs args;
  args.q = device_view(base, {2, 16, 4, 64});
  args.k = device_view(base + kStep, {2, 16, 4, 64});
  args.v = device_view(base + 2 * kStep, {2, 16, 4, 64});
  args.out = device_view(base + 3 * kStep, {2, 16, 4, 64});
  return args;
}

CallKey key_of(const AttentionArgs& args, const Context& context = {}, bool is_backward = false) {
  CallKey key;
  key.assign(args, is_backward, context);
  return key;
}

TEST(CallMemory, AddressesCountByTheirAlignment) {
  EXPECT_TRUE(key_of(plain_args()).may_be_kept);
  EXPECT_EQ(key_of(plain_args()), key_of(plain_args(kBase + 7 * 256)));
  EXPECT_NE(key_of(plain_args()), key_of(plain_args(kBase + 2)));
}

TEST(CallMemory, EverythingElseCounts) {
  const CallKey plain = key_of(plain_args());
  AttentionArgs causal = plain_args();
  causal.causal = true;
  EXPECT_NE(plain, key_of(causal));
  AttentionArgs scaled = plain_args();
  scaled.softmax_scale = 0.5;
  EXPECT_NE(plain, key_of(scaled));
  AttentionArgs strided = plain_args();
  strided.k = strided.k.transposed(1, 2);
  EXPECT_NE(plain, key_of(strided));
  AttentionArgs scored = plain_args();
  scored.score = "score * 2";
  EXPECT_NE(plain, key_of(scored));
  AttentionArgs other_device = plain_args();
  other_device.q.device.index = 1;
  EXPECT_NE(plain, key_of(other_device));
  Context named;
  named.implementation = "portable";
  EXPECT_NE(plain, key_of(plain_args(), named));
  EXPECT_NE(plain, key_of(plain_args(), {}, /*is_backward=*/true));
}

TEST(CallMemory, ValuesInKeysCount) {
  AttentionArgs inside = plain_args();
  inside.v = inside.k.sliced(3, 0, 32);
  AttentionArgs apart = inside;
  apart.v.data = plain_args().v.data;
  EXPECT_EQ(key_of(inside), key_of(inside));
  EXPECT_NE(key_of(inside), key_of(apart));
}

TEST(CallMemory, CallsThatNeedALookAtMemoryAreNotKept) {
  AttentionArgs host_lengths = plain_args();
  const int32_t lengths[] = {0, 16, 32};
  host_lengths.cu_seqlens_q = TensorView(lengths, DType::kI32, {3});
  EXPECT_FALSE(key_of(host_lengths).may_be_kept);
  AttentionArgs in_place = plain_args();
  in_place.out = in_place.q;
  EXPECT_FALSE(key_of(in_place).may_be_kept);
  // The last element of out is the first one of k.
  AttentionArgs touching = plain_args();
  touching.out = device_view(kBase + kStep - 2 * (2 * 16 * 4 * 64 - 1), {2, 16, 4, 64});
  EXPECT_FALSE(key_of(touching).may_be_kept);
  AttentionArgs beside = plain_args();
  beside.out = device_view(kBase + kStep - 2 * 2 * 16 * 4 * 64, {2, 16, 4, 64});
  EXPECT_TRUE(key_of(beside).may_be_kept);
}

TEST(CallMemory, InterleavedOutputsAreKept) {
  AttentionArgs args = plain_args();
  // Gradients of packed q, k and v: (batch, seqlen, 3, heads, head_dim).
  const TensorView packed = device_view(kBase + 8 * kStep, {2, 16, 12, 64});
  args.dout = device_view(kBase + 9 * kStep, {2, 16, 4, 64});
  args.dq = packed.sliced(2, 0, 4);
  args.dk = packed.sliced(2, 4, 8);
  args.dv = packed.sliced(2, 8, 12);
  EXPECT_TRUE(key_of(args, {}, /*is_backward=*/true).may_be_kept);
  args.dk = packed.sliced(2, 3, 7);
  EXPECT_FALSE(key_of(args, {}, /*is_backward=*/true).may_be_kept);
}

/// The problem that a call is launched with; `is_new` says whether it was made for it.
AttentionProblem launched(CallMemory& memory, const AttentionArgs& args, bool* is_new) {
  *is_new = false;
  const auto prepare = [&] {
    *is_new = true;
    PreparedCall call;
    call.problem.device = args.q.device;
    call.problem.dropout.is_on = args.dropout_p > 0;
    call.problem.dropout.seed = args.dropout_seed;
    return call;
  };
  return memory.with_call(args, /*is_backward=*/false, {}, prepare,
                          [](const PreparedCall& call) { return call.problem; });
}

TEST(CallMemory, DropoutsNumbersAreThoseOfTheCall) {
  AttentionArgs first = plain_args();
  first.dropout_p = 0.5;
  first.dropout_seed = 3;
  AttentionArgs second = first;
  second.dropout_seed = 4;
  second.dropout_offset = 9;
  CallMemory memory;
  bool is_new = false;
  EXPECT_EQ(launched(memory, first, &is_new).dropout.seed, 3u);
  EXPECT_TRUE(is_new);
  const AttentionProblem found = launched(memory, second, &is_new);
  EXPECT_FALSE(is_new);
  EXPECT_EQ(found.dropout.seed, 4u);
  EXPECT_EQ(found.dropout.offset, 9u);
  second.dropout_offset = int64_t{1} << 32;
  launched(memory, second, &is_new);
  EXPECT_TRUE(is_new);
}

TEST(CallMemory, HoldsTheLastCalls) {
  CallMemory memory;
  bool is_new = false;
  const auto launch = [&](int n) {
    AttentionArgs args = plain_args();
    args.softmax_scale = n;
    launched(memory, args, &is_new);
  };
  for (int n = 0; n < 40; ++n) launch(n);
  launch(39);
  EXPECT_FALSE(is_new);
  launch(30);
  EXPECT_FALSE(is_new);
  launch(0);
  EXPECT_TRUE(is_new);
}

/// A call that runs is no other's: its own executor may make calls on the same thread.
TEST(CallMemory, ACallInsideACallIsPreparedAnew) {
  CallMemory memory;
  const AttentionArgs args = plain_args();
  bool is_new = false;
  launched(memory, args, &is_new);
  memory.with_call(
      args, /*is_backward=*/false, {}, [] { return PreparedCall{}; },
      [&](const PreparedCall&) { launched(memory, args, &is_new); });
  EXPECT_TRUE(is_new);
  launched(memory, args, &is_new);
  EXPECT_FALSE(is_new);
}

/// A call on host memory, made again and again with other numbers in its tensors of lengths.
struct RepeatedCall {
  test::Tensor q = test::Tensor::random(DType::kF32, {30, 2, 16}, 1);
  test::Tensor k = test::Tensor::random(DType::kF32, {2, 40, 2, 16}, 2);
  test::Tensor cu_seqlens_q = test::Tensor::ints({0, 10, 30});
  test::Tensor seqused_k = test::Tensor::ints({10, 40});
  test::Tensor out{DType::kF32, {30, 2, 16}};

  void run() const {
    AttentionOptions options;
    options.cu_seqlens_q = cu_seqlens_q;
    options.seqused_k = seqused_k;
    attention_fwd(q, k, k, out, {}, options);
  }
};

TEST(CallMemory, HostLengthsAreReadAnew) {
  const RepeatedCall call;
  for (const auto& [first_end, used] : {std::pair{10, 10}, {10, 30}, {25, 40}, {1, 5}, {10, 10}}) {
    call.cu_seqlens_q.set({1}, first_end);
    call.seqused_k.set({0}, used);
    call.run();
    const test::Tensor found = call.out.copy();
    std::thread([&] { call.run(); }).join();  // a thread that remembers nothing
    EXPECT_TRUE(test::same_bits(found, call.out)) << first_end << ", " << used;
  }
  call.seqused_k.set({0}, 41);
  EXPECT_THROW(call.run(), Error);
  call.seqused_k.set({0}, 40);
  call.cu_seqlens_q.set({1}, 31);
  EXPECT_THROW(call.run(), Error);
}

}  // namespace
}  // namespace flashtile
