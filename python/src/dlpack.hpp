// SPDX-License-Identifier: Apache-2.0
//
// The part of DLPack's binary interface (versions 1.x) that is used here. The names of members are
// ours, their order and types are the standard's.
#pragma once

#include <cstdint>

namespace flashtile::python::dlpack {

enum DeviceCode : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };
enum TypeCode : uint8_t {
  kInt = 0,
  kUint = 1,
  kFloat = 2,
  kBfloat = 4,
  kBool = 6,
  kFloat8E4m3fn = 10,
  kFloat8E5m2 = 12
};
inline constexpr uint64_t kReadOnly = 1;
inline constexpr uint32_t kMajorVersion = 1;

struct Version {
  uint32_t major;
  uint32_t minor;
};

struct Tensor {
  void* data;
  int32_t device_code;
  int32_t device_index;
  int32_t ndim;
  uint8_t type_code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: contiguous
  uint64_t byte_offset;
};

/// In capsules called "dltensor".
struct Managed {
  Tensor tensor;
  void* manager;
  void (*deleter)(Managed*);
};

/// In capsules called "dltensor_versioned".
struct ManagedVersioned {
  Version version;
  void* manager;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};

/// Functions of a library's array type, in its attribute __dlpack_c_exchange_api__. They return 0,
/// or set Python's error.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, ManagedVersioned** out, void* error_state,
                  void (*set_error)(void* error_state, const char* kind, const char* message));
  int (*managed_from_object)(void* object, ManagedVersioned** out);
  int (*managed_to_object)(ManagedVersioned* tensor, void** object);
  int (*tensor_from_object)(void* object, Tensor* out);  // may be null
  int (*current_stream)(int32_t device_code, int32_t device_index, void** stream);
};

}  // namespace flashtile::python::dlpack
