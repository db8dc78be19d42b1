// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>

#include "files/tensor_file.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cli {

/// Bytes at an address that is a multiple of 64, or a chosen distance after one.
class AlignedText {
 public:
  explicit AlignedText(const std::string& text, size_t shift = 0) : size_(text.size()) {
    const auto address = reinterpret_cast<uintptr_t>(memory_ = new std::byte[size_ + 128]);
    start_ = memory_ + (64 - address % 64) + shift;
    std::memcpy(start_, text.data(), size_);
  }
  AlignedText(const AlignedText&) = delete;
  AlignedText& operator=(const AlignedText&) = delete;
  ~AlignedText() { delete[] memory_; }
  std::span<const std::byte> bytes() const { return {start_, size_}; }

 private:
  size_t size_;
  std::byte* memory_;
  std::byte* start_;
};

/// The low `count` bytes of a number, least significant first.
inline std::string little_endian(uint64_t value, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += static_cast<char>((value >> (8 * i)) & 0xff);
  return text;
}

template <class T>
T element(const TensorView& tensor, std::initializer_list<int64_t> index) {
  T value;
  std::memcpy(&value, tensor.at(index), sizeof value);
  return value;
}

/// A folder of its own for each test, removed at the end.
class TemporaryFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::temp_directory_path() /
              ("flashtile_" + std::to_string(::getpid()) + "_" + info->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

 private:
  std::filesystem::path folder_;
};

/// Runs `parse`, which has to throw Error(kIo) with one line that holds both parts.
template <class Parse>
void expect_file_error(const Parse& parse, const std::string& name, const std::string& part) {
  try {
    parse();
    ADD_FAILURE() << "accepted; expected an error about: " << part;
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), ErrorCode::kIo) << text;
    EXPECT_EQ(text.find(name), 0u) << text;
    EXPECT_NE(text.find(part), std::string::npos) << text << "\nhas not: " << part;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

}  // namespace flashtile::cli
