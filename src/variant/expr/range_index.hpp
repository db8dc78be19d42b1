// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace flashtile::variant {

/// Summaries (a minimum and maximum, a set of bits) of any run of elements of lines of one length,
/// in constant time: a sparse table over blocks of 32 elements, and a scan of what is left at the
/// ends. A Summary has merge(other), where merging with itself changes nothing. `read(line, n)`
/// gives the summary of one element.
template <typename Summary, typename Read>
class RangeIndex {
 public:
  RangeIndex(int64_t num_lines, int64_t length, Read read)
      : read_(read),
        num_lines_(num_lines),
        length_(length),
        num_blocks_((length + kBlock - 1) / kBlock) {
    build();
  }

  /// Reads all elements again.
  void build() {
    table_.clear();
    if (num_lines_ <= 0 || length_ <= 0) return;
    num_levels_ = width(num_blocks_);
    table_.reserve(static_cast<size_t>(num_lines_ * num_levels_ * num_blocks_));
    for (int64_t line = 0; line < num_lines_; ++line) {
      for (int64_t block = 0; block < num_blocks_; ++block) {
        const int64_t begin = block * kBlock;
        table_.push_back(scan(line, begin, std::min(length_, begin + kBlock)));
      }
      for (int64_t level = 1; level < num_levels_; ++level) {
        for (int64_t block = 0; block < num_blocks_; ++block) {
          // Of 2^level blocks from this one on, as far as there are so many.
          Summary summary = at(line, level - 1, block);
          const int64_t other = block + (int64_t{1} << (level - 1));
          if (other < num_blocks_) summary.merge(at(line, level - 1, other));
          table_.push_back(summary);
        }
      }
    }
  }

  /// The elements begin .. end - 1 of a line; not empty, and in range.
  Summary query(int64_t line, int64_t begin, int64_t end) const {
    const int64_t first = (begin + kBlock - 1) / kBlock;
    const int64_t last = end / kBlock;
    if (first >= last) return scan(line, begin, end);
    const int64_t level = width(last - first) - 1;
    Summary summary = at(line, level, first);
    summary.merge(at(line, level, last - (int64_t{1} << level)));
    if (begin < first * kBlock) summary.merge(scan(line, begin, first * kBlock));
    if (last * kBlock < end) summary.merge(scan(line, last * kBlock, end));
    return summary;
  }

 private:
  static constexpr int64_t kBlock = 32;

  static int64_t width(int64_t n) {
    return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n)));
  }

  Summary scan(int64_t line, int64_t begin, int64_t end) const {
    Summary summary = read_(line, begin);
    for (int64_t n = begin + 1; n < end; ++n) summary.merge(read_(line, n));
    return summary;
  }

  const Summary& at(int64_t line, int64_t level, int64_t block) const {
    return table_[static_cast<size_t>((line * num_levels_ + level) * num_blocks_ + block)];
  }

  Read read_;
  int64_t num_lines_ = 0;
  int64_t length_ = 0;
  int64_t num_blocks_ = 0;
  int64_t num_levels_ = 0;
  std::vector<Summary> table_;
};

}  // namespace flashtile::variant
