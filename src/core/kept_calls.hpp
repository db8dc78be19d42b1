// SPDX-License-Identifier: Apache-2.0
//
// Calls that have been checked, selected and planned, so that the next one like them is launched at
// once, without an allocation. Calls come by the thousand, and planning one takes longer than
// launching it.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

namespace flashtile {

/// The last calls of a thread. A Key is what calls alike have in common, and says whether they may
/// be kept (`may_be_kept`); a Call is what use() needs to launch one.
template <class Key, class Call>
class KeptCalls {
 public:
  /// The key of the call that comes next, to be assigned to: its memory serves again.
  Key& next_key() { return key_; }

  /// What use(call) gives, for a kept call of that key, or for the one that prepare() makes.
  /// is_still(call) says whether a kept one serves with what the tensors hold now, and may adapt
  /// it. A call that runs is left alone by calls that its executor makes on the same thread.
  template <class IsStill, class Prepare, class Use>
  auto with_call(const IsStill& is_still, const Prepare& prepare, const Use& use) {
    Entry* entry = find();
    if (entry == nullptr || entry->is_running || !is_still(entry->call)) {
      Call call = prepare();
      entry = keep(entry, call);
      if (entry == nullptr) return use(static_cast<const Call&>(call));
    }
    const Running running(&entry->is_running);
    return use(static_cast<const Call&>(entry->call));
  }

 private:
  struct Entry {
    Key key;
    Call call;
    bool is_running = false;
  };

  class Running {
   public:
    explicit Running(bool* mark) : mark_(mark) { *mark_ = true; }
    ~Running() { *mark_ = false; }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    bool* mark_;
  };

  static constexpr size_t kMaxEntries = 16;

  Entry* find() {
    if (!key_.may_be_kept) return nullptr;
    const auto same = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const auto& entry) { return entry->key == key_; });
    return same == entries_.end() ? nullptr : same->get();
  }

  /// Keeps a call under the key, in the place of `same`, which has that key, or of the oldest one;
  /// null, and `call` as it was, where that may not be.
  Entry* keep(Entry* same, Call& call) {
    if (!key_.may_be_kept) return nullptr;
    if (same == nullptr && entries_.size() < kMaxEntries) {
      entries_.push_back(std::make_unique<Entry>(Entry{key_, std::move(call)}));
      return entries_.back().get();
    }
    Entry& entry = same == nullptr ? *entries_[oldest_] : *same;
    if (entry.is_running) return nullptr;
    if (same == nullptr) oldest_ = (oldest_ + 1) % kMaxEntries;
    entry.key.may_be_kept = false;  // is like no call, should memory run out now
    entry.key = key_;
    entry.call = std::move(call);
    return &entry;
  }

  Key key_;
  std::vector<std::unique_ptr<Entry>> entries_;
  size_t oldest_ = 0;
};

}  // namespace flashtile
