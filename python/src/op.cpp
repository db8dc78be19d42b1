// SPDX-License-Identifier: Apache-2.0
#include "op.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/problem_text.hpp"
#include "core/shape_spec.hpp"
#include "flashtile/error.hpp"
#include "mask_blocks.hpp"

namespace flashtile::python {
namespace {

constexpr int64_t kWorkspaceAlignment = 256;

[[noreturn]] void raise_type_error(const std::string& text) {
  PyErr_SetString(PyExc_TypeError, text.c_str());
  nb::raise_python_error();
}

[[noreturn]] void fail_option(std::string_view op, std::string_view name, nb::handle value,
                              const char* expected) {
  PyErr_Clear();
  raise_type_error(std::string(op) + ": " + std::string(name) + " is " +
                   nb::cast<std::string>(nb::repr(value)) + ", expected " + expected);
}

OptionValue int_value(std::string_view op, const OptionSpec& row, std::string_view name,
                      nb::handle value) {
  if (PyBool_Check(value.ptr())) fail_option(op, name, value, "an int");
  nb::object number = nb::steal(PyNumber_Index(value.ptr()));
  if (!number.is_valid()) fail_option(op, name, value, "an int");
  if (row.type == OptionType::kUint) {
    const uint64_t result = PyLong_AsUnsignedLongLong(number.ptr());
    if (PyErr_Occurred() == nullptr) return result;
  } else {
    const int64_t result = PyLong_AsLongLong(number.ptr());
    if (PyErr_Occurred() == nullptr) return result;
  }
  PyErr_Clear();
  fail(op, name, " is ", nb::cast<std::string>(nb::str(number)), ", which does not fit into ",
       row.type == OptionType::kUint ? "an unsigned" : "a signed", " integer of 64 bits");
}

OptionValue option_value(std::string_view op, const OptionSpec& row, std::string_view name,
                         nb::handle value) {
  switch (row.type) {
    case OptionType::kBool: {
      if (value.ptr() == Py_True) return true;
      if (value.ptr() == Py_False) return false;
      const nb::object name_of_type = value.type().attr("__name__");
      const std::string type = nb::str(name_of_type).c_str();
      if (type != "bool" && type != "bool_") fail_option(op, name, value, "a bool");
      return PyObject_IsTrue(value.ptr()) == 1;  // numpy's
    }
    case OptionType::kInt:
    case OptionType::kUint:
      return int_value(op, row, name, value);
    case OptionType::kFloat: {
      if (PyUnicode_Check(value.ptr())) fail_option(op, name, value, "a number");
      const double number = PyFloat_AsDouble(value.ptr());
      if (PyErr_Occurred() != nullptr) fail_option(op, name, value, "a number");
      return number;
    }
    default: {
      std::string text;
      if (!nb::try_cast(value, text)) fail_option(op, name, value, "a str");
      return text;
    }
  }
}

/// "=q f32": the first dtype that a row allows, which an output gets where nobody asks for another.
DType default_dtype(const OpCall& call, const TensorSpec& row, std::string_view suffix) {
  std::string_view first = row.dtypes.substr(0, row.dtypes.find(' '));
  if (!first.starts_with('=')) return dtype_from_name(first);
  first.remove_prefix(1);
  return call.tensor(first.ends_with(".*") ? family_name(first, suffix) : std::string(first)).dtype;
}

}  // namespace

struct Op::Call {
  explicit Call(const OpSpec& spec) : op_call(spec), views(spec.name) {}

  OpCall op_call;
  ArrayViews views;
  Context context;
  nb::object like;
  Device device;
  std::vector<std::pair<std::string, nb::object>> given;  // outputs among the arguments
  std::vector<nb::object> results;
  nb::object workspace;
};

Op::Op(const std::string& name, const std::vector<std::string>& tensors,
       const std::vector<std::string>& options)
    : spec_(find_op(name)) {
  if (spec_ == nullptr) fail("flashtile", "there is no op '", name, "'");
  for (const std::string& tensor : tensors) {
    tensors_.push_back(spec_->find_tensor(tensor));
    if (tensors_.back() == nullptr) fail(name, "there is no tensor '", tensor, "'");
  }
  for (const std::string& option : options) {
    options_.push_back(spec_->find_option(option));
    if (options_.back() == nullptr) fail(name, "there is no option '", option, "'");
  }
}

std::vector<int64_t> output_shape(const OpCall& call, const TensorSpec& row,
                                  std::string_view suffix) {
  const std::string name = row.is_family() ? family_name(row.name, suffix) : std::string(row.name);
  if (!row.gradient_of.empty()) {
    const TensorView input = call.tensor(row.is_family() ? family_name(row.gradient_of, suffix)
                                                         : std::string(row.gradient_of));
    if (!input) fail(call.spec().name, name, " is wanted, but ", row.gradient_of, " is not given");
    return {input.shape.begin(), input.shape.begin() + input.ndim};
  }
  const std::vector<GivenTensor> given = given_tensors(call.spec(), call.args());
  Sizes sizes;
  if (const std::string fault = bind_sizes(given, sizes); !fault.empty()) {
    fail(call.spec().name, fault);
  }
  // Of alternatives with the same condition the first one whose sizes are all known.
  std::string missing;
  for (const ShapeForm& form :
       shape_forms(row.shape, [&](std::string_view tensor) { return bool(call.tensor(tensor)); })) {
    std::vector<int64_t> shape;
    for (const ShapeEntry& entry : form.dims()) {
      const auto size = sizes.find(entry.name);
      if (!entry.name.empty() && size == sizes.end()) {
        missing = entry.name;
        break;
      }
      shape.push_back(entry.name.empty() ? entry.number
                                         : size->second + (entry.is_plus_one ? 1 : 0));
    }
    if (shape.size() == form.dims().size()) return shape;
  }
  fail(call.spec().name, name, " has a shape that the inputs leave open (", missing,
       "): give an array for it");
}

void Op::set_tensor(Call& call, const TensorSpec& row, const std::string& name,
                    nb::handle array) const {
  TensorView* view = row.access(call.op_call.args(), family_suffix(row.name, name), true);
  *view = call.views.view(array, name);
  if (!call.like.is_valid()) {
    call.like = nb::borrow(array);
    call.device = view->device;
  }
  if (row.direction == Direction::kOut) call.given.emplace_back(name, nb::borrow(array));
}

void Op::set_option(Call& call, const OptionSpec& row, const std::string& name,
                    nb::handle value) const {
  row.set(call.op_call.args(), family_suffix(row.name, name),
          option_value(spec_->name, row, name, value));
}

void Op::set_families(Call& call, nb::handle families) const {
  if (families.is_none()) return;
  for (auto [key, value] : nb::cast<nb::dict>(families)) {
    const std::string name = nb::cast<std::string>(key);
    if (const TensorSpec* tensor = spec_->find_tensor(name)) {
      set_tensor(call, *tensor, name, value);
    } else if (const OptionSpec* option = spec_->find_option(name)) {
      set_option(call, *option, name, value);
    } else {
      fail(spec_->name, "there is no tensor or option '", name, "'");
    }
  }
}

void Op::add_result(Call& call, const std::string& name, nb::handle dtypes) const {
  const auto given = std::find_if(call.given.begin(), call.given.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  if (given != call.given.end()) {
    call.results.push_back(given->second);
    return;
  }
  const TensorSpec* row = spec_->find_tensor(name);
  if (row == nullptr || row->direction != Direction::kOut) {
    fail(spec_->name, "there is no output '", name, "'");
  }
  const std::string_view suffix = family_suffix(row->name, name);
  DType dtype = DType::kNone;
  if (!dtypes.is_none() && nb::cast<nb::dict>(dtypes).contains(name.c_str())) {
    const std::string wanted = nb::cast<std::string>(dtypes[name.c_str()]);
    dtype = dtype_from_name(wanted);
    if (dtype == DType::kNone) fail(spec_->name, "there is no dtype '", wanted, "'");
  } else {
    dtype = default_dtype(call.op_call, *row, suffix);
  }
  const std::vector<int64_t> shape = output_shape(call.op_call, *row, suffix);
  nb::object array = new_array(call.like, call.device, shape, dtype);
  *row->access(call.op_call.args(), suffix, true) = call.views.view(array, name);
  call.results.push_back(std::move(array));
}

void Op::prepare(Call& call, nb::tuple tensors, nb::tuple options, nb::object families,
                 nb::tuple results, nb::object dtypes, nb::object implementation,
                 int max_workers) const {
  if (tensors.size() != tensors_.size() || options.size() != options_.size()) {
    raise_type_error(std::string(spec_->name) + ": wrong number of arguments");
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (const nb::handle array = tensors[i]; !array.is_none()) {
      set_tensor(call, *tensors_[i], std::string(tensors_[i]->name), array);
    } else if (tensors_[i]->required && tensors_[i]->is_input()) {
      fail(spec_->name, tensors_[i]->name, " is not given");
    }
  }
  for (size_t i = 0; i < options_.size(); ++i) {
    if (const nb::handle value = options[i]; !value.is_none()) {
      set_option(call, *options_[i], std::string(options_[i]->name), value);
    }
  }
  set_families(call, families);
  // Whether a cache is written depends on the other tensors, so it is asked when all are there.
  for (const ArrayViews::Unwritable& array : call.views.unwritable()) {
    if (!call.op_call.writes(array.name)) continue;
    fail(spec_->name, array.name, array.reason, ", but is to be written");
  }
  if (max_workers < 0) fail(spec_->name, "max_workers is ", max_workers, ", expected at least 0");
  call.context.max_workers = max_workers;
  if (!implementation.is_none()) {
    call.context.implementation = nb::cast<std::string>(implementation);
  }
  call.context.stream = current_stream(call.like, call.device);
  for (nb::handle name : results) add_result(call, nb::cast<std::string>(name), dtypes);
}

nb::tuple Op::run(nb::tuple tensors, nb::tuple options, nb::object families, nb::tuple results,
                  nb::object dtypes, nb::object implementation, int max_workers) const {
  Call call(*spec_);
  prepare(call, tensors, options, families, results, dtypes, implementation, max_workers);
  if (call.device.type == DeviceType::kCuda) {
    const int64_t needed = call.op_call.workspace_bytes(call.context);
    if (needed > 0) {
      const int64_t bytes = needed + kWorkspaceAlignment;
      call.workspace = new_array(call.like, call.device, std::span(&bytes, 1), DType::kU8);
      call.context.workspace = call.views.view(call.workspace, "workspace").data;
      call.context.workspace_bytes = static_cast<size_t>(bytes);
    }
  }
  {
    nb::gil_scoped_release released;
    call.op_call.run(call.context);
  }
  nb::list finished;
  for (const nb::object& result : call.results) finished.append(finished_array(call.like, result));
  return nb::tuple(finished);
}

nb::dict Op::explain(nb::tuple tensors, nb::tuple options, nb::object families, nb::tuple results,
                     nb::object dtypes, nb::object implementation, int max_workers) const {
  Call call(*spec_);
  prepare(call, tensors, options, families, results, dtypes, implementation, max_workers);
  Explanation explanation = call.op_call.explain(call.context);
  if (explanation.problem.empty()) explanation.problem = problem_text(call.op_call);
  return explanation_dict(explanation);
}

std::vector<std::vector<int>> Op::mask_blocks(nb::tuple tensors, nb::tuple options,
                                              nb::object families, int64_t batch_idx, int64_t head,
                                              int64_t block_m, int64_t block_n) const {
  Call call(*spec_);
  prepare(call, tensors, options, families, nb::tuple(), nb::none(), nb::none(), 0);
  return python::mask_blocks(call.op_call, batch_idx, head, block_m, block_n);
}

nb::dict explanation_dict(const Explanation& explanation) {
  nb::list candidates;
  for (const Candidate& candidate : explanation.candidates) {
    candidates.append(nb::make_tuple(candidate.implementation.c_str(), candidate.refusal.c_str()));
  }
  nb::dict result;
  result["problem"] = explanation.problem.c_str();
  result["chosen"] = explanation.chosen.c_str();
  result["plan"] = explanation.plan.c_str();
  result["workspace_bytes"] = explanation.workspace_bytes;
  result["candidates"] = nb::tuple(candidates);
  result["text"] = to_string(explanation).c_str();
  return result;
}

}  // namespace flashtile::python
