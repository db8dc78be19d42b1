// SPDX-License-Identifier: Apache-2.0
//
// Which calls on a GPU are taken to be alike. No GPU is needed: keys hold no memory.
#include "ops/attention/call_memory.hpp"

#include <gtest/gtest.h>

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

CallKey key_of(const AttentionArgs& args, const Context& context = {}) {
  return {args, /*is_backward=*/false, context};
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
  EXPECT_NE(plain, CallKey(plain_args(), /*is_backward=*/true, {}));
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

TEST(CallMemory, DropoutsNumbersAreThoseOfTheCall) {
  AttentionArgs first = plain_args();
  first.dropout_p = 0.5;
  first.dropout_seed = 3;
  AttentionArgs second = first;
  second.dropout_seed = 4;
  second.dropout_offset = 9;
  CallMemory memory;
  EXPECT_EQ(memory.find(key_of(first), first), nullptr);
  PreparedCall call;
  call.problem.dropout = {true, 32768, 2.0, 3, 0};
  memory.keep(key_of(first), std::move(call));
  const PreparedCall* found = memory.find(key_of(second), second);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->problem.dropout.seed, 4u);
  EXPECT_EQ(found->problem.dropout.offset, 9u);
  second.dropout_offset = int64_t{1} << 32;
  EXPECT_EQ(memory.find(key_of(second), second), nullptr);
}

TEST(CallMemory, HoldsTheLastCalls) {
  CallMemory memory;
  const auto args_of = [](int n) {
    AttentionArgs args = plain_args();
    args.softmax_scale = n;
    return args;
  };
  for (int n = 0; n < 40; ++n) memory.keep(key_of(args_of(n)), {});
  EXPECT_NE(memory.find(key_of(args_of(39)), args_of(39)), nullptr);
  EXPECT_NE(memory.find(key_of(args_of(30)), args_of(30)), nullptr);
  EXPECT_EQ(memory.find(key_of(args_of(0)), args_of(0)), nullptr);
}

}  // namespace
}  // namespace flashtile
