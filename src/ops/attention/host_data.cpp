// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/host_data.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "ops/attention/append.hpp"
#include "ops/attention/sequences.hpp"

namespace flashtile {
namespace {

void check_range(std::string_view op, std::string_view name, int64_t index, int64_t value,
                 int64_t lowest, int64_t highest, std::string_view highest_name) {
  if (value >= lowest && value <= highest) return;
  fail(op, name, "[", index, "] is ", value, ", expected ", lowest, " to ", highest, " (",
       highest_name, ")");
}

/// Stored keys that sequence b has room for.
int64_t key_room(const AttentionProblem& problem, const AttentionArgs& args, int64_t b) {
  if (args.cu_seqlens_k) {
    return element<int32_t>(args.cu_seqlens_k, {b + 1}) - element<int32_t>(args.cu_seqlens_k, {b});
  }
  return problem.max_seqlen_k;
}

void check_lengths(std::string_view op, const AttentionProblem& problem,
                   const AttentionArgs& args) {
  for (int64_t b = 0; b < problem.batch_size; ++b) {
    const int64_t room = key_room(problem, args, b);
    int64_t used = room;
    if (args.seqused_k) {
      used = element<int32_t>(args.seqused_k, {b});
      check_range(op, "seqused_k", b, used, 0, room, "stored keys of the sequence");
    }
    if (args.leftpad_k) {
      check_range(op, "leftpad_k", b, element<int32_t>(args.leftpad_k, {b}), 0, used,
                  "used keys of the sequence");
    }
    if (problem.has_new_keys) used += check_new_keys(op, problem, args, b);
    if (args.cache_batch_idx) {
      check_range(op, "cache_batch_idx", b, element<int32_t>(args.cache_batch_idx, {b}), 0,
                  args.k.shape[0] - 1, "last line of k");
    }
    if (!args.block_table) continue;
    for (int64_t n = 0; n * problem.page_size < used; ++n) {
      const int64_t page = element<int32_t>(args.block_table, {b, n});
      if (page < 0 || page >= args.k.shape[0]) {
        fail(op, "block_table[", b, ", ", n, "] is ", page, ", k has ", args.k.shape[0], " pages");
      }
    }
  }
}

void check_block_list(std::string_view op, const AttentionProblem& problem,
                      const AttentionArgs& args) {
  const TensorView& counts = args.block_counts;
  const TensorView& indices = args.block_indices;
  if (problem.batch_size == 0) return;  // either tensor may have a line all the same
  const int64_t num_cols = (problem.max_seqlen_k + problem.block_cols - 1) / problem.block_cols;
  const int64_t num_batches = std::max(counts.shape[0], indices.shape[0]);
  const int64_t num_heads = std::max(counts.shape[1], indices.shape[1]);
  for (int64_t b = 0; b < num_batches; ++b) {
    for (int64_t h = 0; h < num_heads; ++h) {
      const int64_t count_b = std::min(b, counts.shape[0] - 1);
      const int64_t count_h = std::min(h, counts.shape[1] - 1);
      const int64_t index_b = std::min(b, indices.shape[0] - 1);
      const int64_t index_h = std::min(h, indices.shape[1] - 1);
      for (int64_t m = 0; m < counts.shape[2]; ++m) {
        const int64_t count = element<int32_t>(counts, {count_b, count_h, m});
        if (count < 0 || count > indices.shape[3]) {
          fail(op, "block_counts[", count_b, ", ", count_h, ", ", m, "] is ", count,
               ", block_indices has room for ", indices.shape[3]);
        }
        for (int64_t n = 0; n < count; ++n) {
          const int64_t col = element<int32_t>(indices, {index_b, index_h, m, n});
          if (col < 0 || col >= num_cols) {
            fail(op, "block_indices[", index_b, ", ", index_h, ", ", m, ", ", n, "] is ", col,
                 ", there are ", num_cols, " blocks of ", problem.block_cols, " keys");
          }
        }
      }
    }
  }
}

}  // namespace

int64_t longest_sequence(std::string_view op, std::string_view name, const TensorView& cu_seqlens,
                         int64_t total) {
  const int64_t num_entries = cu_seqlens.shape[0];
  int64_t longest = 0;
  int64_t previous = element<int32_t>(cu_seqlens, {0});
  if (previous != 0) fail(op, name, "[0] is ", previous, ", expected 0");
  for (int64_t b = 1; b < num_entries; ++b) {
    const int64_t entry = element<int32_t>(cu_seqlens, {b});
    if (entry < previous) {
      fail(op, name, "[", b, "] is ", entry, ", less than ", previous, " before it");
    }
    longest = std::max(longest, entry - previous);
    previous = entry;
  }
  if (previous > total) {
    fail(op, name, " ends at ", previous, ", but the packed tensor has ", total, " rows");
  }
  return longest;
}

void check_attention_host_data(std::string_view op, const AttentionProblem& problem,
                               const AttentionArgs& args, IndexChecks* index_checks) {
  check_lengths(op, problem, args);
  if (problem.has_new_keys) check_new_slots(op, problem, args);
  if (problem.has_block_list) check_block_list(op, problem, args);
  index_checks->run(op, problem, args);
}

}  // namespace flashtile
