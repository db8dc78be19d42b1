// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flashtile/export.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

/// Where tasks run. The default is OpenMP (or one thread where the library was built without it);
/// give a Context another one to use your own pool.
class FLASHTILE_API Executor {
 public:
  using Task = void (*)(void* state, int64_t task_idx, int worker_idx);

  virtual ~Executor() = default;
  /// Upper bound of `worker_idx` + 1.
  virtual int num_workers() const = 0;
  /// Calls task(state, i, worker_idx) once for each i in [0, num_tasks), and returns when all are
  /// done. Two tasks that run at the same time have different `worker_idx`. Tasks do not throw.
  virtual void run(int64_t num_tasks, Task task, void* state) = 0;
};

/// Everything about a call that is not the problem: where and how it runs. A plain value; results
/// never depend on it, except through `implementation` where implementations round differently.
/// What is set is either honoured or refused.
struct Context {
  /// Where the tensors are. Those of a call say it themselves: a device that is not theirs is an
  /// error, and the default leaves it to them. What explains a problem without tensors needs it.
  Device device;
  void* stream = nullptr;  ///< a CUstream for CUDA tensors; null for others
  /// Memory for temporaries, at least Explanation::workspace_bytes, and up to 255 more where it
  /// does not start at a multiple of 256; null: the library allocates (on a CPU only).
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  /// Threads to use at most; 0: all that there are. CUDA tensors take 0 alone.
  int max_workers = 0;
  /// Not owned; null: the default. Work that is not worth a second thread asks neither. CUDA
  /// tensors take none.
  Executor* executor = nullptr;
  /// Force one implementation, such as "attention_fwd_avx2", or "avx2" for whichever op is called;
  /// empty: the registry chooses. The environment variable FLASHTILE_IMPL does the same for calls
  /// that leave this empty.
  std::string implementation;
  /// For explain only: plan for the usual GPU of this architecture, such as "sm_89", whether or not
  /// this machine has one. A call that would run refuses it.
  std::string arch;
};

}  // namespace flashtile
