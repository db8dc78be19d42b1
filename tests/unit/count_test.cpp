// SPDX-License-Identifier: Apache-2.0
#include "core/count.hpp"

#include <gtest/gtest.h>

namespace flashtile {
namespace {

__extension__ typedef __int128 Wide;

constexpr int64_t kNumbers[] = {0,
                                1,
                                2,
                                3,
                                96,
                                (int64_t{1} << 31) - 1,
                                int64_t{1} << 31,
                                int64_t{1} << 32,
                                3037000499,  // the largest whose square fits
                                3037000500,
                                int64_t{1} << 61,
                                int64_t{1} << 62,
                                INT64_MAX - 1};

void expect_exact(const Count& count, Wide exact) {
  EXPECT_EQ(count.is_too_many(), exact >= INT64_MAX);
  if (exact < INT64_MAX) {
    EXPECT_EQ(count.value("op", "things"), static_cast<int64_t>(exact));
    return;
  }
  try {
    count.value("op", "things");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kOutOfMemory);
    EXPECT_STREQ(error.what(), "op: things are more than 64 bits count");
  }
}

TEST(Count, SumsAndProductsAreExactOrTooMany) {
  for (const int64_t a : kNumbers) {
    for (const int64_t b : kNumbers) {
      expect_exact(Count(a) + b, Wide{a} + b);
      expect_exact(Count(a) * b, Wide{a} * b);
    }
  }
}

TEST(Count, StaysTooManyButForNoneOfThem) {
  const Count many = Count(INT64_MAX) * 2;
  EXPECT_TRUE((many * 1).is_too_many());
  EXPECT_TRUE((many + 0).is_too_many());
  EXPECT_EQ((many * 0).value("op", "things"), 0);
}

}  // namespace
}  // namespace flashtile
