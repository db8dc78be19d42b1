// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flashtile::cpu {

/// Instruction sets that kernels are compiled for.
enum class Isa : uint8_t { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAvx512Amx, kNeon };
inline constexpr int kNumIsas = 6;

/// "scalar", "avx2", "avx512", "avx512_bf16", "avx512_amx", "neon": the namespaces and file
/// suffixes of kernels.
std::string_view isa_name(Isa isa);

/// What this process may use of the machine.
struct CpuInfo {
  std::string model_name;       ///< as the system calls it; "unknown" where it does not say
  bool has_isa[kNumIsas] = {};  ///< by CPU and operating system, indexed by Isa
  /// The bfloat16 dot product does more multiply-adds in a second than fma does. AMD's does (twice
  /// as many since Zen 4), Intel's half as many: it takes both wide ports two cycles.
  bool has_fast_bf16_dot = true;
  int num_cpus = 1;           ///< by affinity mask and cgroup quota
  int64_t l1d_bytes = 32768;  ///< of one core; a common size where the system does not say
  int64_t l2_bytes = 524288;  ///< of one core
  int64_t l3_bytes = 0;       ///< shared; 0 where there is none or it is unknown

  bool has(Isa isa) const { return has_isa[static_cast<int>(isa)]; }
  /// Those that there are, from best to worst.
  std::vector<Isa> isas() const;
};

/// Looked up once, at the first call; safe from any thread.
const CpuInfo& cpu_info();

}  // namespace flashtile::cpu
