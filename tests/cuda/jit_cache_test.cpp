// SPDX-License-Identifier: Apache-2.0
//
// The cache on disk, with what may happen to it: damage, foreign files, full disks, killed writers.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <random>
#include <thread>

#include "cuda/jit/disk_cache.hpp"
#include "cuda/jit/kernel_file.hpp"
#include "cuda/jit_support.hpp"

namespace flashtile::cuda {
namespace {

constexpr int64_t kLarge = int64_t{1} << 30;

class JitCache : public JitFolder {
 protected:
  DiskCache cache(int64_t max_bytes = kLarge) const { return DiskCache(path("cache"), max_bytes); }
  std::string entry_path(const Digest& key) const {
    return path("cache/" + to_hex(key) + ".kernel");
  }

  const Digest key_ = sha256("key");
  const CompiledKernel kernel_ = sample_kernel(1000);
};

TEST_F(JitCache, GivesBackWhatItWasGiven) {
  EXPECT_FALSE(cache().load(key_));
  EXPECT_EQ(cache().summary().num_kernels, 0);
  ASSERT_TRUE(cache().store(key_, kernel_));
  const auto loaded = cache().load(key_);
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(is_same(*loaded, kernel_));
  EXPECT_FALSE(cache().load(sha256("another key")));
  EXPECT_EQ(cache().summary().num_kernels, 1);
  EXPECT_EQ(names_in("cache"), std::vector<std::string>{to_hex(key_) + ".kernel"});
}

TEST_F(JitCache, FolderIsForItsUserAlone) {
  DiskCache deep(path("a/b/cache"), kLarge);
  ASSERT_TRUE(deep.store(key_, kernel_));
  struct stat status = {};
  for (const char* name : {"a", "a/b", "a/b/cache"}) {
    ASSERT_EQ(::stat(path(name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777u, 0700u) << name;
  }
}

TEST_F(JitCache, EntriesThatAreCutShortAreTakenAway) {
  const std::string bytes = write_kernel_file(key_, kernel_);
  for (size_t length = 0; length < bytes.size(); length += length < 200 ? 1 : 37) {
    ASSERT_TRUE(cache().store(key_, kernel_));
    write_all(entry_path(key_), bytes.substr(0, length));
    EXPECT_FALSE(cache().load(key_)) << length;
    EXPECT_FALSE(std::filesystem::exists(entry_path(key_))) << length;
  }
  write_all(entry_path(key_), bytes + "x");
  EXPECT_FALSE(cache().load(key_));
}

TEST_F(JitCache, NoChangedBitGoesUnseen) {
  const std::string bytes = write_kernel_file(key_, sample_kernel(50));
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = bytes;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(read_kernel_file(changed, key_)) << "byte " << i << " bit " << bit;
    }
  }
}

TEST_F(JitCache, AnotherVersionIsNoEntry) {
  // A file of format 2 that is whole: its digest is right.
  std::string bytes = write_kernel_file(key_, kernel_);
  bytes[8] = 2;
  bytes.resize(bytes.size() - sizeof(Digest));
  bytes += as_text(sha256(bytes));
  EXPECT_FALSE(read_kernel_file(bytes, key_));
  bytes[8] = 1;
  bytes.resize(bytes.size() - sizeof(Digest));
  bytes += as_text(sha256(bytes));
  EXPECT_TRUE(read_kernel_file(bytes, key_));
}

TEST_F(JitCache, AnEntryForAnotherKeyIsNone) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  const Digest other = sha256("other");
  std::filesystem::copy_file(entry_path(key_), entry_path(other));
  EXPECT_FALSE(cache().load(other));
  EXPECT_TRUE(cache().load(key_));
}

TEST_F(JitCache, WhatIsNoRegularFileIsNoEntry) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  std::filesystem::rename(entry_path(key_), path("elsewhere"));
  std::filesystem::create_symlink(path("elsewhere"), entry_path(key_));
  EXPECT_FALSE(cache().load(key_)) << "a link";
  std::filesystem::remove(entry_path(key_));
  ASSERT_EQ(::mkfifo(entry_path(key_).c_str(), 0600), 0);
  EXPECT_FALSE(cache().load(key_)) << "a pipe";
  std::filesystem::remove(entry_path(key_));
  std::filesystem::create_directory(entry_path(key_));
  EXPECT_FALSE(cache().load(key_)) << "a folder";
  EXPECT_FALSE(cache().store(key_, kernel_));
}

TEST_F(JitCache, FolderThatOthersMayWriteToDoesNotCount) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  for (mode_t mode : {0777u, 0722u, 0770u}) {
    ASSERT_EQ(::chmod(path("cache").c_str(), mode), 0);
    EXPECT_FALSE(cache().load(key_));
    EXPECT_FALSE(cache().store(key_, kernel_));
    EXPECT_NE(cache().fault().find("others may write"), std::string::npos);
  }
  ASSERT_EQ(::chmod(path("cache").c_str(), 0755), 0);
  EXPECT_TRUE(cache().load(key_));
  EXPECT_EQ(cache().fault(), "");
}

TEST_F(JitCache, ForeignOwnersDoNotCount) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  constexpr uid_t kStranger = 54321;
  ASSERT_TRUE(cache().store(key_, kernel_));
  ASSERT_EQ(::chown(entry_path(key_).c_str(), kStranger, kStranger), 0);
  EXPECT_FALSE(cache().load(key_));
  ASSERT_TRUE(cache().store(key_, kernel_)) << "it is made again";
  EXPECT_TRUE(cache().load(key_));
  ASSERT_EQ(::chown(path("cache").c_str(), kStranger, kStranger), 0);
  EXPECT_FALSE(cache().load(key_));
  EXPECT_FALSE(cache().store(key_, kernel_));
  EXPECT_NE(cache().fault().find("belongs to user 54321"), std::string::npos);
}

TEST_F(JitCache, ReadOnlyFolderIsReadFrom) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  ASSERT_EQ(::chmod(path("cache").c_str(), 0500), 0);
  // Root may write everywhere: a child that is somebody else tells.
  std::filesystem::permissions(folder_, std::filesystem::perms(0711));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(entry_path(key_).c_str(), 54321, 54321), 0);
    ASSERT_EQ(::chown(path("cache").c_str(), 54321, 54321), 0);
  }
  const int result = wait_for(start_child([this] {
    if (::geteuid() == 0 && ::setuid(54321) != 0) return 1;
    if (!cache().load(key_)) return 2;
    if (cache().store(sha256("new"), kernel_)) return 3;
    if (cache().lock(key_)) return 4;
    return 0;
  }));
  EXPECT_EQ(result, 0);
  std::filesystem::permissions(path("cache"), std::filesystem::perms(0700));
}

TEST_F(JitCache, NoFolderIsNoError) {
  for (const std::string& folder :
       {std::string(), path("file/cache"), std::string("/proc/cache")}) {
    write_all(path("file"), "not a folder");
    DiskCache none(folder, kLarge);
    EXPECT_FALSE(none.load(key_));
    EXPECT_FALSE(none.store(key_, kernel_));
    EXPECT_FALSE(none.lock(key_));
    EXPECT_EQ(none.keep_source(key_, "text"), "");
    EXPECT_EQ(none.summary().bytes, 0);
  }
  DiskCache off(path("cache"), 0);
  EXPECT_FALSE(off.store(key_, kernel_));
  EXPECT_FALSE(std::filesystem::exists(path("cache")));
}

TEST_F(JitCache, FolderThatIsTakenAwayComesBack) {
  DiskCache one = cache();
  ASSERT_TRUE(one.store(key_, kernel_));
  std::filesystem::remove_all(path("cache"));
  EXPECT_FALSE(one.load(key_));
  EXPECT_TRUE(one.store(key_, kernel_));
  EXPECT_TRUE(one.load(key_));
}

TEST_F(JitCache, LimitOfFileSizesLeavesNothingBehind) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  const int result = wait_for(start_child([this] {
    const rlimit limit = {300, 300};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    // The signal that would end the process is held back, and does not come later either.
    if (cache().store(sha256("new"), kernel_)) return 1;
    return 0;
  }));
  EXPECT_EQ(result, 0);
  EXPECT_EQ(names_in("cache").size(), 1u);
}

TEST_F(JitCache, FullDiskLeavesNothingBehind) {
  std::filesystem::create_directory(path("cache"));
  if (::mount("none", path("cache").c_str(), "tmpfs", 0, "size=16k,mode=0700") != 0) {
    GTEST_SKIP() << "no right to mount a small file system";
  }
  const bool has_stored = cache().store(key_, sample_kernel(4000));
  const bool has_stored_large = cache().store(sha256("large"), sample_kernel(100000));
  const auto names = names_in("cache");
  const bool is_whole = cache().load(key_).has_value();
  ::umount(path("cache").c_str());
  EXPECT_TRUE(has_stored);
  EXPECT_FALSE(has_stored_large);
  EXPECT_EQ(names.size(), 1u);
  EXPECT_TRUE(is_whole);
}

TEST_F(JitCache, KilledWritersLeaveNoDamage) {
  const CompiledKernel large = sample_kernel(200000);
  std::mt19937 random(5);
  int num_found = 0;
  for (int round = 0; round < 30; ++round) {
    const Digest key = sha256("round " + std::to_string(round));
    const pid_t child = start_child([&] {
      for (;;) {
        const FileLock lock = cache().lock(key);
        cache().store(key, large);
      }
      return 0;
    });
    ::usleep(static_cast<useconds_t>(random() % 40000));
    ::kill(child, SIGKILL);
    wait_for(child);
    const auto found = cache().load(key);
    if (found) {
      ++num_found;
      EXPECT_TRUE(is_same(*found, large));
    }
    // A killed holder has lost its lock.
    const auto before = std::chrono::steady_clock::now();
    EXPECT_TRUE(cache().lock(key));
    EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  }
  EXPECT_GT(num_found, 0) << "no child came as far as to an entry: the test shows nothing";
}

TEST_F(JitCache, LeftoversOfKilledWritersAreTakenAway) {
  ASSERT_TRUE(cache().store(key_, kernel_));
  const std::string old_file = path("cache/aa.1-0.new");
  const std::string fresh_file = path("cache/bb.2-0.new");
  write_all(old_file, "half");
  write_all(fresh_file, "half");
  const timeval hour_ago[2] = {{::time(nullptr) - 3600, 0}, {::time(nullptr) - 3600, 0}};
  ASSERT_EQ(::utimes(old_file.c_str(), hour_ago), 0);
  ASSERT_TRUE(cache().store(sha256("new"), kernel_));
  EXPECT_FALSE(std::filesystem::exists(old_file));
  EXPECT_TRUE(std::filesystem::exists(fresh_file)) << "its writer may be at it";
}

TEST_F(JitCache, WhatWasUsedLongestAgoGoesFirst) {
  const auto entry_bytes = static_cast<int64_t>(write_kernel_file(key_, kernel_).size());
  const int64_t limit = 10 * entry_bytes + 5;
  std::vector<Digest> keys;
  for (int i = 0; i < 10; ++i) {
    keys.push_back(sha256(std::to_string(i)));
    ASSERT_TRUE(cache(limit).store(keys.back(), kernel_));
    const timeval time[2] = {{1000000 + i, 0}, {1000000 + i, 0}};
    ASSERT_EQ(::utimes(entry_path(keys.back()).c_str(), time), 0);
  }
  ASSERT_TRUE(cache(limit).load(keys[0])) << "used now, so it is the youngest";
  ASSERT_TRUE(cache(limit).store(sha256("eleventh"), kernel_));
  EXPECT_LE(cache().summary().bytes, limit);
  EXPECT_TRUE(cache().load(keys[0]));
  EXPECT_FALSE(cache().load(keys[1]));
  EXPECT_TRUE(cache().load(keys[9]));
  EXPECT_TRUE(cache().load(sha256("eleventh")));
}

TEST_F(JitCache, LockIsForOneAtATime) {
  DiskCache one = cache();
  std::atomic<int> num_inside{0};
  std::atomic<int> num_done{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        const FileLock lock = one.lock(key_);
        EXPECT_TRUE(lock);
        EXPECT_EQ(++num_inside, 1);
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        --num_inside;
        ++num_done;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_done, 30);
  EXPECT_TRUE(names_in("cache").empty()) << "the lock's file goes with the lock";
}

TEST_F(JitCache, ForkedChildOfAHolderDoesNotKeepTheLock) {
  pid_t child = 0;
  {
    const FileLock lock = cache().lock(key_);
    ASSERT_TRUE(lock);
    child = start_child([] {
      ::pause();
      return 0;
    });
  }
  const auto before = std::chrono::steady_clock::now();
  EXPECT_TRUE(cache().lock(key_));
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(5));
  ::kill(child, SIGKILL);
  wait_for(child);
}

}  // namespace
}  // namespace flashtile::cuda
