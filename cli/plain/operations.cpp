// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "plain/logits.hpp"
#include "plain/plain.hpp"

namespace flashtile::cli {
namespace {

/// (query, key) pairs that are seen, over all sequences and heads.
double count_pairs(const AttentionProblem& problem, const AttentionArgs& args) {
  constexpr double kMaxLooks = 2e6;  // at pairs, one by one; beyond that rows are sampled
  const bool is_looked_up = !problem.user_mask.empty() || problem.has_block_list;
  double pairs = 0;
  for (const Sequence& sequence : attention_sequences(problem, args)) {
    const double all = static_cast<double>(sequence.seqlen_q) *
                       static_cast<double>(sequence.seqlen_k) *
                       static_cast<double>(problem.num_heads * problem.batch_size);
    const int64_t step =
        is_looked_up ? std::clamp<int64_t>(static_cast<int64_t>(all / kMaxLooks), 1, 1 << 20) : 1;
    // Without look-ups, all heads see alike.
    const int64_t num_heads = is_looked_up ? problem.num_heads : 1;
    const int64_t num_alike = is_looked_up ? 1 : problem.num_heads;
    for (int64_t h = 0; h < num_heads; ++h) {
      PlainLogits logits(problem, args, sequence, h, /*is_jittered=*/false);
      double seen = 0;
      double num_rows = 0;
      // Start in the middle of a step, so that a triangle is sampled without bias.
      for (int64_t i = step / 2; i < sequence.seqlen_q; i += step, ++num_rows) {
        seen += static_cast<double>(logits.num_seen(i));
      }
      if (num_rows == 0) continue;
      pairs +=
          seen / num_rows * static_cast<double>(sequence.seqlen_q) * static_cast<double>(num_alike);
    }
  }
  return pairs;
}

}  // namespace

std::optional<double> count_operations(const OpCall& call) {
  const std::string_view op = call.spec().name;
  const bool is_backward = op == "attention_bwd";
  if (!is_backward && op != "attention_fwd") return std::nullopt;
  const auto& args = *static_cast<const AttentionArgs*>(call.args());
  const AttentionProblem problem = make_attention_problem(args, is_backward);
  const auto d = static_cast<double>(problem.head_dim);
  const auto dv = static_cast<double>(problem.head_dim_v);
  // Forward q.k and p.v; backward q.k, dout.v and the products for dv, dq, dk.
  return 2 * (is_backward ? 3 * d + 2 * dv : d + dv) * count_pairs(problem, args);
}

}  // namespace flashtile::cli
