// SPDX-License-Identifier: Apache-2.0
//
// Gradients of a block of keys and values from operands in chunks: any head dim, float32 too. Rows
// of all accumulators are keys, so P' and dS' are operands as they stand.
#pragma once

#include "cuda/device/backward/backward_scores.cuh"
#include "cuda/device/backward/backward_stream.cuh"
#include "cuda/device/backward/query_vectors.cuh"

namespace flashtile::device {

template <class Config>
struct KeysState {
  BackwardState<Config> base;
  StreamViews views;
};

/// Query blocks of the heads that the state names.
template <class Config>
struct QuerySteps {
  const AttentionParams& params;
  const BackwardState<Config>& state;

  FLASHTILE_DEVICE bool holds(const StreamStep& step) const { return step.head < state.head_end; }
  FLASHTILE_DEVICE Cover cover(const StreamStep& step) const {
    return state.cover(params, step.head, step.block);
  }
  FLASHTILE_DEVICE bool asks(const StreamStep& step) const {
    return state.mapped_cover(params, step.head, step.block) != Cover::kFull;
  }
  /// The first step behind `step` of which something is seen.
  FLASHTILE_DEVICE StreamStep next(StreamStep step) const {
    do {
      if (++step.block >= state.blocks.end) {
        step.block = state.blocks.begin;
        ++step.head;
      }
    } while (Config::kHasBlockMap && holds(step) && cover(step) == Cover::kNone);
    return step;
  }
  FLASHTILE_DEVICE StreamStep first() const {
    if (state.blocks.end <= state.blocks.begin) return {state.head_end, 0};
    return next({state.head_begin, state.blocks.begin - 1});
  }
};

template <class ConfigOfKernel>
struct BackwardKeys {
  using Config = ConfigOfKernel;
  using Steps = QuerySteps<Config>;
  using Stream = BackwardStream<Config, Steps>;
  using State = KeysState<Config>;
  static_assert(sizeof(State) <= StreamShape::kStateBytes, "the state fits its place");
  static constexpr int kThreads = Stream::kThreads;

  FLASHTILE_DEVICE static State& state() {
    return *reinterpret_cast<State*>(shared_memory() + Stream::kShape.state_begin());
  }

  const AttentionParams& params;
  const BackwardParams& backward;
  ScoreRules<Config> rules;
  Steps steps;
  Stream stream;
  float dk[1][Config::kPartD / 8][4];
  float dv[1][Config::kPartV / 8][4];

  FLASHTILE_DEVICE BackwardKeys(const AttentionParams& p,
                                const typename Config::Expressions::Params& user,
                                const BackwardParams& b, int part)
      : params(p),
        backward(b),
        rules{p, user, state().base.sequence, state().base.position},
        steps{p, state().base},
        stream{state().views, steps, shared_address(shared_memory()), 0, state().base.first_key,
               part,          0} {}

  /// Fills the state; by one thread.
  FLASHTILE_DEVICE static void find(const AttentionParams& params,
                                    const typename Config::Expressions::Params& user,
                                    const BackwardParams& backward, int64 cta) {
    State& s = state();
    s.base.find(params, user, cta);
    if (s.base.num_keys == 0) return;
    const Sequence& sequence = s.base.sequence;
    s.views.row_first = RowsView::keys(params.k, sequence, s.base.head_kv, params.head_dim);
    s.views.row_second = RowsView::keys(params.v, sequence, s.base.head_kv, params.head_dim_v);
    s.views.col_first = RowsView::queries(params.q, sequence, params.head_dim);
    s.views.col_second = RowsView::queries(backward.dout, sequence, params.head_dim_v);
  }

  /// Of the step's lse, delta and ranges: steps take turns.
  FLASHTILE_DEVICE uint32 vectors(int parity) const {
    return stream.shared + static_cast<uint32>(Stream::kShape.vectors_begin() +
                                               parity * StreamShape::vector_bytes());
  }

  FLASHTILE_DEVICE void visit_blocks(bool is_careful) {
    constexpr int kItems = Stream::kNumChunks + Stream::kPiecesD + Stream::kPiecesV;
    int load_parity = 0;
    const auto on_step = [&](const StreamStep& step) {
      load_query_vectors<Config>(backward, state().base, step.head, step.block,
                                 steps.cover(step) == Cover::kFull, vectors(load_parity));
      load_parity ^= 1;
    };
    int parity = 0;
    StreamStep step = steps.first();
    stream.begin(step, kItems);
    FLASHTILE_NO_UNROLL
    for (; steps.holds(step); step = steps.next(step)) {
      typename Stream::Scores s;
      typename Stream::Scores dp = {};
      stream.multiply(s, dp, on_step);
      const BackwardScores<Config, 1, Stream::kCols> scores = {rules,
                                                               vectors(parity),
                                                               step.head,
                                                               step.block * Stream::kCols,
                                                               0,
                                                               state().base.first_key,
                                                               stream.first_warp_row(),
                                                               steps.asks(step)};
      parity ^= 1;
      scores.make_weights(s, dp);
      if (steps.cover(step) != Cover::kFull) scores.hide(s, dp);
      stream.template add_pieces<Stream::kPiecesD>(dk, dp, is_careful, on_step);
      stream.template add_pieces<Stream::kPiecesV>(dv, s, is_careful, on_step);
    }
    copy_async_wait<0>();
    sync_cta();
  }

  FLASHTILE_DEVICE void visit_heads(bool is_careful) {
    Stream::set_zero(dk);
    Stream::set_zero(dv);
    visit_blocks(is_careful);
    if constexpr (Config::kHeadsDiffer) {
      FLASHTILE_NO_UNROLL
      for (int head = 1; head < params.group_size; ++head) {
        if (thread_idx() == 0) state().base.find_next_head(params, rules.user);
        sync_cta();
        visit_blocks(is_careful);
      }
      if (thread_idx() == 0) state().base.find_first_head(params, rules.user);
      sync_cta();
    }
  }

  template <int kTiles>
  FLASHTILE_DEVICE void store(float (&acc)[1][kTiles][4], float factor, const RowsParam& rows,
                              int first_col, int num_cols) const {
    if (rows.data == nullptr || first_col >= num_cols) return;
    const BackwardState<Config>& s = state().base;
    const RowsView view = RowsView::keys(rows, s.sequence, s.head_kv, num_cols);
    stream.store(acc, factor, num_cols - first_col, rows.element_stride, [&](int row) -> char* {
      return row < s.num_keys ? view.row(0, s.first_key + row) + first_col * rows.element_stride
                              : nullptr;
    });
  }

  FLASHTILE_DEVICE void run() {
    stream.load_own_rows();
    FLASHTILE_NO_UNROLL
    for (int attempt = 0; attempt < 2; ++attempt) {
      visit_heads(/*is_careful=*/attempt == 1);
      if (!sync_cta_any(!(Stream::is_finite_tile(dk) && Stream::is_finite_tile(dv)))) break;
    }
    store(dk, params.softmax_scale, backward.dk, stream.part * Config::kPartD, params.head_dim);
    store(dv, Config::kHasDropout ? params.dropout.gain : 1.0f, backward.dv,
          stream.part * Config::kPartV, params.head_dim_v);
  }
};

}  // namespace flashtile::device
