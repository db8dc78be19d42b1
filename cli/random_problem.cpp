// SPDX-License-Identifier: Apache-2.0
#include "random_problem.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/shape_spec.hpp"
#include "random_numbers.hpp"

namespace flashtile::cli {
namespace {

int64_t size_of(const Sizes& sizes, std::string_view name) {
  const auto found = sizes.find(name);
  return found == sizes.end() ? 1 : found->second;
}

int64_t int_option(const OpCall& call, std::string_view name, int64_t fallback) {
  if (call.spec().find_option(name) == nullptr) return fallback;
  const OptionValue value = call.option(name);
  const int64_t* number = std::get_if<int64_t>(&value);
  return number != nullptr && *number > 0 ? *number : fallback;
}

/// Integers of one call: each list within what the other sizes allow.
class IntegerFill {
 public:
  IntegerFill(const OpCall& call, const Sizes& sizes, uint64_t seed)
      : call_(call), sizes_(sizes), seed_(seed) {}

  std::vector<double> values(const TensorSpec& row, std::string_view name,
                             const TensorView& tensor) const {
    RandomNumbers random(seed_, name);
    std::vector<double> result(static_cast<size_t>(tensor.numel()));
    if (row.fill == Fill::kPermutation) {
      fill_permutations(random, name, tensor, result);
    } else if (name.starts_with("cu_seqlens")) {
      fill_offsets(random, size_of(sizes_, "total" + std::string(name.substr(10))), result);
    } else if (row.fill == Fill::kLengths) {
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = static_cast<double>(random.integer(length_limit(name, i)));
      }
    } else {
      for (double& value : result) value = static_cast<double>(random.integer(3));
    }
    return result;
  }

 private:
  /// 0 = first <= second <= ... <= last = total.
  static void fill_offsets(RandomNumbers& random, int64_t total, std::vector<double>& result) {
    for (double& value : result) value = static_cast<double>(random.integer(total));
    std::sort(result.begin(), result.end());
    if (result.empty()) return;
    result.front() = 0;
    result.back() = static_cast<double>(total);
  }

  int64_t stored_keys() const {
    if (call_.spec().find_tensor("block_table") != nullptr && call_.tensor("block_table")) {
      return size_of(sizes_, "pages_per_seq") * size_of(sizes_, "page_size");
    }
    return size_of(sizes_, "seqlen_k");
  }

  int64_t num_block_cols() const {
    const int64_t cols = int_option(call_, "block_cols", 1);
    return (size_of(sizes_, "seqlen_k") + cols - 1) / cols;
  }

  /// Entries that a list of blocks has room for.
  int64_t list_room() const {
    const TensorView lists = call_.tensor("block_indices");
    return lists && lists.ndim > 0 ? lists.shape[static_cast<size_t>(lists.ndim - 1)] : 0;
  }

  int64_t length_limit(std::string_view name, size_t i) const {
    if (name == "block_counts") return std::min(list_room(), num_block_cols());
    if (name == "leftpad_k" && call_.tensor("seqused_k")) {
      return static_cast<int64_t>(to_numbers(call_.tensor("seqused_k"))[i]);
    }
    if (name == "seqused_k") return std::max<int64_t>(0, stored_keys() - reserved_keys());
    if (name == "rotary_seqlens") return std::max<int64_t>(0, num_positions());
    return stored_keys();
  }

  /// Slots that keys in use leave to new ones, and to the positions of queries.
  int64_t reserved_keys() const {
    if (call_.spec().find_tensor("k_new") == nullptr || !call_.tensor("k_new")) return 0;
    const int64_t new_keys = size_of(sizes_, "seqlen_new");
    if (!call_.tensor("rotary_cos")) return new_keys;
    return std::max(new_keys, stored_keys() - num_positions());
  }

  /// First rows of the rotary tables that leave room for a sequence.
  int64_t num_positions() const {
    return size_of(sizes_, "num_positions") -
           std::max(size_of(sizes_, "seqlen_new"), size_of(sizes_, "seqlen_q"));
  }

  int64_t permutation_size(std::string_view name) const {
    if (name == "block_table") return size_of(sizes_, "num_pages");
    if (name == "cache_batch_idx") return size_of(sizes_, "num_lines");
    if (name == "block_indices") return num_block_cols();
    return 0;
  }

  /// Different numbers below a limit: over the whole tensor, or for lists of blocks in each row.
  void fill_permutations(RandomNumbers& random, std::string_view name, const TensorView& tensor,
                         std::vector<double>& result) const {
    const size_t row_size =
        name == "block_indices" && tensor.ndim > 0
            ? static_cast<size_t>(tensor.shape[static_cast<size_t>(tensor.ndim - 1)])
            : result.size();
    int64_t limit = permutation_size(name);
    if (limit <= 0) limit = std::max<int64_t>(1, static_cast<int64_t>(row_size));
    std::vector<int64_t> numbers(static_cast<size_t>(limit));
    for (size_t begin = 0; begin < result.size(); begin += row_size) {
      std::iota(numbers.begin(), numbers.end(), 0);
      for (size_t i = 0; i < row_size; ++i) {
        const size_t at = i % numbers.size();
        const auto rest = static_cast<int64_t>(numbers.size() - at) - 1;
        std::swap(numbers[at], numbers[at + static_cast<size_t>(random.integer(rest))]);
        result[begin + i] = static_cast<double>(numbers[at]);
      }
    }
  }

  const OpCall& call_;
  const Sizes& sizes_;
  uint64_t seed_;
};

size_t last_dim(const TensorView& tensor) { return static_cast<size_t>(tensor.ndim - 1); }

void make_rows_unit(int64_t dim, std::vector<double>& values) {
  const auto row_size = static_cast<size_t>(dim);
  for (size_t begin = 0; begin < values.size(); begin += row_size) {
    double sum = 0;
    for (size_t i = 0; i < row_size; ++i) sum += values[begin + i] * values[begin + i];
    for (size_t i = 0; i < row_size; ++i) values[begin + i] /= std::sqrt(sum);
  }
}

void fill_floats(const TensorSpec* row, std::string_view name, const TensorView& tensor,
                 uint64_t seed) {
  RandomNumbers random(seed, name);
  std::vector<double> values(static_cast<size_t>(tensor.numel()));
  const Fill fill = row != nullptr ? row->fill : Fill::kNormal;
  const double size = tensor.dtype == DType::kI8 ? 16 : 1;  // 8 bits are to be used
  for (double& value : values) {
    if (fill == Fill::kLogDecay) {
      value = -std::log1p(std::exp(-random.normal()));
    } else {
      value = fill == Fill::kPositive ? random.uniform() : size * random.normal();
    }
  }
  if (fill == Fill::kUnit && tensor.ndim > 0)
    make_rows_unit(tensor.shape[last_dim(tensor)], values);
  from_numbers(values, tensor);
}

}  // namespace

OwnedCall random_call(const ProblemText& problem, uint64_t seed) {
  OwnedCall owned(make_call(problem));
  OpCall& call = owned.call;
  const Sizes sizes = resolve_sizes(problem);
  for (const std::string& name : call.tensor_names()) {
    const TensorView shape = call.tensor(name);
    const TensorItem* item = problem.find_tensor(name);
    if (item != nullptr && !item->whole.empty()) {
      const TensorView whole = call.tensor(item->whole);
      call.set_tensor(name, whole.sliced(whole.ndim - 1, 0, shape.shape[last_dim(shape)]));
      continue;
    }
    const TensorView tensor = owned.pool.make(shape.dtype, shape_of(shape));
    call.set_tensor(name, tensor);
    const TensorSpec& row = *call.spec().find_tensor(name);
    if (row.direction == Direction::kOut) {
      poison(tensor);
    } else if (item != nullptr && item->has_values) {
      write_values(*item, tensor);
    } else if (is_floating(tensor.dtype) || tensor.dtype == DType::kI8 ||
               tensor.dtype == DType::kE4M3) {
      fill_floats(&row, name, tensor, seed);
    } else {
      from_numbers(IntegerFill(call, sizes, seed).values(row, name, tensor), tensor);
    }
  }
  return owned;
}

void fill_random(const TensorView& tensor, uint64_t seed) {
  fill_floats(nullptr, "", tensor, seed);
}

}  // namespace flashtile::cli
