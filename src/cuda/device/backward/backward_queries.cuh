// SPDX-License-Identifier: Apache-2.0
//
// What one block of queries gives, from operands in chunks: delta as the sum of P dP (exact where
// `out` is rounded), dq without atomics, and the gradients of slopes and aux tensors. Rows of all
// accumulators are queries.
//
// Keys are visited once for delta, if it is wanted here, and once more for the rest.
#pragma once

#include "cuda/device/backward/aux_gradients.cuh"
#include "cuda/device/backward/backward_stream.cuh"
#include "cuda/device/backward/query_scores.cuh"
#include "cuda/device/epilogue/lanes.cuh"

namespace flashtile::device {

template <class Config>
struct QueriesState {
  Sequence sequence;
  variant::PositionMask position;
  KeyBlocks<kStreamBlock> blocks;
  StreamViews views;
  int64 padded_row;  ///< of query 0
  int head, m_block;
  bool is_empty;

  /// Fills the state of CTA `cta` (parts are neighbours); by one thread.
  FLASHTILE_DEVICE void find(const AttentionParams& params,
                             const typename Config::Expressions::Params& user,
                             const BackwardParams& backward, int64 cta) {
    const uint32 num_blocks = static_cast<uint32>(params.grid.num_m_blocks);
    const uint32 heads = static_cast<uint32>(params.num_heads);
    const uint32 pair = static_cast<uint32>(cta) / num_blocks;
    // Those with the most keys start first.
    m_block = static_cast<int>(num_blocks - 1 - static_cast<uint32>(cta) % num_blocks);
    head = static_cast<int>(pair % heads);
    find(params, user, backward, static_cast<int>(pair / heads), head, m_block);
  }

  FLASHTILE_DEVICE void find(const AttentionParams& params,
                             const typename Config::Expressions::Params& user,
                             const BackwardParams& backward, int batch_idx, int head_idx,
                             int block) {
    head = head_idx;
    m_block = block;
    sequence = load_sequence(params, batch_idx);
    const int first = m_block * kStreamBlock;
    is_empty = first >= sequence.seqlen_q;
    if (is_empty) return;
    padded_row = device::padded_row(params, sequence);
    position = find_position_mask<Config>(params, user, sequence, head);
    const int last =
        first + kStreamBlock < sequence.seqlen_q ? first + kStreamBlock - 1 : sequence.seqlen_q - 1;
    const uint32* map = Config::kHasBlockMap ? map_row(params.blocks, batch_idx, head, m_block,
                                                       params.grid.num_m_blocks)
                                             : nullptr;
    blocks = KeyBlocks<kStreamBlock>(position, first, last, map);
    const int head_kv = head / params.group_size;
    views.row_first = RowsView::queries(params.q, sequence, params.head_dim);
    views.row_second = RowsView::queries(backward.dout, sequence, params.head_dim_v);
    views.col_first = RowsView::keys(params.k, sequence, head_kv, params.head_dim);
    views.col_second = RowsView::keys(params.v, sequence, head_kv, params.head_dim_v);
  }
};

/// Key blocks of a block of queries.
struct KeySteps {
  const KeyBlocks<kStreamBlock>& blocks;

  FLASHTILE_DEVICE bool holds(const StreamStep& step) const { return blocks.holds(step.block); }
  FLASHTILE_DEVICE StreamStep next(const StreamStep& step) const {
    return {0, blocks.before(step.block)};
  }
  FLASHTILE_DEVICE StreamStep first() const { return {0, blocks.before(blocks.end)}; }
};

template <class ConfigOfKernel>
struct BackwardQueries {
  using Config = ConfigOfKernel;
  using Expressions = typename Config::Expressions;
  using Stream = BackwardStream<Config, KeySteps>;
  using State = QueriesState<Config>;
  using Scores = typename Stream::Scores;
  static_assert(sizeof(State) <= StreamShape::kStateBytes, "the state fits its place");
  static constexpr int kThreads = Stream::kThreads;
  static constexpr bool kSumsAux = Config::kAuxSums != AuxSums::kNone;
  static constexpr bool kVisitsTwice = Config::kWantsDq || Config::kWantsSlopes || kSumsAux;

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + Stream::kShape.state_begin());
  }

  const AttentionParams& params;
  const BackwardParams& backward;
  const AuxGradientParams& aux;
  ScoreRules<Config> rules;
  KeySteps steps;
  Stream stream;
  QueryScores<Config> scores;
  float slope_sum = 0.0f;
  float dq[1][Config::kPartD / 8][4];

  FLASHTILE_DEVICE BackwardQueries(const AttentionParams& p,
                                   const typename Expressions::Params& user,
                                   const BackwardParams& b, const AuxGradientParams& a, int part)
      : params(p),
        backward(b),
        aux(a),
        rules{p, user, state().sequence, state().position},
        steps{state().blocks},
        stream{state().views,
               steps,
               shared_address(shared_memory()),
               state().head,
               state().m_block * kStreamBlock,
               part,
               0},
        scores(rules, state().head, state().m_block * kStreamBlock + stream.first_warp_row()) {
    scores.load(backward, state().padded_row);
  }

  FLASHTILE_DEVICE bool hides(int n_block) const {
    return state().blocks.cover(n_block) != Cover::kFull;
  }

  FLASHTILE_DEVICE bool asks(int n_block) const {
    return state().blocks.mapped_cover(n_block) != Cover::kFull;
  }

  /// Delta of the lane's rows: the sum over all keys, less dlse.
  FLASHTILE_DEVICE void find_delta() {
    const auto nothing = [](const StreamStep&) {};
    float sums[2] = {};
    StreamStep step = steps.first();
    stream.begin(step, Stream::kNumChunks);
    FLASHTILE_NO_UNROLL
    for (; steps.holds(step); step = steps.next(step)) {
      Scores s;
      Scores dp = {};
      stream.multiply(s, dp, nothing);
      scores.for_each_pair(s, dp, step.block * Stream::kCols, hides(step.block), asks(step.block),
                           [&](int half, int, float, const PairGradient& pair) {
                             sums[half] = fused_multiply_add(pair.weight, pair.dweight, sums[half]);
                             return 0.0f;
                           });
    }
    copy_async_wait<0>();
    sync_cta();
    FLASHTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      sums[half] += shuffle_xor(sums[half], 1);
      sums[half] += shuffle_xor(sums[half], 2);
      const int q_idx = scores.clamped_query(half);
      if (backward.dlse.data != nullptr) {
        sums[half] -=
            load_global(query_scalar(backward.dlse, state().sequence, q_idx, scores.head));
      }
      scores.delta[half] = sums[half];
      if (lane_idx() % 4 == 0 && scores.is_there(half) && stream.part == 0) {
        backward.delta[scores.head * backward.padded_rows + state().padded_row + q_idx] =
            sums[half];
      }
    }
  }

  /// What a pair gives to slopes and aux tensors; `product` is q . k.
  FLASHTILE_DEVICE void add_score_gradients(float product, float dlogit, int q_idx, int k_idx) {
    if constexpr (Config::kWantsSlopes) {
      const int64 distance = q_idx + state().sequence.query_offset - k_idx;
      slope_sum = fused_multiply_add(dlogit, -absolute(static_cast<float>(distance)), slope_sum);
    }
    if constexpr (kSumsAux) {
      float derivative;
      Expressions::gradients(rules.user, rules.pair(scores.head, q_idx, k_idx),
                             rules.user_input(product, derivative),
                             AuxSink<Config::kAuxSums>{aux, dlogit});
    }
  }

  FLASHTILE_DEVICE void visit_keys(bool is_careful) {
    const auto nothing = [](const StreamStep&) {};
    Stream::set_zero(dq);
    StreamStep step = steps.first();
    stream.begin(step, Stream::kNumChunks + (Config::kWantsDq ? Stream::kPiecesD : 0));
    FLASHTILE_NO_UNROLL
    for (; steps.holds(step); step = steps.next(step)) {
      Scores s;
      Scores dp = {};
      stream.multiply(s, dp, nothing);
      scores.for_each_pair(s, dp, step.block * Stream::kCols, hides(step.block), asks(step.block),
                           [&](int half, int key, float product, const PairGradient& pair) {
                             const float dlogit = scores.dlogit(half, pair);
                             if constexpr (Config::kWantsSlopes || kSumsAux) {
                               // Once, though results have parts and attempts.
                               if (pair.is_seen && stream.part == 0 && !is_careful) {
                                 add_score_gradients(product, dlogit, scores.clamped_query(half),
                                                     key);
                               }
                             }
                             return pair.is_seen ? dlogit * pair.derivative : 0.0f;
                           });
      if constexpr (Config::kWantsDq) {
        stream.template add_pieces<Stream::kPiecesD>(dq, dp, is_careful, nothing);
      }
    }
    copy_async_wait<0>();
    sync_cta();
  }

  /// A warp's part of the gradient of the head's slope.
  FLASHTILE_DEVICE void write_slope() {
    const float sum = sum_of_lanes(slope_sum);
    const State& s = state();
    const int64 row = static_cast<int64>(s.sequence.batch_idx) * params.num_heads + s.head;
    const int64 part =
        (row * params.grid.num_m_blocks + s.m_block) * StreamShape::num_warps() + warp_idx();
    if (lane_idx() == 0 && stream.part == 0) backward.slope_parts[part] = sum;
  }

  FLASHTILE_DEVICE void store_dq() {
    const int first_col = stream.part * Config::kPartD;
    if (first_col >= params.head_dim) return;
    const RowsView view = RowsView::queries(backward.dq, state().sequence, params.head_dim);
    stream.store(dq, params.softmax_scale, params.head_dim - first_col, view.element_stride,
                 [&](int row) -> char* {
                   return stream.first_row + row < view.num_rows
                              ? view.row(scores.head, stream.first_row + row) +
                                    first_col * view.element_stride
                              : nullptr;
                 });
  }

  FLASHTILE_DEVICE void run() {
    stream.load_own_rows();
    if constexpr (Config::kFindsDelta) find_delta();
    if constexpr (kVisitsTwice) {
      FLASHTILE_NO_UNROLL
      for (int attempt = 0; attempt < 2; ++attempt) {
        visit_keys(/*is_careful=*/attempt == 1);
        if (!Config::kWantsDq || !sync_cta_any(!Stream::is_finite_tile(dq))) break;
      }
      if constexpr (Config::kWantsSlopes) write_slope();
      if constexpr (Config::kWantsDq) store_dq();
    }
  }
};

}  // namespace flashtile::device
