// SPDX-License-Identifier: Apache-2.0
//
// Arguments of attention_merge, for host and device.
#pragma once

#include "cuda/device/params/attention_params.hpp"

namespace flashtile::device {

struct MergeParams {
  RowsParam parts;            ///< of part 0
  RowScalarsParam lse_parts;  ///< of part 0
  RowsParam out;
  RowScalarsParam lse;  ///< without data: not wanted
  long long part_stride = 0;
  long long lse_part_stride = 0;
  long long num_rows = 0;  ///< (batch, query, head), heads fastest
  long long seqlen_q = 0;
  int num_heads = 0;
  int num_parts = 0;
  int head_dim = 0;
};

}  // namespace flashtile::device
