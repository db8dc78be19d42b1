// SPDX-License-Identifier: Apache-2.0
#pragma once

// The attention kernels over one kind of operands as a table.

#include "cpu/kernels/attention_bwd.hpp"
#include "cpu/kernels/attention_fwd.hpp"
#include "cpu/kernels/attention_kernels.hpp"

namespace flashtile::cpu::FLASHTILE_ISA {

template <class Operands>
int64_t fwd_scratch_bytes(int64_t block_m, int64_t block_n, int64_t head_dim, int64_t head_dim_v) {
  int64_t bytes = 0;
  fwd_state<Operands>(nullptr, block_m, block_n, head_dim, head_dim_v, &bytes);
  return bytes;
}

template <class Operands>
int64_t bwd_scratch_bytes(int64_t block_m, int64_t block_n, int64_t head_dim) {
  int64_t bytes = 0;
  bwd_state<Operands>(nullptr, block_m, block_n, head_dim, &bytes);
  return bytes;
}

/// Where a result is rounded to 16 bits the cheaper exponentials are exact enough.
template <class Operands>
struct Exponentials {
  using OfTwo = Exp2Fast;
  using Natural = ExpFast;
};
template <>
struct Exponentials<FloatOperands> {
  using OfTwo = Exp2;
  using Natural = Exp;
};

template <class Operands>
void fwd_block(const FwdBlock& block) {
  using E = Exponentials<Operands>;
  if (block.rules->is_log2) {
    fwd_block_of<typename E::OfTwo, Operands>(block);
  } else {
    fwd_block_of<typename E::Natural, Operands>(block);
  }
}

template <class Operands>
void bwd_block(const BwdBlock& block) {
  using E = Exponentials<Operands>;
  if (block.rules->is_log2) {
    bwd_block_of<typename E::OfTwo, Operands>(block);
  } else {
    bwd_block_of<typename E::Natural, Operands>(block);
  }
}

template <class Operands>
constexpr OperandKernels operand_kernels() {
  return {fwd_key_layout<Operands>,    fwd_scratch_bytes<Operands>,
          fwd_pack_keys<Operands>,     with_products<Operands, fwd_block<Operands>>,
          bwd_query_layout<Operands>,  bwd_key_layout<Operands>,
          bwd_scratch_bytes<Operands>, bwd_pack_queries<Operands>,
          bwd_pack_keys<Operands>,     with_products<Operands, bwd_block<Operands>>};
}

}  // namespace flashtile::cpu::FLASHTILE_ISA
