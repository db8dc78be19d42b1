// SPDX-License-Identifier: Apache-2.0
//
// The border of the C face: exceptions become status codes and a text of this thread.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "flashtile/error.hpp"
#include "flashtile/flashtile.h"

namespace flashtile::capi {

/// Keeps the text for flashtile_last_error and returns the status. Never throws.
flashtile_status failed(flashtile_status status, std::string_view text) noexcept;

/// Calls body(); what it throws becomes a status.
template <class Body>
flashtile_status guarded(const Body& body) noexcept {
  try {
    body();
    return FLASHTILE_OK;
  } catch (const Error& error) {
    return failed(static_cast<flashtile_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(FLASHTILE_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return failed(FLASHTILE_INTERNAL, error.what());
  } catch (...) {
    return failed(FLASHTILE_INTERNAL, "an exception of an unknown type");
  }
}

/// Throws Error when a pointer argument is null.
template <class T>
const T& required(const T* pointer, const char* function, const char* argument) {
  if (pointer != nullptr) return *pointer;
  throw Error(ErrorCode::kInvalidArgument, std::string(function) + ": " + argument + " is NULL");
}

template <class T>
T& required(T* pointer, const char* function, const char* argument) {
  required(const_cast<const T*>(pointer), function, argument);
  return *pointer;
}

/// Hands a text out by the rule of the header.
void copy_text(std::string_view text, const char* function, char* buffer, size_t* bytes);

}  // namespace flashtile::capi
