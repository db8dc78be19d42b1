// SPDX-License-Identifier: Apache-2.0
//
// What a problem text leaves open: sizes that follow from its length lists and pages.
#include <algorithm>
#include <limits>

#include "ops/attention/implementations.hpp"

namespace flashtile {
namespace {

const TensorItem* find_item(const ProblemText& problem, std::string_view name) {
  for (const TensorItem& item : problem.tensors) {
    if (item.name == name) return &item;
  }
  return nullptr;
}

/// Total, batch size and longest sequence of a cu_seqlens list.
void derive_packed(const ProblemText& problem, std::string_view name, const char* total,
                   const char* longest, Sizes& sizes) {
  const TensorItem* item = find_item(problem, name);
  if (item == nullptr || item->values.empty()) return;
  sizes.emplace(total, item->values.back());
  sizes.emplace("batch_size", static_cast<int64_t>(item->values.size()) - 1);
  int64_t length = 0;
  for (size_t b = 1; b < item->values.size(); ++b) {
    // A list that goes backwards or is negative is refused later, with its values.
    if (item->values[b - 1] < 0 || item->values[b] < item->values[b - 1]) continue;
    length = std::max(length, item->values[b] - item->values[b - 1]);
  }
  sizes.emplace(longest, length);
}

int64_t size_or(const Sizes& sizes, std::string_view name, int64_t fallback) {
  const auto found = sizes.find(name);
  return found == sizes.end() ? fallback : found->second;
}

int64_t int_option(const ProblemText& problem, std::string_view name) {
  for (const auto& [key, value] : problem.options) {
    if (key != name) continue;
    if (const int64_t* number = std::get_if<int64_t>(&value)) return *number;
  }
  return 0;
}

/// Blocks of `block` that cover `length`.
int64_t num_blocks(int64_t length, int64_t block) {
  return length / block + (length % block != 0 ? 1 : 0);
}

void derive_blocks(const ProblemText& problem, const char* option, const char* length,
                   const char* blocks, Sizes& sizes) {
  const int64_t block = int_option(problem, option);
  if (block > 0) sizes.emplace(blocks, num_blocks(size_or(sizes, length, 1), block));
}

}  // namespace

void derive_attention_sizes(const ProblemText& problem, Sizes& sizes) {
  derive_packed(problem, "cu_seqlens_q", "total_q", "seqlen_q", sizes);
  derive_packed(problem, "cu_seqlens_k", "total_k", "seqlen_k", sizes);
  derive_packed(problem, "cu_seqlens_new", "total_new", "seqlen_new", sizes);
  const int64_t seqlen_k = size_or(sizes, "seqlen_k", size_or(sizes, "seqlen_q", 1));
  const int64_t page_size = std::max<int64_t>(1, size_or(sizes, "page_size", 16));
  if (find_item(problem, "block_table") != nullptr) {
    sizes.emplace("page_size", page_size);
    sizes.emplace("pages_per_seq", num_blocks(seqlen_k, page_size));
    const int64_t batch_size = size_or(sizes, "batch_size", 1);
    const int64_t pages = sizes["pages_per_seq"];
    const bool fits = pages == 0 || batch_size <= std::numeric_limits<int64_t>::max() / pages;
    sizes.emplace("num_pages", fits ? batch_size * pages : batch_size);
  }
  sizes.emplace("seqlen_k", seqlen_k);
  derive_blocks(problem, "block_rows", "seqlen_q", "num_block_rows", sizes);
  derive_blocks(problem, "block_cols", "seqlen_k", "num_block_cols", sizes);
}

}  // namespace flashtile
