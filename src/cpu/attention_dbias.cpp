// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_dbias.hpp"

#include <algorithm>

#include "core/element.hpp"
#include "core/executor.hpp"

namespace flashtile::cpu {

bool bias_gradient_is_shared(const AttentionArgs& args) {
  const int64_t num_heads = args.q.shape[static_cast<size_t>(args.q.ndim - 2)];
  const int64_t batch_size = args.cu_seqlens_q ? args.cu_seqlens_q.shape[0] - 1 : args.q.shape[0];
  return (args.dbias.shape[0] == 1 && batch_size > 1) ||
         (args.dbias.shape[1] == 1 && num_heads > 1);
}

DirectBiasGradient::DirectBiasGradient(const AttentionArgs& args, const Sequence& sequence,
                                       int64_t head, int64_t k_begin, int64_t k_end)
    : dtype_(args.dbias.dtype), k_begin_(k_begin) {
  if (!args.dbias || bias_gradient_is_shared(args)) return;
  rows_ = bias_rows(args.dbias, sequence, head);
  has_one_row_ = args.dbias.shape[2] == 1;
  if (has_one_row_) columns_.assign(static_cast<size_t>(k_end - k_begin), 0.0);
}

void DirectBiasGradient::fill(ScoreGradients* gradients) {
  if (!is_wanted()) return;
  if (has_one_row_) {
    gradients->bias_columns = columns_.data();
    return;
  }
  gradients->bias = rows_.data;
  gradients->bias_row_stride = rows_.row_stride;
  gradients->bias_key_stride = rows_.element_stride;
  gradients->bias_dtype = dtype_;
}

void DirectBiasGradient::store() const {
  for (size_t j = 0; j < columns_.size(); ++j) {
    const int64_t key = k_begin_ + static_cast<int64_t>(j);
    store_float(rows_.data + key * rows_.element_stride, dtype_, columns_[j]);
  }
}

namespace {

/// One block of stored key columns of one plane of a shared bias.
class SharedColumns {
 public:
  SharedColumns(const AttentionCall& call, const AttentionKernels& all_kernels,
                const OperandKernels& kernels, const AttentionPlan& plan, const BwdShape& shape,
                const RowStats& stats, int64_t plane_b, int64_t plane_h, int64_t column_block)
      : call_(call),
        kernels_(kernels),
        program_scratch_(call, all_kernels, 1),
        plan_(plan),
        shape_(shape),
        stats_(stats),
        dbias_(call.args().dbias),
        plane_b_(plane_b),
        plane_h_(plane_h),
        begin_(column_block * plan.block_n),
        end_(std::min(begin_ + plan.block_n, dbias_.shape[3])) {
    memory_.resize(static_cast<size_t>(shape.queries.block_bytes + shape.keys.block_bytes +
                                       shape.scratch_bytes + 64));
    tile_.assign(static_cast<size_t>(plan.block_m * plan.block_n), 0.0);
    run_.resize(1);
  }

  void run() {
    const bool has_one_row = dbias_.shape[2] == 1;
    const int64_t num_m = ceil_div(call_.problem().max_seqlen_q, plan_.block_m);
    for (int64_t m = 0; m < num_m; ++m) {
      if (!has_one_row) std::fill(tile_.begin(), tile_.end(), 0.0);
      for (const Sequence& sequence : call_.sequences()) {
        if (dbias_.shape[0] != 1 && sequence.batch_idx != plane_b_) continue;
        for (int64_t h = 0; h < call_.problem().num_heads; ++h) {
          if (dbias_.shape[1] == 1 || h == plane_h_) add(sequence, h, m, has_one_row);
        }
      }
      if (!has_one_row)
        store(m * plan_.block_m, std::min(plan_.block_m, dbias_.shape[2] - m * plan_.block_m));
    }
    if (has_one_row) store(0, 1);
  }

 private:
  /// Adds what query block m of one head contributes.
  void add(const Sequence& sequence, int64_t head, int64_t m, bool has_one_row) {
    const int64_t q_begin = m * plan_.block_m;
    const int64_t q_end = std::min(q_begin + plan_.block_m, sequence.seqlen_q);
    const int64_t k_begin = std::max<int64_t>(0, begin_ - sequence.leftpad);
    const int64_t k_end = std::min(end_ - sequence.leftpad, sequence.seqlen_k);
    if (q_begin >= q_end || k_begin >= k_end) return;
    HeadMask mask(call_.mask(), sequence, head);
    const HeadMask::Cover cover = mask.cover(q_begin, q_end, k_begin, k_end);
    if (cover == HeadMask::Cover::kNone) return;

    char* aligned = memory_.data() + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    char* query_memory = aligned;
    char* key_memory = query_memory + shape_.queries.block_bytes;
    const Pair pair{&sequence, head / call_.problem().group_size()};
    pack_query_block(call_, kernels_, stats_, plan_, sequence, head, m, query_memory);
    run_.front() = {m, m + 1, cover == HeadMask::Cover::kFull};
    const HeadRules rules(call_, sequence, head, mask);
    ScoreGradients gradients{};
    double* target = tile_.data() + (k_begin + sequence.leftpad - begin_);
    (has_one_row ? gradients.bias_columns : gradients.bias_tile) = target;
    gradients.bias_tile_ld = plan_.block_n;

    BwdBlock block = make_bwd_block(call_.problem(), shape_, stats_, sequence, head, rules, run_);
    block.q_blocks = query_memory - m * shape_.queries.block_bytes;
    block.k_block = key_memory;
    block.k_begin = k_begin;
    block.num_keys = k_end - k_begin;
    block.k_has_nonfinite =
        pack_keys(call_, kernels_.bwd_pack_keys, plan_.block_n, pair, k_begin, k_end, key_memory);
    block.gradients = &gradients;
    block.scratch = key_memory + shape_.keys.block_bytes;
    block.program_scratch = program_scratch_.of(0);
    kernels_.bwd_block(block);
  }

  void store(int64_t first_row, int64_t num_rows) const {
    for (int64_t i = 0; i < num_rows; ++i) {
      for (int64_t c = begin_; c < end_; ++c) {
        const double sum = tile_[static_cast<size_t>(i * plan_.block_n + c - begin_)];
        store_float(dbias_.at({plane_b_, plane_h_, first_row + i, c}), dbias_.dtype, sum);
      }
    }
  }

  const AttentionCall& call_;
  const OperandKernels& kernels_;
  ProgramScratch program_scratch_;
  const AttentionPlan& plan_;
  const BwdShape& shape_;
  const RowStats& stats_;
  const TensorView& dbias_;
  int64_t plane_b_, plane_h_;
  int64_t begin_, end_;  ///< stored key columns
  KeptList<char> memory_;
  KeptList<double> tile_;
  KeptList<BlockRun> run_;  ///< the one that is worked on
};

}  // namespace

void sum_shared_bias_gradient(const AttentionCall& call, const AttentionKernels& all_kernels,
                              const OperandKernels& kernels, const AttentionPlan& plan,
                              const BwdShape& shape, const RowStats& stats,
                              const Context& context) {
  const TensorView& dbias = call.args().dbias;
  const int64_t num_columns = ceil_div(dbias.shape[3], plan.block_n);
  const int64_t num_planes = dbias.shape[0] * dbias.shape[1];
  parallel_for(context, num_planes * num_columns, [&](int64_t task, int) {
    const int64_t plane = task / num_columns;
    SharedColumns(call, all_kernels, kernels, plan, shape, stats, plane / dbias.shape[1],
                  plane % dbias.shape[1], task % num_columns)
        .run();
  });
}

}  // namespace flashtile::cpu
