// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashtile::variant {

/// Blocks [begin, end) of keys (for a query block) or of queries (for a key block) that are all
/// seen in full, or all in part. Blocks in no run are never visited.
struct BlockRun {
  long long begin;
  long long end;
  bool is_full;
};

}  // namespace flashtile::variant
