// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_fwd_sm90_plan.hpp"

#include <algorithm>
#include <memory>

#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "cuda/plan/user_expressions.hpp"

namespace flashtile::cuda {
namespace {

using device::Sm90Reference;

constexpr int64_t kMaxHeadDim = 256;
/// Columns of values that a tile sums: registers of a warpgroup for 64 rows.
constexpr int64_t kMostColumns = 256;
/// Positions and their sums with a diagonal are 32-bit integers in the kernel.
constexpr int64_t kMaxSeqlen = (int64_t{1} << 30) - 512;
constexpr int64_t kMib = int64_t{1} << 20;
/// With the kernel's other arguments in 4 KiB.
constexpr size_t kMostAux = 12;
constexpr size_t kMostScalars = 32;

/// The name of an option that the kernel does not have.
std::string_view missing_option(const AttentionProblem& problem) {
  const std::pair<bool, std::string_view> options[] = {
      {problem.has_new_keys || problem.rotary_dim > 0, "new keys or rotary embedding"},
      {problem.wants_weights, "weights"},
  };
  for (const auto& [is_on, name] : options) {
    if (is_on) return name;
  }
  return {};
}

/// What the copy engine does not take of a tensor (batch, seqlen, heads, dim).
std::string refuse_layout(std::string_view name, const TensorLayout& layout) {
  const bool is_aligned = copy_bytes(layout) == 16;
  bool is_positive = true;
  for (size_t d = 0; d < static_cast<size_t>(layout.ndim); ++d) {
    is_positive = is_positive && (layout.shape[d] <= 1 || layout.strides[d] > 0);
  }
  if (is_aligned && is_positive) return {};
  return std::string(name) + " cannot be copied by the copy engine: address and strides must be " +
         "positive multiples of 16 bytes, and rows contiguous";
}

/// True when sequences may have different lengths.
bool lengths_differ(const AttentionProblem& problem) {
  return problem.is_packed_q || problem.is_packed_k || problem.has_seqused || problem.has_leftpad;
}

/// Device memory says which keys rows see.
bool has_own_lengths(const AttentionProblem& problem) {
  const MaskParts mask = split_mask(problem.user_mask);
  return lengths_differ(problem) || problem.page_size > 0 || !mask.lower.empty() ||
         !mask.upper.empty();
}

/// What each tile has to know of its sequence.
bool needs_sequence(const ScoreFlags& flags, const AttentionProblem& problem) {
  return flags.has_alibi || flags.has_user_score || bool(flags.bias != DType::kNone) ||
         flags.has_block_map() || problem.dropout.is_on;
}

/// Natural logits are made one by one (LogitKind::kIsGeneral).
bool is_general(const ScoreFlags& flags) {
  return flags.bias != DType::kNone || flags.has_user_score;
}

/// Two neighbours of each row of the bias are one aligned load.
bool has_pairs_of_bias(const AttentionProblem& problem) {
  const TensorLayout& bias = problem.bias;
  if (!bias || problem.has_leftpad || bias.strides[3] != 1) return false;
  const int64_t bytes = 2 * dtype_bytes(bias.dtype);
  bool is_aligned = bias.address_alignment >= bytes;
  for (size_t d = 0; d < 3; ++d) {
    is_aligned = is_aligned && (bias.shape[d] == 1 || bias.strides[d] % 2 == 0);
  }
  return is_aligned;
}

/// A bias of 16 bits that the copy engine takes, and nothing else besides it. Batches and heads may
/// share one.
bool copies_bias(const AttentionProblem& problem, const ScoreFlags& flags) {
  const TensorLayout& bias = problem.bias;
  const bool is_alone = !flags.has_user_score && !flags.has_alibi && !problem.has_leftpad;
  if (!bias || !is_alone || dtype_bytes(bias.dtype) != 2 || bias.shape[2] == 1) return false;
  bool is_good = bias.address_alignment >= 16 && bias.strides[3] == 1;
  for (size_t d = 0; d < 3; ++d) {
    const bool is_shared = bias.shape[d] == 1 || (d < 2 && bias.strides[d] == 0);
    is_good = is_good && (is_shared || (bias.strides[d] > 0 && bias.strides[d] % 8 == 0));
  }
  return is_good;
}

/// Some number near the largest logit of a row has to be subtracted. One that stays serves bf16 as
/// long as later logits are not far from the first ones.
Sm90Reference choose_reference(const AttentionProblem& problem, const ScoreFlags& flags) {
  if (problem.dtype != DType::kBF16) return Sm90Reference::kMaximum;
  // With ALiBi logits fall where keys go away from the query, and rise before that.
  const bool is_causal = problem.window_right == 0;
  if (flags.has_alibi && (!is_causal || problem.wants_max_logit)) return Sm90Reference::kMaximum;
  return Sm90Reference::kFirstBlock;
}

/// What the kernel does not take of pages.
std::string refuse_pages(const AttentionProblem& problem) {
  if (problem.page_size == 0) return {};
  const int block_n = choose_sm90_tiling(problem).shape.block_n;
  const int64_t rest =
      problem.page_size < block_n ? block_n % problem.page_size : problem.page_size % block_n;
  if (problem.page_size % 8 != 0 || rest != 0 || 8 * problem.page_size < block_n) {
    return "takes pages of 8, 16, ... keys, of which at most eight fill a block of " +
           std::to_string(block_n) + ", or that such blocks fill";
  }
  if (problem.has_leftpad) return "takes no leftpad_k with pages";
  return problem.total_k == 0 ? "takes no empty tensors" : "";
}

/// Above 128 columns, where tiles do not overlap. `has_room`: registers for larger blocks;
/// `is_bare`: and for queries.
void choose_wide_shape(const AttentionProblem& problem, bool has_room, bool is_bare,
                       Sm90Tiling& tiling) {
  device::Sm90Shape& shape = tiling.shape;
  shape.num_query_buffers = 1;
  const bool is_long = problem.max_seqlen_k > 8192 && has_room;
  // Shared memory does not give queries anew for each block where registers hold them.
  const bool holds_queries = is_long && is_bare && shape.head_dim == 192 && shape.head_dim_v <= 128;
  shape.block_n = holds_queries ? 112 : is_long && shape.head_dim == 256 ? 80 : 64;
  // Pieces of 16 bytes, and memory beside two stages.
  shape.warps_store = shape.block_n != 80 && problem.head_dim_v % 8 == 0 && !shape.makes_terms &&
                      !shape.copies_bias;
  if (shape.head_dim == 64 && shape.warps_store) shape.num_stages = 4;
  tiling.query_in_registers = tiling.takes_turns = holds_queries;
  tiling.holds_back = holds_queries && tiling.reference != Sm90Reference::kMaximum;
}

int padded_head_dim(int64_t head_dim) { return static_cast<int>(round_up(head_dim, 64)); }

}  // namespace

int sm90_page_rows(const AttentionProblem& problem, int block_n) {
  return problem.page_size > 0 ? static_cast<int>(std::min<int64_t>(problem.page_size, block_n))
                               : block_n;
}

std::string refuse_attention_fwd_sm90(const AttentionProblem& problem) {
  std::string refusal = refuse_hopper(problem);
  if (!refusal.empty()) return refusal;
  if (problem.dtype != DType::kF16 && problem.dtype != DType::kBF16) {
    return "takes f16 and bf16, not " + std::string(dtype_name(problem.dtype));
  }
  if (problem.out.dtype != problem.dtype) return "writes out in the dtype of q only";
  if (const std::string_view option = missing_option(problem); !option.empty()) {
    return "has no " + std::string(option) + " yet";
  }
  if (problem.head_dim > kMaxHeadDim) {
    return "takes a head_dim of at most " + std::to_string(kMaxHeadDim);
  }
  if (!(problem.softmax_scale > 0)) return "takes a positive softmax_scale only";
  if (problem.batch_size < 1 || problem.max_seqlen_q < 1 || problem.max_seqlen_k < 1) {
    return "takes no empty tensors";
  }
  if (std::max(problem.max_seqlen_q, problem.max_seqlen_k) > kMaxSeqlen) {
    return "takes sequences of at most " + std::to_string(kMaxSeqlen) + " rows";
  }
  if (std::max(problem.total_q, problem.total_k) > kMaxSeqlen && lengths_differ(problem)) {
    return "takes at most " + std::to_string(kMaxSeqlen) + " packed rows";
  }
  if (problem.is_packed_q && problem.head_dim_v % 8 != 0) {
    return "takes packed rows of whole multiples of 16 bytes";
  }
  constexpr int64_t kNear = int64_t{1} << 29;
  if (problem.attention_chunk && std::max({std::abs(problem.query_offset.value_or(0)),
                                           problem.max_seqlen_q, problem.max_seqlen_k}) >= kNear) {
    return "takes attention_chunk with positions below " + std::to_string(kNear) + " only";
  }
  const ExpressionInputs inputs = expression_inputs(problem);
  if (inputs.aux.size() > kMostAux || inputs.params.size() > kMostScalars) {
    return "takes at most " + std::to_string(kMostAux) + " aux tensors and " +
           std::to_string(kMostScalars) + " scalar parameters";
  }
  refusal = refuse_pages(problem);
  if (!refusal.empty()) return refusal;
  constexpr int64_t kMaxTiles = int64_t{1} << 30;
  if (problem.batch_size * problem.num_heads * ceil_div(problem.head_dim_v, kMostColumns) >
      kMaxTiles / ceil_div(problem.max_seqlen_q, 64)) {
    return "takes at most " + std::to_string(kMaxTiles) + " blocks of 64 queries";
  }
  for (const auto& [name, layout] : {std::pair{"q", &problem.q}, std::pair{"k", &problem.k},
                                     std::pair{"v", &problem.v}, std::pair{"out", &problem.out}}) {
    refusal = refuse_layout(name, *layout);
    if (!refusal.empty()) return refusal;
  }
  return {};
}

std::string leave_to_portable(const AttentionProblem& problem) {
  // Fewer keys are read in no time. The portable kernel, with its heads packed and its keys split,
  // runs at less than half of this one's speed.
  constexpr int64_t kManyKeys = 512;
  if (problem.max_seqlen_k < kManyKeys) return {};
  const Sm90Tiling tiling = choose_sm90_tiling(problem);
  const int64_t block_m = tiling.shape.block_m();
  // Parts of the values multiply queries of their own, as heads do.
  const int64_t num_heads = problem.num_heads * tiling.num_value_parts;
  const int64_t num_tiles =
      problem.is_packed_q
          ? (problem.total_q / block_m + problem.batch_size) * num_heads
          : ceil_div(problem.max_seqlen_q, block_m) * problem.batch_size * num_heads;
  const int64_t num_rows = problem.total_q * num_heads;
  const int64_t capacity = std::max<int64_t>(num_tiles, problem.gpu->num_sms) * block_m;
  if (5 * num_rows > 2 * capacity) return {};
  return "leaves few queries to a kernel that splits the keys: " + std::to_string(num_rows) +
         " rows for " + std::to_string(problem.gpu->num_sms) + " multiprocessors of " +
         std::to_string(block_m);
}

Sm90Tiling choose_sm90_tiling(const AttentionProblem& problem) {
  const ScoreFlags flags(problem);
  Sm90Tiling tiling;
  device::Sm90Shape& shape = tiling.shape;
  shape.head_dim = padded_head_dim(problem.head_dim);
  tiling.num_value_parts = static_cast<int>(ceil_div(problem.head_dim_v, kMostColumns));
  shape.head_dim_v = padded_head_dim(ceil_div(problem.head_dim_v, tiling.num_value_parts));
  const int largest = std::max(shape.head_dim, shape.head_dim_v);
  const bool is_short = problem.max_seqlen_k <= 2048;
  // Taking tiles costs an atomic for each; dealing tiles of unequal length out in turns costs more.
  tiling.is_dynamic = problem.window_right.has_value() || problem.attention_chunk ||
                      has_own_lengths(problem) || flags.has_block_map();
  tiling.section_bytes = (problem.max_seqlen_k <= 512 ? 8 : 32) * kMib;
  tiling.last_section_bytes = 40 * kMib;
  tiling.reference = choose_reference(problem, flags);
  const bool follows = tiling.reference == Sm90Reference::kMaximum;
  shape.copies_bias = copies_bias(problem, flags);
  shape.makes_terms =
      adds_by_distance(problem.user_score) && flags.bias == DType::kNone && !flags.has_alibi;
  // Registers for more than an exponential of each score.
  const bool knows_sequences = needs_sequence(flags, problem) && has_own_lengths(problem);
  const bool finds_pages = problem.page_size > 0;
  // A cap, or what is general, alone: larger blocks fit, whose products hide it better.
  const bool is_one_option = flags.has_softcap != is_general(flags) && !flags.has_alibi &&
                             !problem.dropout.is_on && !problem.wants_max_logit &&
                             !knows_sequences && !finds_pages && !follows;
  // Terms from shared memory alone take a fused multiply-add for each score.
  const bool adds_to_exponents = (shape.makes_terms || shape.copies_bias) && is_one_option &&
                                 !flags.has_softcap && !flags.has_block_map();
  // So do bits of dropout behind the exponentials.
  const bool only_drops = largest <= 64 && !flags.has_options && !flags.has_block_map() &&
                          !problem.wants_max_logit && !knows_sequences && !finds_pages && !follows;
  const bool is_heavy = (is_general(flags) && !adds_to_exponents) || flags.has_softcap ||
                        (problem.dropout.is_on && !only_drops) ||
                        (flags.has_alibi && problem.wants_max_logit) || knows_sequences;
  const bool is_bare = !flags.has_options && !flags.has_block_map();
  // Behind tiles of one or two blocks the next queries come late: results of the tile before have
  // to leave their buffer first.
  const int num_query_buffers = tiling.is_dynamic ? 3 : 2;
  if (largest <= 64) {
    const bool has_room = !finds_pages && !is_heavy;
    const bool has_bias = flags.bias != DType::kNone;
    const bool is_wide = !is_short && (has_room || (is_one_option && !has_bias));
    const bool is_small = is_short && has_room && !adds_to_exponents && !problem.dropout.is_on;
    shape.num_warpgroups = is_small ? 4 : is_wide && is_heavy ? 2 : 3;
    shape.block_n = is_wide ? 128 : 64;
    shape.num_stages = shape.block_n == 64 ? 4 : 2;
    if (shape.num_warpgroups == 4) shape.num_query_buffers = num_query_buffers;
    const bool copies_more = finds_pages || (is_heavy && has_own_lengths(problem));
    tiling.copy_registers = copies_more ? 56 : 32;
    const int of_warpgroups[] = {0, 0, copies_more ? 224 : 232, copies_more ? 152 : 160, 112};
    tiling.compute_registers = of_warpgroups[shape.num_warpgroups];
    return tiling;
  }
  const bool copies_more = finds_pages || shape.makes_terms;
  tiling.copy_registers = copies_more ? 56 : 40;
  tiling.compute_registers = copies_more ? 224 : 232;
  if (largest <= 128) {
    if (shape.copies_bias && adds_to_exponents) {
      shape.block_n = 96;
    } else if (is_heavy && flags.has_options) {
      shape.block_n = !is_one_option ? 64 : shape.makes_terms && !flags.has_block_map() ? 128 : 96;
    }
    tiling.query_in_registers = !is_heavy;
    if (shape.block_n == 128 && !shape.makes_terms) shape.num_query_buffers = num_query_buffers;
    tiling.holds_back = !follows && !is_heavy && !adds_to_exponents;
    // Few keys give their values exactly, which takes weights of 1.
    const bool has_many_keys = problem.max_seqlen_k >= shape.block_n;
    if (!follows && is_short && is_bare && has_many_keys) tiling.reference = Sm90Reference::kZero;
    return tiling;
  }
  const bool has_room = !is_heavy && !finds_pages && !adds_to_exponents;
  choose_wide_shape(problem, has_room, is_bare, tiling);
  return tiling;
}

Sm90ForwardPlan make_sm90_plan(const AttentionProblem& problem, const Sm90Tiling& tiling) {
  const ScoreFlags flags(problem);
  Sm90ForwardPlan plan;
  plan.tiling = tiling;
  plan.has_diagonal =
      problem.window_right.has_value() || !split_mask(problem.user_mask).upper.empty();
  plan.has_lengths = has_own_lengths(problem);
  // A NaN among values that masks hide, or logits that overflow, show in the result.
  plan.can_fail =
      tiling.reference != Sm90Reference::kMaximum || is_general(flags) || flags.has_block_map();
  plan.num_m_blocks = ceil_div(problem.max_seqlen_q, tiling.shape.block_m());
  plan.num_pairs = problem.batch_size * problem.num_heads;
  const int64_t tiles_of_pair = plan.num_m_blocks * tiling.num_value_parts;
  plan.num_tiles = tiles_of_pair * plan.num_pairs;
  plan.num_ctas = std::min<int64_t>(plan.num_tiles, problem.gpu->num_sms);
  plan.blocks =
      make_block_map_plan(problem, plan.num_m_blocks, tiling.shape.block_n, problem.num_heads);
  if (plan.has_diagonal) {
    const int64_t head_bytes =
        (problem.is_packed_k ? ceil_div(problem.total_k, problem.batch_size) + 1
                             : problem.max_seqlen_k) *
        (problem.head_dim + problem.head_dim_v) * dtype_bytes(problem.dtype);
    const int64_t heads_kv = std::max<int64_t>(1, tiling.section_bytes / head_bytes);
    plan.section_pairs = std::min(heads_kv * problem.group_size(), plan.num_pairs);
    // Four tiles for each CTA, where their keys stay in the cache together.
    const int64_t most_pairs = tiling.last_section_bytes / head_bytes * problem.group_size();
    const int64_t wanted = std::min(ceil_div(4 * plan.num_ctas, tiles_of_pair), most_pairs);
    plan.last_section = std::max<int64_t>(0, plan.num_pairs - wanted) / plan.section_pairs;
    if (plan.num_pairs - plan.last_section * plan.section_pairs > most_pairs) ++plan.last_section;
    plan.last_section = std::min(plan.last_section, (plan.num_pairs - 1) / plan.section_pairs);
  } else {
    plan.last_section = plan.num_pairs - 1;
  }
  WorkspaceRegions regions;
  if (tiling.is_dynamic) plan.counter = regions.take(sizeof(device::Sm90TileCounter));
  if (plan.can_fail) plan.next_failed = regions.take(plan.num_tiles * 4);
  // Tiles of unlike lengths, and some that are taken ahead, end far apart unless the longest come
  // first. Of a small grid, tiles behind the end of a sequence are passed over in less time than a
  // list of the others takes.
  constexpr int64_t kTilesOfACta = 3;
  // Query blocks of a head that are worked on together read the same keys: enough of them for each
  // head, or keys come from memory all the time.
  constexpr int64_t kMostHeads = 32;
  const bool share_keys =
      2 * problem.batch_size * std::min(problem.num_heads_kv, kMostHeads) <= problem.gpu->num_sms;
  if ((problem.is_packed_q || (plan.blocks.is_on && share_keys)) &&
      plan.num_tiles > kTilesOfACta * problem.gpu->num_sms) {
    const int64_t num_sections = ceil_div(problem.num_heads_kv, kMostHeads);
    plan.list_section = ceil_div(problem.num_heads_kv, num_sections) * problem.group_size();
    plan.list_capacity = plan.num_m_blocks * problem.batch_size;
    if (problem.is_packed_q) {
      plan.list_capacity = std::min(problem.total_q / tiling.shape.block_m() + problem.batch_size,
                                    plan.list_capacity);
    }
    plan.num_listed = regions.take(4);
    plan.tiles = regions.take(plan.list_capacity * 8);
  }
  plan.listed = regions.take(plan.blocks.list_bytes());
  plan.map = regions.take(plan.blocks.map_bytes(plan.num_m_blocks));
  plan.workspace_bytes = regions.used();
  return plan;
}

std::vector<KernelChoice> sm90_kernels(const AttentionProblem& problem,
                                       const Sm90ForwardPlan& plan) {
  const ScoreFlags flags(problem);
  const Sm90Tiling& tiling = plan.tiling;
  const device::Sm90Shape& shape = tiling.shape;
  const std::string_view references[] = {"kMaximum", "kFirstBlock", "kZero"};
  const MaskParts mask = split_mask(problem.user_mask);
  const std::string config =
      config_preamble(problem) +
      "#include \"cuda/device/params/sm90_params.hpp\"\nstruct Config {\n" + flags.text(problem) +
      "  using Reference = flashtile::device::Sm90Reference;\n" +
      config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
      config_int("kNumValueParts", tiling.num_value_parts) +
      config_int("kBlockM", shape.block_m()) + config_int("kBlockN", shape.block_n) +
      config_int("kNumWarpgroups", shape.num_warpgroups) +
      config_int("kNumStages", shape.num_stages) +
      config_int("kNumQueryBuffers", shape.num_query_buffers) +
      config_bool("kWarpsStore", shape.warps_store) +
      "  static constexpr Reference kReference = Reference::" +
      std::string(references[static_cast<size_t>(tiling.reference)]) + ";\n" +
      config_bool("kCanFail", plan.can_fail) + config_bool("kHasDiagonal", plan.has_diagonal) +
      config_bool("kHasLower", problem.window_left.has_value() || !mask.lower.empty()) +
      config_bool("kHasLengths", plan.has_lengths) +
      config_bool("kNeedsSequence", needs_sequence(flags, problem)) +
      config_bool("kIsMapped", flags.has_block_map()) +
      config_bool("kPackedQ", problem.is_packed_q) +
      config_bool("kListsTiles", plan.list_capacity > 0) + config_bool("kPackHeads", false) +
      config_bool("kPaged", problem.page_size > 0) +
      config_int("kPageRows", sm90_page_rows(problem, shape.block_n)) +
      config_bool("kBiasInPairs", has_pairs_of_bias(problem)) +
      config_bool("kHasSink", problem.has_sink) +
      config_bool("kWantsMaxLogit", problem.wants_max_logit) +
      config_bool("kIsDynamic", tiling.is_dynamic) +
      config_bool("kQueryInRegisters", tiling.query_in_registers) +
      config_bool("kTakesTurns", tiling.takes_turns) +
      config_bool("kHoldsBack", tiling.holds_back) +
      config_int("kCopyRegisters", tiling.copy_registers) +
      config_int("kComputeRegisters", tiling.compute_registers) +
      config_bool("kAddsByDistance", shape.makes_terms) +
      config_bool("kCopiesBias", shape.copies_bias) +
      config_bool("kKeepsHalf", problem.dropout.threshold <= 0x8000) + "};\n";
  std::vector<KernelChoice> kernels;
  const int64_t num_lines = plan.blocks.num_lines();
  if (num_lines > 0 || problem.wants_max_logit) {
    kernels.push_back(prepare_kernel(problem, num_lines));
  }
  if (plan.blocks.is_on) {
    kernels.push_back(block_map_kernel(problem, plan.blocks, plan.num_m_blocks, config));
  }
  if (plan.list_capacity > 0) {
    kernels.push_back(tile_kernel(*problem.gpu, "attention_tiles",
                                  "struct Config {\n" + config_int("kBlockM", shape.block_m()) +
                                      config_bool("kPackedQ", problem.is_packed_q) +
                                      config_bool("kIsMapped", flags.has_block_map()) + "};\n",
                                  1, device::CostCounts::kThreads, device::CostCounts::kBytes));
    kernels.back().overlaps_previous = true;
  }
  kernels.push_back(tile_kernel(*problem.gpu, "attention_fwd_sm90", config, plan.num_ctas,
                                shape.num_threads(), shape.shared_bytes()));
  kernels.back().overlaps_previous = true;
  return kernels;
}

AttentionPlan plan_attention_fwd_sm90(const AttentionProblem& problem) {
  const Sm90ForwardPlan forward = make_sm90_plan(problem, choose_sm90_tiling(problem));
  AttentionPlan plan;
  plan.implementation = "attention_fwd_sm90";
  plan.block_m = forward.tiling.shape.block_m();
  plan.block_n = forward.tiling.shape.block_n;
  plan.num_tasks = forward.num_tiles;
  plan.workspace_bytes = forward.workspace_bytes;
  plan.kernels = sm90_kernels(problem, forward);
  plan.details = std::make_shared<const Sm90ForwardPlan>(forward);
  return plan;
}

}  // namespace flashtile::cuda
