// SPDX-License-Identifier: Apache-2.0
#include "cpu/cpu_info.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace flashtile::cpu {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// The number that a text begins with, or -1.
int64_t leading_number(std::string_view text) {
  int64_t value = -1;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? value : -1;
}

/// "48K", "2M" or plain bytes, as in sysfs; 0 when it is none of these.
int64_t parse_size(std::string_view text) {
  const int64_t value = leading_number(text);
  if (value <= 0) return 0;
  if (text.find('K') != std::string_view::npos) return value << 10;
  if (text.find('M') != std::string_view::npos) return value << 20;
  return value;
}

#if defined(__x86_64__) || defined(__i386__)
bool is_intel() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0 && ebx == signature_INTEL_ebx &&
         ecx == signature_INTEL_ecx && edx == signature_INTEL_edx;
}

/// Asked for by hand: not every supported compiler has a name for F16C.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

#if defined(__x86_64__)
bool has_amx_bf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

/// Linux lets a process use tile registers once it has asked; its threads and children may then,
/// too. It says no where it does not save them, or where a signal stack is too small for them.
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

void detect_isas(CpuInfo& info) {
  const auto set = [&info](Isa isa, bool present) {
    info.has_isa[static_cast<int>(isa)] = present;
  };
  set(Isa::kScalar, true);
#if defined(__x86_64__) || defined(__i386__)
  // The compiler's run-time library also asks (xgetbv) whether the system saves the wide registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  set(Isa::kAvx2, avx2);
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd");
  set(Isa::kAvx512, avx512);
  const bool has_dot = avx512 && __builtin_cpu_supports("avx512bf16");
#if defined(FLASHTILE_EMULATE_CPU)
  set(Isa::kAvx512Bf16, avx512);
#else
  set(Isa::kAvx512Bf16, has_dot);
#endif
#if defined(__x86_64__)
  set(Isa::kAvx512Amx, has_dot && has_amx_bf16() && may_use_tiles());
#endif
  info.has_fast_bf16_dot = !is_intel();
#elif defined(__aarch64__)
  set(Isa::kNeon, true);
#endif
}

/// CPUs that a cgroup quota allows, rounded up; a large number without a quota.
int cgroup_cpus() {
  constexpr int kNoLimit = 1 << 20;
  const std::string v2 = first_line("/sys/fs/cgroup/cpu.max");  // "quota period" or "max period"
  int64_t quota = leading_number(v2);
  int64_t period = -1;
  const size_t space = v2.find(' ');
  if (space != std::string::npos) period = leading_number(std::string_view(v2).substr(space + 1));
  if (v2.empty()) {
    quota = leading_number(first_line("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"));
    period = leading_number(first_line("/sys/fs/cgroup/cpu/cpu.cfs_period_us"));
  }
  if (quota <= 0 || period <= 0) return kNoLimit;
  return static_cast<int>(std::min<int64_t>((quota + period - 1) / period, kNoLimit));
}

int usable_cpus() {
  int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  // A machine with more CPUs than one cpu_set_t holds makes the call fail; the count above stands.
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) count = CPU_COUNT(&set);
  count = std::min(count, cgroup_cpus());
#endif
  return std::max(count, 1);
}

/// Sizes from sysfs, which knows them on every architecture.
void read_caches(CpuInfo& info) {
  for (int idx = 0; idx < 8; ++idx) {
    const std::string dir = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(idx) + "/";
    const int64_t level = leading_number(first_line(dir + "level"));
    if (level < 0) break;
    const int64_t bytes = parse_size(first_line(dir + "size"));
    if (bytes <= 0 || first_line(dir + "type") == "Instruction") continue;
    if (level == 1) info.l1d_bytes = bytes;
    if (level == 2) info.l2_bytes = bytes;
    if (level == 3) info.l3_bytes = bytes;
  }
}

std::string read_model_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos && line.starts_with("model name")) return line.substr(colon + 2);
  }
#if defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

CpuInfo detect() {
  CpuInfo info;
  info.model_name = read_model_name();
  detect_isas(info);
  info.num_cpus = usable_cpus();
  read_caches(info);
  return info;
}

}  // namespace

std::string_view isa_name(Isa isa) {
  constexpr std::string_view kNames[kNumIsas] = {"scalar",      "avx2",       "avx512",
                                                 "avx512_bf16", "avx512_amx", "neon"};
  return kNames[static_cast<int>(isa)];
}

std::vector<Isa> CpuInfo::isas() const {
  std::vector<Isa> result;
  for (int i = kNumIsas - 1; i >= 0; --i) {
    if (has_isa[i]) result.push_back(static_cast<Isa>(i));
  }
  const auto dot = std::find(result.begin(), result.end(), Isa::kAvx512Bf16);
  const auto floats = std::find(result.begin(), result.end(), Isa::kAvx512);
  const bool has_both = dot != result.end() && floats != result.end();
  if (has_both && !has_fast_bf16_dot) std::rotate(dot, dot + 1, floats + 1);
  return result;
}

const CpuInfo& cpu_info() {
  static const CpuInfo info = detect();
  return info;
}

}  // namespace flashtile::cpu
