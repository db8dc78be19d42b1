// SPDX-License-Identifier: Apache-2.0
//
// The operator tables of attention_fwd and attention_bwd.
#include <algorithm>
#include <array>

#include "ops/attention/args.hpp"
#include "ops/attention/implementations.hpp"

namespace flashtile {
namespace {

using enum Direction;

constexpr std::array kDims = {
    DimSpec{"batch_size", "b", ""},
    DimSpec{"num_heads", "hq", ""},
    DimSpec{"num_heads_kv", "hkv", "num_heads"},
    DimSpec{"seqlen_q", "sq", ""},
    DimSpec{"seqlen_k", "sk", "seqlen_q"},
    DimSpec{"head_dim", "d", ""},
    DimSpec{"head_dim_v", "dv", "head_dim"},
    DimSpec{"page_size", "ps", ""},
    DimSpec{"num_pages", "np", ""},
    DimSpec{"pages_per_seq", "pp", ""},
    DimSpec{"num_lines", "lines", "batch_size"},
    DimSpec{"total_q", "tq", ""},
    DimSpec{"total_k", "tk", ""},
    DimSpec{"seqlen_new", "sn", ""},
    DimSpec{"total_new", "tn", ""},
    DimSpec{"num_positions", "pos", "seqlen_k"},
    DimSpec{"rotary_pairs", "rp", ""},
    DimSpec{"num_block_rows", "m", ""},
    DimSpec{"num_block_cols", "n", ""},
};

constexpr std::string_view kShapeQ =
    "@cu_seqlens_q: total_q num_heads head_dim; batch_size seqlen_q num_heads head_dim";
constexpr std::string_view kShapeK =
    "@block_table: num_pages page_size num_heads_kv head_dim; "
    "@cu_seqlens_k: total_k num_heads_kv head_dim; "
    "@cache_batch_idx: num_lines seqlen_k num_heads_kv head_dim; "
    "batch_size seqlen_k num_heads_kv head_dim";
constexpr std::string_view kShapeV =
    "@block_table: num_pages page_size num_heads_kv head_dim_v; "
    "@cu_seqlens_k: total_k num_heads_kv head_dim_v; "
    "@cache_batch_idx: num_lines seqlen_k num_heads_kv head_dim_v; "
    "batch_size seqlen_k num_heads_kv head_dim_v";
constexpr std::string_view kShapeOut =
    "@cu_seqlens_q: total_q num_heads head_dim_v; batch_size seqlen_q num_heads head_dim_v";
constexpr std::string_view kShapeLse =
    "@cu_seqlens_q: num_heads total_q; batch_size num_heads seqlen_q";
constexpr std::string_view kShapeBias = "batch_size? num_heads? seqlen_q? seqlen_k";
constexpr std::string_view kShapeKNew =
    "@cu_seqlens_new: total_new num_heads_kv head_dim; "
    "batch_size seqlen_new num_heads_kv head_dim";
constexpr std::string_view kShapeVNew =
    "@cu_seqlens_new: total_new num_heads_kv head_dim_v; "
    "batch_size seqlen_new num_heads_kv head_dim_v";
constexpr std::string_view kShapeScale =
    "@block_table: num_heads_kv; @block_table: num_pages num_heads_kv; "
    "@cache_batch_idx: num_heads_kv; @cache_batch_idx: num_lines num_heads_kv; "
    "num_heads_kv; batch_size num_heads_kv";
constexpr std::string_view kShapeWeights = "batch_size num_heads seqlen_q seqlen_k";

template <auto Member>
constexpr TensorSpec row(std::string_view name, Direction direction, bool is_required,
                         std::string_view shape, std::string_view dtypes, std::string_view doc,
                         std::string_view gradient_of = {}, Fill fill = Fill::kNormal) {
  return {name,   direction, is_required,
          shape,  dtypes,    gradient_of,
          doc,    fill,      tensor_access<AttentionArgs, Member>,
          nullptr};
}

TensorView* access_aux(AttentionArgs& args, std::string_view name, bool create, bool gradient) {
  for (AuxTensor& aux : args.aux) {
    if (aux.name == name) return gradient ? &aux.gradient : &aux.tensor;
  }
  if (!create) return nullptr;
  args.aux.push_back({std::string(name), {}, {}});
  return gradient ? &args.aux.back().gradient : &args.aux.back().tensor;
}

template <bool gradient>
std::vector<std::string> aux_suffixes(const void* args) {
  std::vector<std::string> names;
  for (const AuxTensor& aux : static_cast<const AttentionArgs*>(args)->aux) {
    if (gradient ? bool(aux.gradient) : bool(aux.tensor)) names.push_back(aux.name);
  }
  return names;
}

template <bool gradient>
constexpr TensorSpec aux_row(std::string_view name, Direction direction, std::string_view dtypes,
                             std::string_view gradient_of, std::string_view doc) {
  return {name,
          direction,
          false,
          "",
          dtypes,
          gradient_of,
          doc,
          Fill::kNormal,
          [](void* args, std::string_view suffix, bool create) {
            return access_aux(*static_cast<AttentionArgs*>(args), suffix, create, gradient);
          },
          aux_suffixes<gradient>};
}

using A = AttentionArgs;
constexpr std::string_view kFloats = "f32 f16 bf16 f64";

// Inputs that both ops have.
constexpr std::array kInputs = {
    row<&A::q>("q", kIn, true, kShapeQ, kFloats, "queries"),
    row<&A::k>("k", kIn, true, kShapeK, "=q", "keys"),
    row<&A::v>("v", kIn, true, kShapeV, "=q", "values"),
    row<&A::bias>("bias", kIn, false, kShapeBias, kFloats, "added to scores; -inf masks"),
    row<&A::alibi_slopes>("alibi_slopes", kIn, false, "num_heads; batch_size num_heads", "f32",
                          "ALiBi slope of each head", "", Fill::kPositive),
    row<&A::sink>("sink", kIn, false, "num_heads", "f32",
                  "logit that is part of each softmax denominator"),
    row<&A::cu_seqlens_q>("cu_seqlens_q", kIn, false, "batch_size+1", "i32",
                          "first row of each packed query sequence", "", Fill::kLengths),
    row<&A::cu_seqlens_k>("cu_seqlens_k", kIn, false, "batch_size+1", "i32",
                          "first row of each packed key sequence", "", Fill::kLengths),
    row<&A::seqused_k>("seqused_k", kIn, false, "batch_size", "i32",
                       "stored keys that are in use, from slot 0", "", Fill::kLengths),
    row<&A::leftpad_k>("leftpad_k", kIn, false, "batch_size", "i32",
                       "stored keys before the first one", "", Fill::kLengths),
    row<&A::block_table>("block_table", kIn, false, "batch_size pages_per_seq", "i32",
                         "page of each page_size keys of a sequence", "", Fill::kPermutation),
    row<&A::cache_batch_idx>("cache_batch_idx", kIn, false, "batch_size", "i32",
                             "line of k and v that a sequence reads", "", Fill::kPermutation),
    row<&A::block_counts>("block_counts", kIn, false, "batch_size? num_heads? num_block_rows",
                          "i32", "listed key blocks of each query block", "", Fill::kLengths),
    row<&A::block_indices>("block_indices", kIn, false,
                           "batch_size? num_heads? num_block_rows num_block_cols", "i32",
                           "the listed key blocks", "", Fill::kPermutation),
    row<&A::dropout_seed_tensor>("dropout_seed_tensor", kIn, false, "1", "i64",
                                 "dropout_seed, read when the call runs"),
    aux_row<false>("aux.*", kIn, "f32 i32 i64", "", "what expressions read as NAME[...]"),
};

// What attention_fwd may do to the keys before it attends.
constexpr std::array kFwdInputs = {
    row<&A::k_scale>("k_scale", kIn, false, kShapeScale, "f32",
                     "k of i8 or e4m3 is multiplied by it", "", Fill::kPositive),
    row<&A::v_scale>("v_scale", kIn, false, kShapeScale, "f32",
                     "v of i8 or e4m3 is multiplied by it", "", Fill::kPositive),
    row<&A::k_new>("k_new", kIn, false, kShapeKNew, "=q", "keys to store behind those in use"),
    row<&A::v_new>("v_new", kIn, false, kShapeVNew, "=q", "values to store"),
    row<&A::cu_seqlens_new>("cu_seqlens_new", kIn, false, "batch_size+1", "i32",
                            "first row of each packed sequence of new keys", "", Fill::kLengths),
    row<&A::rotary_cos>("rotary_cos", kIn, false, "num_positions rotary_pairs", "=q f32",
                        "turns q and k_new"),
    row<&A::rotary_sin>("rotary_sin", kIn, false, "num_positions rotary_pairs", "=q f32",
                        "turns q and k_new"),
    row<&A::rotary_seqlens>("rotary_seqlens", kIn, false, "batch_size", "i32",
                            "first rotary position of a sequence; default seqused_k", "",
                            Fill::kLengths),
};

constexpr std::array kFwdOutputs = {
    row<&A::out>("out", kOut, true, kShapeOut, "=q f32", "weights . v"),
    row<&A::lse>("lse", kOut, false, kShapeLse, "f32 f64", "natural log of softmax denominators"),
    row<&A::max_logit>("max_logit", kOut, false, "num_heads", "f32",
                       "largest masked score of each head"),
    row<&A::weights>("weights", kOut, false, kShapeWeights, "f32", "what v is multiplied by"),
    row<&A::dropout_mask>("dropout_mask", kOut, false, kShapeWeights, "u8",
                          "1 where dropout keeps"),
};

constexpr std::array kBwdTensors = {
    row<&A::out>("out", kIn, true, kShapeOut, "=q f32", "result of attention_fwd"),
    row<&A::lse>("lse", kIn, true, kShapeLse, "f32 f64", "result of attention_fwd"),
    row<&A::dout>("dout", kIn, true, kShapeOut, "=q f32", "incoming gradient of out"),
    row<&A::dlse>("dlse", kIn, false, kShapeLse, "f32", "incoming gradient of lse"),
    row<&A::dq>("dq", kOut, false, kShapeQ, "=q", "gradient of q", "q"),
    row<&A::dk>("dk", kOut, false, kShapeK, "=q", "gradient of k", "k"),
    row<&A::dv>("dv", kOut, false, kShapeV, "=q", "gradient of v", "v"),
    row<&A::dbias>("dbias", kOut, false, kShapeBias, "=bias", "gradient of bias", "bias"),
    row<&A::dalibi_slopes>("dalibi_slopes", kOut, false, "num_heads; batch_size num_heads", "f32",
                           "gradient of alibi_slopes", "alibi_slopes"),
    row<&A::dsink>("dsink", kOut, false, "num_heads", "f32", "gradient of sink", "sink"),
    aux_row<true>("daux.*", kOut, "f32", "aux.*", "gradients of f32 aux tensors"),
};

template <size_t n, size_t m>
constexpr std::array<TensorSpec, n + m> joined(const std::array<TensorSpec, n>& a,
                                               const std::array<TensorSpec, m>& b) {
  std::array<TensorSpec, n + m> all{};
  std::copy(a.begin(), a.end(), all.begin());
  std::copy(b.begin(), b.end(), all.begin() + n);
  return all;
}

/// k and v are written where there are new keys, and may be quantised.
constexpr auto as_caches(auto inputs) {
  for (TensorSpec& tensor : inputs) {
    if (tensor.name != "k" && tensor.name != "v") continue;
    tensor.direction = kInOut;
    tensor.written_with = "k_new";
    tensor.dtypes = tensor.name == "k" ? "=q i8 e4m3" : "=k";
  }
  return inputs;
}

constexpr auto kFwdTensors = joined(joined(as_caches(kInputs), kFwdInputs), kFwdOutputs);
constexpr auto kBwdAllTensors = joined(kInputs, kBwdTensors);

template <auto Member>
constexpr OptionSpec option(std::string_view name, std::string_view default_text, double min_value,
                            double max_value, std::string_view doc) {
  using Field = std::remove_cvref_t<decltype(std::declval<A&>().*Member)>;
  return {name, option_type<Field>(),  default_text,          min_value, max_value,
          doc,  option_get<A, Member>, option_set<A, Member>, nullptr};
}

OptionValue get_param(const void* args, std::string_view name) {
  for (const ScalarParam& param : static_cast<const A*>(args)->params) {
    if (param.name == name) return param.value;
  }
  return std::monostate{};
}

void set_param(void* args, std::string_view name, const OptionValue& value) {
  auto& params = static_cast<A*>(args)->params;
  std::erase_if(params, [&](const ScalarParam& param) { return param.name == name; });
  if (const double* number = std::get_if<double>(&value)) {
    params.push_back({std::string(name), *number});
  }
}

std::vector<std::string> param_suffixes(const void* args) {
  std::vector<std::string> names;
  for (const ScalarParam& param : static_cast<const A*>(args)->params) names.push_back(param.name);
  return names;
}

constexpr double kMaxFloat = 1.7976931348623157e308;
constexpr double kMaxInt = 9223372036854775808.0;  // 2^63: no limit of 64-bit integers
constexpr double kMaxOffset = 4503599627370496.0;  // 2^52: sums with lengths stay exact
constexpr double kMinSoftcap = 1e-30;

constexpr std::array kOptions = {
    option<&A::softmax_scale>("softmax_scale", "1/sqrt(head_dim)", -kMaxFloat, kMaxFloat,
                              "multiplies q . k"),
    option<&A::softcap>("softcap", "none", kMinSoftcap, kMaxFloat, "softcap tanh(s / softcap)"),
    option<&A::score>("score", "", 0, 0, "expression for the new score"),
    option<&A::mask>("mask", "", 0, 0, "expression; a key is seen where it is not 0"),
    OptionSpec{"param.*", OptionType::kFloat, "", -kMaxFloat, kMaxFloat,
               "scalars that expressions read", get_param, set_param, param_suffixes},
    option<&A::causal>("causal", "false", 0, 1, "query i sees no key behind its position"),
    option<&A::window_left>("window_left", "none", 0, kMaxInt, "keys seen before the position"),
    option<&A::window_right>("window_right", "none", 0, kMaxInt, "keys seen behind the position"),
    option<&A::query_offset>("query_offset", "seqlen_k - seqlen_q", -kMaxOffset, kMaxOffset,
                             "position of query 0"),
    option<&A::attention_chunk>("attention_chunk", "none", 1, kMaxInt,
                                "keys of the query's own chunk only"),
    option<&A::max_seqlen_q>("max_seqlen_q", "longest", 0, kMaxInt, "limit of packed queries"),
    option<&A::max_seqlen_k>("max_seqlen_k", "longest", 0, kMaxInt, "limit of packed keys"),
    option<&A::block_rows>("block_rows", "0", 0, kMaxInt, "queries of a listed block"),
    option<&A::block_cols>("block_cols", "0", 0, kMaxInt, "keys of a listed block"),
    option<&A::rotary_interleaved>("rotary_interleaved", "false", 0, 1,
                                   "rotary pairs (2n, 2n + 1), not (n, n + rotary_dim / 2)"),
    option<&A::dropout_p>("dropout_p", "0", 0, 1, "probability of dropping a weight, below 1"),
    option<&A::dropout_seed>("dropout_seed", "0", 0, 1.9e19, "key of the generator"),
    option<&A::dropout_offset>("dropout_offset", "0", 0, 4294967295.0, "counter of the generator"),
    option<&A::deterministic>("deterministic", "false", 0, 1, "the same bits in every run"),
    option<&A::batch_invariant>("batch_invariant", "false", 0, 1,
                                "a row's bits depend on its query and keys alone"),
};

std::shared_ptr<void> make_args() { return std::make_shared<AttentionArgs>(); }
std::shared_ptr<void> copy_args(const void* args) {
  return std::make_shared<AttentionArgs>(*static_cast<const AttentionArgs*>(args));
}

template <bool is_backward>
OpSpec make_spec(std::string_view name, std::string_view doc, std::span<const TensorSpec> tensors) {
  OpSpec spec;
  spec.name = name;
  spec.doc = doc;
  spec.dims = kDims;
  spec.tensors = tensors;
  spec.options = kOptions;
  spec.make_args = make_args;
  spec.copy_args = copy_args;
  spec.derive_sizes = derive_attention_sizes;
  spec.run = [](const void* args, const Context& context) {
    run_attention(*static_cast<const AttentionArgs*>(args), is_backward, context);
  };
  spec.explain = [](const void* args, const Context& context) {
    return explain_attention(*static_cast<const AttentionArgs*>(args), is_backward, context);
  };
  spec.workspace_bytes = [](const void* args, const Context& context) {
    return attention_workspace_bytes(*static_cast<const AttentionArgs*>(args), is_backward,
                                     context);
  };
  spec.list_implementations = [](DeviceType device) {
    return attention_implementation_names(is_backward, device);
  };
  spec.kernels = [](const void* args, const Context& context) {
    return attention_kernels(*static_cast<const AttentionArgs*>(args), is_backward, context);
  };
  return spec;
}

}  // namespace

const OpSpec& attention_fwd_spec() {
  static const OpSpec spec = make_spec<false>("attention_fwd", "exact attention", kFwdTensors);
  return spec;
}

const OpSpec& attention_bwd_spec() {
  static const OpSpec spec =
      make_spec<true>("attention_bwd", "gradients of exact attention", kBwdAllTensors);
  return spec;
}

}  // namespace flashtile
