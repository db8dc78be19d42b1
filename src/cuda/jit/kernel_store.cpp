// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_store.hpp"

#include <exception>
#include <utility>

#include "core/gpu_model.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {

KernelStore::KernelStore(Options options, CompilerOf find_compiler)
    : options_(std::move(options)),
      find_compiler_(std::move(find_compiler)),
      disk_(options_.cache_folder, options_.cache_bytes) {
  for (const std::string& path : options_.pack_paths) {
    try {
      packs_.push_back(std::make_shared<const KernelPack>(path));
    } catch (const Error& error) {
      pack_faults_.emplace_back(error.what());
    }
  }
}

std::shared_ptr<KernelStore::Slot> KernelStore::slot_of(const Digest& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::shared_ptr<Slot>& slot = slots_[key];
  if (slot == nullptr) slot = std::make_shared<Slot>();
  return slot;
}

std::shared_ptr<const CompiledKernel> KernelStore::get(const Program& program) {
  const Digest key = key_of(program);
  const std::shared_ptr<Slot> slot = slot_of(key);
  const std::lock_guard<std::mutex> lock(slot->mutex);
  if (slot->kernel != nullptr) return slot->kernel;
  // What failed once fails again, after the same second.
  if (slot->error) std::rethrow_exception(slot->error);
  try {
    slot->kernel = std::make_shared<const CompiledKernel>(make(program, key));
  } catch (...) {
    slot->error = std::current_exception();
    throw;
  }
  return slot->kernel;
}

std::shared_ptr<const CompiledKernel> KernelStore::remake(const Program& program) {
  const Digest key = key_of(program);
  const std::shared_ptr<Slot> slot = slot_of(key);
  const std::lock_guard<std::mutex> lock(slot->mutex);
  if (with_compiler().compile == nullptr) {
    throw Error(ErrorCode::kUnsupported, not_found_text(program));
  }
  slot->kernel = std::make_shared<const CompiledKernel>(compile(program, key));
  slot->error = nullptr;
  disk_.store(key, *slot->kernel);
  return slot->kernel;
}

CompiledKernel KernelStore::make(const Program& program, const Digest& key) {
  if (std::optional<CompiledKernel> found = find_in_packs(key)) {
    ++num_from_packs_;
    return std::move(*found);
  }
  if (std::optional<CompiledKernel> found = find_on_disk(key)) return std::move(*found);
  if (with_compiler().compile == nullptr) {
    if (std::optional<CompiledKernel> found = find_for_older_arch(program)) {
      ++num_from_packs_;
      return std::move(*found);
    }
    throw Error(ErrorCode::kUnsupported, not_found_text(program));
  }
  const FileLock lock = disk_.lock(key);
  // Who waited finds what another process has made.
  if (std::optional<CompiledKernel> found = find_on_disk(key)) return std::move(*found);
  CompiledKernel kernel = compile(program, key);
  disk_.store(key, kernel);
  return kernel;
}

CompiledKernel KernelStore::compile(const Program& program, const Digest& key) {
  try {
    CompiledKernel kernel = with_compiler().compile(program);
    ++num_compiled_;
    return kernel;
  } catch (const Error& error) {
    const std::string path = disk_.keep_source(key, program.text);
    if (path.empty()) throw;
    throw Error(error.code(), std::string(error.what()) + "\nIts text: " + path);
  }
}

bool KernelStore::is_usable(const CompiledKernel& kernel) const {
  return options_.max_compiler_major == 0 ||
         kernel.compiler_version / 1000 <= options_.max_compiler_major;
}

std::optional<CompiledKernel> KernelStore::find_in_packs(const Digest& key) const {
  for (const auto& pack : packs()) {
    std::optional<CompiledKernel> kernel = pack->find(key);
    if (kernel && is_usable(*kernel)) return kernel;
  }
  return std::nullopt;
}

/// Machine code for sm_80 runs on sm_86 too: better than none where nothing can be compiled.
std::optional<CompiledKernel> KernelStore::find_for_older_arch(const Program& program) const {
  const GpuModel* model = named_gpu_model(program.arch);
  if (model == nullptr) return std::nullopt;
  std::optional<CompiledKernel> best;
  for (const std::string& arch : known_gpu_archs()) {
    const GpuModel& older = *named_gpu_model(arch);
    const bool runs_there = older.compute_capability / 10 == model->compute_capability / 10 &&
                            older.compute_capability < model->compute_capability &&
                            !arch.ends_with("a");
    if (!runs_there) continue;
    Program same = program;
    same.arch = arch;
    if (auto kernel = find_in_packs(key_of(same))) best = std::move(kernel);
  }
  return best;
}

std::optional<CompiledKernel> KernelStore::find_on_disk(const Digest& key) {
  std::optional<CompiledKernel> kernel = disk_.load(key);
  if (!kernel || !is_usable(*kernel)) return std::nullopt;
  ++num_from_disk_;
  return kernel;
}

const KernelStore::Options& KernelStore::with_compiler() {
  std::call_once(compiler_once_, [this] {
    if (find_compiler_ != nullptr) find_compiler_(options_);
  });
  return options_;
}

std::string KernelStore::not_found_text(const Program& program) const {
  std::string text = program.entry + ": there is no machine code of it for " + program.arch;
  for (const auto& pack : packs()) {
    text += "; it is not in the kernel pack " + pack->path();
    if (!pack->is_for_this_library()) text += ", which another version of the library made";
  }
  for (const std::string& fault : pack_faults()) text += "; " + fault;
  return text + "; it cannot be compiled: " + options_.no_compiler;
}

void KernelStore::add_pack(const std::string& path) {
  auto pack = std::make_shared<const KernelPack>(path);
  const std::lock_guard<std::mutex> lock(mutex_);
  packs_.insert(packs_.begin(), std::move(pack));
  // What was found nowhere may be found now. Threads that wait for an old slot keep their error.
  for (auto it = slots_.begin(); it != slots_.end();) {
    const std::shared_ptr<Slot> slot = it->second;  // outlives the lock on it
    const std::unique_lock<std::mutex> slot_lock(slot->mutex, std::try_to_lock);
    const bool has_failed = slot_lock.owns_lock() && slot->error != nullptr;
    it = has_failed ? slots_.erase(it) : std::next(it);
  }
}

KernelStore::Counts KernelStore::counts() const {
  return {num_from_packs_, num_from_disk_, num_compiled_};
}

bool KernelStore::has_source() {
  for (const auto& pack : packs()) {
    if (pack->is_for_this_library() && pack->num_kernels() > 0) return true;
  }
  return disk_.summary().num_kernels > 0 || with_compiler().compile != nullptr;
}

std::string KernelStore::fault() {
  // Asked before each call, so what was found once is not looked for again.
  if (!has_source_) has_source_ = has_source();
  return has_source_ ? std::string() : options_.no_compiler;
}

std::vector<std::shared_ptr<const KernelPack>> KernelStore::packs() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return packs_;
}

std::vector<std::string> KernelStore::pack_faults() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pack_faults_;
}

}  // namespace flashtile::cuda
