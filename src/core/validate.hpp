// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/op_spec.hpp"

namespace flashtile {

/// Checks a call against its table: required tensors, dtypes, shapes (symbols must agree), sizes
/// and strides whose products overflow, null or misaligned addresses, option ranges, and outputs
/// that overlap anything (judged by element). Reads no tensor data. Gives the sizes that the
/// tensors fix. Throws Error that names the op, the argument, what was found and what was expected.
Sizes validate_call(const OpSpec& spec, const void* args);

/// As above for a call whose tensors have no memory yet (make_call); skips the address checks.
Sizes validate_shapes(const OpSpec& spec, const void* args);

/// True when two views share an element; decided exactly, by the element, within a bounded search
/// (beyond it the answer is true). `max_work` bounds the search.
bool views_overlap(const TensorView& a, const TensorView& b, int64_t max_work = 1 << 20);

/// True where `part` is the first columns of `whole`, fewer than all, in the same memory. Without
/// memory strides tell.
bool is_leading_part(const TensorView& part, const TensorView& whole);

/// True when two different indices of a view are the same element.
bool overlaps_itself(const TensorView& view, int64_t max_work = 1 << 20);

/// Throws Error where the context asks for what a call with tensors on that device does not heed:
/// another device, a stream on the CPU, threads or a pool on a GPU, a workspace without memory.
void check_context(std::string_view op, const Device& of_tensors, const Context& context);

}  // namespace flashtile
