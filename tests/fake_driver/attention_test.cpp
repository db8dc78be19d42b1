// SPDX-License-Identifier: Apache-2.0
//
// Calls on a device that computes nothing: what they compile, load and launch.
#include <cstdlib>
#include <memory>

#include "core/problem_text.hpp"
#include "cuda/jit/kernel_store.hpp"
#include "cuda/jit/nvrtc.hpp"
#include "fake_driver_support.hpp"
#include "flashtile/error.hpp"
#include "flashtile/gpu.hpp"

namespace flashtile::cuda {
namespace {

using fake::on_device;

/// The call of a problem text, with memory for its tensors that counts as device memory.
class DeviceCall {
 public:
  explicit DeviceCall(const std::string& text, int device = 0)
      : call_(make_call(parse_problem(text))), context_(on_device(device)) {
    for (const std::string& name : call_.tensor_names()) {
      TensorView view = call_.tensor(name);
      const auto bytes = static_cast<size_t>(view.numel() * dtype_bytes(view.dtype));
      memory_.emplace_back(std::aligned_alloc(256, (bytes / 256 + 1) * 256), std::free);
      view.data = memory_.back().get();
      view.device = context_.device;
      call_.set_tensor(name, view);
    }
    workspace_.resize(1 << 24);
    context_.workspace = workspace_.data();
    context_.workspace_bytes = workspace_.size();
  }
  void run() const { call_.run(context_); }
  const OpCall& call() const { return call_; }
  Context& context() { return context_; }

 private:
  OpCall call_;
  Context context_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
  std::vector<char> workspace_;
};

int64_t num_compiled() { return KernelStore::of_process().counts().compiled; }

class FakeAttention : public fake::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    if (Nvrtc::get() == nullptr) GTEST_SKIP() << Nvrtc::fault();
  }
};

TEST_F(FakeAttention, WarmupLeavesNothingForTheCall) {
  const std::string text = "attention_fwd:b2:hq4:hkv2:sq200:d64:causal:bf16";
  warmup(text, on_device(0));
  const int64_t compiled = num_compiled();
  EXPECT_FALSE(state_.loads.empty());
  EXPECT_TRUE(state_.launches.empty());
  const size_t num_loads = state_.loads.size();
  DeviceCall(text).run();
  EXPECT_EQ(num_compiled(), compiled);
  EXPECT_EQ(state_.loads.size(), num_loads);
  ASSERT_FALSE(state_.launches.empty());
  EXPECT_TRUE(state_.launches[0].function.starts_with("attention_fwd_"));
  EXPECT_EQ(state_.num_stream_waits, 0);
}

TEST_F(FakeAttention, WorkspaceIsThatOfExplain) {
  DeviceCall device_call("attention_bwd:b1:hq2:sq100:d32:mask='k_idx % 2 == 0':deterministic:bf16");
  const int64_t needed = device_call.call().workspace_bytes(device_call.context());
  EXPECT_GT(needed, 0);
  EXPECT_EQ(needed, device_call.call().explain(device_call.context()).workspace_bytes);
  EXPECT_TRUE(state_.launches.empty());
  device_call.context().workspace_bytes = static_cast<size_t>(needed) + 255;
  device_call.run();
  EXPECT_FALSE(state_.launches.empty());
  DeviceCall refused("attention_fwd:b1:hq1:sq4:d8:f64");
  EXPECT_THROW(refused.call().workspace_bytes(refused.context()), Error);
}

TEST_F(FakeAttention, TensorsSayTheDevice) {
  const std::string text = "attention_fwd:b1:hq2:sq100:d64:bf16";
  warmup(text, on_device(1));
  DeviceCall(text, 1).run();
  ASSERT_FALSE(state_.launches.empty());
  EXPECT_EQ(state_.launches[0].context->device, 1);
}

TEST_F(FakeAttention, WarmupOfACpuProblemDoesNothing) {
  warmup("attention_fwd:b1:hq2:sq100:d64:bf16");
  EXPECT_TRUE(state_.loads.empty());
}

TEST_F(FakeAttention, NamedArchitectureIsForExplainAlone) {
  OpCall call = make_call(parse_problem("attention_fwd:b1:hq1:sq4:d8"));
  float memory[32];
  for (const char* name : {"q", "k", "v", "out"}) {
    TensorView view = call.tensor(name);
    view.data = memory;
    call.set_tensor(name, view);
  }
  Context context;
  context.arch = "sm_89";
  EXPECT_THROW(call.run(context), Error);
}

TEST_F(FakeAttention, BackwardLaunchesWhatItsPlanNamesInOrder) {
  for (const char* options :
       {"mask='k_idx % 2 == 0':deterministic:bf16",
        "alibi_slopes[hq]:aux.t[100]:score='score + t[k_idx]':deterministic:f32"}) {
    const std::string text = std::string("attention_bwd:b1:hq2:sq100:d32:") + options;
    const std::vector<KernelChoice> kernels = make_call(parse_problem(text)).kernels(on_device(0));
    ASSERT_GE(kernels.size(), 3u) << text;
    int64_t compiled = 0;
    size_t num_loads = 0;
    for (int call = 0; call < 2; ++call) {
      compiled = num_compiled();
      num_loads = state_.loads.size();
      state_.launches.clear();
      DeviceCall(text).run();
      ASSERT_EQ(state_.launches.size(), kernels.size()) << text;
      for (size_t i = 0; i < kernels.size(); ++i) {
        EXPECT_EQ(state_.launches[i].function, kernels[i].source.stem) << text;
      }
    }
    // The second call found everything.
    EXPECT_EQ(num_compiled(), compiled) << text;
    EXPECT_EQ(state_.loads.size(), num_loads) << text;
  }
  EXPECT_EQ(state_.num_stream_waits, 0);
}

/// Problems that differ in numbers alone: the first of each row is compiled, the others are not.
/// All fill the device, since a plan splits the keys of smaller ones, which is another kernel.
TEST_F(FakeAttention, OtherNumbersCompileNothing) {
  const std::vector<std::vector<std::string>> rows = {
      {":b4:hq8:hkv8:sq1024:sk1700:d64:bf16", ":b2:hq16:hkv16:sq2000:sk2040:d64:bf16",
       ":b4:hq8:hkv8:sq1024:sk1700:d64:bf16:softmax_scale=0.03",
       ":b5:hq8:hkv4:sq900:sk1333:d64:bf16"},
      {":b4:hq8:hkv8:sq1024:d64:bf16:softcap=20:window_left=100:causal",
       ":b4:hq8:hkv8:sq1024:d64:bf16:softcap=50:window_left=7:causal",
       ":b3:hq12:hkv6:sq1100:sk1300:d64:bf16:softcap=1.5:window_left=300:causal"},
      {":b4:hq8:hkv8:sq1024:d64:bf16:score='score + param.a * bias_table[q_idx % 8]'"
       ":param.a=2.0:aux.bias_table[8]",
       ":b4:hq8:hkv8:sq1100:d64:bf16:score='score + param.a * bias_table[q_idx % 8]'"
       ":param.a=-0.25:aux.bias_table[100]"},
      {":b4:hq8:hkv8:sq1024:d64:bf16:dropout_p=0.1:dropout_seed=1",
       ":b4:hq8:hkv8:sq1024:d64:bf16:dropout_p=0.5:dropout_seed=99:dropout_offset=3"},
  };
  for (const std::vector<std::string>& row : rows) {
    DeviceCall("attention_fwd" + row[0]).run();
    const int64_t compiled = num_compiled();
    for (size_t i = 1; i < row.size(); ++i) {
      state_.launches.clear();
      DeviceCall("attention_fwd" + row[i]).run();
      EXPECT_EQ(num_compiled(), compiled) << row[i];
      EXPECT_FALSE(state_.launches.empty()) << row[i];
    }
  }
}

}  // namespace
}  // namespace flashtile::cuda
