// SPDX-License-Identifier: Apache-2.0
//
// Forward on the CPU. A pair (sequence, kv head) belongs to one worker, which packs its key blocks
// and works on its query blocks; or, where there are few pairs, they go through in waves that all
// workers share: first the key blocks of a wave are packed, then each (pair, head of its group,
// query block) is a task. Which way it goes depends on the workers; what is computed for a query
// block does not. Where a call has few query blocks, each goes through several tasks, a split of
// the keys each, whose results are joined as those of attention_merge.
#include <algorithm>
#include <limits>

#include "core/count.hpp"
#include "core/element.hpp"
#include "core/executor.hpp"
#include "cpu/attention_call.hpp"
#include "cpu/attention_decode.hpp"
#include "cpu/attention_merge.hpp"
#include "cpu/pair_waves.hpp"
#include "ops/attention/finish.hpp"

namespace flashtile::cpu {
namespace {

/// K and V of a key block may fill one half of the second cache; scores, queries and sums of a
/// query block the other. With `batch_invariant` it is a tile of decoding.
int64_t block_n_for(const AttentionProblem& problem) {
  constexpr int64_t kLarge = 128;
  if (problem.batch_invariant) return kDecodeKeys;
  const int64_t bytes = kLarge * (problem.head_dim + problem.head_dim_v) * 4;
  return bytes <= cpu_info().l2_bytes / 2 ? kLarge : kLarge / 2;
}

/// Scores of a tile fill the first cache at most.
int64_t block_m_for(const AttentionProblem& problem, int64_t block_n) {
  const int64_t scores = kBlockM * block_n * 4;
  const int64_t others = kBlockM * (problem.head_dim + problem.head_dim_v) * 4;
  const bool fits = scores <= cpu_info().l1d_bytes && scores + others <= cpu_info().l2_bytes / 2;
  return fits ? kBlockM : kBlockM / 2;
}

/// Splits of the keys, by the sizes of the problem alone: results do not depend on the workers.
int64_t num_splits_for(const AttentionProblem& problem, int64_t num_query_blocks) {
  constexpr int64_t kLeastTasks = 8;
  constexpr int64_t kLeastKeys = 1024;  // of a split
  if (problem.batch_invariant || problem.wants_weights || num_query_blocks == 0) return 1;
  return std::max<int64_t>(
      1, std::min(ceil_div(kLeastTasks, num_query_blocks), problem.max_seqlen_k / kLeastKeys));
}

/// What one split gives for a query block: rows of float32, and lse.
struct BlockPart {
  BlockPart(const AttentionProblem& problem, const AttentionPlan& plan, char* memory) {
    WorkspaceCursor cursor(memory);
    out = cursor.take<float>(plan.block_m * problem.head_dim_v);
    lse = cursor.take<float>(plan.block_m);
    bytes = cursor.used();
  }

  float* out;
  float* lse;
  int64_t bytes;
};

class ForwardLaunch {
 public:
  ForwardLaunch(const IsaEntry& isa, const AttentionProblem& problem, const AttentionPlan& plan,
                const AttentionArgs& args, const Context& context)
      : problem_(problem),
        args_(args),
        plan_(plan),
        kernels_(operands_of(isa, problem)),
        isa_(isa),
        call_(problem, plan, args),
        context_(with_workers_for(call_.work(), context)),
        layout_(kernels_.fwd_key_layout(plan.block_n, problem.head_dim, problem.head_dim_v)),
        num_workers_(num_workers_of(context_)),
        scratch_bytes_(kernels_.fwd_scratch_bytes(plan.block_m, plan.block_n, problem.head_dim,
                                                  problem.head_dim_v)),
        pair_bytes_((plan.worker_bytes - scratch_bytes_) / 64 * 64),
        part_bytes_(BlockPart(problem, plan, nullptr).bytes),
        capacity_(plan.bytes_for("attention_fwd", num_workers_)),
        program_scratch_(call_, *isa.kernels, num_workers_),
        workspace_("attention_fwd", context, capacity_) {
    max_logit_.assign(call_.pairs().size() * static_cast<size_t>(problem.group_size()),
                      -std::numeric_limits<float>::infinity());
  }

  void run() {
    fill_debug_outputs(problem_, args_, call_.sequences());
    fill_uncovered_rows(problem_, args_);
    WorkspaceCursor cursor(workspace_.data());
    scratch_ = cursor.take<char>(num_workers_ * scratch_bytes_);
    if (plan_.num_splits > 1) parts_ = cursor.take<char>(plan_.num_tasks * part_bytes_);
    char* memory = workspace_.data() + cursor.used();
    PairOrder order;
    call_.order_pairs(num_workers_, &order);
    run_in_waves<Member>(
        context_, order, memory, pair_bytes_, capacity_ - cursor.used(),
        [&](const KeptList<size_t>& pairs, size_t begin, size_t end, Wave* wave) {
          return make_wave(pairs, begin, end, wave);
        },
        [&](Wave& wave) { run_wave(wave); });
    if (args_.max_logit) store_max_logit();
    call_.check_index_errors();
  }

 private:
  /// A pair of the wave: its masks by head, and where its packed keys are.
  struct Member {
    Pair pair;
    size_t pair_idx = 0;
    const HeadMask* masks = nullptr;  ///< by head of the group
    int64_t first_block = 0;          ///< blocks before it are seen by nobody and are not packed
    int64_t num_blocks = 0;
    char* blocks = nullptr;
    uint8_t* v_has_nonfinite = nullptr;
    int64_t first_pack_task = 0;
    int64_t first_task = 0;
  };

  using Wave = PairWave<Member>;

  /// A query block of one head.
  struct Block {
    int64_t group_head, head, index, q_begin, q_end;
  };

  size_t make_wave(const KeptList<size_t>& order, size_t begin, size_t end, Wave* wave) const;
  void run_wave(Wave& wave);
  void pack_wave(const Wave& wave) const;
  void pack_block(const Member& member, int64_t block) const;
  void attend_wave(Wave& wave);
  void store_max_logit() const;
  int64_t num_query_blocks(const Member& member) const {
    return ceil_div(member.pair.sequence->seqlen_q, plan_.block_m);
  }
  int64_t num_tasks_of(const Member& member) const {
    return problem_.group_size() * num_query_blocks(member) * plan_.num_splits;
  }
  Block block_of(const Member& member, int64_t number) const;
  BlockPart part_of(const Member& member, const Block& block, int64_t split) const;
  void keep_split(const Member& member, int64_t split, std::vector<BlockRun>* runs) const;
  void attend_block(Member& member, int64_t task, int worker, float* max_logit);
  void join_block(const Member& member, int64_t number) const;

  const AttentionProblem& problem_;
  const AttentionArgs& args_;
  const AttentionPlan& plan_;
  const OperandKernels& kernels_;
  const IsaEntry& isa_;
  AttentionCall call_;
  Context context_;
  BlockLayout layout_;
  int64_t num_workers_;
  int64_t scratch_bytes_;  ///< of a worker
  int64_t pair_bytes_;     ///< of the packed keys of the longest pair, and room to align them
  int64_t part_bytes_;     ///< of what a split gives for a query block
  int64_t capacity_;
  ProgramScratch program_scratch_;
  Workspace workspace_;
  KeptList<float> max_logit_;  ///< by pair and head of its group
  char* scratch_ = nullptr;
  char* parts_ = nullptr;  ///< where keys are split: by pair, head of its group, query block, split
};

/// Takes pairs order[begin, end) until the memory is full; returns where the next wave begins.
size_t ForwardLaunch::make_wave(const KeptList<size_t>& order, size_t begin, size_t end,
                                Wave* wave) const {
  WorkspaceCursor cursor(wave->memory);
  wave->clear();
  int64_t num_pack_tasks = 0;
  int64_t num_tasks = 0;
  for (; begin < end; ++begin) {
    const size_t pair_idx = order[begin];
    Member member{call_.pairs()[pair_idx], pair_idx, nullptr, 0, 0, nullptr, nullptr,
                  num_pack_tasks,          num_tasks};
    const Sequence& sequence = *member.pair.sequence;
    int64_t k_begin = sequence.seqlen_k;
    int64_t k_end = 0;
    const size_t first_mask = wave->masks.size();
    for (int64_t g = 0; g < problem_.group_size(); ++g) {
      wave->masks.emplace_back(call_.mask(), sequence, call_.head_of(member.pair, g));
      const variant::KeyRange range = wave->masks.back().key_range();
      k_begin = std::min<int64_t>(k_begin, range.begin);
      k_end = std::max<int64_t>(k_end, range.end);
    }
    member.first_block = k_begin / plan_.block_n;
    member.num_blocks = std::max<int64_t>(0, ceil_div(k_end, plan_.block_n) - member.first_block);
    const int64_t bytes = member.num_blocks * layout_.block_bytes + member.num_blocks + 128;
    if (cursor.used() + bytes > wave->capacity) {
      if (wave->members.empty()) fail_to_fit("attention_fwd");
      wave->masks.erase(wave->masks.begin() + static_cast<std::ptrdiff_t>(first_mask),
                        wave->masks.end());
      break;
    }
    member.blocks = cursor.take<char>(member.num_blocks * layout_.block_bytes);
    member.v_has_nonfinite = cursor.take<uint8_t>(member.num_blocks);
    num_pack_tasks += member.num_blocks;
    num_tasks += num_tasks_of(member);
    wave->members.push_back(member);
  }
  wave->place_masks(problem_.group_size());
  return begin;
}

void ForwardLaunch::run_wave(Wave& wave) {
  pack_wave(wave);
  attend_wave(wave);
}

void ForwardLaunch::pack_block(const Member& member, int64_t block) const {
  const int64_t begin = (member.first_block + block) * plan_.block_n;
  const int64_t end = std::min(begin + plan_.block_n, member.pair.sequence->seqlen_k);
  member.v_has_nonfinite[block] =
      pack_keys(call_, kernels_.fwd_pack_keys, plan_.block_n, member.pair, begin, end,
                member.blocks + block * layout_.block_bytes);
}

/// The member of the wave that a task belongs to.
template <class Members, class First>
auto& member_of(Members& wave, int64_t task, First first) {
  const auto next =
      std::upper_bound(wave.begin(), wave.end(), task,
                       [&](int64_t value, const auto& member) { return value < member.*first; });
  return *(next - 1);
}

void ForwardLaunch::pack_wave(const Wave& wave) const {
  int64_t num_tasks = 0;
  for (const Member& member : wave.members) num_tasks += member.num_blocks;
  parallel_for(wave.context, num_tasks, [&](int64_t task, int) {
    const Member& member = member_of(wave.members, task, &Member::first_pack_task);
    pack_block(member, task - member.first_pack_task);
  });
}

ForwardLaunch::Block ForwardLaunch::block_of(const Member& member, int64_t number) const {
  const int64_t num_m = num_query_blocks(member);
  const int64_t g = number / num_m;
  // The last query blocks see the most keys under a causal mask: they go first.
  const int64_t m = num_m - 1 - number % num_m;
  const int64_t q_begin = m * plan_.block_m;
  return {g, call_.head_of(member.pair, g), m, q_begin,
          std::min(q_begin + plan_.block_m, member.pair.sequence->seqlen_q)};
}

BlockPart ForwardLaunch::part_of(const Member& member, const Block& block, int64_t split) const {
  const int64_t max_blocks = ceil_div(problem_.max_seqlen_q, plan_.block_m);
  const int64_t head =
      static_cast<int64_t>(member.pair_idx) * problem_.group_size() + block.group_head;
  const int64_t index = (head * max_blocks + block.index) * plan_.num_splits + split;
  return {problem_, plan_, parts_ + index * part_bytes_};
}

/// Leaves the part of the runs that lies in a split of the pair's key blocks.
void ForwardLaunch::keep_split(const Member& member, int64_t split,
                               std::vector<BlockRun>* runs) const {
  const auto boundary = [&](int64_t i) {
    return member.first_block + member.num_blocks * i / plan_.num_splits;
  };
  const int64_t begin = boundary(split);
  const int64_t end = boundary(split + 1);
  for (BlockRun& run : *runs) {
    run.begin = std::max<int64_t>(run.begin, begin);
    run.end = std::clamp<int64_t>(run.end, run.begin, std::max<int64_t>(run.begin, end));
  }
}

void ForwardLaunch::attend_block(Member& member, int64_t task, int worker, float* max_logit) {
  const Sequence& sequence = *member.pair.sequence;
  const int64_t split = task % plan_.num_splits;
  const Block place = block_of(member, task / plan_.num_splits);
  const int64_t head = place.head, q_begin = place.q_begin, q_end = place.q_end;
  HeadMask mask = member.masks[place.group_head];
  thread_local std::vector<BlockRun> runs;
  mask.key_runs(q_begin, q_end, plan_.block_n, &runs);

  const Rows q = query_rows(args_.q, sequence, head);
  const Rows out = query_rows(args_.out, sequence, head);
  thread_local std::vector<void*> q_addresses;
  thread_local std::vector<void*> out_addresses;
  row_addresses(q, q_begin, q_end, &q_addresses);
  std::array<float, kBlockM> lse;
  float* block_lse = lse.data();
  const bool is_part = plan_.num_splits > 1;
  if (is_part) {
    keep_split(member, split, &runs);
    const BlockPart part = part_of(member, place, split);
    block_lse = part.lse;
    out_addresses.clear();
    for (int64_t i = 0; i < q_end - q_begin; ++i) {
      out_addresses.push_back(part.out + i * problem_.head_dim_v);
    }
  } else {
    row_addresses(out, q_begin, q_end, &out_addresses);
  }
  const HeadRules rules(call_, sequence, head, mask);
  // Blocks are numbered from key 0, whichever the first packed one is.
  const PackedKeys keys{sequence.seqlen_k, plan_.block_n,
                        member.blocks - member.first_block * layout_.block_bytes, layout_,
                        member.v_has_nonfinite - member.first_block};
  FwdBlock block{};
  block.q_rows = q_addresses.data();
  block.q_dtype = problem_.dtype;
  block.q_stride = element_stride(q, problem_.dtype);
  block.q_begin = q_begin;
  block.num_rows = q_end - q_begin;
  block.head_dim = problem_.head_dim;
  block.head_dim_v = problem_.head_dim_v;
  block.keys = &keys;
  block.runs = runs.data();
  block.num_runs = static_cast<int64_t>(runs.size());
  int64_t num_blocks = 0;
  for (const BlockRun& run : runs) num_blocks += run.end - run.begin;
  block.fetches_keys = num_blocks * layout_.block_bytes > cpu_info().l2_bytes / 4 * 3;
  block.rules = rules.get();
  block.sink = problem_.has_sink && split == 0 ? element<float>(args_.sink, {head})
                                               : -std::numeric_limits<float>::infinity();
  block.out_rows = out_addresses.data();
  block.out_dtype = is_part ? DType::kF32 : args_.out.dtype;
  block.out_stride = is_part ? 1 : element_stride(out, args_.out.dtype);
  block.lse = block_lse;
  block.max_logit = max_logit;
  const Rows weights = weight_rows(args_.weights, sequence, head);
  if (weights.data != nullptr) {
    block.weights = weights.data + sequence.leftpad * weights.element_stride;
    block.weights_row_stride = weights.row_stride;
    block.weights_key_stride = weights.element_stride;
  }
  block.scratch = scratch_ + worker * scratch_bytes_;
  block.program_scratch = program_scratch_.of(worker);
  kernels_.fwd_block(block);
  const Rows lse_out = lse_rows(args_.lse, sequence, head);
  if (is_part || lse_out.data == nullptr) return;
  for (int64_t i = q_begin; i < q_end; ++i) {
    lse_out.element<float>(i) = lse[static_cast<size_t>(i - q_begin)];
  }
}

void ForwardLaunch::attend_wave(Wave& wave) {
  int64_t num_tasks = 0;
  for (const Member& member : wave.members) num_tasks += num_tasks_of(member);
  KeptList<float> max_logit;
  max_logit.resize(static_cast<size_t>(num_tasks));
  parallel_for(wave.context, num_tasks, [&](int64_t task, int worker) {
    Member& member = member_of(wave.members, task, &Member::first_task);
    attend_block(member, task - member.first_task, wave.first_worker + worker,
                 &max_logit[static_cast<size_t>(task)]);
  });
  if (plan_.num_splits > 1) {
    parallel_for(wave.context, num_tasks / plan_.num_splits, [&](int64_t number, int) {
      const Member& member =
          member_of(wave.members, number * plan_.num_splits, &Member::first_task);
      join_block(member, number - member.first_task / plan_.num_splits);
    });
  }
  const auto group = static_cast<size_t>(problem_.group_size());
  for (const Member& member : wave.members) {
    const int64_t head_tasks = num_query_blocks(member) * plan_.num_splits;
    for (int64_t task = 0; task < problem_.group_size() * head_tasks; ++task) {
      float& highest = max_logit_[member.pair_idx * group + static_cast<size_t>(task / head_tasks)];
      highest = std::max(highest, max_logit[static_cast<size_t>(member.first_task + task)]);
    }
  }
}

/// Joins what the splits of a query block give, row by row.
void ForwardLaunch::join_block(const Member& member, int64_t number) const {
  const Sequence& sequence = *member.pair.sequence;
  const Block block = block_of(member, number);
  const BlockPart first = part_of(member, block, 0);
  const Rows out = query_rows(args_.out, sequence, block.head);
  const Rows lse = lse_rows(args_.lse, sequence, block.head);
  MergeProblem joined;
  joined.dtype = joined.lse_dtype = joined.out_lse_dtype = DType::kF32;
  joined.out_dtype = args_.out.dtype;
  joined.num_parts = plan_.num_splits;
  joined.head_dim_v = problem_.head_dim_v;
  MergeRow row;
  row.part_step = row.lse_step = part_bytes_;
  row.part_stride = dtype_bytes(DType::kF32);
  row.out_stride = out.element_stride;
  for (int64_t i = 0; i < block.q_end - block.q_begin; ++i) {
    row.part = reinterpret_cast<const char*>(first.out + i * problem_.head_dim_v);
    row.lse_part = reinterpret_cast<const char*>(first.lse + i);
    row.out = out.row(block.q_begin + i);
    if (lse.data != nullptr) row.lse = lse.row(block.q_begin + i);
    join_row(isa_, joined, row);
  }
}

void ForwardLaunch::store_max_logit() const {
  const auto num_heads = static_cast<size_t>(problem_.num_heads);
  for (size_t h = 0; h < num_heads; ++h) {
    float highest = -std::numeric_limits<float>::infinity();
    for (size_t at = h; at < max_logit_.size(); at += num_heads) {
      highest = std::max(highest, max_logit_[at]);
    }
    *reinterpret_cast<float*>(args_.max_logit.at({static_cast<int64_t>(h)})) = highest;
  }
}

}  // namespace

AttentionPlan plan_attention_fwd(const IsaEntry& isa, const AttentionProblem& problem) {
  if (takes_decode(problem)) return plan_attention_decode(isa, problem);
  const OperandKernels& kernels = operands_of(isa, problem);
  AttentionPlan plan;
  plan.implementation = isa.forward_name;
  plan.details = std::make_shared<const KeptVariants>();
  plan.block_n = std::min(block_n_for(problem), whole_columns(problem.max_seqlen_k));
  plan.block_m = block_m_for(problem, plan.block_n);
  const int64_t num_query_blocks =
      (Count(problem.batch_size) * problem.num_heads * ceil_div(problem.max_seqlen_q, plan.block_m))
          .value("attention_fwd", "tasks");
  plan.num_splits = num_splits_for(problem, num_query_blocks);
  plan.num_tasks = num_query_blocks * plan.num_splits;
  const BlockLayout layout =
      kernels.fwd_key_layout(plan.block_n, problem.head_dim, problem.head_dim_v);
  const Count num_blocks = ceil_div(problem.max_seqlen_k, plan.block_n);
  const Count pair_bytes = num_blocks * (layout.block_bytes + 1) + 256;
  plan.workspace_bytes = kExtraBytes;
  if (plan.num_splits > 1) {
    plan.workspace_bytes += plan.num_tasks * BlockPart(problem, plan, nullptr).bytes;
  }
  plan.worker_bytes = (pair_bytes + kernels.fwd_scratch_bytes(plan.block_m, plan.block_n,
                                                              problem.head_dim, problem.head_dim_v))
                          .value("attention_fwd", "bytes of workspace");
  return plan;
}

void launch_attention_fwd(const IsaEntry& isa, const AttentionProblem& problem,
                          const AttentionPlan& plan, const AttentionArgs& args,
                          const Context& context) {
  if (plan.is_decode) {
    launch_attention_decode(isa, problem, plan, args, context);
    return;
  }
  ForwardLaunch(isa, problem, plan, args, context).run();
}

}  // namespace flashtile::cpu
