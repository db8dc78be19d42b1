// SPDX-License-Identifier: Apache-2.0
//
// Structs of the C face, whose callers may be older or newer than the library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "flashtile/error.hpp"
#include "flashtile/flashtile.h"

namespace flashtile::capi {

/// A struct_size beyond this is memory that nobody initialised.
inline constexpr uint32_t kMaxStructBytes = 1 << 16;

/// Where a member lies in its struct.
struct Member {
  const char* name;
  size_t offset;
  size_t bytes;
};

#define FLASHTILE_MEMBER(type, member) \
  ::flashtile::capi::Member { #member, offsetof(type, member), sizeof(type::member) }

/// Throws Error for a struct_size that cannot be true: 0, inside a member, or larger than the
/// struct that this library knows with something other than zeros in the rest.
void check_struct(const void* from, std::string_view type, size_t known_bytes,
                  std::span<const Member> members);

/// A copy in the form that this library knows; members that the caller does not have are 0.
template <class T>
T read_struct(const T& from, std::string_view type, std::span<const Member> members) {
  check_struct(&from, type, sizeof(T), members);
  T copy;
  std::memset(&copy, 0, sizeof(copy));
  std::memcpy(&copy, &from, std::min<size_t>(from.struct_size, sizeof(T)));
  return copy;
}

/// What an init function does: zeros, as far as the caller's struct reaches, and its size.
template <class T>
void init_struct(T* object, size_t struct_size) {
  if (object == nullptr || struct_size < sizeof(object->struct_size)) return;
  std::memset(static_cast<void*>(object), 0, struct_size);
  object->struct_size = static_cast<uint32_t>(struct_size);
}

/// Fills a result struct as far as the caller's reaches; what is beyond the library's is 0.
template <class T>
void write_struct(const T& from, std::string_view type, T& to) {
  const uint32_t struct_size = to.struct_size;
  if (struct_size < sizeof(struct_size) || struct_size > kMaxStructBytes) {
    throw Error(ErrorCode::kInvalidArgument, "struct_size of " + std::string(type) + " is " +
                                                 std::to_string(struct_size) +
                                                 "; call its init function first");
  }
  std::memset(static_cast<void*>(&to), 0, struct_size);
  std::memcpy(static_cast<void*>(&to), &from, std::min<size_t>(struct_size, sizeof(T)));
  to.struct_size = struct_size;
}

}  // namespace flashtile::capi
