// SPDX-License-Identifier: Apache-2.0
//
// attention_fwd_sm90: exact attention forward for Hopper. Each CTA stays for many tiles; one of its
// warpgroups copies, the others compute.
#pragma once

#include "cuda/device/hopper/sm90_compute.cuh"
#include "cuda/device/hopper/sm90_copy.cuh"
#include "cuda/device/hopper/sm90_terms.cuh"

FLASHTILE_KERNEL FLASHTILE_LAUNCH_BOUNDS(128 * (Config::kNumWarpgroups + 1), 1)
    attention_fwd_sm90(FLASHTILE_PARAMETER flashtile::device::Sm90ForwardParams params,
                       FLASHTILE_PARAMETER Config::Expressions::Params user) {
  using namespace flashtile::device;
  const Sm90Memory<Config> memory;
  if (thread_idx() == 0) {
    prefetch(params.q);
    prefetch(params.k);
    prefetch(params.v);
    prefetch(params.out);
    memory.init();
  }
  sync_cta();
  const int warp = warp_idx();
  if (warp < 4) {
    release_registers<Config::kCopyRegisters>();
    if (warp == 0 && lane_idx() == 0) {
      // Whatever reads or writes tensors comes behind the first copy.
      start_next_grid();
      wait_for_previous_grid();
      Sm90Loader<Config>(params, user, memory).run();
    } else if (warp == 1 && lane_idx() == 0) {
      Sm90Storer<Config>(params, memory).run();
    }
    if constexpr (Config::kPackedQ) {
      if (warp >= 2) {
        wait_for_previous_grid();
        fill_uncovered_rows<Config>(params);
      }
    }
    if (Config::kAddsByDistance && warp >= 2) make_terms<Config>(params, user, memory);
  } else {
    claim_registers<Config::kComputeRegisters>();
    Sm90Compute<Config>(params, user, memory).run();
  }
}
