// SPDX-License-Identifier: Apache-2.0
//
// The operator tables and the life of a call of linear attention, made from an entry (op.hpp).
#pragma once

#include <memory>
#include <vector>

#include "core/memory_errors.hpp"
#include "ops/linear/op.hpp"

namespace flashtile {

/// The tables of all ops of linear attention.
std::vector<const OpSpec*> linear_specs();

/// Validates, selects, plans, launches. Like the next one it lets errors of allocation through.
void run_linear(const LinearOp& op, LinearPass pass, const OpSpec& spec, const LinearArgs& args,
                const Context& context);
Explanation explain_linear(const LinearOp& op, LinearPass pass, const OpSpec& spec,
                           const LinearArgs& args, const Context& context);
std::vector<std::string> linear_implementation_names(const LinearOp& op, LinearPass pass,
                                                     DeviceType device);

/// The rows of a table: everything but the functions that call back into the op.
OpSpec linear_rows(const LinearOp& op, LinearPass pass);
/// Sizes that follow from cu_seqlens={...} in a problem text.
void derive_linear_sizes(const ProblemText& problem, Sizes& sizes);

/// Throws Error where a caller of C++ has set something that the op's table has no row for.
void check_no_other_argument(const OpSpec& spec, const LinearArgs& args);

/// What the op throws when memory runs out, made before it does.
template <const LinearOp& op, LinearPass pass>
const Error& linear_out_of_memory() {
  static const Error error = out_of_memory(linear_op_name(op, pass));
  return error;
}

template <const LinearOp& op, LinearPass pass>
const OpSpec& linear_spec() {
  static const OpSpec spec = [] {
    OpSpec made = linear_rows(op, pass);
    made.make_args = []() -> std::shared_ptr<void> { return std::make_shared<LinearArgs>(); };
    made.copy_args = [](const void* args) -> std::shared_ptr<void> {
      return std::make_shared<LinearArgs>(*static_cast<const LinearArgs*>(args));
    };
    made.run = [](const void* args, const Context& context) {
      with_memory_errors(linear_out_of_memory<op, pass>(), [&] {
        run_linear(op, pass, linear_spec<op, pass>(), *static_cast<const LinearArgs*>(args),
                   context);
      });
    };
    made.explain = [](const void* args, const Context& context) {
      return with_memory_errors(linear_out_of_memory<op, pass>(), [&] {
        return explain_linear(op, pass, linear_spec<op, pass>(),
                              *static_cast<const LinearArgs*>(args), context);
      });
    };
    made.list_implementations = [](DeviceType device) {
      return linear_implementation_names(op, pass, device);
    };
    made.derive_sizes = derive_linear_sizes;
    return made;
  }();
  return spec;
}

/// All tables of each op.
template <const LinearOp&... ops>
std::vector<const OpSpec*> linear_specs_of() {
  std::vector<const OpSpec*> specs;
  (specs.insert(specs.end(), {&linear_spec<ops, LinearPass::kForward>(),
                              &linear_spec<ops, LinearPass::kBackward>(),
                              &linear_spec<ops, LinearPass::kStep>()}),
   ...);
  return specs;
}

/// The body of a public function.
template <const LinearOp& op, LinearPass pass>
void call_linear(const LinearArgs& args, const Context& context) {
  with_memory_errors(linear_out_of_memory<op, pass>(), [&] {
    const OpSpec& spec = linear_spec<op, pass>();
    check_no_other_argument(spec, args);
    run_linear(op, pass, spec, args, context);
  });
}

}  // namespace flashtile
