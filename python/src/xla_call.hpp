// SPDX-License-Identifier: Apache-2.0
//
// An op of the library as a call of a program that XLA compiled.
#pragma once

#include "xla_ffi.hpp"

namespace flashtile::python {

/// Handlers for XLA's platforms. Attributes, all of them texts:
///   op              "attention_fwd"
///   inputs          names of the arguments, "q,k,v"
///   outputs         names of the results, "out,lse"
///   options         a line for each, "causal=true"
///   implementation  a forced one, or ""
/// An argument "dropout_seed_tensor" is two u32, low word first: XLA has no i64 by default.
xla::Error* run_on_cpu(xla::CallFrame* frame);
xla::Error* run_on_cuda(xla::CallFrame* frame);

}  // namespace flashtile::python
