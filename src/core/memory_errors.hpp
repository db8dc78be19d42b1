// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

#include "flashtile/error.hpp"

namespace flashtile {

/// What an op throws when memory runs out, made while there still is some.
inline Error out_of_memory(std::string_view op) {
  std::string text(op);
  text += ": memory for what the call needs cannot be allocated";
  return {ErrorCode::kOutOfMemory, text};
}

/// Calls body(); what the standard library throws for want of memory becomes a copy of `error`,
/// which needs none.
template <class Body>
auto with_memory_errors(const Error& error, const Body& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    throw Error(error);
  } catch (const std::length_error&) {
    throw Error(error);
  }
}

}  // namespace flashtile
