// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/nvrtc.hpp"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

#include <algorithm>
#include <exception>

#include "core/text.hpp"
#include "cuda/jit/cubin.hpp"
#include "cuda/jit/device_text.hpp"
#include "cuda/runtime/driver.hpp"
#include "flashtile/error.hpp"

namespace flashtile::cuda {

struct Nvrtc::Api {
  using ProgramHandle = struct ProgramTag*;
  using Result = int;

  Result (*version)(int* major, int* minor) = nullptr;
  Result (*create)(ProgramHandle* program, const char* text, const char* name, int num_headers,
                   const char* const* headers, const char* const* include_names) = nullptr;
  Result (*destroy)(ProgramHandle* program) = nullptr;
  Result (*compile)(ProgramHandle program, int num_options, const char* const* options) = nullptr;
  Result (*log_bytes)(ProgramHandle program, size_t* bytes) = nullptr;
  Result (*log)(ProgramHandle program, char* text) = nullptr;
  Result (*cubin_bytes)(ProgramHandle program, size_t* bytes) = nullptr;
  Result (*cubin)(ProgramHandle program, char* bytes) = nullptr;
  Result (*num_archs)(int* count) = nullptr;
  Result (*archs)(int* archs) = nullptr;
  const char* (*error_text)(Result result) = nullptr;

  /// Gives the first function that the library lacks, or null.
  const char* load(void* library) {
    const char* missing = nullptr;
    const auto find = [&](const char* symbol, auto& member) {
      member =
          reinterpret_cast<std::remove_reference_t<decltype(member)>>(::dlsym(library, symbol));
      if (member == nullptr && missing == nullptr) missing = symbol;
    };
    find("nvrtcVersion", version);
    find("nvrtcCreateProgram", create);
    find("nvrtcDestroyProgram", destroy);
    find("nvrtcCompileProgram", compile);
    find("nvrtcGetProgramLogSize", log_bytes);
    find("nvrtcGetProgramLog", log);
    find("nvrtcGetCUBINSize", cubin_bytes);
    find("nvrtcGetCUBIN", cubin);
    find("nvrtcGetNumSupportedArchs", num_archs);
    find("nvrtcGetSupportedArchs", archs);
    find("nvrtcGetErrorString", error_text);
    return missing;
  }
};

namespace {

/// "sm_90a" gives 90, text without a number gives 0.
int number_of(std::string_view arch) {
  if (!arch.starts_with("sm_")) return 0;
  std::string_view digits = arch.substr(3);
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  return static_cast<int>(parse_int(digits.substr(0, end)).value_or(0));
}

std::string file_of(void* library, const std::string& asked) {
  link_map* map = nullptr;
  const bool is_known = ::dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr;
  return is_known && map->l_name != nullptr && map->l_name[0] != '\0' ? map->l_name : asked;
}

constexpr int kAnyMajor = 1000;

struct Slot {
  std::unique_ptr<Nvrtc> nvrtc;
  std::string fault;
};

std::string how_to_get(int max_major) {
  const std::string major = std::to_string(max_major == kAnyMajor ? 13 : max_major);
  // Since 13 the package's name has no number.
  const std::string package = max_major == 12 ? "nvidia-cuda-nvrtc-cu12"
                                              : "'nvidia-cuda-nvrtc>=" + major + ",<" +
                                                    std::to_string(std::stoi(major) + 1) + "'";
  return "install it (pip install " + package +
         ", or a CUDA toolkit), set FLASHTILE_NVRTC to its file, or give a kernel pack "
         "(FLASHTILE_PACK)";
}

const Slot& slot() {
  // Never destroyed: kernels may be compiled while the process ends.
  static const Slot* const slot = [] {
    auto* made = new Slot();
    const Driver* driver = Driver::get();
    const int max_major = driver == nullptr ? kAnyMajor : driver->version() / 1000;
    std::string tried;
    made->nvrtc = Nvrtc::open_newest(find_nvrtc_candidates(nvrtc_places()), max_major, tried);
    if (made->nvrtc == nullptr) {
      made->fault = "NVRTC is not there";
      if (driver != nullptr) {
        made->fault += " in a version that the driver (CUDA " +
                       cuda_version_text(driver->version()) + ") accepts";
      }
      made->fault += "; " + how_to_get(max_major);
      if (!tried.empty()) made->fault += "; tried:" + tried;
    }
    return made;
  }();
  return *slot;
}

/// The lines of a text without their ends.
template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    visit(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// The number in front of `unit`: 16 in "0 bytes stack frame, 16 bytes spill stores".
int32_t number_before(std::string_view line, std::string_view unit) {
  const size_t at = line.find(unit);
  if (at == std::string_view::npos) return 0;
  size_t begin = at;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  return static_cast<int32_t>(parse_int(line.substr(begin, at - begin)).value_or(0));
}

/// Runs work on a thread with a stack of its own: the compiler recurses deeply, and callers may
/// stand on small ones. Rethrows what it throws.
template <class Work>
void run_on_large_stack(const Work& work) {
  constexpr size_t kStackBytes = size_t{64} << 20;
  struct Call {
    const Work* work;
    std::exception_ptr error;
  } call{&work, nullptr};
  const auto start = [](void* pointer) -> void* {
    auto* self = static_cast<Call*>(pointer);
    try {
      (*self->work)();
    } catch (...) {
      self->error = std::current_exception();
    }
    return nullptr;
  };
  pthread_attr_t attributes;
  pthread_t thread;
  const bool has_attributes = ::pthread_attr_init(&attributes) == 0 &&
                              ::pthread_attr_setstacksize(&attributes, kStackBytes) == 0;
  const bool has_thread =
      has_attributes && ::pthread_create(&thread, &attributes, start, &call) == 0;
  if (has_attributes) ::pthread_attr_destroy(&attributes);
  if (has_thread) {
    ::pthread_join(thread, nullptr);
  } else {
    start(&call);
  }
  if (call.error) std::rethrow_exception(call.error);
}

}  // namespace

const Nvrtc* Nvrtc::get() { return slot().nvrtc.get(); }

const std::string& Nvrtc::fault() { return slot().fault; }

Nvrtc::~Nvrtc() {
  if (library_ != nullptr) ::dlclose(library_);
}

std::unique_ptr<Nvrtc> Nvrtc::open(const std::string& path, std::string& fault) {
  std::unique_ptr<Nvrtc> nvrtc(new Nvrtc());
  nvrtc->library_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (nvrtc->library_ == nullptr) {
    const char* text = ::dlerror();
    fault = text == nullptr ? path + ": cannot be opened" : text;
    return nullptr;
  }
  nvrtc->path_ = file_of(nvrtc->library_, path);
  nvrtc->api_ = std::make_unique<Api>();
  if (const char* missing = nvrtc->api_->load(nvrtc->library_)) {
    fault = nvrtc->path_ + ": has no " + missing;
    return nullptr;
  }
  const Api& api = *nvrtc->api_;
  int major = 0;
  int minor = 0;
  int num_archs = 0;
  if (api.version(&major, &minor) != 0 || api.num_archs(&num_archs) != 0 || num_archs < 0) {
    fault = nvrtc->path_ + ": does not answer";
    return nullptr;
  }
  nvrtc->version_ = 1000 * major + 10 * minor;
  nvrtc->known_archs_.resize(static_cast<size_t>(num_archs));
  if (num_archs > 0) api.archs(nvrtc->known_archs_.data());
  return nvrtc;
}

std::unique_ptr<Nvrtc> Nvrtc::open_newest(const std::vector<NvrtcCandidate>& candidates,
                                          int max_major, std::string& fault) {
  std::unique_ptr<Nvrtc> best;
  int best_major = 0;
  for (const NvrtcCandidate& candidate : candidates) {
    if (best != nullptr && candidate.major < best_major) break;
    if (candidate.major > max_major) {
      if (candidate.path.find('/') != std::string::npos) {
        fault += "\n  " + candidate.path + ": newer than the driver";
      }
      continue;
    }
    std::string problem;
    std::unique_ptr<Nvrtc> nvrtc = open(candidate.path, problem);
    if (nvrtc != nullptr && nvrtc->version() / 1000 > max_major) {
      problem = nvrtc->path() + ": is version " + cuda_version_text(nvrtc->version()) +
                ", newer than the driver";
      nvrtc = nullptr;
    }
    if (nvrtc == nullptr) {
      // That the loader does not know a bare name is no news.
      if (candidate.path.find('/') != std::string::npos) fault += "\n  " + problem;
      continue;
    }
    if (best == nullptr || nvrtc->version() > best->version()) {
      best = std::move(nvrtc);
      best_major = candidate.major;
    }
  }
  return best;
}

bool Nvrtc::knows(std::string_view arch) const {
  return std::find(known_archs_.begin(), known_archs_.end(), number_of(arch)) != known_archs_.end();
}

CompiledKernel Nvrtc::compile(const Program& program) const {
  if (!knows(program.arch)) {
    std::string known;
    for (int arch : known_archs_) known += " " + std::to_string(arch);
    throw Error(ErrorCode::kUnsupported, program.entry + ": NVRTC " + cuda_version_text(version_) +
                                             " (" + path_ + ") does not know " + program.arch +
                                             ", only" + known + "; " + "a newer one may");
  }
  CompiledKernel kernel;
  run_on_large_stack([&] { kernel = compile_here(program); });
  return kernel;
}

CompiledKernel Nvrtc::compile_here(const Program& program) const {
  std::vector<const char*> names;
  std::vector<const char*> texts;
  for (const DeviceHeader& header : device_headers()) {
    names.push_back(header.name.data());
    texts.push_back(header.text.data());
  }
  // The stack is large already, and raising its limit would be seen by the whole process.
  const std::string arch_option = "--gpu-architecture=" + program.arch;
  std::vector<const char*> options = {arch_option.c_str(), "--std=c++20", "-default-device",
                                      "--ptxas-options=-v", "--modify-stack-limit=false"};
  for (const std::string& flag : program.flags) options.push_back(flag.c_str());

  Api::ProgramHandle handle = nullptr;
  const std::string name = program.entry + ".cu";
  const auto check = [&](Api::Result result, const char* what) {
    if (result == 0) return;
    throw Error(ErrorCode::kInternal,
                program.entry + ": NVRTC cannot " + what + ": " + api_->error_text(result));
  };
  check(api_->create(&handle, program.text.c_str(), name.c_str(), static_cast<int>(names.size()),
                     texts.data(), names.data()),
        "take the program");
  const auto destroy = [this](Api::ProgramHandle program_handle) {
    api_->destroy(&program_handle);
  };
  const std::unique_ptr<ProgramTag, decltype(destroy)> owner(handle, destroy);
  const Api::Result result =
      api_->compile(handle, static_cast<int>(options.size()), options.data());
  size_t bytes = 0;
  check(api_->log_bytes(handle, &bytes), "give its log");
  std::string log(bytes, '\0');
  if (bytes > 0) check(api_->log(handle, log.data()), "give its log");
  log = log.substr(0, log.find('\0'));
  if (result != 0) {
    throw Error(ErrorCode::kInternal, program.entry + ": NVRTC " + cuda_version_text(version_) +
                                          " cannot compile it for " + program.arch + ": " +
                                          api_->error_text(result) + "\n" + log);
  }
  CompiledKernel kernel;
  kernel.entry = program.entry;
  kernel.arch = program.arch;
  kernel.compiler_version = version_;
  check(api_->cubin_bytes(handle, &bytes), "give machine code");
  kernel.cubin.resize(bytes);
  check(api_->cubin(handle, kernel.cubin.data()), "give machine code");
  kernel.usage = read_cubin_usage(kernel.cubin, program.entry);
  read_compile_log(log, program.entry, kernel);
  return kernel;
}

void read_compile_log(std::string_view log, std::string_view entry, CompiledKernel& kernel) {
  const std::string heading = "Function properties for " + std::string(entry);
  bool is_inside = false;
  for_each_line(log, [&](std::string_view line) {
    if (line.find("Function properties for ") != std::string_view::npos) {
      is_inside = line.ends_with(heading);
    } else if (is_inside && line.find(" bytes spill stores") != std::string_view::npos) {
      kernel.usage.spill_store_bytes = number_before(line, " bytes spill stores");
      kernel.usage.spill_load_bytes = number_before(line, " bytes spill loads");
    }
    // "ptxas info    : (C7510) Potential Performance Loss: ..." is news, the rest is the report.
    const bool is_report = line.starts_with("ptxas ") &&
                           line.find("(C") == std::string_view::npos &&
                           !line.starts_with("ptxas warning") && !line.starts_with("ptxas error");
    if (line.empty() || is_report) return;
    kernel.notes += line;
    kernel.notes += '\n';
  });
}

}  // namespace flashtile::cuda
