// SPDX-License-Identifier: Apache-2.0
#include "golden_case.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "files/safetensors.hpp"
#include "files/storage.hpp"

namespace flashtile::cli {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kExpect = "expect.";

/// Names that golden files use for what the tables call otherwise. A table's own names win.
const std::map<std::string, std::string, std::less<>> kTensorNames = {
    {"k_cache", "k"},
    {"v_cache", "v"},
    {"cache_seqlens", "seqused_k"},
    {"dropout_keep", "dropout_mask"},
};
const std::map<std::string, std::string, std::less<>> kOpNames = {
    {"attention_decode", "attention_fwd"},
};

/// Thrown when the tables cannot express a case.
struct NotInTable {
  std::string text;
};

class GoldenReader {
 public:
  explicit GoldenReader(const std::string& path) : path_(path), file_(read_safetensors(path)) {
    options_ = metadata_json("options");
    plain_errors_ = metadata_json("plain_err");
    floors_ = metadata_json("floor");
  }

  CheckCase read() {
    CheckCase result;
    result.name = metadata("name");
    const std::string op = metadata("op");
    const OpSpec* forward = find_forward(op);
    result.unsupported_row = forward == nullptr ? op : forward->name;
    try {
      if (forward == nullptr) throw NotInTable{"there is no op '" + op + "'"};
      if (options_.value("expect_nan", false)) result.nan_rule = NanRule::kExpected;
      const OpSpec* backward = backward_of(*forward);
      result.steps.push_back(forward_step(*forward, backward));
      if (has_gradients(backward)) result.steps.push_back(backward_step(*backward));
      share_zero_rules(result);
    } catch (const NotInTable& reason) {
      result.steps.clear();
      result.unsupported = reason.text;
    } catch (const Json::exception&) {
      throw file_error(path_, "the options are not those of a golden case");
    }
    return result;
  }

 private:
  std::string metadata(const std::string& key) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) {
      throw file_error(path_, "is no golden case: there is no metadata '" + key + "'");
    }
    return found->second;
  }

  Json metadata_json(const std::string& key) const {
    const std::string text = metadata(key);
    Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) {
      throw file_error(path_, "is no golden case: metadata '" + key + "' is no JSON object");
    }
    return json;
  }

  static const OpSpec* find_forward(const std::string& op) {
    const auto renamed = kOpNames.find(op);
    if (renamed != kOpNames.end()) return find_op(renamed->second);
    const OpSpec* spec = find_op(op);
    return spec != nullptr ? spec : find_op(op + "_fwd");
  }

  /// The table's name of a golden tensor; empty when it has none.
  static std::string table_name(const OpSpec& spec, std::string_view golden_name) {
    if (spec.find_tensor(golden_name) != nullptr) return std::string(golden_name);
    const auto renamed = kTensorNames.find(golden_name);
    if (renamed == kTensorNames.end() || spec.find_tensor(renamed->second) == nullptr) return {};
    return renamed->second;
  }

  static bool is_output(const OpSpec& spec, std::string_view name) {
    const TensorSpec* row = spec.find_tensor(name);
    return row != nullptr && row->direction == Direction::kOut;
  }

  /// True when the file expects something that the backward op gives.
  bool has_gradients(const OpSpec* backward) const {
    if (backward == nullptr) return false;
    return std::any_of(file_.tensors.begin(), file_.tensors.end(), [&](const auto& entry) {
      return entry.first.starts_with(kExpect) &&
             is_output(*backward, entry.first.substr(kExpect.size()));
    });
  }

  void set_inputs(OpCall& call, const OpSpec* other) const {
    for (const auto& [golden_name, tensor] : file_.tensors) {
      if (golden_name.starts_with(kExpect)) continue;
      const std::string name = table_name(call.spec(), golden_name);
      if (!name.empty() && !is_output(call.spec(), name)) {
        call.set_tensor(name, tensor);
      } else if (other == nullptr || table_name(*other, golden_name).empty()) {
        throw NotInTable{std::string(call.spec().name) + " has no tensor '" + golden_name + "'"};
      }
    }
  }

  static OptionValue option_value(const Json& json) {
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) return json.get<uint64_t>();
    if (json.is_number_integer()) return json.get<int64_t>();
    if (json.is_number()) return json.get<double>();
    return json.get<std::string>();
  }

  static void set_option(OpCall& call, const std::string& name, const Json& value) {
    if (value.is_null()) return;
    if (call.spec().find_option(name) == nullptr) {
      throw NotInTable{std::string(call.spec().name) + " has no option '" + name + "'"};
    }
    call.set_option(name, option_value(value));
  }

  void set_options(OpCall& call) const {
    for (const auto& [name, value] : options_.items()) {
      if (name == "expect_nan") continue;
      if (name == "window") {
        set_option(call, "window_left", value.at(0));
        set_option(call, "window_right", value.at(1));
      } else if (name == "block_size") {
        set_option(call, "block_rows", value.at(0));
        set_option(call, "block_cols", value.at(1));
      } else if (name == "dt_limit") {
        set_option(call, "dt_min", value.at(0));
        set_option(call, "dt_max", value.at(1));
      } else if (name == "dropout" && value.is_object()) {
        for (const auto& [part, number] : value.items()) {
          set_option(call, "dropout_" + part, number);
        }
      } else {
        set_option(call, name, value);
      }
    }
  }

  Expectation expectation(const std::string& golden_name, const std::string& name) const {
    Expectation e;
    const TensorView tensor = file_.tensors.at(std::string(kExpect) + golden_name);
    e.name = name;
    e.shape = shape_of(tensor);
    e.values = to_numbers(tensor);
    e.is_exact = !is_floating(tensor.dtype);
    if (e.is_exact) return e;
    for (const auto& [numbers, target] :
         {std::pair(&plain_errors_, &e.plain_error), std::pair(&floors_, &e.floor)}) {
      const auto found = numbers->find(golden_name);
      if (found == numbers->end() || !found->is_number()) {
        throw file_error(path_, "is no golden case: no tolerance for " + in_quotes(golden_name));
      }
      *target = found->get<double>();
    }
    return e;
  }

  /// Outputs that the file expects of an op, and what they should hold. A result has the dtype of
  /// the case or float32, a gradient that of its input.
  void add_outputs(CheckStep& step, const OpSpec* other) {
    OpCall& call = step.owned.call;
    for (const auto& [full_name, tensor] : file_.tensors) {
      if (!full_name.starts_with(kExpect)) continue;
      const std::string golden_name = full_name.substr(kExpect.size());
      const std::string name = table_name(call.spec(), golden_name);
      if (name.empty() || !call.writes(name)) {
        if (other != nullptr && is_output(*other, table_name(*other, golden_name))) continue;
        throw NotInTable{std::string(call.spec().name) + " has no result '" + golden_name + "'"};
      }
      step.expected.push_back(expectation(golden_name, name));
      // What is changed in place holds the file's input.
      if (!is_output(call.spec(), name)) continue;
      const TensorView own =
          step.owned.pool.make(result_dtype(call, name, tensor.dtype), shape_of(tensor));
      call.set_tensor(name, own);
    }
  }

  DType result_dtype(const OpCall& call, const std::string& name, DType expected) const {
    if (!is_floating(expected)) return expected;
    const TensorSpec& row = *call.spec().find_tensor(name);
    if (!row.gradient_of.empty()) {
      const std::string input(row.gradient_of);
      return call
          .tensor(row.is_family() ? family_name(input, family_suffix(row.name, name)) : input)
          .dtype;
    }
    return row.dtypes.starts_with('=') ? dtype_from_name(metadata("dtype")) : DType::kF32;
  }

  CheckStep forward_step(const OpSpec& forward, const OpSpec* backward) {
    CheckStep step{OwnedCall(OpCall(forward)), {}};
    keep_file(step);
    set_inputs(step.owned.call, backward);
    set_options(step.owned.call);
    add_outputs(step, backward);
    return step;
  }

  /// A tensor that the forward op writes and the backward op reads; as large as what is expected.
  void add_forward_result(CheckStep& step, std::string_view row_name) const {
    const std::string name(row_name);
    const auto expected = file_.tensors.find(std::string(kExpect) + name);
    if (expected == file_.tensors.end()) {
      throw file_error(path_, "is no golden case: gradients without 'expect." + name + "'");
    }
    const DType dtype = result_dtype(step.owned.call, name, expected->second.dtype);
    step.owned.call.set_tensor(name, step.owned.pool.make(dtype, shape_of(expected->second)));
  }

  CheckStep backward_step(const OpSpec& backward) {
    CheckStep step{OwnedCall(OpCall(backward)), {}};
    keep_file(step);
    const OpSpec* forward = forward_of(backward);
    set_inputs(step.owned.call, forward);
    set_options(step.owned.call);
    for (const TensorSpec& row : backward.tensors) {
      if (row.required && is_forward_result(backward, row.name)) add_forward_result(step, row.name);
    }
    add_outputs(step, forward);
    return step;
  }

  void keep_file(CheckStep& step) const {
    for (const auto& owner : file_.storage) step.owned.pool.keep(owner);
  }

  /// The rule about exact zeros looks at results and gradients together.
  static void share_zero_rules(CheckCase& check_case) {
    std::vector<Expectation> all;
    for (CheckStep& step : check_case.steps) {
      std::move(step.expected.begin(), step.expected.end(), std::back_inserter(all));
      step.expected.clear();
    }
    mark_exact_zeros(all);
    for (Expectation& e : all) {
      for (CheckStep& step : check_case.steps) {
        if (!step.owned.call.writes(e.name)) continue;
        step.expected.push_back(std::move(e));
        break;
      }
    }
  }

  const std::string& path_;
  TensorFile file_;
  Json options_, plain_errors_, floors_;
};

}  // namespace

std::vector<std::string> golden_paths(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  }
  if (error) throw file_error(folder, "cannot be listed: " + error.message());
  if (paths.empty()) throw file_error(folder, "holds no .safetensors file");
  std::sort(paths.begin(), paths.end());
  return paths;
}

CheckCase read_golden_case(const std::string& path) { return GoldenReader(path).read(); }

}  // namespace flashtile::cli
