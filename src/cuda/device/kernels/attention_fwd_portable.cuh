// SPDX-License-Identifier: Apache-2.0
//
// attention_fwd_portable: exact attention forward for every GPU with mma.sync and cp.async (sm_80
// and later).
#pragma once

#include "cuda/device/forward/forward_finish.cuh"
#include "cuda/device/forward/forward_tile.cuh"
#include "cuda/device/forward/forward_wide.cuh"

namespace flashtile::device {

template <class Config, bool kIsWide>
struct ForwardWorkOf {
  using Type = ForwardTile<Config>;
};
template <class Config>
struct ForwardWorkOf<Config, true> {
  using Type = ForwardWide<Config>;
};

}  // namespace flashtile::device

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(flashtile::device::ForwardBase<Config>::kThreads,
                                         Config::kMinCtas)
    attention_fwd_portable(FLASHTILE_PARAMETER flashtile::device::AttentionParams params,
                           FLASHTILE_PARAMETER Config::Expressions::Params user) {
  using namespace flashtile::device;
  using Work = typename ForwardWorkOf<Config, (Config::kChunk > 0)>::Type;
  auto& state = Work::state();
  // What follows in the stream may come near, and so may this kernel have come: it finds its place
  // before the kernel in front of it has ended, and only then reads what others have written.
  start_next_grid();
  if (Config::kHasOrder || place_is_read<Config>(params.lengths)) wait_for_previous_grid();
  // Two warps, so that neither waits for the other's chain of loads and products.
  constexpr int kOther = Work::kThreads > kWarpSize ? kWarpSize : 0;
  if (thread_idx() == kOther) state.find_keys(params, cta_idx());
  if (thread_idx() == 0) state.find(params, user, cta_idx());
  wait_for_previous_grid();
  sync_cta();
  if (state.is_uncovered(params)) {
    fill_uncovered_rows<Config>(params, state.tile);
  } else if (!state.is_empty()) {
    Work work(params, user);
    work.run();
    ForwardFinish<Work>::run(work);
  }
}
