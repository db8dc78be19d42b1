// SPDX-License-Identifier: Apache-2.0
#include "mask_blocks.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "ops/attention/mask.hpp"
#include "ops/attention/problem.hpp"
#include "ops/attention/sequences.hpp"

namespace flashtile::python {

std::vector<std::vector<int>> mask_blocks(const OpCall& call, int64_t batch_idx, int64_t head,
                                          int64_t block_m, int64_t block_n) {
  if (call.spec().name != "attention_fwd") fail(call.spec().name, "there is no mask");
  const auto& args = *static_cast<const AttentionArgs*>(call.args());
  const AttentionProblem problem = make_attention_problem(args, /*is_backward=*/false);
  const std::vector<Sequence> sequences = attention_sequences(problem, args);
  if (batch_idx < 0 || batch_idx >= problem.batch_size) {
    fail("plot_mask", "batch is ", batch_idx, ", expected less than ", problem.batch_size);
  }
  if (head < 0 || head >= problem.num_heads) {
    fail("plot_mask", "head is ", head, ", expected less than ", problem.num_heads);
  }
  if (block_m < 1 || block_n < 1) fail("plot_mask", "a block has no rows or columns");
  const Sequence& sequence = sequences[static_cast<size_t>(batch_idx)];
  const AttentionMask mask(problem, args);
  HeadMask head_mask(mask, sequence, head);
  const auto columns = static_cast<size_t>((sequence.seqlen_k + block_n - 1) / block_n);
  std::vector<std::vector<int>> blocks;
  std::vector<variant::BlockRun> runs;
  for (int64_t begin = 0; begin < sequence.seqlen_q; begin += block_m) {
    head_mask.key_runs(begin, std::min(begin + block_m, sequence.seqlen_q), block_n, &runs);
    std::vector<int>& row = blocks.emplace_back(columns, 0);
    for (const variant::BlockRun& run : runs) {
      std::fill(row.begin() + run.begin, row.begin() + run.end, run.is_full ? 2 : 1);
    }
  }
  return blocks;
}

}  // namespace flashtile::python
