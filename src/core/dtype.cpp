// SPDX-License-Identifier: Apache-2.0
#include "flashtile/dtype.hpp"

#include <array>

namespace flashtile {
namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<DTypeInfo, 12> kDTypes = {{
    {DType::kNone, "none", 0},
    {DType::kF32, "f32", 4},
    {DType::kF16, "f16", 2},
    {DType::kBF16, "bf16", 2},
    {DType::kF64, "f64", 8},
    {DType::kI32, "i32", 4},
    {DType::kI64, "i64", 8},
    {DType::kU8, "u8", 1},
    {DType::kBool, "bool", 1},
    {DType::kI8, "i8", 1},
    {DType::kE4M3, "e4m3", 1},
    {DType::kE5M2, "e5m2", 1},
}};

// A number that is no DType (it may come through the C ABI) counts as kNone.
const DTypeInfo& info(DType dtype) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.dtype == dtype) return entry;
  }
  return kDTypes[0];
}

}  // namespace

int64_t dtype_bytes(DType dtype) { return info(dtype).bytes; }

std::string_view dtype_name(DType dtype) { return info(dtype).name; }

DType dtype_from_name(std::string_view name) {
  for (const DTypeInfo& entry : kDTypes) {
    if (entry.name == name) return entry.dtype;
  }
  return DType::kNone;
}

bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 ||
         dtype == DType::kBF16;
}

}  // namespace flashtile
