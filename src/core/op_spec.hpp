// SPDX-License-Identifier: Apache-2.0
//
// The operator table: one OpSpec says everything about an op that is not arithmetic. Validation,
// problem texts, the golden loader, the CLI, the C face and the docs all read it; none of them
// knows an op by name. docs/adding.md shows the few lines that a new op needs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/kernel_choice.hpp"
#include "flashtile/context.hpp"
#include "flashtile/explain.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile {

struct ProblemText;

/// Sizes by DimSpec name.
using Sizes = std::map<std::string, int64_t, std::less<>>;

/// A symbolic size. `code` is its name in a problem text ("b" in "b2"); sizes without a code are
/// found from the tensors (total_q, num_pages) or written out in a problem text ("page_size=16").
/// A problem text that leaves a size open gives it the size named by `default_from`, or 1.
struct DimSpec {
  std::string_view name;
  std::string_view code = {};
  std::string_view default_from = {};
};

/// kInOut is an input that the op may also write in place; see TensorSpec::written_with.
enum class Direction : uint8_t { kIn, kOut, kInOut };

/// What a random tensor of this kind holds; drives `flashtile check` and `bench`. kLogDecay: the
/// logarithm of a number between 0 and 1. kUnit: rows of length 1.
enum class Fill : uint8_t { kNormal, kPositive, kLogDecay, kUnit, kPermutation, kLengths };

/// One row of the tensor table.
///
/// `shape` is a list of alternatives, "@block_table: num_pages page_size num_heads_kv head_dim;
/// batch_size seqlen_k num_heads_kv head_dim". The first one whose condition holds is taken: the
/// tensor behind @ is given, or there is no @; alternatives that follow it with the same condition
/// are the same tensor with another number of dimensions ("num_heads; batch_size num_heads"). An
/// entry is a DimSpec name, a number, NAME+1, or NAME? for a dimension that may also be 1
/// (broadcast).
///
/// A name that ends in ".*" stands for any number of tensors that the caller names ("aux.*").
/// References from such a row to another family ("=aux.*", gradient_of "aux.*") keep the name.
struct TensorSpec {
  std::string_view name;
  Direction direction = Direction::kIn;
  bool required = false;
  std::string_view shape;  ///< empty: any shape
  /// Allowed dtypes, separated by blanks; "=q" stands for the dtype of tensor q.
  std::string_view dtypes;
  /// For outputs: the input that this is the gradient of; the shapes are alike.
  std::string_view gradient_of;
  std::string_view doc;
  Fill fill = Fill::kNormal;
  /// The tensor in an args object; `suffix` is what stands for * in its name. With `create` false
  /// an absent named tensor gives null.
  TensorView* (*access)(void* args, std::string_view suffix, bool create) = nullptr;
  /// The suffixes present, for names with a *.
  std::vector<std::string> (*suffixes)(const void* args) = nullptr;
  /// For kInOut: the tensor that makes a call write this one, which then obeys the rules of
  /// outputs; empty: every call does.
  std::string_view written_with = {};

  bool is_family() const { return name.ends_with(".*"); }
  bool is_input() const { return direction != Direction::kOut; }
};

using OptionValue = std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string>;
enum class OptionType : uint8_t { kBool, kInt, kUint, kFloat, kText };

/// One row of the option table; monostate is "not given". Limits count where min_value < max_value,
/// and are inclusive unless marked open. A float without limits is finite; NaN is never accepted.
struct OptionSpec {
  std::string_view name;  ///< family names end in ".*", as for tensors ("param.*")
  OptionType type = OptionType::kBool;
  std::string_view default_text;  ///< for docs: "1/sqrt(head_dim)"
  double min_value = 0;
  double max_value = 0;
  std::string_view doc;
  OptionValue (*get)(const void* args, std::string_view suffix) = nullptr;
  void (*set)(void* args, std::string_view suffix, const OptionValue& value) = nullptr;
  std::vector<std::string> (*suffixes)(const void* args) = nullptr;
  bool min_is_open = false;
  bool max_is_open = false;

  bool is_family() const { return name.ends_with(".*"); }
};

/// One op. Args objects are plain structs of tensors and options, seen here through void*.
struct OpSpec {
  std::string_view name;
  std::string_view doc;
  std::span<const DimSpec> dims;
  std::span<const TensorSpec> tensors;
  std::span<const OptionSpec> options;
  std::shared_ptr<void> (*make_args)() = nullptr;
  std::shared_ptr<void> (*copy_args)(const void* args) = nullptr;
  /// Validates, selects, plans, launches.
  void (*run)(const void* args, const Context& context) = nullptr;
  Explanation (*explain)(const void* args, const Context& context) = nullptr;
  /// Names of the implementations for tensors of a device, best first.
  std::vector<std::string> (*list_implementations)(DeviceType device) = nullptr;

  std::vector<std::string> implementations(DeviceType device = DeviceType::kCpu) const {
    return list_implementations(device);
  }
  /// Optional: adds sizes that follow from values in a problem text ("cu_seqlens_q={0,3,10}" gives
  /// total_q) to those that are known from the text; open ones get their defaults afterwards.
  void (*derive_sizes)(const ProblemText& problem, Sizes& sizes) = nullptr;
  /// Optional: the GPU kernels that a call would launch, with tensors that need no memory. Throws
  /// Error where no implementation takes it.
  std::vector<KernelChoice> (*kernels)(const void* args, const Context& context) = nullptr;
  /// Optional: Explanation::workspace_bytes of a call that is to run, without the texts. Throws
  /// Error where no implementation takes it.
  int64_t (*workspace_bytes)(const void* args, const Context& context) = nullptr;

  const DimSpec* find_dim(std::string_view dim) const;
  /// The row for a tensor name; family rows match any suffix ("aux.table" finds "aux.*").
  const TensorSpec* find_tensor(std::string_view tensor) const;
  const OptionSpec* find_option(std::string_view option) const;
  /// The same for a name that a caller gave: throws Error where there is no such row, and where
  /// what stands for the * of a family is no name that an expression can use.
  const TensorSpec& tensor_row(std::string_view tensor) const;
  const OptionSpec& option_row(std::string_view option) const;
};

/// "aux.table" with the row "aux.*" gives "table"; empty for rows that are no family.
std::string_view family_suffix(std::string_view row_name, std::string_view full_name);

/// An args object of an op together with its spec: get and set by name.
class OpCall {
 public:
  explicit OpCall(const OpSpec& spec) : spec_(&spec), args_(spec.make_args()) {}
  OpCall(const OpCall& other) : spec_(other.spec_), args_(spec_->copy_args(other.args_.get())) {}
  OpCall& operator=(const OpCall& other) {
    spec_ = other.spec_;
    args_ = spec_->copy_args(other.args_.get());
    return *this;
  }

  const OpSpec& spec() const { return *spec_; }
  void* args() { return args_.get(); }
  const void* args() const { return args_.get(); }

  /// Throws Error for a name that the op does not have.
  void set_tensor(std::string_view name, const TensorView& tensor);
  /// Converts between bool, int and float where nothing is lost; throws Error otherwise.
  void set_option(std::string_view name, const OptionValue& value);
  /// From text: "true", "5", "0.125", an expression.
  void set_option_text(std::string_view name, std::string_view text);
  /// An absent tensor gives an undefined view.
  TensorView tensor(std::string_view name) const;
  OptionValue option(std::string_view name) const;
  /// Full names of the tensors that are given, table order, families expanded.
  std::vector<std::string> tensor_names() const;
  /// The tensor whose first columns this one is, in the same memory; empty: none.
  std::string whole_of(std::string_view name) const;
  /// True for a tensor that the call writes: an output, or what it changes in place.
  bool writes(std::string_view name) const;
  /// Full names of the options that are not at their default.
  std::vector<std::string> option_names() const;

  void run(const Context& context) const { spec_->run(args_.get(), context); }
  Explanation explain(const Context& context) const { return spec_->explain(args_.get(), context); }
  /// Bytes that Context::workspace of the call needs.
  int64_t workspace_bytes(const Context& context) const {
    if (spec_->workspace_bytes == nullptr) return explain(context).workspace_bytes;
    return spec_->workspace_bytes(args_.get(), context);
  }
  /// The GPU kernels that the call would launch; none for an op that has no such kernel.
  std::vector<KernelChoice> kernels(const Context& context) const {
    if (spec_->kernels == nullptr) return {};
    return spec_->kernels(args_.get(), context);
  }

 private:
  const OpSpec* spec_;
  std::shared_ptr<void> args_;
};

/// "aux.table" for the row "aux.*" and "table".
std::string family_name(std::string_view row_name, std::string_view suffix);

/// An option value as text, the form that parse_option reads; empty for monostate.
std::string option_text(const OptionValue& value);
/// The value of a text ("true", "5", "0.125", an expression). Throws Error where it is none.
OptionValue parse_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                         std::string_view text);
/// The value in the row's type. Throws Error where something would be lost.
OptionValue convert_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                           const OptionValue& value);
/// Throws Error when `value` has not the row's type or lies outside its limits.
void check_option(const OpSpec& spec, const OptionSpec& row, std::string_view full_name,
                  const OptionValue& value);

/// The ops of the library: the list in src/ops/list.cpp, which defines this function.
std::span<const OpSpec* const> built_in_ops();
/// Those and the registered ones. Spans stay valid; all of these may be called from any thread.
std::span<const OpSpec* const> all_ops();
/// Null when there is none of that name.
const OpSpec* find_op(std::string_view name);
/// Adds an op at run time; tests prove the table with it. `spec` must outlive every use. Throws
/// Error for a name that is taken and for a table with a fault.
void register_op(const OpSpec& spec);
/// What is wrong with a table ("shape of k: unknown size 'heads'"); empty when nothing is.
std::string spec_fault(const OpSpec& spec);

// Row accessors from pointers to members, so that a table row is one line.

template <class Args, auto Member>
TensorView* tensor_access(void* args, std::string_view, bool) {
  return &(static_cast<Args*>(args)->*Member);
}

namespace detail {
template <class T>
struct OptionField {
  using Value = T;
  static constexpr bool kOptional = false;
};
template <class T>
struct OptionField<std::optional<T>> {
  using Value = T;
  static constexpr bool kOptional = true;
};
}  // namespace detail

/// A bool, int64_t, uint64_t, double or std::string member, or a std::optional of one. A plain
/// member that has the value of a fresh object counts as not given.
template <class Args, auto Member>
OptionValue option_get(const void* args, std::string_view) {
  const auto& field = static_cast<const Args*>(args)->*Member;
  using Field = detail::OptionField<std::remove_cvref_t<decltype(field)>>;
  if constexpr (Field::kOptional) {
    if (!field) return std::monostate{};
    return OptionValue(std::in_place_type<typename Field::Value>, *field);
  } else {
    static const Args fresh{};
    if (field == fresh.*Member) return std::monostate{};
    return OptionValue(std::in_place_type<typename Field::Value>, field);
  }
}

template <class Args, auto Member>
void option_set(void* args, std::string_view, const OptionValue& value) {
  auto& field = static_cast<Args*>(args)->*Member;
  using Field = detail::OptionField<std::remove_cvref_t<decltype(field)>>;
  if (std::holds_alternative<std::monostate>(value)) {
    field = Args{}.*Member;
  } else {
    field = std::get<typename Field::Value>(value);
  }
}

template <class T>
constexpr OptionType option_type() {
  using Value = typename detail::OptionField<T>::Value;
  if constexpr (std::is_same_v<Value, bool>) return OptionType::kBool;
  if constexpr (std::is_same_v<Value, int64_t>) return OptionType::kInt;
  if constexpr (std::is_same_v<Value, uint64_t>) return OptionType::kUint;
  if constexpr (std::is_same_v<Value, double>) return OptionType::kFloat;
  return OptionType::kText;
}

}  // namespace flashtile
