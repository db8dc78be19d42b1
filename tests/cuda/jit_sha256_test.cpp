// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "cuda/jit/program.hpp"
#include "cuda/jit/sha256.hpp"

namespace flashtile::cuda {
namespace {

// The examples of FIPS 180-4 and of NIST's page of examples.
TEST(JitSha256, StandardsExamples) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(JitSha256, PiecesMakeTheSameDigest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t length : {55u, 56u, 63u, 64u, 65u, 119u, 128u, 300u}) {
    const std::string part = text.substr(0, length);
    for (size_t step : {1u, 3u, 63u, 64u, 70u}) {
      Sha256 hash;
      for (size_t begin = 0; begin < length; begin += step) hash.add(part.substr(begin, step));
      EXPECT_EQ(to_hex(hash.finish()), to_hex(sha256(part))) << length << " by " << step;
    }
  }
}

TEST(JitKey, EveryPartCounts) {
  const Program base = {"entry", "text", "sm_80", {"-DA=1"}};
  EXPECT_EQ(key_of(base), key_of({"entry", "text", "sm_80", {"-DA=1"}}));
  for (const Program& other :
       {Program{"entry2", "text", "sm_80", {"-DA=1"}},
        Program{"entry", "text ", "sm_80", {"-DA=1"}}, Program{"entry", "text", "sm_86", {"-DA=1"}},
        Program{"entry", "text", "sm_80", {}}, Program{"entry", "text", "sm_80", {"-DA", "=1"}},
        Program{"entryt", "ext", "sm_80", {"-DA=1"}}}) {
    EXPECT_NE(key_of(base), key_of(other));
  }
}

TEST(JitKey, KernelTextIsItsConfigAndItsHeader) {
  const Program program = program_of({"attention_x", "struct Config {};", "sm_90a", {"-G"}});
  EXPECT_EQ(program.entry, "attention_x");
  EXPECT_EQ(program.arch, "sm_90a");
  EXPECT_EQ(program.flags, std::vector<std::string>{"-G"});
  const size_t config = program.text.find("struct Config {};");
  const size_t header = program.text.find("#include \"cuda/device/kernels/attention_x.cuh\"");
  EXPECT_LT(config, header);
  EXPECT_NE(header, std::string::npos);
}

}  // namespace
}  // namespace flashtile::cuda
