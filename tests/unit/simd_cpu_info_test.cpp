// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cpu/cpu_info.hpp"

namespace flashtile::cpu {
namespace {

#if defined(__x86_64__)
// The flags that the kernel lists; empty where it lists none.
std::string kernel_flags() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("flags")) return line + " ";
  }
  return "";
}
#endif

TEST(CpuInfo, NamesAreThoseOfTheNamespaces) {
  EXPECT_EQ(isa_name(Isa::kScalar), "scalar");
  EXPECT_EQ(isa_name(Isa::kAvx2), "avx2");
  EXPECT_EQ(isa_name(Isa::kAvx512), "avx512");
  EXPECT_EQ(isa_name(Isa::kAvx512Bf16), "avx512_bf16");
  EXPECT_EQ(isa_name(Isa::kAvx512Amx), "avx512_amx");
  EXPECT_EQ(isa_name(Isa::kNeon), "neon");
}

TEST(CpuInfo, InstructionSetsAgreeWithTheKernel) {
  const CpuInfo& info = cpu_info();
  EXPECT_TRUE(info.has(Isa::kScalar));
#if defined(__aarch64__)
  EXPECT_TRUE(info.has(Isa::kNeon));
#else
  EXPECT_FALSE(info.has(Isa::kNeon));
#endif
#if defined(__x86_64__)
  const std::string flags = kernel_flags();
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo has no flags";
  const auto has = [&flags](const char* flag) {
    return flags.find(std::string(" ") + flag + " ") != std::string::npos;
  };
  const bool avx2 = has("avx2") && has("fma") && has("f16c");
  const bool avx512 = avx2 && has("avx512f") && has("avx512bw") && has("avx512cd") &&
                      has("avx512dq") && has("avx512vl");
  EXPECT_EQ(info.has(Isa::kAvx2), avx2);
  EXPECT_EQ(info.has(Isa::kAvx512), avx512);
  EXPECT_EQ(info.has(Isa::kAvx512Bf16), avx512 && has("avx512_bf16"));
  // The system may refuse a process the registers.
  EXPECT_LE(info.has(Isa::kAvx512Amx), avx512 && has("amx_tile") && has("amx_bf16"));
#endif
}

CpuInfo machine_with(const std::vector<Isa>& isas, bool has_fast_bf16_dot) {
  CpuInfo info;
  for (const Isa isa : isas) info.has_isa[static_cast<int>(isa)] = true;
  info.has_fast_bf16_dot = has_fast_bf16_dot;
  return info;
}

TEST(CpuInfo, TheBestInstructionSetComesFirst) {
  const std::vector<Isa> older = {Isa::kAvx512, Isa::kAvx2, Isa::kScalar};
  const std::vector<Isa> newer = {Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2, Isa::kScalar};
  for (const bool is_fast : {false, true}) EXPECT_EQ(machine_with(older, is_fast).isas(), older);
  EXPECT_EQ(machine_with(newer, true).isas(), newer);
  EXPECT_EQ(machine_with({Isa::kScalar, Isa::kNeon}, true).isas(),
            (std::vector<Isa>{Isa::kNeon, Isa::kScalar}));
}

TEST(CpuInfo, ASlowDotProductComesBehindFloats) {
  const std::vector<Isa> all = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};
  EXPECT_EQ(machine_with(all, false).isas(),
            (std::vector<Isa>{Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAvx2, Isa::kScalar}));
}

#if defined(__x86_64__)
TEST(CpuInfo, TheDotProductIsSlowOnIntel) {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line) && !line.starts_with("vendor_id")) {
  }
  if (line.empty()) GTEST_SKIP() << "/proc/cpuinfo has no vendor";
  EXPECT_EQ(cpu_info().has_fast_bf16_dot, line.find("GenuineIntel") == std::string::npos);
}
#endif

TEST(CpuInfo, SizesAndCountsArePlausible) {
  const CpuInfo& info = cpu_info();
  EXPECT_FALSE(info.model_name.empty());
  EXPECT_GE(info.num_cpus, 1);
  EXPECT_LE(info.num_cpus, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GE(info.l1d_bytes, 8 << 10);
  EXPECT_LE(info.l1d_bytes, 1 << 20);
  EXPECT_GE(info.l2_bytes, info.l1d_bytes);
  EXPECT_GE(info.l3_bytes, 0);
  EXPECT_EQ(&cpu_info(), &info);
}

}  // namespace
}  // namespace flashtile::cpu
