// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <random>

#include "cuda/jit/bytes.hpp"
#include "cuda/jit/device_text.hpp"
#include "cuda/jit/kernel_file.hpp"
#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit_support.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

constexpr size_t kVersionAt = 8;
constexpr size_t kDeviceTextAt = 16;

class JitPack : public JitFolder {
 protected:
  using Kernels = std::vector<std::pair<Digest, CompiledKernel>>;

  static Digest key(int i) { return sha256("key " + std::to_string(i)); }
  Kernels kernels(int count, size_t bytes = 100) const {
    Kernels list;
    for (int i = 0; i < count; ++i) {
      list.emplace_back(key(i), sample_kernel(bytes + static_cast<size_t>(i), i));
    }
    return list;
  }
  std::string what_is_wrong(const std::string& file) const {
    try {
      const KernelPack pack(file);
      return "";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_NE(std::string(error.what()).find(file), std::string::npos) << error.what();
      return error.what();
    }
  }
};

TEST_F(JitPack, HoldsWhatWasWritten) {
  write_kernel_pack(path("p"), kernels(20));
  const KernelPack pack(path("p"));
  EXPECT_EQ(pack.num_kernels(), 20u);
  EXPECT_TRUE(pack.is_for_this_library());
  EXPECT_EQ(pack.path(), path("p"));
  for (int i = 0; i < 20; ++i) {
    const auto found = pack.find(key(i));
    ASSERT_TRUE(found) << i;
    EXPECT_TRUE(is_same(*found, kernels(20)[static_cast<size_t>(i)].second)) << i;
  }
  EXPECT_FALSE(pack.find(key(20)));
  const std::vector<Digest> keys = pack.keys();
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  EXPECT_EQ(names_in(""), std::vector<std::string>{"p"});
}

TEST_F(JitPack, AKernelThatIsGivenTwiceIsHeldOnce) {
  Kernels list = kernels(3);
  list.push_back(list[1]);
  write_kernel_pack(path("p"), list);
  EXPECT_EQ(KernelPack(path("p")).num_kernels(), 3u);
  write_kernel_pack(path("empty"), {});
  EXPECT_EQ(KernelPack(path("empty")).num_kernels(), 0u);
}

TEST_F(JitPack, FilesThatAreNoPacksAreRefused) {
  EXPECT_NE(what_is_wrong(path("missing")).find("cannot be opened"), std::string::npos);
  EXPECT_NE(what_is_wrong(folder_.string()).find("no file"), std::string::npos);
  write_all(path("text"), std::string(500, 'x'));
  EXPECT_NE(what_is_wrong(path("text")).find("not a kernel pack"), std::string::npos);
  write_all(path("nothing"), "");
  EXPECT_NE(what_is_wrong(path("nothing")).find("not a kernel pack"), std::string::npos);
}

TEST_F(JitPack, AnotherVersionIsRefusedByName) {
  write_kernel_pack(path("p"), kernels(2));
  std::string bytes = read_all(path("p"));
  bytes[kVersionAt] = 7;
  write_all(path("p"), bytes);
  EXPECT_NE(what_is_wrong(path("p")).find("has format 7, expected 1"), std::string::npos);
}

TEST_F(JitPack, PackOfAnotherLibraryIsKnownForThat) {
  write_kernel_pack(path("p"), kernels(2));
  std::string bytes = read_all(path("p"));
  ASSERT_EQ(bytes.substr(kDeviceTextAt, 64), device_headers_digest());
  bytes[kDeviceTextAt] = bytes[kDeviceTextAt] == '0' ? '1' : '0';
  write_all(path("p"), bytes);
  EXPECT_FALSE(KernelPack(path("p")).is_for_this_library());
}

TEST_F(JitPack, CutShortAnywhereItIsRefusedOrGivesOnlyWholeKernels) {
  write_kernel_pack(path("p"), kernels(3));
  const std::string bytes = read_all(path("p"));
  for (size_t length = 0; length < bytes.size(); length += length < 300 ? 3 : 41) {
    write_all(path("cut"), bytes.substr(0, length));
    EXPECT_NE(what_is_wrong(path("cut")), "") << length;
  }
}

TEST_F(JitPack, NoChangedByteGivesAWrongKernel) {
  const Kernels list = kernels(3, 20);
  write_kernel_pack(path("p"), list);
  const std::string bytes = read_all(path("p"));
  for (size_t i = 0; i < bytes.size(); i += 3) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    write_all(path("changed"), changed);
    int num_whole = 0;
    try {
      const KernelPack pack(path("changed"));
      for (const auto& [key, kernel] : list) {
        const auto found = pack.find(key);
        if (found) {
          ++num_whole;
          EXPECT_TRUE(is_same(*found, kernel)) << "byte " << i;
        }
      }
      const bool is_in_device_text = i >= kDeviceTextAt && i < kDeviceTextAt + 64;
      EXPECT_EQ(num_whole, is_in_device_text ? 3 : 2) << "byte " << i;
    } catch (const Error&) {
    }
  }
}

TEST_F(JitPack, PlacesOutsideOfTheFileAreRefused) {
  // An index whose digest is right, but with a place that wraps around.
  write_kernel_pack(path("p"), kernels(1));
  std::string bytes = read_all(path("p"));
  constexpr size_t kIndexDigestAt = kDeviceTextAt + 64;
  constexpr size_t kIndexAt = kIndexDigestAt + 32;
  for (const auto& [offset, size] : std::vector<std::pair<uint64_t, uint64_t>>{
           {~uint64_t{0} - 5, 10}, {10, ~uint64_t{0} - 5}, {bytes.size(), 1}}) {
    std::string place(bytes.substr(kIndexAt, 32));
    append_number(place, offset);
    append_number(place, size);
    std::string changed = bytes;
    changed.replace(kIndexAt, place.size(), place);
    changed.replace(kIndexDigestAt, 32, as_text(sha256(place)));
    write_all(path("p"), changed);
    EXPECT_NE(what_is_wrong(path("p")).find("cut short"), std::string::npos);
  }
}

TEST_F(JitPack, KilledWriterLeavesTheOldPack) {
  write_kernel_pack(path("p"), kernels(5));
  std::mt19937 random(6);
  for (int round = 0; round < 15; ++round) {
    const pid_t child = start_child([this] {
      for (;;) write_kernel_pack(path("p"), kernels(40, 20000));
      return 0;
    });
    ::usleep(static_cast<useconds_t>(random() % 40000));
    ::kill(child, SIGKILL);
    wait_for(child);
    const KernelPack pack(path("p"));
    EXPECT_TRUE(pack.num_kernels() == 5 || pack.num_kernels() == 40);
    for (const Digest& key : pack.keys()) EXPECT_TRUE(pack.find(key));
  }
}

TEST_F(JitPack, WhatCannotBeWrittenIsAnErrorAndLeavesNothing) {
  EXPECT_THROW(write_kernel_pack(path("no/folder/p"), kernels(1)), Error);
  std::filesystem::create_directory(path("folder"));
  EXPECT_THROW(write_kernel_pack(path("folder"), kernels(1)), Error);
  const int result = wait_for(start_child([this] {
    const rlimit limit = {3000, 3000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_kernel_pack(path("p"), kernels(20, 1000));
    } catch (const Error& error) {
      return std::string(error.what()).find("cannot be written") == std::string::npos ? 2 : 0;
    }
    return 1;
  }));
  EXPECT_EQ(result, 0);
  EXPECT_EQ(names_in(""), std::vector<std::string>{"folder"});
}

}  // namespace
}  // namespace flashtile::cuda
