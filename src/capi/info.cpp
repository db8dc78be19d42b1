// SPDX-License-Identifier: Apache-2.0
//
// The operator table for bindings in other languages.
#include <mutex>
#include <set>
#include <string>

#include "capi/status.hpp"
#include "capi/structs.hpp"
#include "core/fail.hpp"
#include "core/op_spec.hpp"

namespace {

using flashtile::OpSpec;
using flashtile::OptionSpec;
using flashtile::TensorSpec;
using flashtile::capi::guarded;
using flashtile::capi::init_struct;
using flashtile::capi::required;
using flashtile::capi::write_struct;

/// The text with a final 0, for ever.
const char* kept(std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> texts;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = texts.find(text);
  return (found != texts.end() ? found : texts.emplace(text).first)->c_str();
}

const OpSpec& op_named(const char* op, const char* function) {
  const OpSpec* spec = flashtile::find_op(&required(op, function, "op"));
  if (spec == nullptr) flashtile::fail(function, "there is no op '", op, "'");
  return *spec;
}

void check_index(const char* function, const char* what, size_t idx, size_t count) {
  if (idx >= count) flashtile::fail(function, what, " is ", idx, ", expected less than ", count);
}

}  // namespace

extern "C" {

void flashtile_op_info_init(flashtile_op_info* info, size_t struct_size) {
  init_struct(info, struct_size);
}

void flashtile_tensor_info_init(flashtile_tensor_info* info, size_t struct_size) {
  init_struct(info, struct_size);
}

void flashtile_option_info_init(flashtile_option_info* info, size_t struct_size) {
  init_struct(info, struct_size);
}

size_t flashtile_num_ops(void) {
  size_t count = 0;
  guarded([&] { count = flashtile::all_ops().size(); });
  return count;
}

flashtile_status flashtile_get_op(size_t op_idx, flashtile_op_info* info) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_get_op";
    const auto all = flashtile::all_ops();
    check_index(kFunction, "op_idx", op_idx, all.size());
    const OpSpec& spec = *all[op_idx];
    flashtile_op_info result{};
    result.name = kept(spec.name);
    result.doc = kept(spec.doc);
    result.num_tensors = spec.tensors.size();
    result.num_options = spec.options.size();
    result.num_implementations = spec.implementations().size();
    write_struct(result, "flashtile_op_info", required(info, kFunction, "info"));
  });
}

flashtile_status flashtile_get_tensor(const char* op, size_t tensor_idx,
                                      flashtile_tensor_info* info) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_get_tensor";
    const OpSpec& spec = op_named(op, kFunction);
    check_index(kFunction, "tensor_idx", tensor_idx, spec.tensors.size());
    const TensorSpec& row = spec.tensors[tensor_idx];
    flashtile_tensor_info result{};
    result.is_output = row.direction == flashtile::Direction::kOut ? 1 : 0;
    result.is_required = row.required ? 1 : 0;
    result.name = kept(row.name);
    result.doc = kept(row.doc);
    result.shape = kept(row.shape);
    result.dtypes = kept(row.dtypes);
    result.gradient_of = kept(row.gradient_of);
    write_struct(result, "flashtile_tensor_info", required(info, kFunction, "info"));
  });
}

flashtile_status flashtile_get_option(const char* op, size_t option_idx,
                                      flashtile_option_info* info) {
  return guarded([&] {
    constexpr const char* kFunction = "flashtile_get_option";
    const OpSpec& spec = op_named(op, kFunction);
    check_index(kFunction, "option_idx", option_idx, spec.options.size());
    const OptionSpec& row = spec.options[option_idx];
    flashtile_option_info result{};
    result.type = static_cast<int32_t>(row.type);
    result.name = kept(row.name);
    result.doc = kept(row.doc);
    result.default_text = kept(row.default_text);
    result.min_value = row.min_value;
    result.max_value = row.max_value;
    write_struct(result, "flashtile_option_info", required(info, kFunction, "info"));
  });
}

const char* flashtile_get_implementation(const char* op, size_t idx) {
  const char* name = nullptr;
  guarded([&] {
    const auto names = op_named(op, "flashtile_get_implementation").implementations();
    if (idx < names.size()) name = kept(names[idx]);
  });
  return name;
}

}  // extern "C"

static_assert(static_cast<int>(flashtile::OptionType::kBool) == FLASHTILE_OPTION_BOOL);
static_assert(static_cast<int>(flashtile::OptionType::kInt) == FLASHTILE_OPTION_INT);
static_assert(static_cast<int>(flashtile::OptionType::kUint) == FLASHTILE_OPTION_UINT);
static_assert(static_cast<int>(flashtile::OptionType::kFloat) == FLASHTILE_OPTION_FLOAT);
static_assert(static_cast<int>(flashtile::OptionType::kText) == FLASHTILE_OPTION_TEXT);
