// SPDX-License-Identifier: Apache-2.0
//
// attention_fwd_portable: exact attention forward for every GPU with mma.sync and cp.async (sm_80
// and later).
#pragma once

#include "cuda/device/forward/forward_finish.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::ForwardTile<Config>::kThreads,
                                         Config::kMinCtas)
    attention_fwd_portable(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                           FLASHTILE_PARAMETER Config::Expressions::Params user) {
  using namespace flashtile::device;
  auto& state = ForwardTile<Config>::state();
  if (thread_idx() == 0) state.find(params, user, cta_idx());
  sync_cta();
  if (state.is_uncovered(params)) {
    fill_uncovered_rows<Config>(params, state.tile);
  } else if (!state.is_empty()) {
    ForwardTile<Config> work(params, user);
    work.run();
    ForwardFinish<Config>::run(work);
  }
}
