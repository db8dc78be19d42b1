// SPDX-License-Identifier: Apache-2.0
//
// The same bits for any number of workers, on any executor, in any order of tasks, in a forked
// child, and from several threads at once.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "op_runs.hpp"
#include "support/laid_out_call.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

constexpr const char* kProblems[] = {
    "attention_fwd:b2:hq4:hkv2:sq200:sk300:d32:causal:lse",
    "attention_fwd:b1:hq8:hkv1:sq1:sk4400:d64:lse:bf16",
    "attention_fwd:b1:hq2:hkv1:sq120:sk2100:d32:causal:sink:lse:max_logit",
    "attention_fwd:hq4:hkv2:d16:cu_seqlens_q={0,33,33,290}:cu_seqlens_k={0,70,75,640}:causal:lse:"
    "dropout_p=0.2:max_logit:f16",
    "attention_bwd:b2:hq8:hkv2:sq200:sk300:d32:causal",
    "attention_bwd:b1:hq8:hkv1:sq150:sk600:d16:sink:alibi_slopes[hq]:dropout_p=0.1:bf16",
    "attention_bwd:b3:hq4:hkv2:sq150:sk200:d16:bias[1,1,sq,sk]:causal:f16",
    "attention_bwd:b3:hq4:hkv2:sq150:sk200:d16:bias[1,hq,1,sk]:dlse",
    "attention_bwd:b3:hq4:hkv2:sq150:sk200:d16:score='score * g[head] + t[q_idx - k_idx + 199] + "
    "s[k_idx * 7 % 13] + r[batch, q_idx]':aux.g[hq]:aux.t[349]:aux.s[13]:aux.r[b,sq]:"
    "mask='k_idx % 3 != 1'",
    "attention_bwd:hq4:hkv2:d16:cu_seqlens_q={0,33,33,290}:cu_seqlens_k={0,70,75,640}:causal:"
    "deterministic",
    "simple_gla_fwd:b4:hq8:hkv4:t130:d64:dv32:g:initial_state:final_state",
    "simple_gla_bwd:b2:hq8:hkv4:t130:d64:dv32:g:initial_state:bf16",
    "mamba2_bwd:b3:hq4:num_groups=2:t130:d32:dv64:D:dt_bias:dt_softplus",
    "kda_fwd:b1:hq1:t130:d64:dv300:initial_state:final_state",
    "gated_delta_rule_fwd:b1:hq1:t130:d64:dv300:initial_state:final_state:bf16",
    "linear_attention_fwd:b1:hq1:t130:d64:dv300:normalize:final_state:final_norm",
    "rwkv6_bwd:b2:hq2:t130:d64:dv64:initial_state",
    "rwkv6_bwd:b1:hq1:t130:d150:dv200:initial_state",
    "gated_delta_rule_bwd:b1:hq1:hv2:t130:d200:dv150:initial_state:qk_l2norm",
    "gated_delta_rule_bwd:b1:hq1:hv2:t300:d64:dv150:initial_state:dfinal_state:bf16",
    "kda_bwd:b1:hq8:t130:d64:dv40:initial_state",
    "mamba1_bwd:b2:c600:num_groups=1:t130:d8:D:dt_softplus",
    "simple_gla_bwd:b1:hq2:hkv1:t400:d64:dv80:g:initial_state:dfinal_state",
    "mamba2_bwd:b1:hq2:num_groups=1:t300:d64:dv64:D:dt_softplus:bf16",
    "mlstm_exp_bwd:b1:hq1:t400:d64:dv150:initial_state:initial_norm:dfinal_state:dfinal_norm",
    "mlstm_sig_bwd:b1:hq4:hkv2:t300:d150:dv64:normalize:initial_state:dfinal_state:bf16",
    "slstm_bwd:b3:hq1:t130:d64",
    "gsa_fwd:b1:hq4:hkv2:t600:d64:dv80:m70:initial_state_k:initial_state_v:final_state_v",
    "gsa_bwd:b1:hq2:hkv1:t200:d64:dv80:m70:initial_state_k:initial_state_v:dfinal_state_k",
    "gsa_fwd:b1:hq4:hkv2:t600:d64:dv80:m70:initial_state_k:initial_state_v:final_state_v:bf16",
    "gsa_bwd:b1:hq2:hkv1:t200:d64:dv80:m70:initial_state_k:initial_state_v:dfinal_state_k:bf16",
    "short_conv_bwd:b1:c600:t400:past3:silu:initial_state:dfinal_state",
    "gated_norm_bwd:b1:hq4:t400:d150:z:weight",
    "log_decay_gate_bwd:b1:hq40:t300:d20:bias:A_log",
    "log_decay_gate_bwd:b2:hq8:t20000:d1:bias:A_log",
};

/// Runs tasks on threads that start and end with each call.
class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int num_workers) : num_workers_(num_workers) {}
  int num_workers() const override { return num_workers_; }
  void run(int64_t num_tasks, Task task, void* state) override {
    ++num_runs_;
    std::atomic<int64_t> next{0};
    std::vector<std::thread> threads;
    for (int worker = 0; worker < num_workers_; ++worker) {
      threads.emplace_back([&, worker] {
        for (int64_t i = next++; i < num_tasks; i = next++) task(state, i, worker);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int num_runs() const { return num_runs_; }

 private:
  int num_workers_;
  std::atomic<int> num_runs_{0};
};

/// The last task first, on changing workers, one after the other.
class BackwardsExecutor final : public Executor {
 public:
  int num_workers() const override { return 5; }
  void run(int64_t num_tasks, Task task, void* state) override {
    for (int64_t i = num_tasks; i-- > 0;) task(state, i, static_cast<int>(i * 3 % 5));
  }
};

/// Implementations but the reference, which uses one thread.
std::vector<std::string> kernels_of(const OpSpec& spec) {
  std::vector<std::string> names = spec.implementations();
  names.pop_back();
  return names;
}

/// Outputs of a run; out and lse of a backward are those of `owned`.
cli::OwnedCall run_on(const cli::OwnedCall& owned, const std::string& implementation,
                      const Context& context) {
  cli::OwnedCall own = cli::with_own_outputs(owned.call);
  for (const char* name : {"out", "lse"}) {
    if (cli::is_forward_result(owned.call.spec(), name)) {
      own.call.set_tensor(name, owned.call.tensor(name));
    }
  }
  EXPECT_EQ(cli::run_forced(own.call, implementation, context).text, "");
  return own;
}

class Determinism : public testing::TestWithParam<const char*> {};

TEST_P(Determinism, HoldsForAnyNumberOfWorkers) {
  const cli::OwnedCall owned = random_problem_call(GetParam());
  for (const std::string& implementation : kernels_of(owned.call.spec())) {
    Context context;
    context.max_workers = 1;
    const cli::OwnedCall expected = run_on(owned, implementation, context);
    for (const int num_workers : {1, 2, 3, 7}) {
      ThreadExecutor executor(num_workers);
      Context own_threads;
      own_threads.executor = &executor;
      const cli::OwnedCall result = run_on(owned, implementation, own_threads);
      EXPECT_EQ(differing_outputs(expected.call, result.call), "")
          << implementation << " on " << num_workers;
      EXPECT_EQ(executor.num_runs() > 0, num_workers > 1) << implementation;
    }
    for (int repeat = 0; repeat < 3; ++repeat) {  // the default executor, all its workers
      const cli::OwnedCall result = run_on(owned, implementation, {});
      EXPECT_EQ(differing_outputs(expected.call, result.call), "") << implementation;
    }
  }
}

TEST_P(Determinism, HoldsForAnyOrderOfTasks) {
  const cli::OwnedCall owned = random_problem_call(GetParam());
  BackwardsExecutor executor;
  Context context;
  context.executor = &executor;
  for (const std::string& implementation : kernels_of(owned.call.spec())) {
    const cli::OwnedCall expected = run_on(owned, implementation, {});
    const cli::OwnedCall result = run_on(owned, implementation, context);
    EXPECT_EQ(differing_outputs(expected.call, result.call), "") << implementation;
  }
}

INSTANTIATE_TEST_SUITE_P(Problems, Determinism, testing::ValuesIn(kProblems),
                         [](const testing::TestParamInfo<const char*>& test) {
                           return std::to_string(test.index) + "_" + test_name(test.param);
                         });

/// Chunks with such a number are taken row by row, by whoever has a part of them. A NaN has no
/// certain sign.
TEST(DeterminismOfChunks, HoldsWithInfinitiesToo) {
  for (const char* text : {"simple_gla_bwd:b1:hq1:t200:d130:dv70:g:initial_state",
                           "mlstm_sig_bwd:b1:hq2:hkv1:t200:d70:dv130:normalize:dfinal_state"}) {
    for (const char* name : {"q", "v", "dout"}) {
      const cli::OwnedCall owned = random_problem_call(text);
      set(owned.call.tensor(name), {0, 90, 0, 3}, kInf);
      for (const std::string& implementation : kernels_of(owned.call.spec())) {
        ThreadExecutor executor(3);
        Context one, three;
        one.max_workers = 1;
        three.executor = &executor;
        const cli::OwnedCall expected = run_on(owned, implementation, one);
        const cli::OwnedCall result = run_on(owned, implementation, three);
        for (const std::string& output : owned.call.tensor_names()) {
          if (!owned.call.writes(output)) continue;
          EXPECT_EQ(max_difference(expected.call.tensor(output), result.call.tensor(output)), 0)
              << implementation << " " << name << " " << output;
        }
      }
    }
  }
}

/// Many short calls on all workers, whose tasks end in another order each time.
TEST(ManyRuns, GiveTheSameBits) {
  for (const char* text : {"attention_fwd:b3:hq4:hkv2:sq100:sk200:d64:causal:lse:bf16",
                           "attention_fwd:b3:hq8:hkv2:sq1:sk2100:d64:lse:bf16",
                           "attention_bwd:b3:hq4:hkv2:sq100:sk200:d64:causal:bf16"}) {
    const cli::OwnedCall owned = random_problem_call(text);
    const std::string implementation = owned.call.spec().implementations().front();
    const cli::OwnedCall expected = run_on(owned, implementation, {});
    for (int repeat = 0; repeat < 200; ++repeat) {
      const cli::OwnedCall result = run_on(owned, implementation, {});
      ASSERT_EQ(differing_outputs(expected.call, result.call), "") << text << ", run " << repeat;
    }
  }
}

/// A worker index is never used by two tasks at once, and stays below the limit.
TEST(Executors, GetNoMoreWorkersThanTheContextAllows) {
  class Counting final : public Executor {
   public:
    int num_workers() const override { return 8; }
    void run(int64_t num_tasks, Task task, void* state) override {
      largest_run = std::max(largest_run, num_tasks);
      for (int64_t i = 0; i < num_tasks; ++i) task(state, i, static_cast<int>(i % 8));
    }
    int64_t largest_run = 0;
  } executor;
  const cli::OwnedCall owned = random_problem_call(kProblems[3]);
  Context context;
  context.executor = &executor;
  context.max_workers = 3;
  const std::string implementation = owned.call.spec().implementations().front();
  const cli::OwnedCall expected = run_on(owned, implementation, {});
  const cli::OwnedCall result = run_on(owned, implementation, context);
  EXPECT_EQ(differing_outputs(expected.call, result.call), "");
  EXPECT_GT(executor.largest_run, 0);
  EXPECT_LE(executor.largest_run, 3);
}

TEST(ForkedChild, ComputesTheSameBits) {
  const cli::OwnedCall owned = random_problem_call(kProblems[3]);
  for (const std::string& implementation : kernels_of(owned.call.spec())) {
    const cli::OwnedCall expected = run_on(owned, implementation, {});  // the parent's pool is up
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);  // a child that hangs dies by a signal
      const cli::OwnedCall result = run_on(owned, implementation, {});
      _exit(differing_outputs(expected.call, result.call).empty() ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << implementation;
  }
}

TEST(SeveralThreads, CallAtTheSameTime) {
  for (const char* text : {kProblems[0], kProblems[7]}) {
    const cli::OwnedCall owned = random_problem_call(text);
    for (const std::string& implementation : kernels_of(owned.call.spec())) {
      const cli::OwnedCall expected = run_on(owned, implementation, {});
      constexpr size_t kThreads = 4;
      std::vector<std::string> differences(kThreads);
      std::vector<std::thread> threads;
      for (size_t n = 0; n < kThreads; ++n) {
        threads.emplace_back([&, n] {
          for (int repeat = 0; repeat < 3; ++repeat) {
            Context context;
            context.max_workers = static_cast<int>(n % 3);
            const cli::OwnedCall result = run_on(owned, implementation, context);
            differences[n] += differing_outputs(expected.call, result.call);
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& difference : differences) EXPECT_EQ(difference, "") << implementation;
    }
  }
}

}  // namespace
}  // namespace flashtile::test
