// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/jit/compiled_kernel.hpp"
#include "cuda/jit/disk_cache.hpp"
#include "cuda/jit/kernel_pack.hpp"
#include "cuda/jit/program.hpp"

namespace flashtile::cuda {

/// Where the machine code of kernels comes from: memory, packs, the disk cache, the compiler, in
/// this order. Each kernel is made once in a process however many threads ask, and once among
/// processes that share the cache.
class KernelStore {
 public:
  struct Options {
    std::string cache_folder;
    int64_t cache_bytes = 0;
    std::vector<std::string> pack_paths;  ///< what cannot be used is told when nothing is found
    /// Of the driver; entries that a newer compiler has made are left alone. 0: any will do.
    int max_compiler_major = 0;
    /// Null where there is no compiler.
    std::function<CompiledKernel(const Program&)> compile;
    std::string no_compiler;  ///< why there is none
  };
  /// Called when the first kernel is neither in a pack nor in the cache: finding a compiler takes
  /// its time.
  using CompilerOf = std::function<void(Options&)>;

  KernelStore(Options options, CompilerOf find_compiler);

  /// The store of this process: cache and packs as the environment says, NVRTC.
  static KernelStore& of_process();

  /// Throws Error where the kernel can be neither found nor compiled; once for all who ask for it.
  std::shared_ptr<const CompiledKernel> get(const Program& program);

  /// Compiles a kernel that was found but that the driver does not load, and replaces it.
  std::shared_ptr<const CompiledKernel> remake(const Program& program);

  /// Adds a pack, which is looked into first. Throws Error(kIo).
  void add_pack(const std::string& path);

  /// What the kernels of this process came from.
  struct Counts {
    int64_t from_packs = 0;
    int64_t from_disk = 0;
    int64_t compiled = 0;
  };
  Counts counts() const;

  /// Why no kernel could be got at all: no pack, an empty cache and no compiler. Empty otherwise.
  std::string fault();

  DiskCache& disk() { return disk_; }
  std::vector<std::shared_ptr<const KernelPack>> packs() const;
  /// Packs that were asked for but cannot be used, and why.
  std::vector<std::string> pack_faults() const;

 private:
  struct Slot {
    std::mutex mutex;
    std::shared_ptr<const CompiledKernel> kernel;
    std::exception_ptr error;
  };

  std::shared_ptr<Slot> slot_of(const Digest& key);
  CompiledKernel make(const Program& program, const Digest& key);
  CompiledKernel compile(const Program& program, const Digest& key);
  std::optional<CompiledKernel> find_in_packs(const Digest& key) const;
  std::optional<CompiledKernel> find_for_older_arch(const Program& program) const;
  std::optional<CompiledKernel> find_on_disk(const Digest& key);
  bool is_usable(const CompiledKernel& kernel) const;
  bool has_source();
  const Options& with_compiler();
  std::string not_found_text(const Program& program) const;

  Options options_;
  CompilerOf find_compiler_;
  std::once_flag compiler_once_;
  DiskCache disk_;
  mutable std::mutex mutex_;  ///< of what follows
  std::vector<std::shared_ptr<const KernelPack>> packs_;
  std::vector<std::string> pack_faults_;
  std::map<Digest, std::shared_ptr<Slot>> slots_;
  std::atomic<bool> has_source_{false};  ///< fault() has found a place where kernels come from
  std::atomic<int64_t> num_from_packs_{0};
  std::atomic<int64_t> num_from_disk_{0};
  std::atomic<int64_t> num_compiled_{0};
};

}  // namespace flashtile::cuda
