// SPDX-License-Identifier: Apache-2.0
#include "cuda/plan/attention_config.hpp"

#include "cuda/plan/user_expressions.hpp"

namespace flashtile::cuda {
namespace {

// Room in kernel arguments.
constexpr size_t kMaxAux = 16;
constexpr size_t kMaxScalars = 64;
// Row and key indices are 32-bit integers in kernels, with room for a tile more.
constexpr int64_t kMaxLength = (int64_t{1} << 31) - 4096;

}  // namespace

std::string_view element_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "kF32";
    case DType::kF16:
      return "kF16";
    case DType::kBF16:
      return "kBF16";
    case DType::kI8:
      return "kI8";
    case DType::kE4M3:
      return "kE4M3";
    default:
      return "kNone";
  }
}

int copy_bytes(const TensorLayout& layout) {
  const int64_t element = dtype_bytes(layout.dtype);
  const auto last = static_cast<size_t>(layout.ndim - 1);
  if (layout.shape[last] > 1 && layout.strides[last] != 1) return 0;
  for (const int bytes : {16, 8, 4}) {
    bool is_aligned = layout.address_alignment >= bytes;
    for (size_t d = 0; d < last; ++d) {
      is_aligned = is_aligned && (layout.shape[d] <= 1 || layout.strides[d] * element % bytes == 0);
    }
    if (is_aligned) return bytes;
  }
  return 0;
}

std::string config_int(std::string_view name, int64_t value) {
  return "  static constexpr int " + std::string(name) + " = " + std::to_string(value) + ";\n";
}

std::string config_bool(std::string_view name, bool value) {
  return "  static constexpr bool " + std::string(name) + " = " + (value ? "true" : "false") +
         ";\n";
}

std::string config_element(std::string_view name, DType dtype) {
  return "  static constexpr Element " + std::string(name) +
         " = Element::" + std::string(element_name(dtype)) + ";\n";
}

ScoreFlags::ScoreFlags(const AttentionProblem& problem)
    : has_softcap(problem.softcap.has_value()),
      has_alibi(problem.has_alibi),
      has_user_score(!problem.user_score.empty()),
      has_block_list(problem.has_block_list),
      has_user_mask(false),
      has_lower_bound(problem.window_left.has_value() || problem.attention_chunk.has_value()),
      bias(problem.bias.dtype),
      has_options(has_softcap || has_alibi || has_user_score || bool(problem.bias)) {
  const MaskParts mask = split_mask(problem.user_mask);
  has_user_mask = !mask.rest.empty();
  has_lower_bound = has_lower_bound || !mask.lower.empty();
}

std::string ScoreFlags::text(const AttentionProblem& problem) const {
  return "  using Element = flashtile::device::Element;\n"
         "  using Expressions = flashtile::device::expression::UserExpressions;\n" +
         config_element("kElement", problem.dtype) + config_element("kBias", bias) +
         config_bool("kHasScoreOptions", has_options) + config_bool("kHasSoftcap", has_softcap) +
         config_bool("kHasAlibi", has_alibi) + config_bool("kHasBlockList", has_block_list) +
         config_bool("kHasLowerBound", has_lower_bound) +
         config_bool("kHasChunk", problem.attention_chunk.has_value()) +
         config_bool("kHasDropout", problem.dropout.is_on) +
         config_bool("kHasSeedTensor", problem.dropout.has_seed_tensor);
}

std::string config_preamble(const AttentionProblem& problem) {
  return "#include \"cuda/device/score/expression.cuh\"\n" + user_expressions_text(problem);
}

std::string refuse_attention(const AttentionProblem& problem) {
  if (problem.device.type != DeviceType::kCuda) return "runs on a GPU, tensors are on the CPU";
  if (problem.dtype == DType::kF64) return "computes in float32; it takes no f64";
  for (const TensorLayout* layout : {&problem.bias, &problem.lse}) {
    if (layout->dtype == DType::kF64) return "computes in float32; it reads and writes no f64";
  }
  if (!problem.beyond_float.empty()) return problem.beyond_float;
  if (problem.batch_invariant) return "does not offer batch_invariant";
  const ExpressionInputs inputs = expression_inputs(problem);
  if (problem.num_aux > kMaxAux) {
    return "takes at most " + std::to_string(kMaxAux) + " aux tensors, here are " +
           std::to_string(problem.num_aux);
  }
  if (inputs.params.size() > kMaxScalars) {
    return "takes at most " + std::to_string(kMaxScalars) + " scalar parameters, here are " +
           std::to_string(inputs.params.size());
  }
  if (problem.max_seqlen_q > kMaxLength / problem.group_size() ||
      problem.max_seqlen_k > kMaxLength) {
    return "takes sequences of at most " + std::to_string(kMaxLength) + " rows";
  }
  return {};
}

std::string refuse_hopper(const AttentionProblem& problem) {
  std::string refusal = refuse_attention(problem);
  if (refusal.empty() && problem.is_quantised) refusal = "takes no keys of i8 or e4m3";
  if (refusal.empty() && problem.gpu->compute_capability != 90) {
    refusal = "needs compute capability 9.0, " + problem.gpu->name + " has another";
  }
  return refusal;
}

}  // namespace flashtile::cuda
