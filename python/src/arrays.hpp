// SPDX-License-Identifier: Apache-2.0
//
// Arrays of Python's libraries as tensor views, without copies, and new arrays of the same library.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dlpack.hpp"
#include "flashtile/tensor.hpp"

namespace flashtile::python {

namespace nb = nanobind;

/// The exchange functions of an array's type, or null. torch.Tensor has them.
const dlpack::ExchangeApi* exchange_api(nb::handle array);

/// Views of arrays for one call. Keeps their memory alive while it lives; needs the GIL.
class ArrayViews {
 public:
  explicit ArrayViews(std::string_view op) : op_(op) {}
  ArrayViews(const ArrayViews&) = delete;
  ArrayViews& operator=(const ArrayViews&) = delete;
  ~ArrayViews();

  /// A view of an array: of a type with DLPack's exchange functions, with a buffer, or with
  /// __dlpack__. Throws Error where it cannot be one.
  TensorView view(nb::handle array, std::string_view name);

  /// An array that was viewed and must not be written.
  struct Unwritable {
    std::string name;
    std::string_view reason;
  };
  std::span<const Unwritable> unwritable() const { return unwritable_; }

 private:
  bool view_buffer(nb::handle array, std::string_view name, TensorView& view);
  TensorView view_capsule(nb::handle array, std::string_view name);
  TensorView from_dlpack(const dlpack::Tensor& tensor, std::string_view name) const;
  void refuse_gradient(nb::handle array, std::string_view name) const;
  [[noreturn]] void fail_without_memory(std::string_view name) const;

  std::string_view op_;
  std::vector<nb::object> owners_;
  std::vector<Py_buffer> buffers_;
  std::vector<Unwritable> unwritable_;
};

/// An uninitialised array of the library and on the device of `like`. Libraries whose arrays cannot
/// be written (JAX) get one that finished_array turns into theirs.
nb::object new_array(nb::handle like, const Device& device, std::span<const int64_t> shape,
                     DType dtype);
nb::object finished_array(nb::handle like, nb::object array);

/// The stream that the library of `like` works on.
void* current_stream(nb::handle like, const Device& device);

}  // namespace flashtile::python
