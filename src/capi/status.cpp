// SPDX-License-Identifier: Apache-2.0
#include "capi/status.hpp"

#include <cstring>
#include <string>

namespace flashtile::capi {
namespace {

struct LastError {
  std::string text;
  // Where the text itself does not fit into memory.
  const char* fixed_text = "";
};

LastError& last_error() noexcept {
  thread_local LastError instance;
  return instance;
}

}  // namespace

flashtile_status failed(flashtile_status status, std::string_view text) noexcept {
  LastError& last = last_error();
  last.fixed_text = nullptr;
  try {
    last.text.assign(text);
  } catch (...) {
    last.fixed_text = "out of memory, also for the text of another error";
  }
  return status;
}

void copy_text(std::string_view text, const char* function, char* buffer, size_t* bytes) {
  size_t& size = required(bytes, function, "bytes");
  const size_t capacity = size;
  size = text.size() + 1;
  if (buffer == nullptr) return;
  if (capacity < size) {
    throw Error(ErrorCode::kInvalidArgument, std::string(function) + ": the buffer has " +
                                                 std::to_string(capacity) + " bytes, expected " +
                                                 std::to_string(size));
  }
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = '\0';
}

}  // namespace flashtile::capi

extern "C" const char* flashtile_last_error(void) {
  const flashtile::capi::LastError& last = flashtile::capi::last_error();
  return last.fixed_text != nullptr ? last.fixed_text : last.text.c_str();
}

extern "C" const char* flashtile_version(void) { return FLASHTILE_VERSION_STRING; }

static_assert(static_cast<int>(flashtile::ErrorCode::kInvalidArgument) ==
              FLASHTILE_INVALID_ARGUMENT);
static_assert(static_cast<int>(flashtile::ErrorCode::kUnsupported) == FLASHTILE_UNSUPPORTED);
static_assert(static_cast<int>(flashtile::ErrorCode::kOutOfMemory) == FLASHTILE_OUT_OF_MEMORY);
static_assert(static_cast<int>(flashtile::ErrorCode::kIo) == FLASHTILE_IO);
static_assert(static_cast<int>(flashtile::ErrorCode::kInternal) == FLASHTILE_INTERNAL);
