// SPDX-License-Identifier: Apache-2.0
//
// What the backward prepares: lse and delta of all rows, and packed blocks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/element.hpp"
#include "core/executor.hpp"
#include "cpu/attention_bwd_wave.hpp"

namespace flashtile::cpu {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();

/// True when all elements of a row are finite.
bool is_finite_row(const char* row, int64_t dim, DType dtype, int64_t stride_bytes) {
  for (int64_t d = 0; d < dim; ++d) {
    if (!std::isfinite(load_float(row + d * stride_bytes, dtype))) return false;
  }
  return true;
}

/// Addresses of rows that count; null for queries that see no key, so that nothing of them is read.
/// With a sink such a row has lse = sink, and so has one whose keys all weigh next to nothing: it
/// is passed over only where it would bring in what is not finite.
void visible_addresses(const AttentionCall& call, const Rows& rows, DType dtype, int64_t dim,
                       int64_t head, const float* lse, const variant::PositionMask& position,
                       int64_t begin, int64_t end, std::vector<void*>* out) {
  const float sink =
      call.problem().has_sink ? element<float>(call.args().sink, {head}) : -kFloatInfinity;
  out->clear();
  for (int64_t i = begin; i < end; ++i) {
    const variant::KeyRange keys = position.keys(i);
    bool is_empty = keys.begin >= keys.end || lse[i] == -kFloatInfinity;
    if (!is_empty && lse[i] == sink) {
      is_empty = !is_finite_row(rows.row(i), dim, dtype, rows.element_stride);
    }
    out->push_back(is_empty ? nullptr : rows.row(i));
  }
}

/// True where delta from `out` would be less exact than the gradients that are wanted: a rounding
/// error of a row's delta is the same for all keys, so sums over keys do not average it out. Where
/// every key of a row has an element of its own, there are no such sums.
bool sums_delta(const AttentionCall& call) {
  const AttentionArgs& args = call.args();
  if (args.out.dtype != DType::kF16 && args.out.dtype != DType::kBF16) return false;
  if (args.dalibi_slopes || args.dsink) return true;
  return call.problem().wants_aux_gradient && call.programs().has_shared_sites;
}

/// lse and delta of one head.
void compute_head(const AttentionCall& call, const AttentionKernels& kernels,
                  const Sequence& sequence, int64_t head, RowStats* stats) {
  const AttentionArgs& args = call.args();
  const Rows lse_in = lse_rows(args.lse, sequence, head);
  const Rows dlse = lse_rows(args.dlse, sequence, head);
  const Rows out = query_rows(args.out, sequence, head);
  const Rows dout = query_rows(args.dout, sequence, head);
  float* lse = stats->lse.data() + stats->index(sequence, head);
  float* delta = stats->delta.data() + stats->index(sequence, head);
  for (int64_t i = 0; i < sequence.seqlen_q; ++i) lse[i] = lse_in.element<float>(i);
  if (!stats->sums_delta) {
    const variant::PositionMask position = call.mask().position(sequence, head);
    thread_local std::vector<void*> dout_addresses;
    thread_local std::vector<void*> out_addresses;
    visible_addresses(call, dout, args.dout.dtype, call.problem().head_dim_v, head, lse, position,
                      0, sequence.seqlen_q, &dout_addresses);
    row_addresses(out, 0, sequence.seqlen_q, &out_addresses);
    kernels.row_dots(dout_addresses.data(), args.dout.dtype, element_stride(dout, args.dout.dtype),
                     out_addresses.data(), args.out.dtype, element_stride(out, args.out.dtype),
                     sequence.seqlen_q, call.problem().head_dim_v, delta);
  }
  if (dlse.data == nullptr) return;
  for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
    if (lse[i] != -kFloatInfinity) delta[i] -= dlse.element<float>(i);
  }
}

}  // namespace

void make_row_stats(const AttentionCall& call, const AttentionKernels& kernels,
                    const Context& context, RowStats* stats) {
  const int64_t num_heads = call.problem().num_heads;
  int64_t num_rows = 0;
  for (const Sequence& sequence : call.sequences()) {
    stats->first_row.push_back(num_rows);
    num_rows += num_heads * sequence.seqlen_q;
  }
  stats->lse.resize(static_cast<size_t>(num_rows) + 1);
  stats->delta.resize(static_cast<size_t>(num_rows) + 1);
  stats->sums_delta = sums_delta(call);
  const int64_t num_sequences = static_cast<int64_t>(call.sequences().size());
  parallel_for(context, num_sequences * num_heads, [&](int64_t task, int) {
    compute_head(call, kernels, call.sequences()[static_cast<size_t>(task / num_heads)],
                 task % num_heads, stats);
  });
  // Results of 16 bits, and weights rounded to them, have larger errors.
  if (call.problem().dtype == DType::kF32 &&
      std::any_of(stats->lse.begin(), stats->lse.end(), is_large_lse)) {
    stats->factors.assign(stats->lse.size(), 1.0f);
    stats->weight_sums.assign(stats->lse.size(), 0.0);
  }
}

bool is_large_lse(float lse) {
  // Rounding lse and its product with log2(e) makes weights wrong by up to |lse| 2^-23: below, that
  // is about what the products and the exponential do.
  constexpr float kLarge = 16;
  return std::abs(lse) >= kLarge && !std::isinf(lse);
}

void find_sink_gradients(const AttentionCall& call, const RowStats& stats,
                         KeptList<double>* gradients) {
  for (const Sequence& sequence : call.sequences()) {
    for (int64_t head = 0; head < call.problem().num_heads; ++head) {
      const auto sink = static_cast<double>(element<float>(call.args().sink, {head}));
      const float* lse = stats.lse.data() + stats.index(sequence, head);
      const float* delta = stats.delta.data() + stats.index(sequence, head);
      const float* factors =
          stats.factors.empty() ? nullptr : stats.factors.data() + stats.index(sequence, head);
      double sum = 0;
      for (int64_t i = 0; i < sequence.seqlen_q && !std::isinf(sink); ++i) {
        const double factor = factors == nullptr ? 1 : static_cast<double>(factors[i]);
        const double weight = std::exp(sink - static_cast<double>(lse[i])) * factor;
        sum -= weight * static_cast<double>(delta[i]);
      }
      gradients->push_back(sum);
    }
  }
}

void pack_query_block(const AttentionCall& call, const OperandKernels& kernels,
                      const RowStats& stats, const AttentionPlan& plan, const Sequence& sequence,
                      int64_t head, int64_t m, char* destination) {
  const AttentionProblem& problem = call.problem();
  const AttentionArgs& args = call.args();
  const int64_t begin = m * plan.block_m;
  const int64_t end = std::min(begin + plan.block_m, sequence.seqlen_q);
  const Rows q = query_rows(args.q, sequence, head);
  const Rows dout = query_rows(args.dout, sequence, head);
  const float* lse = stats.lse.data() + stats.index(sequence, head);
  const variant::PositionMask position = call.mask().position(sequence, head);
  thread_local std::vector<void*> q_addresses;
  thread_local std::vector<void*> dout_addresses;
  visible_addresses(call, q, problem.dtype, problem.head_dim, head, lse, position, begin, end,
                    &q_addresses);
  visible_addresses(call, dout, args.dout.dtype, problem.head_dim_v, head, lse, position, begin,
                    end, &dout_addresses);
  uint8_t has_nonfinite = 0;
  PackRequest request{};
  request.first_rows = q_addresses.data();
  request.second_rows = dout_addresses.data();
  request.first_dtype = problem.dtype;
  request.second_dtype = args.dout.dtype;
  request.first_stride = element_stride(q, problem.dtype);
  request.second_stride = element_stride(dout, args.dout.dtype);
  request.num_rows = end - begin;
  request.block_rows = plan.block_m;
  request.head_dim = problem.head_dim;
  request.head_dim_v = problem.head_dim_v;
  request.destination = destination;
  request.has_nonfinite = &has_nonfinite;
  kernels.bwd_pack_queries(request);
}

}  // namespace flashtile::cpu
