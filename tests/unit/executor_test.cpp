// SPDX-License-Identifier: Apache-2.0
#include "core/executor.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "flashtile/attention.hpp"

namespace flashtile {
namespace {

/// A caller's pool: fresh threads, tasks handed out in reverse order.
class ThreadsExecutor final : public Executor {
 public:
  explicit ThreadsExecutor(int num_workers) : num_workers_(num_workers) {}
  int num_workers() const override { return num_workers_; }
  void run(int64_t num_tasks, Task task, void* state) override {
    ++num_runs;
    std::atomic<int64_t> next{num_tasks};
    std::vector<std::thread> threads;
    for (int worker_idx = 0; worker_idx < num_workers_; ++worker_idx) {
      threads.emplace_back([&, worker_idx] {
        for (int64_t i = --next; i >= 0; i = --next) task(state, i, worker_idx);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int num_runs = 0;

 private:
  int num_workers_;
};

std::vector<int> count_tasks(const Context& context, int64_t num_tasks, int* max_worker = nullptr) {
  std::vector<std::atomic<int>> counts(static_cast<size_t>(num_tasks));
  std::atomic<int> highest{-1};
  parallel_for(context, num_tasks, [&](int64_t task_idx, int worker_idx) {
    ++counts[static_cast<size_t>(task_idx)];
    int seen = highest;
    while (worker_idx > seen && !highest.compare_exchange_weak(seen, worker_idx)) {
    }
  });
  if (max_worker != nullptr) *max_worker = highest;
  return {counts.begin(), counts.end()};
}

TEST(ParallelFor, EachTaskRunsOnce) {
  for (const int64_t num_tasks : {0, 1, 2, 1000}) {
    const std::vector<int> once(static_cast<size_t>(num_tasks), 1);
    EXPECT_EQ(count_tasks({}, num_tasks), once);
    ThreadsExecutor pool(3);
    Context context;
    context.executor = &pool;
    EXPECT_EQ(count_tasks(context, num_tasks), once);
    EXPECT_EQ(pool.num_runs, num_tasks == 0 ? 0 : 1);
  }
}

TEST(ParallelFor, WorkerLimitHolds) {
  Context context;
  context.max_workers = 1;
  EXPECT_EQ(num_workers_of(context), 1);
  int max_worker = -1;
  count_tasks(context, 100, &max_worker);
  EXPECT_EQ(max_worker, 0);

  ThreadsExecutor pool(4);
  context.executor = &pool;
  context.max_workers = 2;
  EXPECT_EQ(num_workers_of(context), 2);
  // At most two tasks run at the same time, although the pool has four threads.
  std::atomic<int> running{0};
  std::atomic<int> most{0};
  parallel_for(context, 64, [&](int64_t, int worker_idx) {
    EXPECT_LT(worker_idx, 2);
    const int now = ++running;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::yield();
    --running;
  });
  EXPECT_LE(most, 2);
  EXPECT_EQ(pool.num_runs, 1);
}

/// A pool whose workers have the highest numbers that it may give them.
class LastWorkersExecutor final : public Executor {
 public:
  int num_workers() const override { return num_workers_now; }
  void run(int64_t num_tasks, Task task, void* state) override {
    for (int64_t i = 0; i < num_tasks; ++i) {
      task(state, i, num_workers_now - 1 - static_cast<int>(i % num_workers_now));
    }
  }
  int num_workers_now = 64;
};

TEST(ParallelFor, NumbersWorkersBelowTheLimitWhateverTheirNumberInThePool) {
  LastWorkersExecutor pool;
  Context context;
  context.executor = &pool;
  for (const int max_workers : {0, 1, 2, 63, 64, 65}) {
    context.max_workers = max_workers;
    for (const int64_t num_tasks : {1, 2, 5, 1000}) {
      int max_worker = -1;
      const std::vector<int> once(static_cast<size_t>(num_tasks), 1);
      EXPECT_EQ(count_tasks(context, num_tasks, &max_worker), once);
      EXPECT_LT(max_worker, num_workers_of(context)) << max_workers << " for " << num_tasks;
    }
  }
}

TEST(ParallelFor, KeepsToTheWorkersOfALaunchWhenThePoolGrows) {
  LastWorkersExecutor pool;
  pool.num_workers_now = 3;
  Context context;
  context.executor = &pool;
  const Context launch = with_workers_for(1e12, context);
  ASSERT_EQ(num_workers_of(launch), 3);
  pool.num_workers_now = 64;
  int max_worker = -1;
  count_tasks(launch, 1000, &max_worker);
  EXPECT_LT(max_worker, 3);
}

TEST(ParallelFor, ConcurrentTasksHaveDifferentWorkers) {
  ThreadsExecutor pool(3);
  Context context;
  for (const bool own_pool : {false, true}) {
    context.executor = own_pool ? &pool : nullptr;
    std::mutex mutex;
    std::set<int> busy;
    parallel_for(context, 200, [&](int64_t, int worker_idx) {
      {
        const std::lock_guard<std::mutex> lock(mutex);
        EXPECT_TRUE(busy.insert(worker_idx).second);
      }
      std::this_thread::yield();
      const std::lock_guard<std::mutex> lock(mutex);
      busy.erase(worker_idx);
    });
  }
}

TEST(ParallelFor, LowestExceptionIsRethrownAfterAllTasks) {
  ThreadsExecutor pool(3);
  Context context;
  for (const bool own_pool : {false, true}) {
    context.executor = own_pool ? &pool : nullptr;
    std::atomic<int> num_done{0};
    std::string text;
    try {
      parallel_for(context, 100, [&](int64_t task_idx, int) {
        ++num_done;
        if (task_idx % 10 == 7) throw std::runtime_error("task " + std::to_string(task_idx));
      });
    } catch (const std::runtime_error& error) {
      text = error.what();
    }
    EXPECT_EQ(text, "task 7");
    EXPECT_EQ(num_done, 100);
  }
}

TEST(WithWorkersFor, GivesWorkersByWorkAndNeverMoreThanThereAre) {
  ThreadsExecutor pool(8);
  Context context;
  context.executor = &pool;
  int previous = 1;
  for (double work = 1; work < 1e12; work *= 2) {
    const int workers = num_workers_of(with_workers_for(work, context));
    EXPECT_GE(workers, previous) << work;
    EXPECT_LE(workers, 8) << work;
    previous = workers;
  }
  EXPECT_EQ(num_workers_of(with_workers_for(0, context)), 1);
  EXPECT_EQ(previous, 8);
  context.max_workers = 3;
  EXPECT_EQ(num_workers_of(with_workers_for(1e12, context)), 3);
}

/// How often a forward and a backward of this length hand work to a pool of three.
int runs_of_attention(int64_t seqlen) {
  ThreadsExecutor pool(3);
  Context context;
  context.executor = &pool;
  const auto size = static_cast<size_t>(2 * 4 * seqlen * 64);
  const std::vector<float> in(size, 0.5f);
  std::vector<float> memory[4] = {in, in, in, in};
  std::vector<float> lse(static_cast<size_t>(2 * 4 * seqlen));
  const auto view = [&](const std::vector<float>& values) {
    return TensorView(values.data(), DType::kF32, {2, seqlen, 4, 64});
  };
  const TensorView x = view(in);
  const TensorView rows(lse.data(), DType::kF32, {2, 4, seqlen});
  attention_fwd(x, x, x, view(memory[0]), rows, {}, context);
  attention_bwd(x, x, x, x, view(memory[0]), rows, view(memory[1]), view(memory[2]),
                view(memory[3]), {}, context);
  return pool.num_runs;
}

TEST(WithWorkersFor, TinyCallsStayOnTheThreadThatCalls) {
  EXPECT_EQ(runs_of_attention(16), 0);
  EXPECT_GT(runs_of_attention(256), 0);
}

/// While one thread's call has all workers, calls of others have the thread that makes them.
TEST(ParallelFor, CallersOnSeveralThreadsShareTheCores) {
  const int num_workers = num_workers_of({});
  if (num_workers < 2) GTEST_SKIP() << "there is one worker";
  std::atomic<int> num_running{0};
  std::atomic<bool> may_end{false};
  std::thread other([&] {
    parallel_for({}, num_workers, [&](int64_t, int) {
      ++num_running;
      while (!may_end) std::this_thread::yield();
    });
  });
  while (num_running < num_workers) std::this_thread::yield();
  int max_worker = -1;
  count_tasks({}, 100, &max_worker);
  EXPECT_EQ(max_worker, 0);
  may_end = true;
  other.join();
  // And all of them are free again: as many tasks as workers run at the same time.
  num_running = 0;
  parallel_for({}, num_workers, [&](int64_t, int) {
    ++num_running;
    while (num_running < num_workers) std::this_thread::yield();
  });
  EXPECT_EQ(num_running, num_workers);
}

TEST(ParallelFor, NestedCallsFinish) {
  std::atomic<int> count{0};
  parallel_for({}, 4, [&](int64_t, int) { parallel_for({}, 5, [&](int64_t, int) { ++count; }); });
  EXPECT_EQ(count, 20);
}

TEST(ParallelFor, WorksInAForkedChild) {
  count_tasks({}, 100);  // the parent's pool exists before the fork
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(20);  // a child that hangs fails instead of blocking the tests
    const std::vector<int> counts = count_tasks({}, 100);
    _exit(counts == std::vector<int>(100, 1) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(count_tasks({}, 100), std::vector<int>(100, 1));  // and the parent goes on
}

}  // namespace
}  // namespace flashtile
