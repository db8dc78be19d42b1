// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "flashtile/export.hpp"

namespace flashtile {

/// What kind of failure an Error reports. The numbers are those of the C ABI (`flashtile_status`).
enum class ErrorCode : int {
  kInvalidArgument = 1,  ///< an argument is wrong: shape, dtype, stride, value, text
  kUnsupported = 2,      ///< valid, but no implementation takes it; the text lists why
  kOutOfMemory = 3,      ///< an allocation failed, or a caller's workspace is too small
  kIo = 4,               ///< a file cannot be read or written, or is damaged
  kInternal = 5,         ///< a fault of the library
};

/// The one exception of the library. `what()` names op, argument, what was found and what was
/// expected: "attention_fwd: head_dim of k is 96, of q 128".
class FLASHTILE_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace flashtile
