// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "flashtile/error.hpp"

namespace flashtile::test {

/// The text of the Error that function() throws, which has to be of that code; "no error".
template <class Function>
std::string error_of(const Function& function, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "no error";
}

}  // namespace flashtile::test
