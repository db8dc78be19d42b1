// SPDX-License-Identifier: Apache-2.0
#include "ops/linear/table.hpp"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <mutex>
#include <set>

#include "core/fail.hpp"
#include "core/problem_text.hpp"
#include "ops/delta/delta.hpp"
#include "ops/layer_parts/layer_parts.hpp"
#include "ops/scalar_decay/scalar_decay.hpp"
#include "ops/scan/scan.hpp"
#include "ops/vector_decay/vector_decay.hpp"

namespace flashtile {
namespace {

constexpr std::string_view kStateDtypes = "f32 f64";

constexpr std::array kDims = {
    DimSpec{"batch_size", "b", ""},
    DimSpec{"num_heads", "hq", ""},
    DimSpec{"num_channels", "c", ""},
    DimSpec{"seqlen", "t", ""},
    DimSpec{"head_dim", "d", ""},
    DimSpec{"head_dim_v", "dv", "head_dim"},
    DimSpec{"num_heads_kv", "hkv", "num_heads"},
    DimSpec{"num_heads_v", "hv", "num_heads"},
    DimSpec{"num_slots", "m", ""},
    DimSpec{"num_past", "past", ""},
    DimSpec{"num_groups", "", ""},
    DimSpec{"num_lines", "lines", "batch_size"},
    DimSpec{"total", "", ""},
};

/// Texts that rows of tables point into, for as long as the program runs.
std::string_view kept(const std::string& text) {
  static std::mutex mutex;
  static std::set<std::string> texts;
  const std::lock_guard<std::mutex> lock(mutex);
  return *texts.insert(text).first;
}

/// Memory of a table: OpSpec has spans.
struct Rows {
  std::vector<TensorSpec> tensors;
  std::vector<DimSpec> dims;
};

class TableMaker {
 public:
  TableMaker(const LinearOp& op, LinearPass pass) : op_(op), pass_(pass) {}

  std::vector<TensorSpec> rows() {
    for (const LinearInput& input : op_.inputs) add_input(input);
    if (pass_ == LinearPass::kStep) {
      add_in_place();
    } else {
      add({"cu_seqlens", Direction::kIn, false, "batch_size+1", "i32", "",
           "first row of each packed sequence", Fill::kLengths,
           tensor_access<LinearArgs, &LinearArgs::cu_seqlens>});
      for (const LinearState& state : op_.states) add_initial(state);
    }
    if (pass_ == LinearPass::kBackward) {
      add_backward();
    } else {
      add({"out", Direction::kOut, true, timed(op_.out_shape), like_first() + " f32", "",
           "the result", Fill::kNormal, tensor_access<LinearArgs, &LinearArgs::out>});
    }
    if (pass_ == LinearPass::kForward) {
      for (const LinearState& state : op_.states) {
        add_state("final_", state, Direction::kOut, state.access_final, "behind the last row");
      }
    }
    return std::move(rows_);
  }

 private:
  /// TensorSpec with texts of its own.
  struct Row {
    std::string name;
    Direction direction;
    bool required;
    std::string shape, dtypes, gradient_of, doc;
    Fill fill;
    TensorAccess access;
  };

  void add(const Row& row) {
    TensorSpec spec;
    spec.name = kept(row.name);
    spec.direction = row.direction;
    spec.required = row.required;
    spec.shape = kept(row.shape);
    spec.dtypes = kept(row.dtypes);
    spec.gradient_of = kept(row.gradient_of);
    spec.doc = kept(row.doc);
    spec.fill = row.fill;
    spec.access = row.access;
    rows_.push_back(spec);
  }

  std::string timed(std::string_view shape) const {
    const std::string tail(shape);
    if (pass_ == LinearPass::kStep) return "batch_size " + tail;
    return "@cu_seqlens: total " + tail + "; batch_size seqlen " + tail;
  }

  std::string like_first() const { return "=" + std::string(op_.inputs.front().name); }

  std::string shape_of(const LinearInput& input) const {
    return input.is_timed ? timed(input.shape) : std::string(input.shape);
  }

  void add_input(const LinearInput& input) {
    add({std::string(input.name), Direction::kIn, input.required, shape_of(input),
         std::string(input.dtypes), "", std::string(input.doc), input.fill, input.access});
  }

  void add_in_place() {
    if (op_.states.empty()) return;
    add({"state_slots", Direction::kIn, false, "batch_size", "i32", "",
         "line of the states that a sequence has", Fill::kPermutation,
         tensor_access<LinearArgs, &LinearArgs::state_slots>});
    for (const LinearState& state : op_.states) {
      const std::string tail(state.shape);
      // The norm may be there under an option, which is asked for with the problem.
      const bool is_required = op_.is_always_normalized || state.name != "norm";
      add({std::string(state.name), Direction::kInOut, is_required,
           "@state_slots: num_lines " + tail + "; batch_size " + tail, std::string(kStateDtypes),
           "", std::string(state.doc) + ", changed in place", state.fill, state.access_in_place});
    }
  }

  void add_initial(const LinearState& state) {
    add_state("initial_", state, Direction::kIn, state.access_initial, "before the first row");
  }

  void add_state(const std::string& prefix, const LinearState& state, Direction direction,
                 TensorAccess access, const std::string& when) {
    add({prefix + std::string(state.name), direction, false,
         "batch_size " + std::string(state.shape), std::string(kStateDtypes), "",
         std::string(state.doc) + " " + when, state.fill, access});
  }

  void add_backward() {
    add({"dout", Direction::kIn, true, timed(op_.out_shape), like_first() + " f32", "",
         "incoming gradient of out", Fill::kNormal, tensor_access<LinearArgs, &LinearArgs::dout>});
    for (const LinearState& state : op_.states) {
      if (state.access_dfinal == nullptr) continue;
      const std::string final_name = "final_" + std::string(state.name);
      add({"d" + final_name, Direction::kIn, false, "batch_size " + std::string(state.shape),
           std::string(kStateDtypes), "", "incoming gradient of " + final_name, Fill::kNormal,
           state.access_dfinal});
    }
    for (const LinearInput& input : op_.inputs) {
      if (input.access_gradient == nullptr) continue;
      const std::string name(input.name);
      add({"d" + name, Direction::kOut, false, shape_of(input), "=" + name, name,
           "gradient of " + name, Fill::kNormal, input.access_gradient});
    }
    for (const LinearState& state : op_.states) {
      if (state.access_dinitial == nullptr) continue;
      const std::string name = "initial_" + std::string(state.name);
      add({"d" + name, Direction::kOut, false, "batch_size " + std::string(state.shape),
           std::string(kStateDtypes), name, "gradient of " + name, Fill::kNormal,
           state.access_dinitial});
    }
  }

  const LinearOp& op_;
  LinearPass pass_;
  std::vector<TensorSpec> rows_;
};

bool mentions(std::string_view shape, std::string_view size) {
  size_t at = shape.find(size);
  for (; at != std::string_view::npos; at = shape.find(size, at + 1)) {
    const size_t end = at + size.size();
    const bool begins = at == 0 || shape[at - 1] == ' ';
    const bool ends = end == shape.size() || shape[end] == ' ' || shape[end] == ';' ||
                      shape[end] == '+' || shape[end] == '?';
    if (begins && ends) return true;
  }
  return false;
}

/// The sizes that the rows name.
std::vector<DimSpec> dims_of(std::span<const TensorSpec> rows) {
  std::vector<DimSpec> dims;
  for (const DimSpec& dim : kDims) {
    const bool is_used = std::any_of(rows.begin(), rows.end(), [&](const TensorSpec& row) {
      return mentions(row.shape, dim.name);
    });
    if (is_used) dims.push_back(dim);
  }
  return dims;
}

}  // namespace

std::string_view linear_op_name(const LinearOp& op, LinearPass pass) {
  const char* suffix = pass == LinearPass::kForward    ? "_fwd"
                       : pass == LinearPass::kBackward ? "_bwd"
                                                       : "_step";
  // Asked by each launch: a name is put together once.
  static std::mutex mutex;
  static std::map<std::pair<const LinearOp*, LinearPass>, std::string> names;
  const std::lock_guard<std::mutex> lock(mutex);
  std::string& name = names[{&op, pass}];
  if (name.empty()) name = std::string(op.name) + suffix;
  return name;
}

OpSpec linear_rows(const LinearOp& op, LinearPass pass) {
  // Made once for each table, which lives as long as the program.
  static std::mutex mutex;
  static std::deque<Rows> all;
  const std::lock_guard<std::mutex> lock(mutex);
  Rows& rows = all.emplace_back();
  rows.tensors = TableMaker(op, pass).rows();
  rows.dims = dims_of(rows.tensors);
  OpSpec spec;
  spec.name = linear_op_name(op, pass);
  const std::string doc(op.doc);
  spec.doc = op.doc;
  if (pass == LinearPass::kBackward) spec.doc = kept("gradients of " + doc);
  if (pass == LinearPass::kStep) spec.doc = kept(doc + ", one row of each sequence");
  spec.dims = rows.dims;
  spec.tensors = rows.tensors;
  spec.options = op.options;
  return spec;
}

void derive_linear_sizes(const ProblemText& problem, Sizes& sizes) {
  const TensorItem* list = problem.find_tensor("cu_seqlens");
  if (list == nullptr || list->values.empty()) return;
  sizes.emplace("total", list->values.back());
  sizes.emplace("batch_size", static_cast<int64_t>(list->values.size()) - 1);
}

void check_no_other_argument(const OpSpec& spec, const LinearArgs& args) {
  LinearArgs rest = args;
  for (const TensorSpec& row : spec.tensors) *row.access(&rest, {}, false) = TensorView{};
  for (const OptionSpec& row : spec.options) row.set(&rest, {}, std::monostate{});
  if (rest == LinearArgs{}) return;
  // Some other op has a row for it, which says what it is called.
  for (const OpSpec* other : linear_specs()) {
    for (const TensorSpec& row : other->tensors) {
      if (*row.access(&rest, {}, false)) {
        fail(spec.name, "there is no tensor '", row.name, "', which ", other->name, " has");
      }
    }
    for (const OptionSpec& row : other->options) {
      if (!std::holds_alternative<std::monostate>(row.get(&rest, {}))) {
        fail(spec.name, "there is no option '", row.name, "', which ", other->name, " has");
      }
    }
  }
  fail(spec.name, "an argument is given that no linear op has");
}

std::vector<const OpSpec*> linear_specs() {
  std::vector<const OpSpec*> all;
  for (const auto& family : {scalar_decay_specs(), vector_decay_specs(), delta_specs(),
                             scan_specs(), layer_part_specs()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

}  // namespace flashtile
