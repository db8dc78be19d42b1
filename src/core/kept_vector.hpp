// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace flashtile {

/// A vector that begins empty, in memory that an earlier one of the same thread has left: lists of
/// a call that is made again and again are allocated once. A call inside a call has its own.
template <class T>
class KeptVector {
 public:
  KeptVector() {
    spares().reserve(kMaxSpares);  // so that a spare is put back without an allocation
    if (spares().empty()) return;
    items_ = std::move(spares().back());
    spares().pop_back();
  }
  ~KeptVector() {
    items_.clear();
    if (items_.capacity() * sizeof(T) > kMaxBytes || spares().size() == kMaxSpares) return;
    spares().push_back(std::move(items_));
  }
  KeptVector(const KeptVector&) = delete;
  KeptVector& operator=(const KeptVector&) = delete;

  std::vector<T>& operator*() { return items_; }
  const std::vector<T>& operator*() const { return items_; }
  std::vector<T>* operator->() { return &items_; }
  const std::vector<T>* operator->() const { return &items_; }

 private:
  static constexpr size_t kMaxSpares = 8;
  static constexpr size_t kMaxBytes = size_t{1} << 20;  ///< of one: large ones are given back

  /// The last one that was left is the first one to be taken: lists find what they had before.
  static std::vector<std::vector<T>>& spares() {
    thread_local std::vector<std::vector<T>> memory;
    return memory;
  }

  std::vector<T> items_;
};

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
