// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <string_view>

#include "flashtile/error.hpp"

namespace flashtile {

/// Throws Error(kInvalidArgument, "OP: " + the parts one after the other).
template <class... Parts>
[[noreturn]] void fail(std::string_view op, const Parts&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw Error(ErrorCode::kInvalidArgument, text.str());
}

/// The same with kUnsupported: valid, but nothing takes it.
template <class... Parts>
[[noreturn]] void refuse(std::string_view op, const Parts&... parts) {
  std::ostringstream text;
  text << op << ": ";
  (text << ... << parts);
  throw Error(ErrorCode::kUnsupported, text.str());
}

}  // namespace flashtile
