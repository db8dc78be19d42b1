// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_queries: delta, dq without atomics, and gradients of slopes and aux tensors.
// attention_bwd_prepare has run before. A CTA has a block of queries of a head and a part of the
// columns.
#pragma once

#include "cuda/device/backward/backward_queries.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardQueries<Config>::kThreads, 2)
    attention_bwd_queries(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                          FLASHTILE_PARAMETER Config::Expressions::Params user,
                          FLASHTILE_PARAMETER flashtile::device::BackwardParams backward,
                          FLASHTILE_PARAMETER flashtile::device::AuxGradientParams aux) {
  using namespace flashtile::device;
  using Work = BackwardQueries<Config>;
  const uint32 num_parts = static_cast<uint32>(backward.num_query_parts);
  const uint32 cta = static_cast<uint32>(cta_idx());
  if (thread_idx() == 0) Work::state().find(params, user, backward, cta / num_parts);
  sync_cta();
  if (Work::state().is_empty) return;
  Work work(params, user, backward, aux, static_cast<int>(cta % num_parts));
  work.run();
}
