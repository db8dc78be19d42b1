// SPDX-License-Identifier: Apache-2.0
#include "core/kept_list.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <thread>

namespace flashtile {
namespace {

TEST(KeptList, TakesTheMemoryThatOneOfAboutItsSizeHasLeft) {
  const int32_t* before = nullptr;
  {
    const KeptList<int32_t> list(100);
    before = list.data();
  }
  const KeptList<int32_t> next(70, 7);  // 280 bytes, where 400 were: both 512
  EXPECT_EQ(next.data(), before);
  const KeptList<int32_t> beside(70);
  EXPECT_NE(beside.data(), before);
  EXPECT_EQ(std::accumulate(next.begin(), next.end(), 0), 490);
}

TEST(KeptList, GrowsAndIsCopiedAndMovedAsAVector) {
  for (const int64_t count : {0, 1, 63, 5000, 300000}) {
    KeptList<KeptList<int64_t>> lists(3);
    for (int64_t n = 0; n < count; ++n) {
      for (KeptList<int64_t>& list : lists) list.push_back(n);
    }
    const KeptList<KeptList<int64_t>> copies = lists;
    const KeptList<int64_t> moved = std::move(lists[1]);
    EXPECT_EQ(moved, copies[0]);
    EXPECT_EQ(std::accumulate(moved.begin(), moved.end(), int64_t{0}), count * (count - 1) / 2);
  }
}

TEST(KeptList, MayEndOnAnotherThreadOrAfterIt) {
  KeptList<int64_t> made;
  std::thread([&] { made.assign(1000, 1); }).join();
  std::thread([&] { KeptList<int64_t>().swap(made); }).join();
  EXPECT_TRUE(made.empty());
  std::thread([] {
    static thread_local KeptList<int64_t> until_the_end;  // made before the thread's memory is
    until_the_end.assign(1000, 1);
  }).join();
}

}  // namespace
}  // namespace flashtile
