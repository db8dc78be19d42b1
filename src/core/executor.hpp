// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "flashtile/context.hpp"

namespace flashtile {

/// The context's executor, or the default one: OpenMP, or the calling thread without it.
Executor& executor_of(const Context& context);

/// Workers that a launch may use: the executor's, limited by Context::max_workers.
int num_workers_of(const Context& context);

/// The context with no more workers than a launch is worth, by its work in multiply-adds. Waking a
/// worker and waiting for it takes as long as some hundred thousand of them. It has no names of an
/// implementation and architecture, which have been looked at by then.
Context with_workers_for(double work, const Context& context);

/// Calls body(task_idx, worker_idx) for each task in [0, num_tasks) on the context's workers. An
/// exception of a body is rethrown here after all tasks have ended (the one of the lowest task).
template <class Body>
void parallel_for(const Context& context, int64_t num_tasks, const Body& body);

namespace detail {
void run_tasks(const Context& context, int64_t num_tasks, Executor::Task task, void* state);
}

template <class Body>
void parallel_for(const Context& context, int64_t num_tasks, const Body& body) {
  detail::run_tasks(
      context, num_tasks,
      [](void* state, int64_t task_idx, int worker_idx) {
        (*static_cast<const Body*>(state))(task_idx, worker_idx);
      },
      const_cast<Body*>(&body));
}

}  // namespace flashtile
