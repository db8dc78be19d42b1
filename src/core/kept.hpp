// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace flashtile {

/// An object that an earlier one of the same thread has left, to be assigned to: it holds whatever
/// it was left with, and memory for as much.
template <class T>
class Kept {
 public:
  Kept() {
    spares().reserve(kMaxSpares);
    if (spares().empty()) {
      item_ = std::make_unique<T>();
      return;
    }
    item_ = std::move(spares().back());
    spares().pop_back();
  }
  ~Kept() {
    if (spares().size() < kMaxSpares) spares().push_back(std::move(item_));
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  T& operator*() { return *item_; }
  const T& operator*() const { return *item_; }
  T* operator->() { return item_.get(); }

 private:
  static constexpr size_t kMaxSpares = 8;

  static std::vector<std::unique_ptr<T>>& spares() {
    thread_local std::vector<std::unique_ptr<T>> memory;
    return memory;
  }

  std::unique_ptr<T> item_;
};

}  // namespace flashtile
