// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_bwd_plan.hpp"

#include <algorithm>

#include "cuda/device/params/gradient_params.hpp"
#include "cuda/plan/attention_config.hpp"
#include "cuda/plan/backward_tiling.hpp"
#include "cuda/plan/kernel_plan.hpp"
#include "cuda/plan/user_expressions.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/print.hpp"

namespace flashtile::cuda {
namespace {

/// Lanes that share a row of out: a power of two that divides its chunks of eight elements.
int64_t row_lanes(int64_t head_dim_v) {
  const int64_t chunks = head_dim_v / 8;
  int64_t lanes = 1;
  while (lanes < 32 && chunks % (2 * lanes) == 0) lanes *= 2;
  return lanes;
}

constexpr int64_t kMaxAuxGradients = device::kMaxAuxGradients;

BackwardMap make_map(const AttentionProblem& problem, int64_t block_m, int64_t block_n) {
  BackwardMap map;
  map.num_m_blocks = ceil_div(problem.max_seqlen_q, block_m);
  map.num_n_blocks = ceil_div(problem.max_seqlen_k, block_n);
  map.blocks = make_block_map_plan(problem, map.num_m_blocks, block_n, problem.num_heads);
  return map;
}

void take_map(BackwardMap& map, WorkspaceRegions& regions) {
  map.map = regions.take(map.blocks.map_batches * map.blocks.map_heads * map.num_m_blocks *
                         map.blocks.map_words * 4);
}

void take_workspace(const AttentionProblem& problem, BackwardPlan& plan) {
  WorkspaceRegions regions;
  const int64_t num_rows = problem.num_heads * plan.padded_rows;
  plan.lse = regions.take(num_rows * 4);
  plan.delta = regions.take(num_rows * 4);
  plan.odd_rows = regions.take(num_rows / device::kRowPadding * 4);
  if (plan.sums_dq) plan.dq_sums = regions.take(num_rows * plan.tiling->shape.head_dim * 4);
  if (plan.finishes_dq) {
    plan.finished = regions.take(problem.batch_size * problem.num_heads_kv * 4);
  }
  if (plan.copies_dout) {
    plan.dout = regions.take(problem.total_q * problem.num_heads * round_up(problem.head_dim_v, 8) *
                             dtype_bytes(problem.dtype));
  }
  const BlockMapPlan& blocks = plan.tiling ? plan.tile.blocks : plan.stream.blocks;
  plan.listed = regions.take(blocks.list_batches * blocks.list_heads * blocks.list_rows *
                             blocks.list_words * 4);
  if (plan.tiling) take_map(plan.tile, regions);
  if (plan.streams()) take_map(plan.stream, regions);
  plan.cleared.offset = regions.used();
  if (problem.wants_aux_gradient) {
    plan.aux_sums = regions.take(problem.aux_gradient_elements * 8 + kMaxAuxGradients * 4);
  }
  if (problem.wants_sink_gradient) plan.num_sink_parts = num_rows / device::kRowPadding;
  if (problem.wants_alibi_gradient) {
    plan.num_slope_parts = plan.stream.num_m_blocks * device::StreamShape::num_warps();
  }
  plan.parts = regions.take(
      (plan.num_sink_parts + plan.num_slope_parts * problem.batch_size * problem.num_heads) * 4);
  plan.cleared.bytes = regions.used() - plan.cleared.offset;
  plan.workspace_bytes = regions.used();
}

std::string head_text() {
  return "#include \"cuda/device/ptx/convert.cuh\"\nstruct Config {\n"
         "  using Element = flashtile::device::Element;\n";
}

/// lse in log2 units saves a multiplication for each score; float32 would lose bits.
bool has_log2_lse(const AttentionProblem& problem) {
  return !ScoreFlags(problem).has_options && problem.dtype != DType::kF32;
}

std::string prepare_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  const bool has_unused_keys = problem.has_seqused || problem.has_leftpad || problem.is_packed_k;
  const int64_t head_dim_v = round_up(problem.head_dim_v, 16);
  return head_text() + config_element("kElement", problem.dtype) +
         config_bool("kLog2Lse", has_log2_lse(problem)) +
         config_bool("kHasUnusedKeys", has_unused_keys) +
         config_element("kOutElement", problem.out.dtype) +
         config_element("kDoutElement", problem.dout.dtype) +
         config_int("kHeadDim", plan.padded_head_dim()) + config_int("kHeadDimV", head_dim_v) +
         config_int("kRowLanes", row_lanes(head_dim_v)) +
         config_bool("kVectors",
                     std::min(copy_bytes(problem.out), copy_bytes(problem.dout)) == 16) +
         config_bool("kHasSink", problem.has_sink) +
         config_bool("kWantsSink", problem.wants_sink_gradient) +
         config_bool("kCopiesDout", plan.copies_dout) + config_bool("kSumsDq", plan.sums_dq) +
         "};\n";
}

/// Whether eight columns of dq are one vector everywhere.
bool has_dq_vectors(const AttentionProblem& problem) {
  return problem.dq && problem.dtype != DType::kF32 && problem.head_dim % 8 == 0 &&
         copy_bytes(problem.dq) == 16;
}

std::string convert_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  return head_text() + config_element("kElement", problem.dtype) +
         config_int("kHeadDim", plan.padded_head_dim()) + config_bool("kSumsDq", plan.sums_dq) +
         config_bool("kDqVectors", has_dq_vectors(problem)) + "};\n";
}

/// The derivative of the user's score, as a further member of its expressions.
std::string derivative_text(const AttentionProblem& problem) {
  if (problem.user_score.empty()) return {};
  return expression_function(
      problem, "Float score_derivative(const Params& user, const Pair& pair, Float score)",
      print(variant::derivative_score(problem.user_score), variant::PrintStyle::kDevice));
}

/// Another one: hands the derivatives by all elements that the score reads to a sink.
std::string aux_gradients_text(const AttentionProblem& problem) {
  if (!problem.wants_aux_gradient) return {};
  const ExpressionInputs inputs = expression_inputs(problem);
  std::vector<variant::Expr> roots;
  std::string declarations;
  std::string calls;
  const auto add_root = [&](const variant::Expr& root, const char* type) {
    const std::string name = "out" + std::to_string(roots.size());
    declarations += std::string(type) + " " + name + ";\n";
    roots.push_back(root);
    return name;
  };
  // What only a mask reads has the gradient 0.
  std::vector<variant::LoadSite> sites;
  if (!problem.user_score.empty()) sites = variant::load_gradients(problem.user_score);
  for (const variant::LoadSite& site : sites) {
    const variant::AuxSignature& aux = problem.user_score.aux[static_cast<size_t>(site.aux_idx)];
    const auto found = std::find(inputs.aux.begin(), inputs.aux.end(), aux);
    const std::string number = std::to_string(found - inputs.aux.begin());
    const std::string active = add_root(site.active, "Bool");
    calls += "give_gradient(sink, " + number + ", user.aux[" + number + "], " + active + ", " +
             add_root(site.derivative, "Float");
    for (const variant::Expr& index : site.index) calls += ", " + add_root(index, "Int");
    calls += ");\n";
  }
  return "  template <class Sink>\n" +
         expression_function(
             problem,
             "void gradients(const Params& user, const Pair& pair, Float score, "
             "const Sink& sink)",
             declarations + (roots.empty() ? "" : variant::print_device(roots)) + calls);
}

/// True when masks by position differ between the heads of a group.
bool positions_differ_by_head(const AttentionProblem& problem) {
  const MaskParts mask = split_mask(problem.user_mask);
  bool differ = false;
  for (const auto* bounds : {&mask.lower, &mask.upper}) {
    for (const variant::Expr& bound : *bounds) {
      differ = differ || reads_variable(bound, variant::Variable::kHead);
    }
  }
  return differ && problem.group_size() > 1;
}

/// What all kernels have that work out scores, up to their shape.
std::string scores_config(const AttentionProblem& problem, const BackwardPlan& plan,
                          bool has_block_map) {
  const int dout_bytes = plan.copies_dout ? 16 : copy_bytes(problem.dout);
  return "#include \"cuda/device/score/expression.cuh\"\n"
         "#include \"cuda/device/backward/aux_gradients.cuh\"\n" +
         user_expressions_text(problem, derivative_text(problem) + aux_gradients_text(problem)) +
         "struct Config {\n" + ScoreFlags(problem).text(problem) +
         config_bool("kLog2Lse", has_log2_lse(problem)) +
         config_bool("kHasBlockMap", has_block_map) +
         config_bool("kHeadsDiffer", positions_differ_by_head(problem)) +
         config_bool("kPackHeads", false) + config_bool("kPaged", false) +
         config_int("kCopyBytes", std::min(copy_bytes(problem.k), copy_bytes(problem.v))) +
         config_int("kQueryCopyBytes", copy_bytes(problem.q)) +
         config_int("kDoutCopyBytes", dout_bytes);
}

/// How rows of a gradient may be written; 16 where it is not wanted.
int store_bytes(const TensorLayout& layout) { return layout ? copy_bytes(layout) : 16; }

std::string tile_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  const device::BackwardShape& shape = plan.tiling->shape;
  return scores_config(problem, plan, plan.tile.blocks.is_on) +
         config_bool("kSumsDq", plan.sums_dq) +
         config_bool("kFinishesDq", plan.finishes_dq && !plan.is_main_only) +
         config_bool("kDqVectors", has_dq_vectors(problem)) +
         config_int("kHeadDim", shape.head_dim) + config_int("kHeadDimV", shape.head_dim_v) +
         config_int("kBlockM", shape.block_m) + config_int("kBlockN", shape.block_n) +
         config_int("kWarpsN", shape.warps_n) + config_int("kWarpsM", shape.warps_m) +
         config_int("kDqWarpsM", shape.dq_warps_m) + config_int("kDqPasses", shape.dq_passes) +
         config_int("kSlice", shape.slice) + config_int("kNumStages", shape.num_stages) +
         config_int("kMinCtas", plan.tiling->min_ctas) +
         config_int("kStoreBytes", std::min(store_bytes(problem.dk), store_bytes(problem.dv))) +
         "};\n";
}

std::string keys_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  return scores_config(problem, plan, plan.stream.blocks.is_on) + stream_text(plan.keys) +
         config_bool("kRowsAreKeys", true) + "};\n";
}

std::string aux_sums_text(const char* sums) {
  return std::string("  static constexpr auto kAuxSums = flashtile::device::AuxSums::") + sums +
         ";\n";
}

/// What a launch of attention_bwd_queries works out.
struct QueriesWork {
  bool delta = false, dq = false, slopes = false;
  const char* aux_sums = "kNone";
};

std::string queries_config(const AttentionProblem& problem, const BackwardPlan& plan,
                           const QueriesWork& work) {
  return scores_config(problem, plan, plan.stream.blocks.is_on) + stream_text(plan.queries) +
         config_bool("kRowsAreKeys", false) + config_bool("kFindsDelta", work.delta) +
         config_bool("kWantsDq", work.dq) + config_bool("kWantsSlopes", work.slopes) +
         aux_sums_text(work.aux_sums) + "};\n";
}

std::string bias_config(const AttentionProblem& problem, const BackwardPlan& plan) {
  StreamTiling tiling = plan.queries;
  tiling.part_d = tiling.part_v = 0;
  const ScoreFlags flags(problem);
  return scores_config(problem, plan, flags.has_block_map()) + stream_text(tiling) +
         config_bool("kRowsAreKeys", false) + "};\n";
}

/// The sums of aux tensors' gradients, where all runs must give the same bits or not.
const char* aux_sums(const AttentionProblem& problem) {
  return problem.deterministic ? "kFixed" : "kDouble";
}

int64_t num_bias_ctas(const AttentionProblem& problem) {
  const auto& shape = problem.dbias.shape;
  const int64_t m_blocks = shape[2] == 1 ? 1 : ceil_div(shape[2], device::kStreamBlock);
  return shape[0] * shape[1] * m_blocks * ceil_div(shape[3], device::kStreamBlock);
}

/// (sequence, kv head) pairs whose blocks of keys take turns: with what queries read, and the sums
/// of dq, in the L2 cache.
int64_t choose_section(const AttentionProblem& problem, const BackwardPlan& plan) {
  if (!plan.tiling || !has_upper_bound(problem)) return 1;
  const device::BackwardShape& shape = plan.tiling->shape;
  const int64_t row_bytes = (shape.head_dim + shape.head_dim_v) * dtype_bytes(problem.dtype);
  const int64_t query_bytes = row_bytes + (plan.sums_dq ? shape.head_dim * 4 : 0);
  const int64_t bytes =
      problem.group_size() * problem.max_seqlen_q * query_bytes + problem.max_seqlen_k * row_bytes;
  return groups_per_section(*problem.gpu, problem.batch_size * problem.num_heads_kv, bytes);
}

/// One CTA reads the sums of a kv head's queries: where they are few enough to lie in the L2 cache
/// still, and not to keep the last CTA busy when all others are done.
bool finishes_dq(const AttentionProblem& problem, const BackwardPlan& plan) {
  constexpr int64_t kMostBytes = 1 << 20;
  const int64_t bytes =
      problem.group_size() * problem.max_seqlen_q * plan.tiling->shape.head_dim * 4;
  return has_dq_vectors(problem) && !problem.is_packed_q && problem.max_seqlen_k > 0 &&
         bytes <= kMostBytes;
}

}  // namespace

std::string refuse_attention_bwd(const AttentionProblem& problem) {
  return refuse_attention(problem);
}

BackwardPlan make_backward_plan(const AttentionProblem& problem,
                                const std::optional<BackwardTiling>& tiling) {
  BackwardPlan plan;
  plan.tiling = tiling;
  plan.keys = choose_key_stream(problem);
  plan.queries = choose_query_stream(problem);
  // An error of a row's delta is the same for all keys: sums over keys do not average it out.
  plan.finds_delta = problem.out.dtype != DType::kF32 &&
                     (problem.dbias || problem.wants_alibi_gradient || problem.wants_aux_gradient);
  const bool wants_dq = bool(problem.dq);
  plan.visits_queries = problem.wants_alibi_gradient || problem.wants_aux_gradient ||
                        (wants_dq && (!tiling || problem.deterministic));
  if (!plan.visits_queries || !wants_dq) plan.queries.num_parts = 1;
  plan.sums_dq = wants_dq && !plan.visits_queries;
  plan.copies_dout = problem.dout.dtype != problem.dtype;
  if (tiling) plan.tile = make_map(problem, tiling->shape.block_m, tiling->shape.block_n);
  plan.finishes_dq = plan.sums_dq && finishes_dq(problem, plan);
  plan.section_pairs = choose_section(problem, plan);
  plan.stream = make_map(problem, device::kStreamBlock, device::kStreamBlock);
  constexpr int64_t kPadding = device::kRowPadding;
  plan.padded_rows = problem.is_packed_q
                         ? round_up(problem.total_q, kPadding) + kPadding * problem.batch_size
                         : round_up(problem.max_seqlen_q, kPadding) * problem.batch_size;
  take_workspace(problem, plan);
  return plan;
}

BackwardPlan make_backward_plan(const AttentionProblem& problem) {
  const bool has_tile = problem.dtype != DType::kF32;
  return make_backward_plan(problem, has_tile ? choose_backward_tiling(problem) : std::nullopt);
}

namespace {

/// A kernel that streams, with `num_ctas` CTAs.
KernelChoice stream_kernel(const AttentionProblem& problem, const char* stem, std::string config,
                           int64_t num_ctas, const StreamTiling& tiling) {
  return tile_kernel(*problem.gpu, stem, std::move(config), num_ctas,
                     device::StreamShape::num_threads(), tiling.shape.shared_bytes());
}

/// What must be there before scores are worked out.
void add_first_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                       std::vector<KernelChoice>& kernels) {
  const int64_t num_row_blocks =
      problem.batch_size * ceil_div(problem.max_seqlen_q, device::kRowPadding) * problem.num_heads;
  if (plan.cleared.bytes > 0) {
    kernels.push_back(
        strided_kernel(*problem.gpu, "attention_bwd_clear", "", ceil_div(plan.cleared.bytes, 128)));
  }
  kernels.push_back(strided_kernel(*problem.gpu, "attention_bwd_prepare",
                                   prepare_config(problem, plan), num_row_blocks));
  const BlockMapPlan& lists = plan.tiling ? plan.tile.blocks : plan.stream.blocks;
  const int64_t num_lines = lists.list_batches * lists.list_heads * lists.list_rows;
  if (num_lines > 0) {
    kernels.push_back(strided_kernel(*problem.gpu, "attention_prepare", "", num_lines));
  }
  const auto add_map = [&](const BackwardMap& map, std::string config) {
    kernels.push_back(block_map_kernel(problem, map.blocks, map.num_m_blocks, std::move(config)));
  };
  // The launcher counts on this order.
  if (plan.streams() && plan.stream.blocks.is_on) add_map(plan.stream, keys_config(problem, plan));
  if (plan.tiling && plan.tile.blocks.is_on) add_map(plan.tile, tile_config(problem, plan));
}

/// Delta, dq, and gradients of slopes, aux tensors and bias.
void add_query_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                       std::vector<KernelChoice>& kernels) {
  const int64_t num_blocks = plan.stream.num_m_blocks * problem.batch_size * problem.num_heads;
  const auto add = [&](const QueriesWork& work) {
    const int64_t num_parts = work.dq ? plan.queries.num_parts : 1;
    kernels.push_back(stream_kernel(problem, "attention_bwd_queries",
                                    queries_config(problem, plan, work), num_blocks * num_parts,
                                    plan.queries));
  };
  const bool needs_largest = problem.wants_aux_gradient && problem.deterministic;
  QueriesWork work;
  work.delta = plan.finds_delta;
  work.dq = plan.visits_queries && problem.dq;
  work.slopes = problem.wants_alibi_gradient;
  if (problem.wants_aux_gradient) work.aux_sums = needs_largest ? "kLargest" : "kDouble";
  if (num_blocks > 0 && (plan.finds_delta || plan.visits_queries)) add(work);
  if (num_blocks > 0 && needs_largest) {
    QueriesWork sums;
    sums.aux_sums = "kFixed";
    add(sums);
  }
  if (problem.dbias && num_bias_ctas(problem) > 0) {
    kernels.push_back(stream_kernel(problem, "attention_bwd_bias", bias_config(problem, plan),
                                    num_bias_ctas(problem), plan.queries));
  }
}

/// dk and dv, and with them the sums of dq.
void add_key_kernel(const AttentionProblem& problem, const BackwardPlan& plan,
                    std::vector<KernelChoice>& kernels) {
  const int64_t num_pairs = problem.batch_size * problem.num_heads_kv;
  if (num_pairs * problem.max_seqlen_k == 0) return;
  if (!problem.dk && !problem.dv && !plan.sums_dq) return;
  if (plan.tiling) {
    kernels.push_back(tile_kernel(*problem.gpu, "attention_bwd_portable",
                                  tile_config(problem, plan), plan.tile.num_n_blocks * num_pairs,
                                  plan.tiling->shape.num_threads(),
                                  plan.tiling->shape.shared_bytes()));
    kernels.back().overlaps_previous = may_overlap(problem);
  } else {
    kernels.push_back(stream_kernel(problem, "attention_bwd_keys", keys_config(problem, plan),
                                    plan.stream.num_n_blocks * num_pairs * plan.keys.num_parts,
                                    plan.keys));
  }
}

/// From sums to results.
void add_last_kernels(const AttentionProblem& problem, const BackwardPlan& plan,
                      std::vector<KernelChoice>& kernels) {
  const int64_t num_row_blocks =
      problem.batch_size * ceil_div(problem.max_seqlen_q, device::kRowPadding) * problem.num_heads;
  if (problem.dq && ((plan.sums_dq && !plan.finishes_dq) || problem.is_packed_q)) {
    kernels.push_back(strided_kernel(*problem.gpu, "attention_bwd_convert",
                                     convert_config(problem, plan), num_row_blocks));
    kernels.back().overlaps_previous = may_overlap(problem);
  }
  if (problem.wants_aux_gradient) {
    const std::string config =
        "#include \"cuda/device/backward/aux_gradients.cuh\"\n"
        "struct Config {\n" +
        aux_sums_text(aux_sums(problem)) + "};\n";
    kernels.push_back(strided_kernel(*problem.gpu, "attention_bwd_aux", config,
                                     ceil_div(problem.aux_gradient_elements, 32)));
  }
  if (plan.parts.bytes > 0) {
    kernels.push_back(strided_kernel(*problem.gpu, "attention_bwd_reduce", "", problem.num_heads));
  }
}

}  // namespace

std::vector<KernelChoice> backward_kernels(const AttentionProblem& problem,
                                           const BackwardPlan& plan) {
  std::vector<KernelChoice> kernels;
  if (!plan.is_main_only) {
    add_first_kernels(problem, plan, kernels);
    add_query_kernels(problem, plan, kernels);
  }
  add_key_kernel(problem, plan, kernels);
  if (!plan.is_main_only) add_last_kernels(problem, plan, kernels);
  return kernels;
}

AttentionPlan plan_attention_bwd(const AttentionProblem& problem) {
  const BackwardPlan backward = make_backward_plan(problem);
  AttentionPlan plan;
  plan.implementation = "attention_bwd_portable";
  plan.block_m = backward.tiling ? backward.tiling->shape.block_m : device::kStreamBlock;
  plan.block_n = backward.tiling ? backward.tiling->shape.block_n : device::kStreamBlock;
  const BackwardMap& map = backward.tiling ? backward.tile : backward.stream;
  plan.num_tasks = map.num_n_blocks * problem.batch_size * problem.num_heads_kv;
  plan.workspace_bytes = backward.workspace_bytes;
  plan.kernels = backward_kernels(problem, backward);
  plan.details = std::make_shared<const BackwardPlan>(backward);
  return plan;
}

}  // namespace flashtile::cuda
