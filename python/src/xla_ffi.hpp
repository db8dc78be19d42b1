// SPDX-License-Identifier: Apache-2.0
//
// The part of XLA's foreign function interface (its C ABI, version 0.x) that is used here, so that
// a package built without JAX serves a JAX that is installed later. The names of members are ours,
// their order and types are the interface's. Structures grow at their end, and say their size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flashtile::python::xla {

inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 1;  // the first with all that is used

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};

inline constexpr int kMetadataExtension = 1;

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int major_version;
  int minor_version;
};

/// What a call with this extension asks for instead of work.
struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;
struct ExecutionContext;

enum ErrorCode : int { kInvalidArgument = 3, kUnimplemented = 12, kInternal = 13 };

enum DataType : int {
  kPred = 1,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU32 = 8,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
};

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Bytes {
  const char* data;
  size_t size;
};

inline constexpr int kExecute = 3;
inline constexpr int kBufferType = 1;
inline constexpr int kStringType = 4;

/// Arguments or results.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  void** entries;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  int* types;
  Bytes** names;
  void** entries;
};

struct ErrorCreate {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  int code;
};

struct StreamGet {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  void* stream;  // out
};

struct MemoryAllocate {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  size_t size;
  size_t alignment;
  void* data;  // out
};

struct MemoryFree {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  size_t size;
  void* data;
};

struct DeviceOrdinalGet {
  size_t struct_size;
  Extension* extensions;
  ExecutionContext* context;
  int32_t device_ordinal;  // out
};

/// Functions of the runtime; those that are not used are only places.
struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion api_version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void* error_message;
  void* error_destroy;
  void* handler_register;
  Error* (*stream_get)(StreamGet*);
  void* type_register;
  void* context_get;
  void* state_set;
  void* state_get;
  Error* (*memory_allocate)(MemoryAllocate*);
  Error* (*memory_free)(MemoryFree*);  // may be called while the stream still uses the memory
  void* pool_schedule;
  void* pool_num_threads;
  void* future_create;
  void* future_set_available;
  void* future_set_error;
  void* run_id_get;
  Error* (*device_ordinal_get)(DeviceOrdinalGet*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace flashtile::python::xla
