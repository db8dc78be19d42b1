// SPDX-License-Identifier: Apache-2.0
//
// attention_bwd_keys: gradients of keys and values alone, for any head dim and float32 too.
// attention_bwd_prepare has run before. A CTA has a block of keys and a part of the columns.
#pragma once

#include "cuda/device/backward/backward_keys.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::BackwardKeys<Config>::kThreads, 2)
    attention_bwd_keys(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                       FLASHTILE_PARAMETER Config::Expressions::Params user,
                       FLASHTILE_PARAMETER flashtile::device::BackwardParams backward) {
  using namespace flashtile::device;
  using Work = BackwardKeys<Config>;
  const uint32 num_parts = static_cast<uint32>(backward.num_key_parts);
  const uint32 cta = static_cast<uint32>(cta_idx());
  if (thread_idx() == 0) Work::find(params, user, backward, cta / num_parts);
  sync_cta();
  if (Work::state().base.num_keys == 0) return;
  Work work(params, user, backward, static_cast<int>(cta % num_parts));
  work.run();
}
