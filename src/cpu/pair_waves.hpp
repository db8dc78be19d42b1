// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "core/executor.hpp"
#include "core/kept_list.hpp"
#include "cpu/attention_call.hpp"

namespace flashtile::cpu {

/// Pairs that are packed, worked on and stored by the workers of a context.
template <class Member>
struct PairWave {
  Context context;
  int first_worker;  ///< whose scratch the context's first one has
  char* memory;
  int64_t capacity;  ///< bytes of memory
  KeptList<Member> members = {};
  KeptList<HeadMask> masks = {};  ///< of all members, a head of the group each

  void clear() {
    members.clear();
    masks.clear();
  }
  /// Tells members where their masks are, when no more will come.
  void place_masks(int64_t group_size) {
    for (size_t n = 0; n < members.size(); ++n) {
      members[n].masks = &masks[n * static_cast<size_t>(group_size)];
    }
  }
};

/// Goes over pairs as `order` says: those alone by one worker each, in `pair_bytes` of the memory,
/// the shared ones in waves that fill its `capacity`. `make(pairs, begin, end, &wave)` takes
/// pairs[begin, end) until the memory is full and returns where the next wave begins.
template <class Member, class Make, class Run>
void run_in_waves(const Context& context, const PairOrder& order, char* memory, int64_t pair_bytes,
                  int64_t capacity, const Make& make, const Run& run) {
  Context one_worker = context;
  one_worker.max_workers = 1;
  parallel_for(context, static_cast<int64_t>(order.alone.size()), [&](int64_t n, int worker) {
    PairWave<Member> wave{one_worker, worker, memory + worker * pair_bytes, pair_bytes};
    make(order.alone, static_cast<size_t>(n), static_cast<size_t>(n) + 1, &wave);
    run(wave);
  });
  PairWave<Member> wave{context, 0, memory, capacity};
  for (size_t begin = 0; begin < order.shared.size();) {
    begin = make(order.shared, begin, order.shared.size(), &wave);
    run(wave);
  }
}

}  // namespace flashtile::cpu
