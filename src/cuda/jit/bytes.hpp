// SPDX-License-Identifier: Apache-2.0
//
// Numbers and texts in files: least significant byte first, whatever the machine.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace flashtile::cuda {

template <std::unsigned_integral T>
void append_number(std::string& bytes, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    bytes += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xff);
  }
}

/// Reads from the front of bytes that may be anything: past the end there are zeros, and is_good()
/// tells.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  template <std::unsigned_integral T>
  T number() {
    const std::string_view bytes = text(sizeof(T));
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return static_cast<T>(value);
  }

  std::string_view text(uint64_t bytes) {
    if (bytes > rest_.size()) {
      is_good_ = false;
      rest_ = {};
      return {};
    }
    const std::string_view found = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return found;
  }

  bool is_good() const { return is_good_; }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
  bool is_good_ = true;
};

}  // namespace flashtile::cuda
