// SPDX-License-Identifier: Apache-2.0
//
// libcuda.so.1 of the emulated GPU: a device whose memory is the host's, or as many as the variable
// FLASHTILE_EMULATOR_DEVICES says, each with a context of its own. Handles belong to the context
// that was current, and kernels find no memory but that of their device. What the library does not
// use is not here; everything happens at once and in order.
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "cuda/runtime/driver_api.hpp"
#include "machine.hpp"

using namespace flashtile::cuda::driver;

namespace flashtile::cuda::driver {
struct ContextTag {
  int device;
};
struct ModuleTag {
  void* library;
  int device;
};
struct FunctionTag {
  void (*entry)(void**);
  int device;
};
struct StreamTag {
  int device;
};
struct EventTag {
  int device;
  std::chrono::steady_clock::time_point time;
};
}  // namespace flashtile::cuda::driver

namespace {

constexpr size_t kPage = 4096;
constexpr Result kNoDevice = 101;
constexpr Result kNoContext = 201;
constexpr Result kInvalidHandle = 400;
constexpr char kTrailer[] = "emulated";

constexpr int kMaxDevices = 8;
ContextTag contexts[kMaxDevices] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};
thread_local std::vector<ContextHandle> current_contexts;

int num_devices() {
  const char* text = std::getenv("FLASHTILE_EMULATOR_DEVICES");
  return text == nullptr ? 1 : std::clamp(std::atoi(text), 1, kMaxDevices);
}
bool has_context() { return !current_contexts.empty(); }
int current_device() { return current_contexts.back()->device; }
/// The default streams, which are no objects, are those of the current context.
bool is_default(StreamHandle stream) {
  return reinterpret_cast<uintptr_t>(stream) <= kLastSpecialStream;
}
bool is_of_current(StreamHandle stream) {
  return has_context() && (is_default(stream) || stream->device == current_device());
}

struct Allocation {
  void* base;
  size_t size;
  int device;
};
std::map<Address, Allocation>& allocations() {
  static auto* const map = new std::map<Address, Allocation>();
  return *map;
}

int arch_number() {
  const char* text = std::getenv("FLASHTILE_EMULATOR_ARCH");
  return text == nullptr ? 80 : std::atoi(text);
}

/// Where an ELF file ends.
size_t elf_bytes(const char* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  size_t end = header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
  for (int i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image + header.e_shoff + size_t(i) * header.e_shentsize, sizeof section);
    const size_t section_end = section.sh_offset + section.sh_size;
    if (section.sh_type != SHT_NOBITS && section_end > end) end = section_end;
  }
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, image + header.e_phoff + size_t(i) * header.e_phentsize, sizeof segment);
    if (segment.p_offset + segment.p_filesz > end) end = segment.p_offset + segment.p_filesz;
  }
  return end;
}

/// While this lives, nobody touches memory of other devices.
class OwnMemoryOnly {
 public:
  OwnMemoryOnly() { protect(PROT_NONE); }
  ~OwnMemoryOnly() { protect(PROT_READ | PROT_WRITE); }

 private:
  static void protect(int access) {
    if (num_devices() == 1) return;
    for (const auto& [address, memory] : allocations()) {
      if (memory.device != current_device()) mprotect(memory.base, memory.size - kPage, access);
    }
  }
};

Result run(FunctionHandle function, StreamHandle stream, void** arguments, unsigned int grid,
           unsigned int block, unsigned int shared_bytes, int cluster_size) {
  if (!is_of_current(stream) || function->device != current_device()) return kInvalidHandle;
  const OwnMemoryOnly own_memory;
  emulator::run_grid(function->entry, arguments, grid, static_cast<int>(block), shared_bytes,
                     cluster_size);
  return kSuccess;
}

}  // namespace

extern "C" {

Result cuInit(unsigned int) { return kSuccess; }
/// The real NVRTC looks for private tables of the driver; this one has none.
Result cuGetExportTable(const void**, const void*) { return kNotFound; }
Result cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
Result cuGetErrorName(Result, const char** text) { return *text = "EMULATED_ERROR", kSuccess; }
Result cuGetErrorString(Result, const char** text) { return *text = "of the emulator", kSuccess; }
Result cuDeviceGetCount(int* count) { return *count = num_devices(), kSuccess; }
Result cuDeviceGet(DeviceHandle* device, int index) {
  return index < num_devices() ? (*device = index, kSuccess) : kNoDevice;
}
Result cuDeviceGetName(char* name, int bytes, DeviceHandle) {
  std::snprintf(name, static_cast<size_t>(bytes), "emulated sm_%d", arch_number());
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int attribute, DeviceHandle) {
  const int arch = arch_number();
  const int kib = arch == 80 ? 164 : arch == 90 || arch == 100 ? 228 : 100;
  switch (attribute) {
    case kComputeCapabilityMajor:
      *value = arch / 10;
      break;
    case kComputeCapabilityMinor:
      *value = arch % 10;
      break;
    case kNumSms:
      *value = 4;
      break;
    case kSharedBytesPerSm:
      *value = kib * 1024;
      break;
    case kSharedBytesPerCtaOptIn:
      *value = (kib - 1) * 1024;
      break;
    case kL2Bytes:
      *value = 1 << 20;
      break;
    case kRegistersPerSm:
      *value = 65536;
      break;
    default:
      *value = 1;
  }
  return kSuccess;
}
Result cuDeviceTotalMem_v2(size_t* bytes, DeviceHandle) { return *bytes = 1u << 30, kSuccess; }
Result cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceHandle device) {
  return *context = &contexts[device], kSuccess;
}
Result cuCtxGetCurrent(ContextHandle* context) {
  return *context = has_context() ? current_contexts.back() : nullptr, kSuccess;
}
Result cuCtxGetDevice(DeviceHandle* device) {
  return has_context() ? (*device = current_device(), kSuccess) : kNoContext;
}
Result cuCtxPushCurrent_v2(ContextHandle context) {
  return current_contexts.push_back(context), kSuccess;
}
Result cuCtxPopCurrent_v2(ContextHandle* context) {
  if (!has_context()) return kNoContext;
  return *context = current_contexts.back(), current_contexts.pop_back(), kSuccess;
}

Result cuModuleLoadData(ModuleHandle* module, const void* image) {
  if (!has_context()) return kNoContext;
  const char* bytes = static_cast<const char*>(image);
  const char* trailer = bytes + elf_bytes(bytes);
  if (std::memcmp(trailer, kTrailer, 8) != 0) return kNoBinaryForGpu;
  uint64_t size = 0;
  std::memcpy(&size, trailer + 8, 8);
  char path[] = "/tmp/emulated-kernel-XXXXXX";
  const int file = mkstemp(path);
  const bool is_written = write(file, trailer + 16, size) == static_cast<ssize_t>(size);
  close(file);
  void* library = is_written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (library == nullptr) std::fprintf(stderr, "emulated GPU: %s\n", dlerror());
  unlink(path);
  if (library == nullptr) return kNoBinaryForGpu;
  *module = new flashtile::cuda::driver::ModuleTag{library, current_device()};
  return kSuccess;
}
Result cuModuleUnload(ModuleHandle) { return kSuccess; }
Result cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char*) {
  auto* entry = reinterpret_cast<void (*)(void**)>(dlsym(module->library, "emulated_entry"));
  if (entry == nullptr) return kNotFound;
  *function = new FunctionTag{entry, module->device};
  return kSuccess;
}
Result cuFuncGetAttribute(int* value, int, FunctionHandle) { return *value = 0, kSuccess; }
Result cuFuncSetAttribute(FunctionHandle, int, int) { return kSuccess; }
Result cuFuncLoad(FunctionHandle) { return kSuccess; }

Result cuLaunchKernel(FunctionHandle function, unsigned int grid_x, unsigned int grid_y,
                      unsigned int grid_z, unsigned int block_x, unsigned int, unsigned int,
                      unsigned int shared_bytes, StreamHandle stream, void** arguments, void**) {
  if (grid_y != 1 || grid_z != 1) return kNotFound;
  return run(function, stream, arguments, grid_x, block_x, shared_bytes, 1);
}
Result cuLaunchKernelEx(const LaunchConfig* config, FunctionHandle function, void** arguments,
                        void**) {
  if (config->grid_y != 1 || config->grid_z != 1) return kNotFound;
  int cluster_size = 1;
  for (unsigned int i = 0; i < config->num_attributes; ++i) {
    const LaunchAttribute& attribute = config->attributes[i];
    if (attribute.id == kClusterDimension) {
      cluster_size = static_cast<int>(attribute.value.cluster.x);
    }
  }
  return run(function, config->stream, arguments, config->grid_x, config->block_x,
             config->shared_bytes, cluster_size);
}
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, FunctionHandle, int, size_t) {
  return *count = 1, kSuccess;
}
Result cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }
Result cuStreamCreate(StreamHandle* stream, unsigned int) {
  return has_context() ? (*stream = new StreamTag{current_device()}, kSuccess) : kNoContext;
}
Result cuStreamDestroy_v2(StreamHandle stream) { return delete stream, kSuccess; }
Result cuStreamSynchronize(StreamHandle) { return kSuccess; }
Result cuStreamGetCtx(StreamHandle stream, ContextHandle* context) {
  if (!is_default(stream)) return *context = &contexts[stream->device], kSuccess;
  return has_context() ? (*context = current_contexts.back(), kSuccess) : kNoContext;
}
Result cuStreamIsCapturing(StreamHandle, int* status) { return *status = 0, kSuccess; }
Result cuStreamBeginCapture_v2(StreamHandle, int) { return kNotFound; }
Result cuStreamEndCapture(StreamHandle, GraphHandle*) { return kNotFound; }
Result cuStreamWaitEvent(StreamHandle, EventHandle, unsigned int) { return kSuccess; }
Result cuGraphLaunch(GraphExecHandle, StreamHandle) { return kNotFound; }
Result cuGraphDestroy(GraphHandle) { return kSuccess; }
Result cuGraphExecDestroy(GraphExecHandle) { return kSuccess; }
Result cuEventCreate(EventHandle* event, unsigned int) {
  return has_context() ? (*event = new EventTag{current_device(), {}}, kSuccess) : kNoContext;
}
Result cuEventRecord(EventHandle event, StreamHandle stream) {
  if (!is_of_current(stream) || event->device != current_device()) return kInvalidHandle;
  return event->time = std::chrono::steady_clock::now(), kSuccess;
}
Result cuEventSynchronize(EventHandle) { return kSuccess; }
Result cuEventElapsedTime(float* milliseconds, EventHandle start, EventHandle end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return kSuccess;
}
Result cuEventDestroy_v2(EventHandle event) { return delete event, kSuccess; }

/// Memory that ends (rounded up to 16 bytes) at a page nobody may touch.
Result cuMemAlloc_v2(Address* address, size_t bytes) {
  if (!has_context()) return kNoContext;
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  void* base =
      mmap(nullptr, whole + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return kOutOfMemory;
  mprotect(static_cast<char*>(base) + whole, kPage, PROT_NONE);
  const size_t rounded = (bytes + 15) / 16 * 16;
  *address = reinterpret_cast<Address>(base) + whole - rounded;
  std::memset(reinterpret_cast<void*>(*address), 0xff, bytes);
  allocations()[*address] = {base, whole + kPage, current_device()};
  return kSuccess;
}
Result cuMemFree_v2(Address address) {
  const auto found = allocations().find(address);
  if (found == allocations().end()) return kNotFound;
  munmap(found->second.base, found->second.size);
  allocations().erase(found);
  return kSuccess;
}
Result cuMemAllocAsync(Address* address, size_t bytes, StreamHandle) {
  return cuMemAlloc_v2(address, bytes);
}
Result cuMemFreeAsync(Address address, StreamHandle) { return cuMemFree_v2(address); }
Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, StreamHandle) {
  return std::memcpy(reinterpret_cast<void*>(to), from, bytes), kSuccess;
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, StreamHandle) {
  return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), kSuccess;
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, StreamHandle) {
  return std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes),
         kSuccess;
}
Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, StreamHandle) {
  return std::memset(reinterpret_cast<void*>(to), value, bytes), kSuccess;
}
Result cuTensorMapEncodeTiled(TensorMapBytes* map, int type, uint32_t rank, void* address,
                              const uint64_t* shape, const uint64_t* strides, const uint32_t* box,
                              const uint32_t*, int, int swizzle, int, int) {
  if (!has_context()) return kNoContext;
  emulator::TensorMap made{};
  made.data = static_cast<char*>(address);
  made.element_bytes = type == kMapFloat32 || type == kMapInt32 ? 4 : 2;
  made.num_dims = static_cast<int>(rank);
  if (rank != 4 || (swizzle != kSwizzle64 && swizzle != kSwizzle128)) return kNotFound;
  made.row_bytes = swizzle == kSwizzle64 ? 64 : 128;
  made.stride_bytes[0] = made.element_bytes;
  for (uint32_t d = 0; d < rank; ++d) {
    made.shape[d] = static_cast<long long>(shape[d]);
    made.box[d] = static_cast<int>(box[d]);
    if (d > 0) made.stride_bytes[d] = static_cast<long long>(strides[d - 1]);
  }
  static_assert(sizeof made <= sizeof *map);
  std::memcpy(map, &made, sizeof made);
  return kSuccess;
}
Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  return *free = *total = size_t{1} << 30, kSuccess;
}

}  // extern "C"
