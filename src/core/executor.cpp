// SPDX-License-Identifier: Apache-2.0
#include "core/executor.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "core/env.hpp"
#include "core/float_mode.hpp"
#ifdef FLASHTILE_OPENMP
#include <omp.h>
#include <pthread.h>
#endif

namespace flashtile {
namespace {

#ifdef FLASHTILE_OPENMP
// GNU OpenMP's pool does not survive fork(): a child that opens a parallel region after its parent
// has used one hangs. A forked child therefore runs on the thread that calls.
std::atomic<bool> pool_is_usable{true};
std::atomic<bool> pool_was_used{false};

/// Threads of a call, as many of those it asks for as other calls at this time have left: callers
/// on several threads share the cores. One is there always, the caller's.
class ThreadShare {
 public:
  ThreadShare(int wanted, int available) {
    const int taken = num_taken.fetch_add(wanted);
    count_ = std::clamp(available - taken, 1, wanted);
    num_taken -= wanted - count_;
  }
  ~ThreadShare() { num_taken -= count_; }
  ThreadShare(const ThreadShare&) = delete;
  ThreadShare& operator=(const ThreadShare&) = delete;
  int count() const { return count_; }

 private:
  static inline std::atomic<int> num_taken{0};
  int count_;
};

class OpenMpExecutor final : public Executor {
 public:
  OpenMpExecutor() {
    pthread_atfork(nullptr, nullptr, [] {
      if (pool_was_used) pool_is_usable = false;
    });
  }

  int num_workers() const override { return num_available(); }

  void run(int64_t num_tasks, Task task, void* state) override {
    run_on(num_workers(), num_tasks, task, state);
  }

  static void run_on(int num_workers, int64_t num_tasks, Task task, void* state) {
    const ThreadShare share(static_cast<int>(std::min<int64_t>(num_workers, num_tasks)),
                            num_available());
    const int num_threads = share.count();
    if (num_threads <= 1 || !pool_is_usable || omp_in_parallel() != 0) {
      for (int64_t i = 0; i < num_tasks; ++i) task(state, i, 0);
      return;
    }
    pool_was_used = true;
#pragma omp parallel for schedule(dynamic, 1) num_threads(num_threads)
    for (int64_t i = 0; i < num_tasks; ++i) task(state, i, omp_get_thread_num());
  }

 private:
  static int num_available() {
    const int asked = env_num_threads();
    return asked > 0 ? asked : omp_get_max_threads();
  }
};
using DefaultExecutor = OpenMpExecutor;
#else
class SerialExecutor final : public Executor {
 public:
  int num_workers() const override { return 1; }
  void run(int64_t num_tasks, Task task, void* state) override {
    run_on(1, num_tasks, task, state);
  }
  static void run_on(int, int64_t num_tasks, Task task, void* state) {
    for (int64_t i = 0; i < num_tasks; ++i) task(state, i, 0);
  }
};
using DefaultExecutor = SerialExecutor;
#endif

/// Wraps a task so that its exceptions are kept, not thrown through an executor, and so that it
/// computes as the thread does that hands it out.
struct GuardedTask {
  Executor::Task task;
  void* state;
  bool is_of_kernel;
  std::mutex mutex;
  std::exception_ptr error;
  int64_t error_task_idx = std::numeric_limits<int64_t>::max();

  static void run(void* self_pointer, int64_t task_idx, int worker_idx) {
    auto& self = *static_cast<GuardedTask*>(self_pointer);
    std::optional<KernelFloatMode> mode;
    if (self.is_of_kernel) mode.emplace();
    try {
      self.task(self.state, task_idx, worker_idx);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(self.mutex);
      if (task_idx < self.error_task_idx) {
        self.error_task_idx = task_idx;
        self.error = std::current_exception();
      }
    }
  }
};

}  // namespace

Executor& executor_of(const Context& context) {
  static DefaultExecutor default_executor;
  return context.executor != nullptr ? *context.executor : default_executor;
}

int num_workers_of(const Context& context) {
  const int available = std::max(1, executor_of(context).num_workers());
  return context.max_workers > 0 ? std::min(available, context.max_workers) : available;
}

Context with_workers_for(double work, const Context& context) {
  constexpr double kWorkPerWorker = 1 << 21;
  Context limited;  // names of implementations have done their part, and copies of them allocate
  limited.device = context.device;
  limited.stream = context.stream;
  limited.workspace = context.workspace;
  limited.workspace_bytes = context.workspace_bytes;
  limited.executor = context.executor;
  const double workers = std::max(1.0, work / kWorkPerWorker);
  // Also where all may run: what a launch has made room for stays the limit, whatever becomes of
  // the environment or of a caller's pool meanwhile.
  limited.max_workers = static_cast<int>(std::min<double>(workers, num_workers_of(context)));
  return limited;
}

namespace detail {

void run_tasks(const Context& context, int64_t num_tasks, Executor::Task task, void* state) {
  if (num_tasks <= 0) return;
  GuardedTask guarded{task, state, KernelFloatMode::is_on(), {}, nullptr};
  const int num_workers = num_workers_of(context);
  std::optional<CallerFloatMode> mode;
  if (num_workers > 1) mode.emplace();
  if (context.executor == nullptr) {
    executor_of(context);  // registers the fork handler
    DefaultExecutor::run_on(num_workers, num_tasks, GuardedTask::run, &guarded);
  } else if (num_workers == 1) {
    for (int64_t i = 0; i < num_tasks; ++i) GuardedTask::run(&guarded, i, 0);
  } else {
    // A caller's pool has no call that limits its workers: hand it as many drains as may run.
    struct Drain {
      GuardedTask* guarded;
      std::atomic<int64_t> next{0};
      int64_t num_tasks;
    } drain{&guarded, {}, num_tasks};
    // The drain's number is the worker's: the pool's own go up to its num_workers().
    const auto pull = [](void* state_pointer, int64_t drain_idx, int) {
      auto& self = *static_cast<Drain*>(state_pointer);
      for (int64_t i = self.next++; i < self.num_tasks; i = self.next++) {
        GuardedTask::run(self.guarded, i, static_cast<int>(drain_idx));
      }
    };
    context.executor->run(std::min<int64_t>(num_workers, num_tasks), pull, &drain);
  }
  if (guarded.error) std::rethrow_exception(guarded.error);
}

}  // namespace detail
}  // namespace flashtile
