// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/problem.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <sstream>
#include <tuple>

#include "core/count.hpp"
#include "core/fail.hpp"
#include "core/text.hpp"
#include "core/validate.hpp"
#include "ops/attention/append.hpp"
#include "ops/attention/host_data.hpp"
#include "ops/attention/sequences.hpp"
#include "variant/expr/parse.hpp"
#include "variant/position_mask.hpp"

namespace flashtile {
namespace {

constexpr int64_t kMaxHeadDim = 1024;
constexpr int64_t kMaxAlignment = 256;
// As that of query_offset: positions and sums of a few lengths stay exact.
constexpr int64_t kMaxLength = int64_t{1} << 52;

bool is_host(const TensorView& tensor) { return tensor && tensor.device.type == DeviceType::kCpu; }

void set_sizes(AttentionProblem& problem, const AttentionArgs& args) {
  problem.is_packed_q = bool(args.cu_seqlens_q);
  problem.is_packed_k = bool(args.cu_seqlens_k);
  problem.has_seqused = bool(args.seqused_k);
  problem.has_leftpad = bool(args.leftpad_k);
  problem.has_block_table = bool(args.block_table);
  problem.has_new_keys = bool(args.k_new);
  problem.rotary_dim = args.rotary_cos ? 2 * args.rotary_cos.shape[1] : 0;
  problem.rotary_interleaved = args.rotary_interleaved;
  problem.page_size = problem.has_block_table ? args.k.shape[1] : 0;
  const TensorView& q = args.q;
  const TensorView& k = args.k;
  if (problem.is_packed_q) {
    problem.batch_size = args.cu_seqlens_q.shape[0] - 1;
  } else {
    problem.batch_size = q.shape[0];
  }
  problem.num_heads = q.shape[static_cast<size_t>(q.ndim - 2)];
  problem.head_dim = q.shape[static_cast<size_t>(q.ndim - 1)];
  problem.num_heads_kv = k.shape[static_cast<size_t>(k.ndim - 2)];
  problem.head_dim_v = args.v.shape[static_cast<size_t>(args.v.ndim - 1)];
  problem.total_q = problem.is_packed_q ? q.shape[0] : q.shape[0] * q.shape[1];
  problem.total_k = problem.is_packed_k ? k.shape[0] : k.shape[0] * k.shape[1];
}

/// The longest sequence of packed rows: what the caller says, or what host lengths show. Plans are
/// made for it, so it is never more than all rows.
int64_t packed_max(std::string_view op, std::string_view which, const TensorView& cu_seqlens,
                   int64_t total, const std::optional<int64_t>& stated, bool has_data) {
  if (!has_data || !is_host(cu_seqlens)) {
    if (!stated && has_data) {
      fail(op, "max_seqlen_", which, " is needed when cu_seqlens_", which, " is on a device");
    }
    return std::min(stated.value_or(total), total);
  }
  const std::string name = "cu_seqlens_" + std::string(which);
  const int64_t longest = longest_sequence(op, name, cu_seqlens, total);
  if (stated && *stated < longest) {
    fail(op, "max_seqlen_", which, " is ", *stated, ", but a sequence of ", name, " has ", longest);
  }
  return std::min(stated.value_or(longest), total);
}

/// The longest sequences of a call.
struct Lengths {
  int64_t max_seqlen_q = 0;
  int64_t max_seqlen_k = 0;
  int64_t max_seqlen_new = 0;
};

Lengths lengths_of(std::string_view op, const AttentionProblem& problem, const AttentionArgs& args,
                   bool has_data) {
  Lengths lengths;
  lengths.max_seqlen_q =
      problem.is_packed_q
          ? packed_max(op, "q", args.cu_seqlens_q, problem.total_q, args.max_seqlen_q, has_data)
          : args.q.shape[1];
  if (args.block_table) {
    const int64_t pages = args.block_table.shape[1];
    if (__builtin_mul_overflow(pages, problem.page_size, &lengths.max_seqlen_k)) {
      fail(op, "block_table has ", pages, " pages of ", problem.page_size,
           " keys for a sequence, expected at most ", kMaxLength, " keys");
    }
  } else if (problem.is_packed_k) {
    lengths.max_seqlen_k =
        packed_max(op, "k", args.cu_seqlens_k, problem.total_k, args.max_seqlen_k, has_data);
  } else {
    lengths.max_seqlen_k = args.k.shape[1];
  }
  if (args.cu_seqlens_new) {
    lengths.max_seqlen_new =
        has_data && is_host(args.cu_seqlens_new)
            ? longest_sequence(op, "cu_seqlens_new", args.cu_seqlens_new, args.k_new.shape[0])
            : args.k_new.shape[0];
  } else if (args.k_new) {
    lengths.max_seqlen_new = args.k_new.shape[1];
  }
  return lengths;
}

void check_sizes(std::string_view op, const AttentionProblem& problem) {
  if (problem.batch_size < 0) fail(op, "cu_seqlens_q is empty, expected batch_size + 1 entries");
  if (problem.has_block_table && problem.page_size < 1) {
    fail(op, "pages of k have ", problem.page_size, " keys, expected at least 1");
  }
  if (problem.num_heads < 1 || problem.num_heads_kv < 1 ||
      problem.num_heads % problem.num_heads_kv != 0) {
    fail(op, "q has ", problem.num_heads, " heads, expected a positive multiple of the ",
         problem.num_heads_kv, " heads of k");
  }
  for (const auto& [name, value] :
       {std::pair{"head_dim", problem.head_dim}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (value < 1 || value > kMaxHeadDim) {
      fail(op, name, " is ", value, ", expected 1 to ", kMaxHeadDim);
    }
  }
}

void check_lengths(std::string_view op, const AttentionProblem& problem) {
  for (const auto& [name, value] :
       {std::pair{"seqlen_q", problem.max_seqlen_q}, std::pair{"seqlen_k", problem.max_seqlen_k},
        std::pair{"seqlen_new", problem.max_seqlen_new}}) {
    if (value > kMaxLength) fail(op, name, " is ", value, ", expected at most ", kMaxLength);
  }
}

bool is_quantised(DType dtype) { return dtype == DType::kI8 || dtype == DType::kE4M3; }

void check_scales(std::string_view op, const AttentionArgs& args) {
  const bool has_codes = is_quantised(args.k.dtype);
  for (const auto& [name, given] :
       {std::pair{"k_scale", bool(args.k_scale)}, std::pair{"v_scale", bool(args.v_scale)}}) {
    if (given && !has_codes) {
      fail(op, name, " is given, but k is ", dtype_name(args.k.dtype), ", expected i8 or e4m3");
    }
  }
}

/// Combinations that the table cannot express.
void check_combinations(std::string_view op, const AttentionArgs& args, bool is_backward) {
  if (args.block_table && args.cu_seqlens_k) {
    fail(op, "block_table and cu_seqlens_k both say where keys are; give one");
  }
  if (args.cache_batch_idx && (args.cu_seqlens_k || args.block_table)) {
    fail(op, "cache_batch_idx needs k with a line for each entry, not packed or paged");
  }
  if (bool(args.block_counts) != bool(args.block_indices)) {
    fail(op, "block_counts and block_indices must be given together");
  }
  if (args.block_counts && (args.block_rows < 1 || args.block_cols < 1)) {
    fail(op, "block_rows is ", args.block_rows, " and block_cols ", args.block_cols,
         ", expected both positive with block_counts");
  }
  if (!args.block_counts && (args.block_rows != 0 || args.block_cols != 0)) {
    fail(op, "block_rows and block_cols need block_counts and block_indices");
  }
  for (const auto& [which, stated, is_packed] :
       {std::tuple{"q", &args.max_seqlen_q, bool(args.cu_seqlens_q)},
        std::tuple{"k", &args.max_seqlen_k, bool(args.cu_seqlens_k)}}) {
    if (*stated && !is_packed) {
      fail(op, "max_seqlen_", which, " is given without cu_seqlens_", which);
    }
  }
  if (!(args.dropout_p < 1)) fail(op, "dropout_p is ", args.dropout_p, ", expected below 1");
  if (args.dropout_seed_tensor && args.dropout_seed != 0) {
    fail(op, "dropout_seed and dropout_seed_tensor are both given");
  }
  if (args.softmax_scale && !std::isfinite(*args.softmax_scale)) {
    fail(op, "softmax_scale is ", *args.softmax_scale, ", expected a finite number");
  }
  if (args.lse.dtype == DType::kF64 && args.q.dtype != DType::kF64) {
    fail(op, "lse is f64, expected f32 unless q is f64");
  }
  check_append(op, args, is_backward);
  if (is_backward && args.block_table) refuse(op, "paged keys (block_table) have no backward");
  if (is_backward && args.cache_batch_idx) refuse(op, "cache_batch_idx has no backward");
  const std::pair<const TensorView*, std::pair<const TensorView*, const char*>> gradients[] = {
      {&args.dbias, {&args.bias, "bias"}},
      {&args.dalibi_slopes, {&args.alibi_slopes, "alibi_slopes"}},
      {&args.dsink, {&args.sink, "sink"}}};
  for (const auto& [gradient, source] : gradients) {
    if (*gradient && !*source.first)
      fail(op, "d", source.second, " is given without ", source.second);
    if (!*gradient) continue;
    for (int d = 0; d < gradient->ndim; ++d) {
      const auto dim = static_cast<size_t>(d);
      if (gradient->ndim == source.first->ndim && gradient->shape[dim] == source.first->shape[dim])
        continue;
      fail(op, "d", source.second, " is ", to_string(*gradient), ", expected the shape of ",
           source.second, ", ", to_string(*source.first));
    }
  }
}

/// Tensors with a row for each query and a column for each stored key of the longest sequence.
void check_score_shapes(std::string_view op, const AttentionProblem& problem,
                        const AttentionArgs& args) {
  for (const auto& [name, tensor] :
       {std::pair{"bias", &args.bias}, std::pair{"weights", &args.weights},
        std::pair{"dropout_mask", &args.dropout_mask}}) {
    if (!*tensor) continue;
    const bool may_broadcast = tensor == &args.bias;
    const int64_t rows = tensor->shape[2];
    const int64_t cols = tensor->shape[3];
    if (rows < problem.max_seqlen_q && !(may_broadcast && rows == 1)) {
      fail(op, name, " has ", rows, " rows for up to ", problem.max_seqlen_q, " queries");
    }
    if (cols < problem.max_seqlen_k) {
      fail(op, name, " has ", cols, " columns for up to ", problem.max_seqlen_k, " stored keys");
    }
  }
  if (args.block_counts) {
    const int64_t num_rows = (problem.max_seqlen_q + problem.block_rows - 1) / problem.block_rows;
    if (args.block_counts.shape[2] < num_rows) {
      fail(op, "block_counts has ", args.block_counts.shape[2], " query blocks of ",
           args.block_rows, " rows for up to ", problem.max_seqlen_q, " queries");
    }
  }
}

/// Texts can read no other name, and those with a dot are the library's own.
void check_name(std::string_view op, std::string_view what, const std::string& name) {
  if (is_identifier(name)) return;
  fail(op, what, " is called '", name, "', expected letters, digits and _, no digit first");
}

void check_params(std::string_view op, const AttentionArgs& args) {
  for (size_t n = 0; n < args.params.size(); ++n) {
    const std::string& name = args.params[n].name;
    check_name(op, "a param", name);
    for (size_t other = 0; other < n; ++other) {
      if (args.params[other].name == name) fail(op, "two params are called '", name, "'");
    }
  }
}

std::vector<variant::AuxSignature> aux_signatures(std::string_view op, const AttentionArgs& args) {
  std::vector<variant::AuxSignature> signatures;
  for (const AuxTensor& aux : args.aux) {
    check_name(op, "an aux tensor", aux.name);
    for (const variant::AuxSignature& other : signatures) {
      if (other.name == aux.name) fail(op, "two aux tensors are called '", aux.name, "'");
    }
    if (!aux.tensor) fail(op, "aux tensor '", aux.name, "' is missing");
    const bool is_float = aux.tensor.dtype == DType::kF32;
    if (aux.gradient && !is_float) {
      fail(op, "daux.", aux.name, " is given, but aux tensor '", aux.name, "' is ",
           dtype_name(aux.tensor.dtype), ", expected f32");
    }
    bool is_alike = !aux.gradient || aux.gradient.ndim == aux.tensor.ndim;
    for (int d = 0; is_alike && aux.gradient && d < aux.tensor.ndim; ++d) {
      const auto dim = static_cast<size_t>(d);
      is_alike = aux.gradient.shape[dim] == aux.tensor.shape[dim];
    }
    if (!is_alike) {
      fail(op, "daux.", aux.name, " is ", to_string(aux.gradient), ", expected the shape of aux.",
           aux.name, ", ", to_string(aux.tensor));
    }
    signatures.push_back({aux.name, aux.tensor.ndim, is_float});
  }
  return signatures;
}

void set_expressions(std::string_view op, AttentionProblem& problem, const AttentionArgs& args) {
  check_params(op, args);
  const std::vector<variant::AuxSignature> signatures = aux_signatures(op, args);
  variant::Mentions mentions;
  const auto parsed = [&](std::string_view text, auto parse) {
    try {
      return parse(text, signatures, &mentions);
    } catch (const Error& error) {
      throw Error(error.code(), std::string(op) + ": " + error.what());
    }
  };
  if (!args.score.empty()) problem.user_score = parsed(args.score, variant::parse_score);
  if (!args.mask.empty()) problem.user_mask = parsed(args.mask, variant::parse_mask);
  for (const variant::Expr* expr : {&problem.user_score, &problem.user_mask}) {
    for (const std::string& name : expr->params) {
      const bool is_given = std::any_of(args.params.begin(), args.params.end(),
                                        [&](const ScalarParam& p) { return p.name == name; });
      if (!is_given) fail(op, "param.", name, " is read by an expression, but not given");
    }
  }
  const auto check_read = [&](std::string_view family, const std::string& name,
                              const std::vector<std::string>& read) {
    if (std::find(read.begin(), read.end(), name) != read.end()) return;
    fail(op, family, ".", name, " is given, but read by no expression");
  };
  for (const AuxTensor& aux : args.aux) check_read("aux", aux.name, mentions.aux);
  for (const ScalarParam& param : args.params) check_read("param", param.name, mentions.params);
}

/// A window or chunk that is longer than anything, INT64_MAX too, is one that sees everything.
std::optional<int64_t> unbounded_at_most(const std::optional<int64_t>& length) {
  if (!length) return length;
  return std::min<int64_t>(*length, variant::PositionMask::kUnbounded);
}

void set_options(AttentionProblem& problem, const AttentionArgs& args) {
  problem.softmax_scale =
      args.softmax_scale.value_or(1 / std::sqrt(static_cast<double>(problem.head_dim)));
  problem.softcap = args.softcap;
  problem.query_offset = args.query_offset;
  problem.window_left = unbounded_at_most(args.window_left);
  problem.window_right =
      args.causal ? std::optional<int64_t>(0) : unbounded_at_most(args.window_right);
  problem.attention_chunk = unbounded_at_most(args.attention_chunk);
  problem.has_alibi = bool(args.alibi_slopes);
  problem.has_sink = bool(args.sink);
  problem.has_block_list = bool(args.block_counts);
  problem.block_rows = std::min(args.block_rows, kMaxLength);
  problem.block_cols = std::min(args.block_cols, kMaxLength);
  problem.deterministic = args.deterministic;
  problem.batch_invariant = args.batch_invariant;
  if (args.dropout_p > 0) {
    // nearbyint rounds halves to even, as the definition of the threshold wants.
    const double threshold = std::min(std::nearbyint(args.dropout_p * 65536), 65535.0);
    problem.dropout.is_on = true;
    problem.dropout.threshold = static_cast<uint32_t>(threshold);
    problem.dropout.gain = 65536 / (65536 - threshold);
    problem.dropout.seed = dropout_seed_of(args);
    problem.dropout.offset = static_cast<uint32_t>(args.dropout_offset);
    problem.dropout.has_seed_tensor = bool(args.dropout_seed_tensor);
  }
  problem.wants_lse = bool(args.lse);
  problem.wants_max_logit = bool(args.max_logit);
  problem.wants_weights = bool(args.weights) || bool(args.dropout_mask);
  problem.num_aux = args.aux.size();
  problem.wants_aux_gradient = std::any_of(args.aux.begin(), args.aux.end(),
                                           [](const AuxTensor& aux) { return bool(aux.gradient); });
  for (const AuxTensor& aux : args.aux) {
    if (aux.gradient) problem.aux_gradient_elements += aux.gradient.numel();
  }
  problem.wants_alibi_gradient = bool(args.dalibi_slopes);
  problem.wants_sink_gradient = bool(args.dsink);
}

/// Scalars from 2^127 on are infinite in float32, or become that when a kernel turns them to
/// powers of two. An infinity that the caller wrote stays what it is.
bool is_beyond_float(double value) { return std::isfinite(value) && std::abs(value) >= 0x1p127; }

std::string find_beyond_float(const AttentionProblem& problem, const AttentionArgs& args) {
  const auto text = [](const std::string& name, double value) {
    return name + " is " + float_text(value) + "; computes in float32, which takes up to 2^127";
  };
  if (is_beyond_float(problem.softmax_scale)) return text("softmax_scale", problem.softmax_scale);
  if (problem.softcap && is_beyond_float(*problem.softcap)) {
    return text("softcap", *problem.softcap);
  }
  for (const ScalarParam& param : args.params) {
    if (is_beyond_float(param.value)) return text("param." + param.name, param.value);
  }
  for (const variant::Expr* expr : {&problem.user_score, &problem.user_mask}) {
    for (const variant::Node& node : expr->nodes) {
      if (node.op == variant::Op::kFloatConst && is_beyond_float(node.float_value)) {
        return text("a number of an expression", node.float_value);
      }
    }
  }
  return {};
}

void set_layouts(AttentionProblem& problem, const AttentionArgs& args) {
  problem.q = layout_of(args.q);
  problem.k = layout_of(args.k);
  problem.v = layout_of(args.v);
  problem.out = layout_of(args.out);
  problem.lse = layout_of(args.lse);
  problem.bias = layout_of(args.bias);
  problem.dout = layout_of(args.dout);
  problem.dq = layout_of(args.dq);
  problem.dk = layout_of(args.dk);
  problem.dv = layout_of(args.dv);
  problem.dbias = layout_of(args.dbias);
  problem.block_counts = layout_of(args.block_counts);
  problem.block_indices = layout_of(args.block_indices);
  problem.rotary_cos = layout_of(args.rotary_cos);
  problem.k_scale = layout_of(args.k_scale);
  problem.v_scale = layout_of(args.v_scale);
}

AttentionProblem make_problem(const AttentionArgs& args, bool is_backward, bool has_data,
                              IndexChecks* index_checks) {
  const std::string_view op = attention_op_name(is_backward);
  const OpSpec& spec = is_backward ? attention_bwd_spec() : attention_fwd_spec();
  if (has_data) {
    validate_call(spec, &args);
  } else {
    validate_shapes(spec, &args);
  }
  AttentionProblem problem;
  problem.is_backward = is_backward;
  problem.device = args.q.device;
  problem.dtype = args.q.dtype;
  problem.is_quantised = is_quantised(args.k.dtype);
  check_combinations(op, args, is_backward);
  check_scales(op, args);
  set_sizes(problem, args);
  check_sizes(op, problem);
  const Lengths lengths = lengths_of(op, problem, args, has_data);
  problem.max_seqlen_q = lengths.max_seqlen_q;
  problem.max_seqlen_k = lengths.max_seqlen_k;
  problem.max_seqlen_new = lengths.max_seqlen_new;
  check_lengths(op, problem);
  set_options(problem, args);
  check_score_shapes(op, problem, args);
  set_expressions(op, problem, args);
  problem.beyond_float = find_beyond_float(problem, args);
  set_layouts(problem, args);
  problem.values_in_keys = is_leading_part(args.v, args.k);
  if (has_data && problem.device.type == DeviceType::kCpu) {
    check_attention_host_data(op, problem, args, index_checks);
  }
  return problem;
}

}  // namespace

uint64_t dropout_seed_of(const AttentionArgs& args) {
  const TensorView& tensor = args.dropout_seed_tensor;
  if (!is_host(tensor) || tensor.data == nullptr) return args.dropout_seed;
  return static_cast<uint64_t>(element<int64_t>(tensor, {0}));
}

TensorLayout layout_of(const TensorView& tensor) {
  TensorLayout layout;
  layout.dtype = tensor.dtype;
  layout.ndim = tensor.ndim;
  layout.shape = tensor.shape;
  layout.strides = tensor.strides;
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  layout.address_alignment =
      address == 0 ? kMaxAlignment
                   : std::min<int64_t>(kMaxAlignment, int64_t{1} << std::countr_zero(address));
  return layout;
}

int64_t AttentionPlan::bytes_for(std::string_view op, int64_t num_workers) const {
  return (Count(workspace_bytes) + Count(num_workers) * worker_bytes)
      .value(op, "bytes of workspace");
}

AttentionProblem make_attention_problem(const AttentionArgs& args, bool is_backward,
                                        IndexChecks* index_checks) {
  IndexChecks of_this_call;
  return make_problem(args, is_backward, /*has_data=*/true,
                      index_checks == nullptr ? &of_this_call : index_checks);
}

AttentionProblem make_attention_problem_from_shapes(const AttentionArgs& args, bool is_backward) {
  return make_problem(args, is_backward, /*has_data=*/false, nullptr);
}

bool has_lengths_of(const AttentionProblem& problem, const AttentionArgs& args,
                    IndexChecks* index_checks) {
  if (problem.device.type != DeviceType::kCpu) return true;
  const std::string_view op = attention_op_name(problem.is_backward);
  const Lengths now = lengths_of(op, problem, args, /*has_data=*/true);
  if (now.max_seqlen_q != problem.max_seqlen_q || now.max_seqlen_k != problem.max_seqlen_k ||
      now.max_seqlen_new != problem.max_seqlen_new) {
    return false;
  }
  check_attention_host_data(op, problem, args, index_checks);
  return true;
}

std::string to_string(const AttentionPlan& plan) {
  std::ostringstream text;
  text << plan.implementation;
  if (plan.block_m > 0) {
    text << (plan.is_decode ? ": decode, block_m " : ": block_m ") << plan.block_m << ", block_n "
         << plan.block_n << ", splits " << plan.num_splits << ", tasks " << plan.num_tasks
         << ", workspace " << plan.workspace_bytes << " + " << plan.worker_bytes
         << " bytes a worker";
  }
  for (const KernelChoice& kernel : plan.kernels) text << "\n  " << to_string(kernel);
  return text.str();
}

}  // namespace flashtile
