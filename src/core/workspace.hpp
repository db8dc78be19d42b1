// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "flashtile/context.hpp"

namespace flashtile {

/// Temporary memory of one launch, aligned to 64 bytes: the caller's, or allocated here.
class Workspace {
 public:
  /// Throws Error(kOutOfMemory) when the context's workspace is smaller than `bytes`, or when there
  /// is none and the allocation fails.
  Workspace(std::string_view op, const Context& context, int64_t bytes);

  char* data() const { return data_; }

 private:
  struct Free {
    void operator()(char* data) const;
  };
  std::unique_ptr<char, Free> owned_;
  char* data_ = nullptr;
};

/// Hands out aligned pieces of a workspace, or only counts them when `base` is null.
class WorkspaceCursor {
 public:
  explicit WorkspaceCursor(char* base = nullptr) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

}  // namespace flashtile
