// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/nvrtc_search.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::cuda {

/// NVIDIA's run-time compiler, opened when the first kernel has to be compiled.
class Nvrtc {
 public:
  /// The one of this process: the newest whose major version the driver accepts (any where there is
  /// no driver). Null where there is none; fault() says how to get one.
  static const Nvrtc* get();
  static const std::string& fault();

  /// The newest of the candidates with a major version of at most `max_major`; null with a list of
  /// what was tried in `fault`.
  static std::unique_ptr<Nvrtc> open_newest(const std::vector<NvrtcCandidate>& candidates,
                                            int max_major, std::string& fault);

  ~Nvrtc();
  Nvrtc(const Nvrtc&) = delete;
  Nvrtc& operator=(const Nvrtc&) = delete;

  /// The file that the library was loaded from.
  const std::string& path() const { return path_; }
  /// 13020 for 13.2.
  int version() const { return version_; }
  /// True for "sm_90a" where it knows compute capability 9.0.
  bool knows(std::string_view arch) const;

  /// Machine code for the program's architecture; its text may include the embedded headers. Throws
  /// Error with the compiler's log. Safe from any thread.
  CompiledKernel compile(const Program& program) const;

 private:
  struct Api;

  Nvrtc() = default;
  static std::unique_ptr<Nvrtc> open(const std::string& path, std::string& fault);
  CompiledKernel compile_here(const Program& program) const;

  std::unique_ptr<Api> api_;
  void* library_ = nullptr;
  std::string path_;
  int version_ = 0;
  std::vector<int> known_archs_;  ///< 90 for sm_90
};

/// Spills as the compiler's log reports them, and what it says besides its usual report.
void read_compile_log(std::string_view log, std::string_view entry, CompiledKernel& kernel);

}  // namespace flashtile::cuda
