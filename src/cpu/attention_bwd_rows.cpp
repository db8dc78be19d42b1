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

constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
      call.problem().has_sink ? element<float>(call.args().sink, {head}) : -kInfinity;
  out->clear();
  for (int64_t i = begin; i < end; ++i) {
    const variant::KeyRange keys = position.keys(i);
    bool is_empty = keys.begin >= keys.end || lse[i] == -kInfinity;
    if (!is_empty && lse[i] == sink) {
      is_empty = !is_finite_row(rows.row(i), dim, dtype, rows.element_stride);
    }
    out->push_back(is_empty ? nullptr : rows.row(i));
  }
}

/// lse, delta and the sink's gradient of one head.
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
  const variant::PositionMask position = call.mask().position(sequence, head);
  std::vector<void*> dout_addresses;
  std::vector<void*> out_addresses;
  visible_addresses(call, dout, args.dout.dtype, call.problem().head_dim_v, head, lse, position, 0,
                    sequence.seqlen_q, &dout_addresses);
  row_addresses(out, 0, sequence.seqlen_q, &out_addresses);
  kernels.row_dots(dout_addresses.data(), args.dout.dtype, element_stride(dout, args.dout.dtype),
                   out_addresses.data(), args.out.dtype, element_stride(out, args.out.dtype),
                   sequence.seqlen_q, call.problem().head_dim_v, delta);
  double dsink = 0;
  const double sink = call.problem().has_sink
                          ? static_cast<double>(element<float>(args.sink, {head}))
                          : -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
    if (dlse.data != nullptr && lse[i] != -kInfinity) delta[i] -= dlse.element<float>(i);
    if (!std::isinf(sink)) {
      dsink -= std::exp(sink - static_cast<double>(lse[i])) * static_cast<double>(delta[i]);
    }
  }
  stats->dsink[static_cast<size_t>(sequence.batch_idx * call.problem().num_heads + head)] = dsink;
}

}  // namespace

RowStats make_row_stats(const AttentionCall& call, const AttentionKernels& kernels,
                        const Context& context) {
  const int64_t num_heads = call.problem().num_heads;
  RowStats stats;
  int64_t num_rows = 0;
  for (const Sequence& sequence : call.sequences()) {
    stats.first_row.push_back(num_rows);
    num_rows += num_heads * sequence.seqlen_q;
  }
  stats.lse.resize(static_cast<size_t>(num_rows) + 1);
  stats.delta.resize(static_cast<size_t>(num_rows) + 1);
  const int64_t num_sequences = static_cast<int64_t>(call.sequences().size());
  stats.dsink.assign(static_cast<size_t>(num_sequences * num_heads), 0.0);
  parallel_for(context, num_sequences * num_heads, [&](int64_t task, int) {
    compute_head(call, kernels, call.sequences()[static_cast<size_t>(task / num_heads)],
                 task % num_heads, &stats);
  });
  return stats;
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
  std::vector<void*> q_addresses;
  std::vector<void*> dout_addresses;
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

bool pack_keys(const AttentionCall& call, const OperandKernels& kernels, const AttentionPlan& plan,
               const Pair& pair, int64_t begin, int64_t end, char* destination) {
  const AttentionProblem& problem = call.problem();
  const AttentionArgs& args = call.args();
  const KeyRows k = key_rows(args.k, args, *pair.sequence, pair.head_kv);
  const KeyRows v = key_rows(args.v, args, *pair.sequence, pair.head_kv);
  std::vector<void*> k_addresses;
  std::vector<void*> v_addresses;
  row_addresses(k, begin, end, &k_addresses);
  row_addresses(v, begin, end, &v_addresses);
  uint8_t has_nonfinite = 0;
  PackRequest request{};
  request.first_rows = k_addresses.data();
  request.second_rows = v_addresses.data();
  request.first_dtype = request.second_dtype = problem.dtype;
  request.first_stride = element_stride(k, problem.dtype);
  request.second_stride = element_stride(v, problem.dtype);
  request.num_rows = end - begin;
  request.block_rows = plan.block_n;
  request.head_dim = problem.head_dim;
  request.head_dim_v = problem.head_dim_v;
  request.destination = destination;
  request.has_nonfinite = &has_nonfinite;
  kernels.bwd_pack_keys(request);
  return has_nonfinite != 0;
}

}  // namespace flashtile::cpu
