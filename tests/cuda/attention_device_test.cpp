// SPDX-License-Identifier: Apache-2.0
//
// Attention on a GPU, beyond right results (those are the conformance tests' with
// FLASHTILE_TEST_DEVICE=cuda): the same bits in every run, in graphs and beside other streams, into
// memory that held NaN; and what the CPU gives.
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "compile_kernels.hpp"
#include "cuda/device_support.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/launch.hpp"
#include "cuda/runtime/memory.hpp"
#include "device_tensors.hpp"
#include "expectations.hpp"
#include "support/problem_cases.hpp"

namespace flashtile::cuda {
namespace {

Context on_gpu() { return on_device(0); }

/// With the implementation that the text asks for.
Context forced(const std::string& text, const Context& context) {
  Context result = context;
  result.implementation = parse_problem(text).implementation;
  return result;
}

/// Names of outputs whose sums atomics take in any order.
bool is_atomic(const std::string& name, const std::string& text) {
  return name == "dq" && text.find("deterministic") == std::string::npos;
}

/// A call on the GPU whose results can be read bit by bit.
class DeviceRun {
 public:
  explicit DeviceRun(const std::string& text, const Context& context = on_gpu())
      : text_(text), host_(host_call(text)), device_(host_.call, forced(text, context)) {}

  /// NaN in all that the call writes, the workspace included; in the order of the stream.
  void poison() const {
    const Context& context = device_.context();
    for (const std::string& name : outputs()) {
      const TensorView tensor = device_.call().tensor(name);
      fill_bytes(tensor.data, 0xff, num_bytes(tensor), context);
    }
    fill_bytes(context.workspace, 0xff, context.workspace_bytes, context);
  }
  void run() const { device_.run(); }
  /// Numbers of an input, in place of those that it began with; in the order of the stream.
  void write(const std::string& name, const std::vector<int32_t>& numbers) const {
    const Context& context = device_.context();
    const CurrentContext current(context);
    const auto address = reinterpret_cast<driver::Address>(device_.call().tensor(name).data);
    current.driver().check(
        current.api().cuMemcpyHtoDAsync(address, numbers.data(), numbers.size() * sizeof(int32_t),
                                        stream_of(context)),
        name);
  }

  using Results = std::map<std::string, std::string>;
  /// The bytes of all results; waits for them.
  Results results() const {
    device_.download();
    Results bytes;
    for (const std::string& name : outputs()) {
      const TensorView tensor = host_.call.tensor(name);
      bytes[name] = std::string(static_cast<const char*>(tensor.data), num_bytes(tensor));
    }
    return bytes;
  }
  Results poisoned_run() const {
    poison();
    run();
    return results();
  }

  /// Names of the results that differ. dq may do so in its last bits where atomics sum it.
  std::string differing(const Results& a, const Results& b) const {
    std::string names;
    for (const auto& [name, bytes] : a) {
      if (bytes == b.at(name)) continue;
      const TensorView tensor = host_.call.tensor(name);
      if (is_atomic(name, text_) && largest_difference(tensor, bytes, b.at(name)) < 0.02) continue;
      names += " " + name;
    }
    return names;
  }

  const OpCall& host() const { return host_.call; }

 private:
  static cli::OwnedCall host_call(const std::string& text) {
    cli::OwnedCall owned = cli::random_call(parse_problem(text), 1);
    cli::run_forward_of(owned.call, "portable", on_gpu());
    return owned;
  }
  static size_t num_bytes(const TensorView& tensor) {
    return static_cast<size_t>(tensor.numel() * dtype_bytes(tensor.dtype));
  }
  static double largest_difference(TensorView tensor, std::string a, std::string b) {
    tensor.data = a.data();
    const std::vector<double> in_a = cli::to_numbers(tensor);
    tensor.data = b.data();
    const std::vector<double> in_b = cli::to_numbers(tensor);
    double largest = 0;
    for (size_t i = 0; i < in_a.size(); ++i) {
      const double difference = std::abs(in_a[i] - in_b[i]);
      // A NaN is as far away as can be.
      largest = difference <= largest ? largest : std::isnan(difference) ? 1e30 : difference;
    }
    return largest;
  }
  std::vector<std::string> outputs() const {
    std::vector<std::string> names;
    for (const std::string& name : host_.call.tensor_names()) {
      if (host_.call.spec().find_tensor(name)->direction == Direction::kOut) names.push_back(name);
    }
    return names;
  }

  std::string text_;
  cli::OwnedCall host_;
  cli::DeviceCall device_;
};

/// Each of the ways through the kernels, with several CTAs and several blocks of keys.
const std::vector<std::string> kForward = {
    "attention_fwd:b2:hq4:hkv2:sq300:sk500:d64:causal:lse:bf16",
    "attention_fwd:b2:hq4:hkv2:sq300:sk500:d64:causal:lse:bf16@attention_fwd_portable",
    "attention_fwd:b1:hq4:sq700:sk700:d128:lse:f16@attention_fwd_portable",
    "attention_fwd:b1:hq2:sq300:sk400:d256:causal:lse:bf16@attention_fwd_portable",
    "attention_fwd:b1:hq2:sq200:sk300:d512:lse:bf16",
    "attention_fwd:b1:hq2:sq200:sk300:d64:causal:lse:f32",
    "attention_fwd:b2:hq8:hkv2:sq1:sk3000:d128:lse:bf16",
    "attention_fwd:b3:hq4:hkv2:sq3:sk1000:d64:block_table:ps16:seqused_k={1000,17,640}:lse:causal:"
    "bf16",
    "attention_fwd:b1:hq2:sq300:sk400:d64:mask='(q_idx - k_idx) % 3 == 0 || k_idx < 4':lse:bf16",
    "attention_fwd:b1:hq4:sq300:sk300:d64:causal:max_logit:dropout_p=0.2:softcap=9:sink:lse:bf16",
    "attention_fwd:hq4:hkv2:d64:cu_seqlens_q={0,33,33,290}:cu_seqlens_k={0,70,75,640}:causal:lse:"
    "f16",
};
const std::vector<std::string> kBackward = {
    "attention_bwd:b2:hq4:hkv2:sq300:sk500:d64:causal:bf16",
    "attention_bwd:b1:hq4:sq300:sk300:d128:causal:f16",
    "attention_bwd:b1:hq2:sq200:sk300:d256:bf16",
    "attention_bwd:b1:hq2:sq200:sk300:d640:bf16",
    "attention_bwd:b2:hq4:hkv2:sq300:sk300:d64:causal:deterministic:bf16",
    "attention_bwd:b1:hq2:sq150:sk200:d64:f32",
    "attention_bwd:b1:hq4:sq150:sk200:d32:bias[1,hq,sq,sk]:sink:dropout_p=0.2:deterministic:f16",
    "attention_bwd:b1:hq2:sq150:sk200:d32:alibi_slopes[hq]:causal:deterministic:bf16",
    "attention_bwd:b1:hq2:sq150:sk150:d32:score='score + t[q_idx - k_idx + 149]':aux.t[300]:"
    "deterministic:bf16",
};

std::vector<std::string> all_problems() {
  std::vector<std::string> texts = kForward;
  texts.insert(texts.end(), kBackward.begin(), kBackward.end());
  return texts;
}

/// Kernels are compiled side by side, not each where it is first needed.
void compile_all(const std::vector<std::string>& texts) {
  std::vector<cli::PlannedCall> calls;
  for (const std::string& text : texts) {
    const ProblemText problem = parse_problem(text);
    const OpCall call = cli::random_call(problem, 1).call;
    const std::string name = cli::explain_on(call, forced(text, on_gpu())).chosen;
    calls.push_back({call, {name}});
  }
  cli::compile_for(calls, on_gpu());
}

class AttentionDevice : public OnDevice {
 protected:
  static void SetUpTestSuite() {
    if (Driver::get() != nullptr) compile_all(all_problems());
  }
};

TEST_F(AttentionDevice, TwoHundredRunsGiveTheSameBits) {
  for (const std::string& text : all_problems()) {
    const DeviceRun run(text);
    const DeviceRun::Results expected = run.poisoned_run();
    for (int repeat = 1; repeat < 200; ++repeat) {
      if (repeat % 2 == 0) run.poison();
      run.run();
      const std::string names = run.differing(expected, run.results());
      ASSERT_EQ(names, "") << text << ", run " << repeat;
    }
  }
}

TEST_F(AttentionDevice, CallsCanBeCapturedAndReplayed) {
  if (Driver::get()->api().cuGraphInstantiate == nullptr) GTEST_SKIP() << "an old driver";
  for (const std::string& text : all_problems()) {
    const OwnStream stream;
    const DeviceRun run(text, stream.context());
    const DeviceRun::Results expected = run.poisoned_run();
    const CapturedGraph graph(stream.context(), [&] { run.run(); });
    for (int i = 0; i < 3; ++i) {
      run.poison();
      graph.launch();
      EXPECT_EQ(run.differing(expected, run.results()), "") << text;
    }
  }
}

/// What is planned later, with the same kernels, moves nothing that a graph holds; lengths are read
/// when it runs.
TEST_F(AttentionDevice, GraphsOutliveOtherPlansAndFollowTheirLengths) {
  if (Driver::get()->api().cuGraphInstantiate == nullptr) GTEST_SKIP() << "an old driver";
  const std::vector<std::pair<std::vector<int32_t>, std::string>> lengths = {
      {{100, 17, 64}, "{100,17,64}"}, {{1000, 400, 999}, "{1000,400,999}"}};
  for (const char* sizes : {"b3:hq8:hkv2:sq1:sk1000:d128", "b3:hq4:hkv2:sq70:sk1000:d64"}) {
    const auto text_of = [&](size_t i) {
      return std::string("attention_fwd:") + sizes + ":seqused_k=" + lengths[i].second +
             ":causal:lse:bf16";
    };
    const OwnStream stream;
    const DeviceRun run(text_of(1), stream.context());
    run.write("seqused_k", lengths[0].first);
    const CapturedGraph graph(stream.context(), [&] { run.run(); });
    // Other sequences and other shapes are planned and run, on the same stream and another one.
    const std::vector<DeviceRun::Results> expected = {
        DeviceRun(text_of(0), stream.context()).poisoned_run(),
        DeviceRun(text_of(1)).poisoned_run()};
    for (const char* other : {"attention_fwd:b1:hq8:hkv2:sq1:sk4000:d128:seqused_k={3333}:"
                              "causal:lse:bf16",
                              "attention_fwd:b2:hq4:hkv2:sq300:sk900:d64:causal:lse:bf16"}) {
      DeviceRun(other, stream.context()).poisoned_run();
    }
    for (const size_t i : {0u, 1u, 0u}) {
      run.write("seqused_k", lengths[i].first);
      run.poison();
      graph.launch();
      EXPECT_EQ(run.differing(expected[i], run.results()), "") << text_of(i);
    }
  }
}

/// Streams, memory and modules of a call are those of its tensors' device, whichever is current.
TEST_F(AttentionDevice, ASecondDeviceServesWhileTheFirstIsCurrent) {
  if (Driver::get()->num_devices() < 2) GTEST_SKIP() << "there is one GPU, this needs two";
  const CurrentContext first(on_device(0));
  driver::ContextHandle before = nullptr, after = nullptr;
  first.api().cuCtxGetCurrent(&before);
  const OwnStream stream(1);
  {
    const cli::OwnedCall host =
        cli::random_call(parse_problem("attention_fwd:b4:hq32:sq16:d64:f16"), 1);
    for (const char* name : {"q", "k", "v"}) {
      const TensorView ones = host.call.tensor(name);
      std::fill_n(static_cast<uint16_t*>(ones.data), ones.numel(), uint16_t{0x3c00});
    }
    const cli::DeviceCall device(host.call, stream.context());
    device.run();
    device.download();
    const std::vector<double> out = cli::to_numbers(host.call.tensor("out"));
    EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0.0), 131072.0);
  }
  const bool are_alike = device_info(0).model.arch == device_info(1).model.arch &&
                         device_info(0).model.num_sms == device_info(1).model.num_sms;
  for (const std::string& text : all_problems()) {
    const DeviceRun here(text);
    const DeviceRun there(text, stream.context());
    const DeviceRun::Results expected = here.poisoned_run();
    there.poison();
    // Calls of both devices in turns, from one thread.
    for (int i = 0; i < 3; ++i) {
      here.run();
      there.run();
    }
    const DeviceRun::Results found = there.results();
    if (are_alike) {
      EXPECT_EQ(there.differing(expected, found), "") << text;
    }
    EXPECT_EQ(here.differing(expected, here.results()), "") << text;
  }
  first.api().cuCtxGetCurrent(&after);
  EXPECT_EQ(before, after);
}

TEST_F(AttentionDevice, TwoStreamsDoNotDisturbEachOther) {
  const std::vector<std::string> texts = all_problems();
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string& other_text = texts[(i + 3) % texts.size()];
    const OwnStream first, second;
    const DeviceRun run(texts[i], first.context());
    const DeviceRun other(other_text, second.context());
    const DeviceRun::Results expected = run.poisoned_run();
    const DeviceRun::Results expected_of_other = other.poisoned_run();
    for (int round = 0; round < 20; ++round) {
      run.poison();
      other.poison();
      for (int repeat = 0; repeat < 3; ++repeat) {
        run.run();
        other.run();
      }
      ASSERT_EQ(run.differing(expected, run.results()), "") << texts[i];
      ASSERT_EQ(other.differing(expected_of_other, other.results()), "") << other_text;
    }
  }
}

/// Some have more tiles than multiprocessors: CTAs take them in any order, from a counter in
/// memory that held anything before, and some are worked out again. None of it may show.
TEST_F(AttentionDevice, HopperGivesTheSameBitsAThousandTimesBesideOtherWork) {
  if (device_info(0).model.compute_capability != 90) GTEST_SKIP() << "needs a GPU of Hopper's kind";
  const std::vector<std::string> texts = {
      "attention_fwd:b2:hq24:hkv8:sq520:d64:causal:lse:bf16@attention_fwd_sm90",
      // Sums of a few rows in a hundred overflow.
      "attention_fwd:b2:hq6:sq600:d128:causal:softmax_scale=1.5:lse:bf16@attention_fwd_sm90",
      "attention_fwd:b1:hq18:hkv6:sq1000:d256:dv64:softmax_scale=3:lse:bf16@attention_fwd_sm90",
      "attention_fwd:hq10:hkv2:cu_seqlens_q={0,700,720,1500}:cu_seqlens_k={0,900,905,1800}:d64:"
      "causal:lse:f16@attention_fwd_sm90",
      "attention_fwd:b1:hq7:sq1000:sk1500:d128:window_left=300:window_right=0:lse:bf16"
      "@attention_fwd_sm90",
      // Terms that other warps make, and a bias that comes with the keys.
      "attention_fwd:b1:hq8:hkv4:sq900:d128:causal:aux.t[hq,2000]:lse:bf16"
      ":score='score + t[head, q_idx - k_idx + 950]'@attention_fwd_sm90",
      "attention_fwd:b1:hq18:hkv3:sq800:d64:causal:bias.bf16[1,hq,sq,sk]:lse:bf16"
      "@attention_fwd_sm90",
      // Values in keys: splits, and a tile that is worked out again.
      "attention_fwd:b2:hq16:hkv1:sq1:sk3000:d576:dv512:v=k:lse:bf16",
      "attention_fwd:b2:hq80:hkv1:sq2:sk700:d576:dv512:v=k:causal:softmax_scale=2:lse:bf16",
      // Few queries: other kernels, which split the keys.
      "attention_fwd:b2:hq8:hkv2:sq1:sk3000:d128:lse:bf16"};
  const std::vector<std::string> other_texts = {kForward[0], kForward[2], kBackward[1]};
  compile_all(texts);
  const OwnStream stream, other_stream;
  std::vector<std::unique_ptr<DeviceRun>> others;
  std::vector<DeviceRun::Results> expected_of_others;
  for (const std::string& text : other_texts) {
    others.push_back(std::make_unique<DeviceRun>(text, other_stream.context()));
    expected_of_others.push_back(others.back()->poisoned_run());
  }
  for (const std::string& text : texts) {
    const DeviceRun run(text, stream.context());
    const DeviceRun::Results expected = run.poisoned_run();
    for (size_t repeat = 1; repeat < 1000; ++repeat) {
      others[repeat % others.size()]->run();
      if (repeat % 2 == 0) run.poison();
      run.run();
      ASSERT_EQ(run.differing(expected, run.results()), "") << text << ", run " << repeat;
    }
    for (size_t i = 0; i < others.size(); ++i) {
      ASSERT_EQ(others[i]->differing(expected_of_others[i], others[i]->results()), "")
          << other_texts[i] << " beside " << text;
    }
  }
}

/// Numbers are arguments of kernels, not text: the first of each row is compiled, the others not.
TEST_F(AttentionDevice, OtherNumbersCompileNothing) {
  const std::string fwd = "attention_fwd:b4:hq8:hkv8:sq1024:d64:bf16";
  const std::string bwd = "attention_bwd:b2:hq8:hkv8:sq512:d64:bf16";
  const std::vector<std::vector<std::string>> rows = {
      {fwd, fwd + ":softmax_scale=0.03", "attention_fwd:b2:hq16:hkv4:sq2000:sk2040:d64:bf16"},
      {fwd + ":softcap=20:window_left=100:causal", fwd + ":softcap=5:window_left=7:causal"},
      {fwd + ":dropout_p=0.1:dropout_seed=1", fwd + ":dropout_p=0.5:dropout_seed=9"},
      {fwd + ":score='score * param.a':param.a=2.0", fwd + ":score='score * param.a':param.a=-1.0"},
      {bwd, bwd + ":softmax_scale=0.03", "attention_bwd:b3:hq6:hkv6:sq700:sk740:d64:bf16"},
      {bwd + ":softcap=20:window_left=100:causal", bwd + ":softcap=5:window_left=7:causal"},
      {bwd + ":mask='(q_idx + k_idx) % param.n != 0':param.n=3",
       bwd + ":mask='(q_idx + k_idx) % param.n != 0':param.n=7"},
  };
  for (const std::vector<std::string>& row : rows) {
    DeviceRun(row[0]).poisoned_run();
    const auto counts = KernelStore::of_process().counts();
    for (size_t i = 1; i < row.size(); ++i) {
      DeviceRun(row[i]).poisoned_run();
      EXPECT_EQ(KernelStore::of_process().counts().compiled, counts.compiled) << row[i];
      EXPECT_EQ(KernelStore::of_process().counts().from_disk, counts.from_disk) << row[i];
    }
  }
}

TEST_F(AttentionDevice, DropoutMaskIsThatOfTheCpu) {
  for (const char* options : {"dropout_p=0.3:dropout_seed=7:bf16", "dropout_p=0.05:causal:f32",
                              "dropout_p=0.9:dropout_seed=18446744073709551615:f16",
                              "dropout_p=0.5:dropout_offset=4294967295:bf16"}) {
    const std::string text =
        std::string("attention_fwd:b2:hq4:hkv2:sq70:sk131:d32:dropout_mask:") + options;
    const DeviceRun run(text);
    run.poisoned_run();
    const cli::OwnedCall cpu = cli::with_own_outputs(run.host());
    cpu.call.run({});
    EXPECT_EQ(cli::to_numbers(run.host().tensor("dropout_mask")),
              cli::to_numbers(cpu.call.tensor("dropout_mask")))
        << text;
  }
}

/// Each is allowed its error, so that the two may differ by the sum.
TEST_F(AttentionDevice, AgreesWithTheCpu) {
  for (const char* text : {
           "attention_fwd:b2:hq4:hkv2:sq130:sk190:d64:causal:lse:bf16",
           "attention_fwd:b2:hq4:sq70:sk190:d64:dropout_p=0.2:dropout_seed=7:softcap=9:lse:f16",
           "attention_bwd:b2:hq4:hkv2:sq130:sk190:d64:causal:dropout_p=0.2:dropout_seed=7:bf16",
           "attention_bwd:b1:hq4:sq70:sk90:d40:dv24:bias[1,hq,sq,sk]:sink:f32",
       }) {
    const cli::OwnedCall gpu = test::random_problem_call(text);
    std::string disagreement;
    std::vector<cli::Expectation> expected =
        cli::reference_expectations(gpu.call, {}, &disagreement);
    const cli::OwnedCall cpu = cli::with_own_outputs(gpu.call);
    cli::run_forward_of(cpu.call, "reference", {});  // as for the GPU's
    cpu.call.run({});
    for (cli::Expectation& e : expected) {
      if (e.is_exact) continue;
      e.values = cli::to_numbers(cpu.call.tensor(e.name));
      e.plain_error *= 2;
      e.floor *= 2;
    }
    const std::string name = std::string(gpu.call.spec().name) + "_portable";
    ASSERT_EQ(cli::run_forced(gpu.call, name, on_gpu()).text, "") << text;
    EXPECT_EQ(cli::fault_text(cli::judge(gpu.call, expected, cli::NanRule::kRefused)), "") << text;
  }
}

}  // namespace
}  // namespace flashtile::cuda
