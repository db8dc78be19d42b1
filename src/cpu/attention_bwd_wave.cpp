// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention_bwd_wave.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/count.hpp"
#include "core/element.hpp"
#include "core/executor.hpp"
#include "cpu/attention_dbias.hpp"
#include "ops/attention/finish.hpp"

namespace flashtile::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

BwdShape::BwdShape(const OperandKernels& kernels, const AttentionProblem& problem,
                   const AttentionPlan& plan)
    : queries(kernels.bwd_query_layout(plan.block_m, problem.head_dim, problem.head_dim_v)),
      keys(kernels.bwd_key_layout(plan.block_n, problem.head_dim, problem.head_dim_v)),
      block_m(plan.block_m),
      block_n(plan.block_n),
      group_size(problem.group_size()),
      num_splits(plan.num_splits),
      dq_ld(queries.ld[0]),
      dk_ld(queries.ld[0]),
      dv_ld(queries.ld[2]),
      kernel_bytes(kernels.bwd_scratch_bytes(plan.block_m, plan.block_n, problem.head_dim)) {
  WorkspaceCursor cursor;
  cursor.take<char>(kernel_bytes);
  cursor.take<float>(block_n * dk_ld);
  cursor.take<float>(block_n * dv_ld);
  scratch_bytes = cursor.used();
}

int64_t BwdShape::pair_bytes(int64_t seqlen_q, int64_t seqlen_k) const {
  const Count num_m = ceil_div(seqlen_q, block_m);
  const Count num_n = ceil_div(seqlen_k, block_n);
  const Count sums = Count(4) * num_splits * group_size * seqlen_q * dq_ld;
  const Count blocks = num_m * group_size * queries.block_bytes + num_n * (keys.block_bytes + 1);
  return (blocks + sums + 512).value("attention_bwd", "bytes of workspace");
}

BwdBlock make_bwd_block(const AttentionProblem& problem, const BwdShape& shape,
                        const RowStats& stats, const Sequence& sequence, int64_t head,
                        const HeadRules& rules, std::span<const BlockRun> runs) {
  BwdBlock block{};
  block.q_layout = shape.queries;
  block.block_m = shape.block_m;
  block.seqlen_q = sequence.seqlen_q;
  block.k_layout = shape.keys;
  block.block_n = shape.block_n;
  block.head_dim = problem.head_dim;
  block.head_dim_v = problem.head_dim_v;
  block.runs = runs.data();
  block.num_runs = static_cast<int64_t>(runs.size());
  block.rules = rules.get();
  block.lse = &stats.lse[stats.index(sequence, head)];
  if (!stats.factors.empty()) block.factors = &stats.factors[stats.index(sequence, head)];
  block.delta = &stats.delta[stats.index(sequence, head)];
  block.dq_ld = shape.dq_ld;
  block.dk_ld = shape.dk_ld;
  block.dv_ld = shape.dv_ld;
  return block;
}

BwdLaunch::BwdLaunch(const IsaEntry& isa, const AttentionCall& call, const AttentionPlan& plan,
                     const Context& context)
    : all_kernels_(*isa.kernels),
      kernels_(operands_of(isa, call.problem())),
      call_(call),
      problem_(call.problem()),
      args_(call.args()),
      plan_(plan),
      context_(context),
      shape_(kernels_, problem_, plan),
      num_workers_(num_workers_of(context)),
      capacity_(plan.bytes_for("attention_bwd", num_workers_)),
      program_scratch_(call, *isa.kernels, num_workers_),
      workspace_("attention_bwd", context, capacity_),
      daux_(problem_, plan, call.programs(), args_, workspace_.data()) {
  make_row_stats(call, *isa.kernels, context, &stats_);
  if (args_.dalibi_slopes) {
    const auto num_heads = static_cast<size_t>(problem_.batch_size * problem_.num_heads);
    dalibi_.assign(num_heads, 0.0);
    dalibi_parts_.assign(num_heads * static_cast<size_t>(plan.num_splits), 0.0);
  }
}

void BwdLaunch::run() {
  // Keys that no sequence covers and rows of padding have gradient 0; all others are stored.
  if (problem_.is_packed_q) fill_zero(args_.dq);
  if (problem_.is_packed_k || problem_.has_seqused || problem_.has_leftpad) {
    fill_zero(args_.dk);
    fill_zero(args_.dv);
  }
  fill_zero(args_.dbias);
  run_pairs();
  if (args_.dbias && bias_gradient_is_shared(args_)) {
    sum_shared_bias_gradient(call_, all_kernels_, kernels_, plan_, shape_, stats_, context_);
  }
  store_shared_gradients();
  daux_.store();
}

void BwdLaunch::run_pairs() {
  WorkspaceCursor cursor(workspace_.data());
  cursor.take<char>(AuxGradients::bytes(problem_, plan_.num_tasks));
  scratch_ = cursor.take<char>(num_workers_ * shape_.scratch_bytes);
  char* memory = workspace_.data() + cursor.used();
  PairOrder order;
  call_.order_pairs(num_workers_, &order);
  if (daux_.is_wanted()) {
    // Sums of aux tensors go over the pairs in their order.
    order.alone.clear();
    order.shared.resize(call_.pairs().size());
    std::iota(order.shared.begin(), order.shared.end(), size_t{0});
  }
  const int64_t pair_bytes =
      shape_.pair_bytes(problem_.max_seqlen_q, problem_.max_seqlen_k) / 64 * 64;
  run_in_waves<BwdMember>(
      context_, order, memory, pair_bytes, capacity_ - cursor.used(),
      [&](const KeptList<size_t>& pairs, size_t begin, size_t end, BwdWave* wave) {
        return make_wave(pairs, begin, end, wave);
      },
      [&](BwdWave& wave) { run_wave(wave); });
}

void BwdLaunch::run_wave(BwdWave& wave) {
  pack_wave(wave);
  if (stats_.sums_delta) sum_deltas(wave);
  if (!stats_.factors.empty()) find_factors(wave);
  run_splits(wave);
  store_wave(wave);
}

/// Takes pairs order[begin, end) until the memory is full; returns where the next wave begins.
size_t BwdLaunch::make_wave(const KeptList<size_t>& order, size_t begin, size_t end,
                            BwdWave* wave) {
  WorkspaceCursor cursor(wave->memory);
  wave->clear();
  for (; begin < end; ++begin) {
    const Pair& pair = call_.pairs()[order[begin]];
    const Sequence& s = *pair.sequence;
    if (cursor.used() + shape_.pair_bytes(s.seqlen_q, s.seqlen_k) / 64 * 64 > wave->capacity) {
      if (wave->members.empty()) fail_to_fit("attention_bwd");
      break;
    }
    BwdMember member;
    member.pair = pair;
    member.pair_idx = static_cast<int64_t>(order[begin]);
    member.num_m = ceil_div(s.seqlen_q, shape_.block_m);
    member.num_n = ceil_div(s.seqlen_k, shape_.block_n);
    for (int64_t g = 0; g < shape_.group_size; ++g) {
      wave->masks.emplace_back(call_.mask(), s, call_.head_of(pair, g));
    }
    member.q_blocks =
        cursor.take<char>(shape_.group_size * member.num_m * shape_.queries.block_bytes);
    member.k_blocks = cursor.take<char>(member.num_n * shape_.keys.block_bytes);
    member.k_has_nonfinite = cursor.take<uint8_t>(member.num_n);
    member.dq =
        cursor.take<float>(shape_.num_splits * shape_.group_size * s.seqlen_q * shape_.dq_ld);
    if (args_.dalibi_slopes) {
      const int64_t num_parts = shape_.num_splits * shape_.group_size;
      member.dalibi = dalibi_parts_.data() + member.pair_idx * num_parts;
    }
    wave->members.push_back(std::move(member));
  }
  wave->place_masks(shape_.group_size);
  return begin;
}

namespace {

/// Calls body(member, i, worker) for i < count(member) of each member, in parallel.
template <class Count, class Body>
void for_each_part(BwdWave& wave, const Count& count, const Body& body) {
  KeptList<BwdMember>& members = wave.members;
  KeptList<int64_t> first(members.size() + 1, 0);
  for (size_t n = 0; n < members.size(); ++n) first[n + 1] = first[n] + count(members[n]);
  parallel_for(wave.context, first.back(), [&](int64_t task, int worker) {
    const auto next = std::upper_bound(first.begin(), first.end(), task);
    const auto n = static_cast<size_t>(next - first.begin()) - 1;
    body(members[n], task - first[n], wave.first_worker + worker);
  });
}

}  // namespace

void BwdLaunch::pack_wave(BwdWave& wave) {
  const int64_t group = shape_.group_size;
  for_each_part(
      wave, [&](const BwdMember& member) { return group * member.num_m + member.num_n; },
      [&](BwdMember& member, int64_t part, int) {
        if (part < group * member.num_m) {
          const int64_t g = part / member.num_m;
          pack_query_block(call_, kernels_, stats_, plan_, *member.pair.sequence,
                           call_.head_of(member.pair, g), part % member.num_m,
                           member.q_blocks + part * shape_.queries.block_bytes);
          return;
        }
        const int64_t n = part - group * member.num_m;
        const int64_t begin = n * shape_.block_n;
        const int64_t end = std::min(begin + shape_.block_n, member.pair.sequence->seqlen_k);
        member.k_has_nonfinite[n] =
            pack_keys(call_, kernels_.bwd_pack_keys, plan_.block_n, member.pair, begin, end,
                      member.k_blocks + n * shape_.keys.block_bytes);
      });
}

void BwdLaunch::run_splits(BwdWave& wave) {
  if (!daux_.is_wanted()) {
    for_each_part(
        wave, [&](const BwdMember&) { return shape_.num_splits; },
        [&](BwdMember& member, int64_t split, int worker) { run_split(member, split, 0, worker); });
    return;
  }
  // Tasks that share sums of aux tensors run one after the other, in the order of the pairs.
  parallel_for(wave.context, daux_.num_slots(), [&](int64_t slot, int worker) {
    for (BwdMember& member : wave.members) {
      for (int64_t split = 0; split < shape_.num_splits; ++split) {
        const int64_t task = member.pair_idx * shape_.num_splits + split;
        if (task % daux_.num_slots() != slot) continue;
        run_split(member, split, slot, worker);
      }
    }
  });
}

void BwdLaunch::run_split(BwdMember& member, int64_t split, int64_t aux_slot, int worker) {
  std::fill_n(member.dq_of(shape_, split, 0),
              shape_.group_size * member.pair.sequence->seqlen_q * shape_.dq_ld, 0.0f);
  // Blocks are dealt out in turn: under a causal mask early ones have more queries.
  for (int64_t n = split; n < member.num_n; n += shape_.num_splits) {
    run_block(member, split, n, aux_slot, worker);
  }
}

void BwdLaunch::place_keys(const BwdMember& member, int64_t n, int worker, BwdBlock* block) {
  block->k_block = member.k_blocks + n * shape_.keys.block_bytes;
  block->k_begin = n * shape_.block_n;
  block->num_keys =
      std::min(block->k_begin + shape_.block_n, member.pair.sequence->seqlen_k) - block->k_begin;
  block->k_has_nonfinite = member.k_has_nonfinite[n] != 0;
  block->scratch = scratch_ + worker * shape_.scratch_bytes;
  block->program_scratch = program_scratch_.of(worker);
}

/// Calls the kernel for all keys of each query block of the wave that wants(sequence, head, m),
/// key block by key block in their order; fill(block, row) says what it sums, row being the index
/// of query 0.
template <class Wants, class Fill>
void BwdLaunch::go_over_keys(BwdWave& wave, const Wants& wants, const Fill& fill) {
  const int64_t group = shape_.group_size;
  for_each_part(
      wave, [&](const BwdMember& member) { return group * member.num_m; },
      [&](BwdMember& member, int64_t part, int worker) {
        const Sequence& sequence = *member.pair.sequence;
        const int64_t g = part / member.num_m;
        const int64_t m = part % member.num_m;
        const int64_t head = call_.head_of(member.pair, g);
        if (!wants(sequence, head, m)) return;
        HeadMask mask = member.masks[g];
        const int64_t q_begin = m * shape_.block_m;
        thread_local std::vector<BlockRun> key_runs;
        mask.key_runs(q_begin, std::min(q_begin + shape_.block_m, sequence.seqlen_q),
                      shape_.block_n, &key_runs);
        const HeadRules rules(call_, sequence, head, mask);
        thread_local std::vector<BlockRun> query_run(1);
        for (const BlockRun& run : key_runs) {
          query_run[0] = {m, m + 1, run.is_full};
          for (int64_t n = run.begin; n < run.end; ++n) {
            BwdBlock block =
                make_bwd_block(problem_, shape_, stats_, sequence, head, rules, query_run);
            block.q_blocks = member.q_block(shape_, g, 0);
            place_keys(member, n, worker, &block);
            fill(block, stats_.index(sequence, head));
            kernels_.bwd_block(block);
          }
        }
      });
}

/// Adds P dP of all keys to the deltas of the wave.
void BwdLaunch::sum_deltas(BwdWave& wave) {
  go_over_keys(
      wave, [](const Sequence&, int64_t, int64_t) { return true; },
      [&](BwdBlock& block, size_t row) { block.delta_sums = &stats_.delta[row]; });
}

/// Sums exp(s - lse) of the wave's rows with a large lse. What the sum lacks of 1, or has beyond
/// it, is the rounding of lse, where it is as small as that: in a call for a part of the keys, with
/// the lse of all, weights add up to less.
void BwdLaunch::find_factors(BwdWave& wave) {
  go_over_keys(
      wave,
      [&](const Sequence& sequence, int64_t head, int64_t m) {
        const float* lse = &stats_.lse[stats_.index(sequence, head)];
        const int64_t end = std::min((m + 1) * shape_.block_m, sequence.seqlen_q);
        return std::any_of(lse + m * shape_.block_m, lse + end, is_large_lse);
      },
      [&](BwdBlock& block, size_t row) { block.weight_sums = &stats_.weight_sums[row]; });
  for (const BwdMember& member : wave.members) {
    for (int64_t g = 0; g < shape_.group_size; ++g) {
      const int64_t head = call_.head_of(member.pair, g);
      const size_t first = stats_.index(*member.pair.sequence, head);
      const double sink =
          problem_.has_sink ? static_cast<double>(element<float>(args_.sink, {head})) : -kInfinity;
      for (size_t i = first; i < first + static_cast<size_t>(member.pair.sequence->seqlen_q); ++i) {
        if (!is_large_lse(stats_.lse[i])) continue;
        const auto lse = static_cast<double>(stats_.lse[i]);
        const double sum = stats_.weight_sums[i] + std::exp(sink - lse);
        if (std::abs(sum - 1) <= 0x1p-21 * std::abs(lse)) {
          stats_.factors[i] = static_cast<float>(1 / sum);
        }
      }
    }
  }
}

void BwdLaunch::run_block(BwdMember& member, int64_t split, int64_t n, int64_t aux_slot,
                          int worker) {
  const Sequence& sequence = *member.pair.sequence;
  const int64_t k_begin = n * shape_.block_n;
  const int64_t k_end = std::min(k_begin + shape_.block_n, sequence.seqlen_k);
  WorkspaceCursor cursor(scratch_ + worker * shape_.scratch_bytes);
  cursor.take<char>(shape_.kernel_bytes);
  auto* dk = cursor.take<float>(shape_.block_n * shape_.dk_ld);
  auto* dv = cursor.take<float>(shape_.block_n * shape_.dv_ld);
  std::fill_n(dk, shape_.block_n * shape_.dk_ld, 0.0f);
  std::fill_n(dv, shape_.block_n * shape_.dv_ld, 0.0f);
  thread_local std::vector<BlockRun> runs;
  for (int64_t g = 0; g < shape_.group_size; ++g) {
    const int64_t head = call_.head_of(member.pair, g);
    HeadMask mask = member.masks[g];
    mask.query_runs(k_begin, k_end, shape_.block_m, &runs);
    if (runs.empty()) continue;
    const HeadRules rules(call_, sequence, head, mask);
    DirectBiasGradient dbias(args_, sequence, head, k_begin, k_end);
    double dalibi = 0;
    ScoreGradients gradients{};
    dbias.fill(&gradients);
    if (args_.dalibi_slopes) gradients.alibi = &dalibi;
    daux_.fill(aux_slot, &gradients);
    const bool has_gradients = dbias.is_wanted() || bool(args_.dalibi_slopes) || daux_.is_wanted();

    BwdBlock block = make_bwd_block(problem_, shape_, stats_, sequence, head, rules, runs);
    block.q_blocks = member.q_block(shape_, g, 0);
    place_keys(member, n, worker, &block);
    block.dq = member.dq_of(shape_, split, g);
    block.dk = dk;
    block.dv = dv;
    block.gradients = has_gradients ? &gradients : nullptr;
    int64_t num_blocks = 0;
    for (const BlockRun& run : runs) num_blocks += run.end - run.begin;
    const int64_t query_bytes = shape_.queries.block_bytes + shape_.block_m * shape_.dq_ld * 4;
    block.fetches_queries = num_blocks * query_bytes > cpu_info().l2_bytes / 4 * 3;
    kernels_.bwd_block(block);
    dbias.store();
    if (args_.dalibi_slopes) {
      member.dalibi[split * shape_.group_size + g] += dalibi;
    }
  }
  store_keys(member, n, dk, dv);
}

void BwdLaunch::store_queries(const BwdMember& member, int64_t g, int64_t m) const {
  const Sequence& sequence = *member.pair.sequence;
  const Rows dq = query_rows(args_.dq, sequence, call_.head_of(member.pair, g));
  if (dq.data == nullptr) return;
  const int64_t begin = m * shape_.block_m;
  const int64_t end = std::min(begin + shape_.block_m, sequence.seqlen_q);
  thread_local std::vector<const float*> parts;
  parts.clear();
  for (int64_t split = 0; split < shape_.num_splits; ++split) {
    parts.push_back(member.dq_of(shape_, split, g) + begin * shape_.dq_ld);
  }
  thread_local std::vector<void*> rows;
  row_addresses(dq, begin, end, &rows);
  all_kernels_.store_rows({parts.data(), shape_.num_splits, shape_.dq_ld, end - begin,
                           problem_.head_dim, rows.data(), problem_.dtype,
                           element_stride(dq, problem_.dtype)});
}

void BwdLaunch::store_keys(const BwdMember& member, int64_t n, const float* dk,
                           const float* dv) const {
  const Sequence& sequence = *member.pair.sequence;
  const int64_t begin = n * shape_.block_n;
  const int64_t end = std::min(begin + shape_.block_n, sequence.seqlen_k);
  const auto store = [&](const TensorView& tensor, const float* sums, int64_t ld, int64_t dim) {
    const KeyRows target = key_rows(tensor, args_, sequence, member.pair.head_kv);
    if (target.data == nullptr) return;
    thread_local std::vector<void*> rows;
    row_addresses(target, begin, end, &rows);
    all_kernels_.store_rows({&sums, 1, ld, end - begin, dim, rows.data(), problem_.dtype,
                             element_stride(target, problem_.dtype)});
  };
  store(args_.dk, dk, shape_.dk_ld, problem_.head_dim);
  store(args_.dv, dv, shape_.dv_ld, problem_.head_dim_v);
}

void BwdLaunch::store_wave(BwdWave& wave) {
  const int64_t group = shape_.group_size;
  for_each_part(
      wave, [&](const BwdMember& member) { return group * member.num_m; },
      [&](BwdMember& member, int64_t part, int) {
        store_queries(member, part / member.num_m, part % member.num_m);
      });
  if (!args_.dalibi_slopes) return;
  for (const BwdMember& member : wave.members) {
    for (int64_t part = 0; part < shape_.num_splits * group; ++part) {
      const int64_t head = call_.head_of(member.pair, part % group);
      dalibi_[static_cast<size_t>(member.pair.sequence->batch_idx * problem_.num_heads + head)] +=
          member.dalibi[part];
    }
  }
}

/// Gradients that are one number for a head: slopes and sinks, summed over the batch in order.
void BwdLaunch::store_shared_gradients() {
  const auto store = [&](const TensorView& target, const KeptList<double>& sums) {
    if (!target) return;
    for (int64_t h = 0; h < problem_.num_heads; ++h) {
      double total = 0;
      for (int64_t b = 0; b < problem_.batch_size; ++b) {
        const double part = sums[static_cast<size_t>(b * problem_.num_heads + h)];
        total += part;
        if (target.ndim == 2) store_float(target.at({b, h}), target.dtype, part);
      }
      if (target.ndim == 1) store_float(target.at({h}), target.dtype, total);
    }
  };
  store(args_.dalibi_slopes, dalibi_);
  if (!args_.dsink) return;
  KeptList<double> dsink;
  find_sink_gradients(call_, stats_, &dsink);
  store(args_.dsink, dsink);
}

}  // namespace flashtile::cpu
