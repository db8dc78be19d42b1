// SPDX-License-Identifier: Apache-2.0
//
// attention_fwd_latent_sm90: exact attention forward for Hopper where values are the first columns
// of keys.
#pragma once

#include "cuda/device/forward/forward_finish.cuh"
#include "cuda/device/forward/forward_latent.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::ForwardBase<Config>::kThreads, 1)
    attention_fwd_latent_sm90(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                              FLASHTILE_PARAMETER Config::Expressions::Params user,
                              FLASHTILE_PARAMETER flashtile::device::TensorMapParam keys) {
  using namespace flashtile::device;
  using Work = ForwardLatent<Config>;
  auto& state = Work::state();
  // What follows in the stream may come near; see attention_fwd_portable.
  start_next_grid();
  if (Config::kHasOrder || place_is_read<Config>(params.lengths)) wait_for_previous_grid();
  if (thread_idx() == 2 * kWarpSize) {
    Work::init_barriers();
    if constexpr (Config::kBoxRows > 0) prefetch(keys);
  }
  if (thread_idx() == kWarpSize) state.find_keys(params, cta_idx());
  if (thread_idx() == 0) state.find(params, user, cta_idx());
  wait_for_previous_grid();
  sync_cta();
  if (state.is_uncovered(params)) {
    fill_uncovered_rows<Config>(params, state.tile);
    return;
  }
  if (state.is_empty()) return;
  const int group = warp_idx() / 4;
  if (group > Work::kWeighingGroup) {
    release_registers<Work::kCopyRegisters>();
    Work(params, user).copy_blocks(keys);
  } else if (group == Work::kWeighingGroup) {
    release_registers<Work::kWeighRegisters>();
    Work work(params, user);
    work.make_weights();
    if constexpr (Config::kWantsMaxLogit) ForwardFinish<Work>::write_max_logit(work);
  } else {
    claim_registers<Work::kSumRegisters>();
    Work work(params, user);
    work.sum_values();
    ForwardFinish<Work>::normalize(work);
    ForwardFinish<Work>::store(work);
  }
}
