// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_portable: gradients of keys and values, and the sums of those of queries, for every
// GPU with mma.sync and cp.async (sm_80 and later). attention_bwd_prepare has run before. With
// kFinishesDq the last CTA of a kv head makes dq of the sums, else attention_bwd_convert does.
#pragma once

#include "cuda/device/backward/backward_finish.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardTile<Config>::kThreads,
                                         Config::kMinCtas)
    attention_bwd_portable(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                           FLASHTILE_PARAMETER Config::Expressions::Params user,
                           FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  using namespace flashtile::device;
  using Work = BackwardTile<Config>;
  // Its place is found before the kernel in front has ended.
  start_next_grid();
  if (place_is_read<Config>(params.lengths)) wait_for_previous_grid();
  if (thread_idx() == 0) Work::state().find(params, user, cta_idx());
  wait_for_previous_grid();
  sync_cta();
  if (Work::state().num_keys == 0) {
    BackwardFinish<Work>::run_without_keys(params, backward);
    return;
  }
  Work work(params, user, backward);
  work.run();
  BackwardFinish<Work>::run(work);
}
