// SPDX-License-Identifier: Apache-2.0
//
// Masks and scores with a name, as expression texts. The library's own options (causal, windows,
// chunks, softcap, ALiBi) are these same texts; docs/expressions.md describes the language.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashtile::presets {

// Masks. Query q_idx has position q_idx + query_offset.

inline constexpr std::string_view kCausal = "k_idx <= q_idx + query_offset";
inline constexpr std::string_view kWindowLeft =
    "k_idx >= q_idx + query_offset - int(param.window_left)";
inline constexpr std::string_view kWindowRight =
    "k_idx <= q_idx + query_offset + int(param.window_right)";
inline constexpr std::string_view kChunk =
    "floordiv(q_idx + query_offset, int(param.chunk)) == floordiv(k_idx, int(param.chunk))";

/// Keys at most `left` before and `right` behind the position.
inline std::string sliding_window(int64_t left, int64_t right) {
  return "k_idx >= q_idx + query_offset - " + std::to_string(left) +
         " && k_idx <= q_idx + query_offset + " + std::to_string(right);
}

/// The first `prefix[batch]` keys, and causal behind them; `prefix` names an i32 aux tensor.
inline std::string prefix_lm(const std::string& prefix) {
  return "k_idx < " + prefix + "[batch] || k_idx <= q_idx + query_offset";
}

/// Causal within a document; `document` names an i32 aux tensor (seqlen) of document numbers.
inline std::string document(const std::string& document) {
  return document + "[q_idx + query_offset] == " + document +
         "[k_idx] && k_idx <= q_idx + query_offset";
}

/// The first `num_sinks` keys, and the last `window` + 1 up to the position.
inline std::string sink_window(int64_t num_sinks, int64_t window) {
  return "(k_idx < " + std::to_string(num_sinks) + " || k_idx >= q_idx + query_offset - " +
         std::to_string(window) + ") && k_idx <= q_idx + query_offset";
}

/// Every `step`-th key up to the position.
inline std::string dilated(int64_t step) {
  return "k_idx <= q_idx + query_offset && (q_idx + query_offset - k_idx) % " +
         std::to_string(step) + " == 0";
}

// Scores.

inline constexpr std::string_view kSoftcap = "param.softcap * tanh(score / param.softcap)";
inline constexpr std::string_view kAlibiHeads =
    "score - slopes[head] * abs(q_idx + query_offset - k_idx)";
inline constexpr std::string_view kAlibiBatchHeads =
    "score - slopes[batch, head] * abs(q_idx + query_offset - k_idx)";

/// A learnt bias for each distance; `table` names an f32 aux tensor
/// (heads, seqlen_q + seqlen_k - 1), entry 0 for key seqlen_k - 1 seen from query 0.
inline std::string relative_bias(const std::string& table) {
  return "score + " + table + "[head, q_idx - k_idx + seqlen_k - 1]";
}

}  // namespace flashtile::presets
