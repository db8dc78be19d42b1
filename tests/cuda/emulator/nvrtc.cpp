// SPDX-License-Identifier: Apache-2.0
//
// libnvrtc.so of the emulated GPU. A program is compiled twice: by the real NVRTC, whose machine
// code is what the caller gets (registers and all), and by the host's compiler against the emulated
// headers; that library follows the machine code in the same bytes and is what runs.
//
// Environment: FLASHTILE_EMULATOR_NVRTC, the real NVRTC's file; FLASHTILE_EMULATOR_CXX, the host's
// compiler (g++).
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Handle = struct HandleTag*;

struct Real {
  void* library = nullptr;
  template <class Function>
  Function find(const char* name) const {
    auto* function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) std::fprintf(stderr, "emulated NVRTC: no %s\n", name);
    return function;
  }
};

const Real& real() {
  static const Real instance = [] {
    const char* path = std::getenv("FLASHTILE_EMULATOR_NVRTC");
    Real made;
    made.library = dlopen(path == nullptr ? "libnvrtc.so.13" : path, RTLD_NOW | RTLD_LOCAL);
    if (made.library == nullptr) std::fprintf(stderr, "emulated NVRTC: %s\n", dlerror());
    return made;
  }();
  return instance;
}

struct Program {
  Handle real_handle = nullptr;
  std::string text;
  std::string entry;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string host_log;
  std::string cubin;
};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// Calls the kernel with arguments as a launch gives them.
constexpr const char* kEntry = R"(
#include <utility>
namespace emulated {
template <class... P, unsigned long... index>
void call(void (*kernel)(P...), void** arguments, std::integer_sequence<unsigned long, index...>) {
  kernel(*static_cast<P*>(arguments[index])...);
}
template <class... P>
void call(void (*kernel)(P...), void** arguments) {
  call(kernel, arguments, std::make_integer_sequence<unsigned long, sizeof...(P)>());
}
}
extern "C" void emulated_entry(void** arguments) { emulated::call(&ENTRY, arguments); }
)";

/// The host's library for the program; empty where it does not compile.
std::string compile_for_host(Program& program) {
  char folder_name[] = "/tmp/emulated-build-XXXXXX";
  const std::filesystem::path folder = mkdtemp(folder_name);
  for (const auto& [name, text] : program.headers) write_file(folder / "text" / name, text);
  std::string source = program.text + kEntry;
  source.replace(source.rfind("ENTRY"), 5, program.entry);
  write_file(folder / "kernel.cpp", source);
  const char* compiler = std::getenv("FLASHTILE_EMULATOR_CXX");
  const std::string out = (folder / "kernel.so").string();
  // Emulated headers come before those of the same name in the text.
  std::string command = compiler == nullptr ? "g++" : compiler;
  command += " -std=c++20 -O1 -w -fPIC -shared -ffp-contract=off";
  command += " -I" EMULATOR_DIR "/device -I" EMULATOR_DIR " -I" + (folder / "text").string();
  command += " -I" LIBRARY_SOURCE_DIR " -o " + out + " " + (folder / "kernel.cpp").string();
  command += " " DRIVER_FILE " > " + (folder / "log").string() + " 2>&1";
  const int status = std::system(command.c_str());
  program.host_log = read_file(folder / "log");
  const std::string library = status == 0 ? read_file(out) : std::string();
  if (std::getenv("FLASHTILE_EMULATOR_KEEP") == nullptr) std::filesystem::remove_all(folder);
  return library;
}

int real_log(const Program& program, std::string& log) {
  size_t bytes = 0;
  real().find<int (*)(Handle, size_t*)>("nvrtcGetProgramLogSize")(program.real_handle, &bytes);
  log.resize(bytes);
  return real().find<int (*)(Handle, char*)>("nvrtcGetProgramLog")(program.real_handle, log.data());
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  return real().find<int (*)(int*, int*)>("nvrtcVersion")(major, minor);
}
int nvrtcGetNumSupportedArchs(int* count) {
  return real().find<int (*)(int*)>("nvrtcGetNumSupportedArchs")(count);
}
int nvrtcGetSupportedArchs(int* archs) {
  return real().find<int (*)(int*)>("nvrtcGetSupportedArchs")(archs);
}
const char* nvrtcGetErrorString(int result) {
  return real().find<const char* (*)(int)>("nvrtcGetErrorString")(result);
}

int nvrtcCreateProgram(Program** program, const char* text, const char* name, int num_headers,
                       const char* const* headers, const char* const* names) {
  *program = new Program();
  (*program)->text = text;
  const std::string file = name;
  (*program)->entry = file.substr(0, file.find('.'));
  for (int i = 0; i < num_headers; ++i) {
    // Those of ptx/ are the emulator's.
    if (std::string(names[i]).find("cuda/device/ptx/") == 0) continue;
    (*program)->headers.emplace_back(names[i], headers[i]);
  }
  return real()
      .find<int (*)(Handle*, const char*, const char*, int, const char* const*,
                    const char* const*)>("nvrtcCreateProgram")(&(*program)->real_handle, text, name,
                                                               num_headers, headers, names);
}
int nvrtcDestroyProgram(Program** program) {
  real().find<int (*)(Handle*)>("nvrtcDestroyProgram")(&(*program)->real_handle);
  delete *program;
  return 0;
}

int nvrtcCompileProgram(Program* program, int num_options, const char* const* options) {
  const int result = real().find<int (*)(Handle, int, const char* const*)>("nvrtcCompileProgram")(
      program->real_handle, num_options, options);
  if (result != 0) return result;
  size_t bytes = 0;
  real().find<int (*)(Handle, size_t*)>("nvrtcGetCUBINSize")(program->real_handle, &bytes);
  program->cubin.resize(bytes);
  real().find<int (*)(Handle, char*)>("nvrtcGetCUBIN")(program->real_handle, program->cubin.data());
  const std::string library = compile_for_host(*program);
  if (library.empty()) return 6;
  const uint64_t size = library.size();
  program->cubin += "emulated";
  program->cubin.append(reinterpret_cast<const char*>(&size), 8);
  program->cubin += library;
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  std::string log;
  real_log(*program, log);
  *bytes = log.size() + program->host_log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* text) {
  std::string log;
  real_log(*program, log);
  std::strcpy(text, (std::string(log.c_str()) + program->host_log).c_str());
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->cubin.size();
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* bytes) {
  std::memcpy(bytes, program->cubin.data(), program->cubin.size());
  return 0;
}

}  // extern "C"
