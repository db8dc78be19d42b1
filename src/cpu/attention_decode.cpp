// SPDX-License-Identifier: Apache-2.0
//
// Decoding on the CPU: few queries, many keys, each of which is read once, where it lies.
//
// The keys of a sequence are cut into splits of kSplitKeys. A task works on one split for some kv
// heads, tile by tile: where heads lie side by side in memory, a tile of all of them is one stretch
// of it, which is read in order. Sums of a split stay undivided; a second pass joins them in order.
// A split always begins at a multiple of kSplitKeys of its own sequence, so what a sequence gives
// depends on nothing else: not on the batch, pages, threads, nor on which heads share a task. With
// `batch_invariant` there is one split, whose tiles are summed as a prefill sums its key blocks.
#include "cpu/attention_decode.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

#include "core/count.hpp"
#include "core/element.hpp"
#include "core/executor.hpp"
#include "ops/attention/finish.hpp"

namespace flashtile::cpu {
namespace {

constexpr int64_t kSplitKeys = 512;
constexpr int64_t kMaxQueries = 16;
constexpr int64_t kMaxRows = 16;                    ///< of a group; with more, packing pays
constexpr int64_t kGroupBytes = int64_t{64} << 10;  ///< 16 keys of all heads of a task
constexpr int64_t kTaskRows = 64;  ///< of all heads of a task: their scores stay in L1

int64_t rows_of_group(const AttentionProblem& problem) {
  return problem.group_size() * problem.max_seqlen_q;
}

/// Keys of a split.
int64_t split_keys(const AttentionProblem& problem) {
  return problem.batch_invariant ? std::max<int64_t>(kSplitKeys, problem.max_seqlen_k) : kSplitKeys;
}

/// The kernels that a problem is decoded with: over bf16 pairs for bf16 queries where there are
/// any.
const DecodeKernels& decode_kernels(const IsaEntry& isa, const AttentionProblem& problem) {
  const bool is_paired = problem.dtype == DType::kBF16 && isa.decode_pairs != nullptr;
  return is_paired ? *isa.decode_pairs : isa.serving->decode;
}

/// Bytes of a group's sums over one split.
int64_t part_bytes(const IsaEntry& isa, const AttentionProblem& problem) {
  const int64_t rows = rows_of_group(problem);
  WorkspaceCursor cursor;
  cursor.take<float>(rows * decode_kernels(isa, problem).decode_ld(problem.head_dim_v));
  cursor.take<float>(rows);
  for (int i = 0; i < 2; ++i) cursor.take<float>(rows * kMaxLanes);
  return cursor.used();
}

/// True where the elements of a row of k or v do not lie next to each other. Then a task copies
/// them tile by tile.
bool is_scattered(const AttentionProblem& problem) {
  const auto is_contiguous = [](const TensorLayout& layout) {
    const auto last = static_cast<size_t>(layout.ndim - 1);
    return layout.strides[last] == 1 || layout.shape[last] == 1;
  };
  return !is_contiguous(problem.k) || !is_contiguous(problem.v);
}

/// Bytes of a worker: scratch of a tile, and queries of the heads of a task.
int64_t worker_bytes(const IsaEntry& isa, const AttentionProblem& problem, int64_t num_heads_kv) {
  const int64_t rows = rows_of_group(problem);
  WorkspaceCursor cursor;
  cursor.take<char>(
      decode_kernels(isa, problem)
          .decode_scratch_bytes(num_heads_kv, rows, problem.head_dim, problem.head_dim_v));
  cursor.take<float>(num_heads_kv * rows *
                     decode_kernels(isa, problem).decode_ld(problem.head_dim));
  if (is_scattered(problem)) {
    cursor.take<char>(2 * kDecodeKeys * (problem.head_dim + problem.head_dim_v) *
                      dtype_bytes(problem.k.dtype));
  }
  if (problem.is_quantised) cursor.take<float>(2 * num_heads_kv * kDecodeKeys);
  return cursor.used();
}

/// Distance of neighbouring heads of k or v, in bytes.
int64_t head_stride(const TensorView& tensor) {
  return tensor.strides[static_cast<size_t>(tensor.ndim - 2)] * dtype_bytes(tensor.dtype);
}

/// kv heads of a task at most: as many as the cache has room for, where heads lie side by side.
int64_t max_task_heads(const AttentionProblem& problem) {
  // Distance of neighbours in a dimension counted from the last.
  const auto stride = [](const TensorLayout& layout, int from_last) {
    return std::abs(layout.strides[static_cast<size_t>(layout.ndim - from_last)]);
  };
  if (stride(problem.k, 2) > stride(problem.k, 3) || is_scattered(problem)) return 1;
  const int64_t head_bytes =
      16 * std::max(problem.head_dim, problem.head_dim_v) * dtype_bytes(problem.k.dtype);
  const int64_t by_rows = kTaskRows / std::max<int64_t>(1, rows_of_group(problem));
  return std::clamp<int64_t>(std::min(kGroupBytes / head_bytes, by_rows), 1, problem.num_heads_kv);
}

/// The state of rows that have seen no key.
void set_empty(const DecodeState& state, int64_t rows) {
  std::fill_n(state.row_max, rows, -std::numeric_limits<float>::infinity());
  std::fill_n(state.row_sums, rows * kMaxLanes, 0.0f);
  std::fill_n(state.row_tops, rows * kMaxLanes, -std::numeric_limits<float>::infinity());
}

class DecodeLaunch {
 public:
  DecodeLaunch(const IsaEntry& isa, const AttentionProblem& problem, const AttentionPlan& plan,
               const AttentionArgs& args, const Context& context)
      : kernels_(decode_kernels(isa, problem)),
        problem_(problem),
        args_(args),
        call_(problem, plan, args),
        context_(with_workers_for(call_.work(), context)),
        split_keys_(split_keys(problem)),
        part_bytes_(part_bytes(isa, problem)),
        q_ld_(kernels_.decode_ld(problem.head_dim)),
        out_ld_(kernels_.decode_ld(problem.head_dim_v)),
        num_workers_(num_workers_of(context_)),
        worker_bytes_(plan.worker_bytes),
        has_own_rules_(problem.has_alibi || problem.has_block_list || problem.dropout.is_on ||
                       bool(args.bias)),
        workspace_("attention_fwd", context, plan.bytes_for("attention_fwd", num_workers_)) {}

  void run();

 private:
  /// One split of one sequence for kv heads [head_begin, head_end).
  struct Task {
    const Sequence* sequence;
    int64_t split;
    int64_t head_begin, head_end;
  };
  /// The rules of the heads of a task: one for all, or one each.
  struct TaskRules {
    std::array<std::optional<HeadMask>, static_cast<size_t>(kTaskRows)> masks;
    std::array<std::optional<HeadRules>, static_cast<size_t>(kTaskRows)> rules;
    size_t count = 0;
  };
  /// Rows of the keys of a tile for the first kv head of a task.
  struct TileRows {
    std::array<const char*, kDecodeKeys> k, v;
    int64_t num_keys = 0;
  };

  int64_t num_splits(const Sequence& sequence) const {
    return ceil_div(sequence.seqlen_k, split_keys_);
  }
  DecodeState part(const Sequence& sequence, int64_t head_kv, int64_t split) const;
  void make_tasks();
  void attend(const Task& task, const Task* then, char* memory) const;
  void load_queries(const Task& task, float* q) const;
  DecodeTile make_tile(const Task& task) const;
  void find_first_rows(const Task& task, TileRows* rows) const;
  void make_rules(const Task& task, TaskRules* rules) const;
  void find_rows(const Task& task, int64_t k_begin, int64_t k_end, char* copies,
                 TileRows* rows) const;
  void find_scales(const Task& task, const TensorView& scales, const TensorView& tensor,
                   int64_t k_begin, int64_t num_keys, float* by_head) const;
  bool cover_tile(TaskRules& rules, const Task& task, int64_t k_begin, int64_t k_end,
                  std::vector<TileCover>* cover, std::vector<DecodeHead>* heads) const;
  void finish(const Pair& pair, float* max_logit) const;

  const DecodeKernels& kernels_;
  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  AttentionCall call_;
  Context context_;
  int64_t split_keys_, part_bytes_, q_ld_, out_ld_, num_workers_, worker_bytes_;
  bool has_own_rules_;  ///< heads differ in their rules
  Workspace workspace_;
  char* parts_ = nullptr;
  KeptList<Task> tasks_;
};

DecodeState DecodeLaunch::part(const Sequence& sequence, int64_t head_kv, int64_t split) const {
  const int64_t max_splits = ceil_div(problem_.max_seqlen_k, split_keys_);
  const int64_t index = (sequence.batch_idx * problem_.num_heads_kv + head_kv) * max_splits + split;
  const int64_t rows = rows_of_group(problem_);
  WorkspaceCursor cursor(parts_ + index * part_bytes_);
  auto* out = cursor.take<float>(rows * out_ld_);
  auto* row_max = cursor.take<float>(rows);
  auto* row_sums = cursor.take<float>(rows * kMaxLanes);
  return {out, row_max, row_sums, cursor.take<float>(rows * kMaxLanes)};
}

void DecodeLaunch::make_tasks() {
  int64_t num_splits_in_all = 0;
  for (const Sequence& sequence : call_.sequences()) num_splits_in_all += num_splits(sequence);
  // Which heads share a task changes no bits, so that it may depend on the workers.
  int64_t heads = max_task_heads(problem_);
  while (heads > 1 &&
         num_splits_in_all * ceil_div(problem_.num_heads_kv, heads) < 4 * num_workers_) {
    heads = ceil_div(heads, 2);
  }
  for (const Sequence& sequence : call_.sequences()) {
    if (sequence.seqlen_q == 0) continue;
    for (int64_t split = 0; split < num_splits(sequence); ++split) {
      for (int64_t head = 0; head < problem_.num_heads_kv; head += heads) {
        tasks_.push_back({&sequence, split, head, std::min(head + heads, problem_.num_heads_kv)});
      }
    }
  }
}

void DecodeLaunch::make_rules(const Task& task, TaskRules* rules) const {
  const int64_t group = problem_.group_size();
  const int64_t count = has_own_rules_ ? (task.head_end - task.head_begin) * group : 1;
  rules->count = static_cast<size_t>(count);
  for (size_t i = 0; i < rules->count; ++i) {
    const int64_t head = task.head_begin * group + static_cast<int64_t>(i);
    rules->masks[i].emplace(call_.mask(), *task.sequence, head);
    rules->rules[i].emplace(call_, *task.sequence, head, *rules->masks[i]);
  }
}

void DecodeLaunch::find_rows(const Task& task, int64_t k_begin, int64_t k_end, char* copies,
                             TileRows* rows) const {
  const KeyRows k = key_rows(args_.k, args_, *task.sequence, task.head_begin);
  const KeyRows v = key_rows(args_.v, args_, *task.sequence, task.head_begin);
  rows->num_keys = std::max<int64_t>(0, k_end - k_begin);
  k.addresses(k_begin, k_begin + rows->num_keys, rows->k.data());
  v.addresses(k_begin, k_begin + rows->num_keys, rows->v.data());
  if (copies == nullptr) return;
  const auto bytes = static_cast<size_t>(dtype_bytes(problem_.k.dtype));
  const auto copy = [&](const char** row, int64_t stride, int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) {
      std::memcpy(copies + static_cast<size_t>(d) * bytes, *row + d * stride, bytes);
    }
    *row = copies;
    copies += static_cast<size_t>(dim) * bytes;
  };
  for (size_t j = 0; j < static_cast<size_t>(rows->num_keys); ++j) {
    copy(&rows->k[j], k.element_stride, problem_.head_dim);
    copy(&rows->v[j], v.element_stride, problem_.head_dim_v);
  }
}

/// The scales of a tile's keys, (heads of the task, kDecodeKeys); 1 behind its end.
void DecodeLaunch::find_scales(const Task& task, const TensorView& scales, const TensorView& tensor,
                               int64_t k_begin, int64_t num_keys, float* by_head) const {
  for (int64_t head = task.head_begin; head < task.head_end; ++head, by_head += kDecodeKeys) {
    const KeyScales of_head = key_scales(scales, tensor, args_, *task.sequence, head);
    std::fill_n(by_head, kDecodeKeys, 1.0f);
    for (int64_t j = 0; j < num_keys; ++j) by_head[j] = of_head.of(k_begin + j);
  }
}

/// What heads see of a tile; false when none sees anything.
bool DecodeLaunch::cover_tile(TaskRules& rules, const Task& task, int64_t k_begin, int64_t k_end,
                              std::vector<TileCover>* cover, std::vector<DecodeHead>* heads) const {
  const auto group = static_cast<size_t>(problem_.group_size());
  bool is_seen = false;
  for (DecodeHead& head : *heads) head.is_seen = false;
  TileCover covered = TileCover::kNone;
  for (size_t i = 0; i < cover->size(); ++i) {
    if (i < rules.count) {
      const HeadMask::Cover seen =
          rules.masks[i]->cover(0, task.sequence->seqlen_q, k_begin, k_end);
      covered = seen == HeadMask::Cover::kNone   ? TileCover::kNone
                : seen == HeadMask::Cover::kPart ? TileCover::kPart
                                                 : TileCover::kFull;
    }
    (*cover)[i] = covered;
    if (covered == TileCover::kNone) continue;
    (*heads)[i / group].is_seen = true;
    is_seen = true;
  }
  return is_seen;
}

/// Queries of the heads of a task, (heads, rows of a group, q_ld).
void DecodeLaunch::load_queries(const Task& task, float* q) const {
  const Sequence& sequence = *task.sequence;
  const int64_t group = problem_.group_size();
  thread_local std::vector<const void*> addresses;
  addresses.clear();
  for (int64_t h = task.head_begin * group; h < task.head_end * group; ++h) {
    const Rows queries = query_rows(args_.q, sequence, h);
    for (int64_t i = 0; i < sequence.seqlen_q; ++i) addresses.push_back(queries.row(i));
  }
  const Rows queries = query_rows(args_.q, sequence, 0);
  kernels_.decode_queries({addresses.data(), problem_.dtype,
                           element_stride(queries, problem_.dtype),
                           static_cast<int64_t>(addresses.size()), problem_.head_dim, q, q_ld_});
}

/// What all tiles of a task have in common but their memory.
DecodeTile DecodeLaunch::make_tile(const Task& task) const {
  DecodeTile tile{};
  tile.k_head_stride = head_stride(args_.k);
  tile.v_head_stride = head_stride(args_.v);
  tile.dtype = problem_.k.dtype;
  tile.head_dim = problem_.head_dim;
  tile.head_dim_v = problem_.head_dim_v;
  tile.q_ld = q_ld_;
  tile.out_ld = out_ld_;
  tile.seqlen_q = task.sequence->seqlen_q;
  tile.group_size = problem_.group_size();
  tile.num_heads = task.head_end - task.head_begin;
  return tile;
}

/// Rows of a task's first tile, to be fetched.
void DecodeLaunch::find_first_rows(const Task& task, TileRows* rows) const {
  const int64_t begin = task.split * split_keys_;
  find_rows(task, begin, std::min(begin + kDecodeKeys, task.sequence->seqlen_k), nullptr, rows);
}

/// `then` is what this worker may do next: its first keys are fetched at the end.
void DecodeLaunch::attend(const Task& task, const Task* then, char* memory) const {
  const Sequence& sequence = *task.sequence;
  const int64_t group = problem_.group_size();
  const int64_t rows = group * sequence.seqlen_q;
  const int64_t heads = task.head_end - task.head_begin;
  WorkspaceCursor cursor(memory);
  char* scratch = cursor.take<char>(kernels_.decode_scratch_bytes(
      heads, rows_of_group(problem_), problem_.head_dim, problem_.head_dim_v));
  auto* q = cursor.take<float>(heads * rows * q_ld_);
  load_queries(task, q);
  TaskRules rules;
  make_rules(task, &rules);
  thread_local std::vector<TileCover> cover;
  thread_local std::vector<const ScoreRules*> head_rules;
  thread_local std::vector<DecodeHead> tile_heads;
  cover.assign(static_cast<size_t>(heads * group), TileCover::kNone);
  head_rules.clear();
  tile_heads.resize(static_cast<size_t>(heads));
  for (int64_t i = 0; i < heads * group; ++i) {
    head_rules.push_back(rules.rules[static_cast<size_t>(has_own_rules_ ? i : 0)]->get());
  }
  for (int64_t n = 0; n < heads; ++n) {
    tile_heads[static_cast<size_t>(n)] = {false,
                                          true,
                                          q + n * rows * q_ld_,
                                          &head_rules[static_cast<size_t>(n * group)],
                                          &cover[static_cast<size_t>(n * group)],
                                          part(sequence, task.head_begin + n, task.split)};
  }
  const int64_t begin = task.split * split_keys_;
  const int64_t end = std::min(begin + split_keys_, sequence.seqlen_k);
  TileRows now, next;
  const int64_t copy_bytes =
      kDecodeKeys * (problem_.head_dim + problem_.head_dim_v) * dtype_bytes(problem_.k.dtype);
  char* copies = is_scattered(problem_) ? cursor.take<char>(2 * copy_bytes) : nullptr;
  const auto copies_of = [&](int64_t k_begin) {
    return copies == nullptr ? nullptr : copies + k_begin / kDecodeKeys % 2 * copy_bytes;
  };
  float* k_scales = problem_.is_quantised ? cursor.take<float>(heads * kDecodeKeys) : nullptr;
  float* v_scales = problem_.is_quantised ? cursor.take<float>(heads * kDecodeKeys) : nullptr;
  DecodeTile tile = make_tile(task);
  tile.heads = tile_heads.data();
  tile.k_scales = k_scales;
  tile.v_scales = v_scales;
  tile.scratch = scratch;
  find_rows(task, begin, std::min(begin + kDecodeKeys, end), copies_of(begin), &next);
  for (int64_t k_begin = begin; k_begin < end; k_begin += kDecodeKeys) {
    now = next;
    const int64_t k_end = k_begin + now.num_keys;
    const int64_t next_end = std::min(k_end + kDecodeKeys, end);
    find_rows(task, k_end, next_end, copies_of(k_begin + kDecodeKeys), &next);
    if (k_end == end && then != nullptr && copies == nullptr) find_first_rows(*then, &next);
    if (!cover_tile(rules, task, k_begin, k_end, &cover, &tile_heads)) continue;
    if (problem_.is_quantised) {
      find_scales(task, args_.k_scale, args_.k, k_begin, now.num_keys, k_scales);
      find_scales(task, args_.v_scale, args_.v, k_begin, now.num_keys, v_scales);
    }
    tile.k_rows = now.k.data();
    tile.v_rows = now.v.data();
    const TileRows& behind = next.num_keys > 0 ? next : now;
    tile.next_k_rows = behind.k.data();
    tile.next_v_rows = behind.v.data();
    tile.num_next = behind.num_keys;
    tile.k_begin = k_begin;
    tile.num_keys = now.num_keys;
    kernels_.decode_tile(tile);
    for (DecodeHead& head : tile_heads) head.is_first = head.is_first && !head.is_seen;
  }
  for (const DecodeHead& head : tile_heads) {
    if (head.is_first) set_empty(head.state, rows);
  }
}

void DecodeLaunch::finish(const Pair& pair, float* max_logit) const {
  const Sequence& sequence = *pair.sequence;
  const int64_t group = problem_.group_size();
  const auto rows = static_cast<size_t>(group * sequence.seqlen_q);
  if (rows == 0) return;
  thread_local std::vector<DecodeState> parts;
  thread_local std::vector<void*> out_rows;
  thread_local std::vector<float> sinks, lse, highest;
  parts.clear();
  out_rows.clear();
  sinks.clear();
  lse.resize(rows);
  highest.resize(rows);
  for (int64_t split = 0; split < num_splits(sequence); ++split) {
    parts.push_back(part(sequence, pair.head_kv, split));
  }
  for (int64_t g = 0; g < group; ++g) {
    const int64_t head = call_.head_of(pair, g);
    const Rows out = query_rows(args_.out, sequence, head);
    for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
      out_rows.push_back(out.row(i));
      if (problem_.has_sink) sinks.push_back(element<float>(args_.sink, {head}));
    }
  }
  const bool is_log2 = !problem_.softcap && !args_.bias;
  const Rows out = query_rows(args_.out, sequence, 0);
  kernels_.decode_finish(
      {parts.data(), static_cast<int64_t>(parts.size()), static_cast<int64_t>(rows),
       problem_.head_dim_v, out_ld_, is_log2 ? 0.69314718055994531f : 1.0f,
       problem_.dropout.is_on ? static_cast<float>(problem_.dropout.gain) : 1.0f,
       problem_.has_sink ? sinks.data() : nullptr, out_rows.data(), args_.out.dtype,
       element_stride(out, args_.out.dtype), lse.data(), highest.data()});
  for (int64_t g = 0; g < group; ++g) {
    const Rows lse_out = lse_rows(args_.lse, sequence, call_.head_of(pair, g));
    for (int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const auto row = static_cast<size_t>(g * sequence.seqlen_q + i);
      if (lse_out.data != nullptr) lse_out.element<float>(i) = lse[row];
      max_logit[g] = std::max(max_logit[g], highest[row]);
    }
  }
}

void DecodeLaunch::run() {
  fill_debug_outputs(problem_, args_, call_.sequences());
  fill_uncovered_rows(problem_, args_);
  WorkspaceCursor cursor(workspace_.data());
  char* memory = cursor.take<char>(num_workers_ * worker_bytes_);
  parts_ = memory + cursor.used();
  make_tasks();
  const auto num_tasks = static_cast<int64_t>(tasks_.size());
  parallel_for(context_, num_tasks, [&](int64_t task, int worker) {
    // Tasks take about the same time, so that workers take turns.
    const int64_t then = task + num_workers_;
    attend(tasks_[static_cast<size_t>(task)],
           then < num_tasks ? &tasks_[static_cast<size_t>(then)] : nullptr,
           memory + worker * worker_bytes_);
  });
  const KeptList<Pair>& pairs = call_.pairs();
  const int64_t group = problem_.group_size();
  KeptList<float> max_logit(pairs.size() * static_cast<size_t>(group),
                            -std::numeric_limits<float>::infinity());
  parallel_for(context_, static_cast<int64_t>(pairs.size()), [&](int64_t n, int) {
    finish(pairs[static_cast<size_t>(n)], &max_logit[static_cast<size_t>(n * group)]);
  });
  if (!args_.max_logit) return;
  for (int64_t h = 0; h < problem_.num_heads; ++h) {
    float highest = -std::numeric_limits<float>::infinity();
    for (size_t at = static_cast<size_t>(h); at < max_logit.size();
         at += static_cast<size_t>(problem_.num_heads)) {
      highest = std::max(highest, max_logit[at]);
    }
    *reinterpret_cast<float*>(args_.max_logit.at({h})) = highest;
  }
}

}  // namespace

bool takes_decode(const AttentionProblem& problem) {
  return problem.max_seqlen_q <= kMaxQueries && problem.group_size() <= kMaxRows &&
         rows_of_group(problem) <= kMaxRows && problem.user_score.empty() &&
         problem.user_mask.empty() && !problem.wants_weights &&
         !(problem.batch_invariant && problem.is_quantised);
}

AttentionPlan plan_attention_decode(const IsaEntry& isa, const AttentionProblem& problem) {
  AttentionPlan plan;
  plan.implementation = isa.forward_name;
  plan.details = std::make_shared<const KeptVariants>();
  plan.is_decode = true;
  plan.block_m = rows_of_group(problem);
  plan.block_n = kDecodeKeys;
  plan.num_splits = std::max<int64_t>(1, ceil_div(problem.max_seqlen_k, split_keys(problem)));
  const int64_t task_heads = max_task_heads(problem);
  plan.num_tasks =
      (Count(problem.batch_size) * plan.num_splits * ceil_div(problem.num_heads_kv, task_heads))
          .value("attention_fwd", "tasks");
  plan.workspace_bytes = (Count(problem.batch_size) * problem.num_heads_kv * plan.num_splits *
                          part_bytes(isa, problem))
                             .value("attention_fwd", "bytes of workspace");
  plan.worker_bytes = worker_bytes(isa, problem, task_heads);
  return plan;
}

void launch_attention_decode(const IsaEntry& isa, const AttentionProblem& problem,
                             const AttentionPlan& plan, const AttentionArgs& args,
                             const Context& context) {
  DecodeLaunch(isa, problem, plan, args, context).run();
}

}  // namespace flashtile::cpu
