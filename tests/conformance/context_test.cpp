// SPDX-License-Identifier: Apache-2.0
//
// What a context asks for and a call does not heed is an error, of every op and of its explanation.
#include <gtest/gtest.h>

#include <functional>

#include "flashtile/error.hpp"
#include "flashtile/merge.hpp"
#include "support/attention_runs.hpp"

namespace flashtile::test {
namespace {

template <class What>
void expect_error(const std::string& expected, const What& what) {
  try {
    what();
    ADD_FAILURE() << "no error: " << expected;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.what(), expected);
  }
}

TEST(ContextErrors, OfCallsOnTheCpu) {
  char byte = 0;
  const std::pair<std::function<void(Context&)>, std::string> cases[] = {
      {[](Context& c) { c.max_workers = -3; }, "max_workers is -3, expected at least 0"},
      {[&](Context& c) { c.stream = &byte; },
       "a stream is given, expected none for tensors on the CPU"},
      {[](Context& c) { c.workspace_bytes = 5; }, "workspace_bytes is 5, but workspace is null"},
      {[](Context& c) {
         c.device = {DeviceType::kCuda, 1};
       },
       "tensors are on cpu:0, the context says cuda:1"},
      {[](Context& c) {
         c.device = {DeviceType::kCpu, 3};
       },
       "tensors are on cpu:0, the context says cpu:3"},
      {[](Context& c) {
         c.device = {DeviceType{7}, 0};
       },
       "tensors are on cpu:0, the context says type 7:0"},
  };
  const Tensor x = Tensor::random(DType::kF32, {1, 3, 2, 8}, 1);
  const Tensor out = Tensor::filled(DType::kF32, {1, 3, 2, 8}, 77);
  const Tensor lse = Tensor::filled(DType::kF32, {1, 2, 3}, 77);
  const Tensor parts = Tensor::random(DType::kF32, {2, 1, 3, 2, 8}, 1);
  const Tensor lse_parts = Tensor::random(DType::kF32, {2, 1, 2, 3}, 2);
  for (const auto& [change, text] : cases) {
    Context context;
    change(context);
    expect_error("attention_fwd: " + text, [&] { attention_fwd(x, x, x, out, lse, {}, context); });
    expect_error("attention_fwd: " + text,
                 [&] { explain_attention_fwd(x, x, x, out, lse, {}, context); });
    expect_error("attention_bwd: " + text,
                 [&] { attention_bwd(x, x, x, x, x, lse, out, {}, {}, {}, context); });
    expect_error("attention_bwd: " + text,
                 [&] { explain_attention_bwd(x, x, x, x, x, lse, out, {}, {}, {}, context); });
    expect_error("attention_merge: " + text,
                 [&] { attention_merge(parts, lse_parts, out, {}, context); });
  }
  for (const double value : out.numbers()) EXPECT_EQ(value, 77);
}

TEST(ContextErrors, OfCallsOnAGpu) {
  class NoExecutor final : public Executor {
   public:
    int num_workers() const override { return 1; }
    void run(int64_t, Task, void*) override {}
  } executor;
  Context context;
  context.device = {DeviceType::kCuda, 0};
  const auto explain_with = [](const Context& asked) { explain("attention_fwd:d64:f16", asked); };
  EXPECT_NO_THROW(explain_with(context));
  Context with_threads = context;
  with_threads.max_workers = 2;
  expect_error(
      "attention_fwd: max_workers is 2, expected 0 for tensors on a GPU, all of whose "
      "multiprocessors are used",
      [&] { explain_with(with_threads); });
  Context with_pool = context;
  with_pool.executor = &executor;
  expect_error("attention_fwd: an executor is given, expected none for tensors on a GPU",
               [&] { explain_with(with_pool); });
  context.device.index = -1;
  expect_error("attention_fwd: the context says cuda:-1, expected cpu:0 or cuda:N",
               [&] { explain_with(context); });
}

}  // namespace
}  // namespace flashtile::test
