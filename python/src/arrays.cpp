// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/fail.hpp"
#include "flashtile/error.hpp"

namespace flashtile::python {
namespace {

/// str() of an attribute.
std::string attribute_text(nb::handle object, const char* name) {
  const nb::object attribute = object.attr(name);
  return nb::str(attribute).c_str();
}

std::string full_type_name(nb::handle object) {
  return attribute_text(object.type(), "__module__") + "." +
         attribute_text(object.type(), "__qualname__");
}

DType dtype_of(uint8_t code, uint8_t bits) {
  struct Row {
    uint8_t code, bits;
    DType dtype;
  };
  constexpr std::array rows = {
      Row{dlpack::kFloat, 32, DType::kF32},      Row{dlpack::kFloat, 16, DType::kF16},
      Row{dlpack::kBfloat, 16, DType::kBF16},    Row{dlpack::kFloat, 64, DType::kF64},
      Row{dlpack::kInt, 32, DType::kI32},        Row{dlpack::kInt, 64, DType::kI64},
      Row{dlpack::kUint, 8, DType::kU8},         Row{dlpack::kBool, 8, DType::kBool},
      Row{dlpack::kInt, 8, DType::kI8},          Row{dlpack::kFloat8E4m3fn, 8, DType::kE4M3},
      Row{dlpack::kFloat8E5m2, 8, DType::kE5M2},
  };
  for (const Row& row : rows) {
    if (row.code == code && row.bits == bits) return row.dtype;
  }
  return DType::kNone;
}

std::pair<uint8_t, uint8_t> dlpack_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {dlpack::kFloat, 32};
    case DType::kF16:
      return {dlpack::kFloat, 16};
    case DType::kBF16:
      return {dlpack::kBfloat, 16};
    case DType::kF64:
      return {dlpack::kFloat, 64};
    case DType::kI32:
      return {dlpack::kInt, 32};
    case DType::kI64:
      return {dlpack::kInt, 64};
    case DType::kBool:
      return {dlpack::kBool, 8};
    default:
      return {dlpack::kUint, 8};
  }
}

/// A format of the struct module: "f", "<i". Sizes tell "l" of four bytes from that of eight.
DType dtype_of_format(const char* format, Py_ssize_t bytes) {
  if (format == nullptr) return bytes == 1 ? DType::kU8 : DType::kNone;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == '\0' || format[1] != '\0') return DType::kNone;
  const auto bits = static_cast<uint8_t>(bytes * 8);
  if (std::strchr("fde", *format) != nullptr) return dtype_of(dlpack::kFloat, bits);
  if (std::strchr("ilqb", *format) != nullptr) return dtype_of(dlpack::kInt, bits);
  if (*format == 'B') return DType::kU8;
  return *format == '?' ? DType::kBool : DType::kNone;
}

/// Types of ml_dtypes, which buffers have no format for: the name of the dtype says what it is.
DType dtype_of_name(nb::handle array) {
  if (!nb::hasattr(array, "dtype")) return DType::kNone;
  const std::string name = attribute_text(array, "dtype");
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float8_e4m3fn") return DType::kE4M3;
  return name == "float8_e5m2" ? DType::kE5M2 : DType::kNone;
}

const dlpack::ExchangeApi* find_api(nb::handle type) {
  // What overrides dispatch may have no memory, or something else in it.
  const std::string name = attribute_text(type, "__qualname__");
  if (name != "Tensor" && name != "Parameter") return nullptr;
  nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  if (capsule.is_none()) return nullptr;
  auto* api =
      static_cast<dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) nb::raise_python_error();
  while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->previous;
  return api != nullptr && api->tensor_from_object != nullptr ? api : nullptr;
}

nb::object library_hook(const char* name) {
  return nb::module_::import_("flashtile._arrays").attr(name);
}

void set_python_error(void* /*state*/, const char* kind, const char* message) {
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

}  // namespace

const dlpack::ExchangeApi* exchange_api(nb::handle array) {
  // A few types at most; the GIL guards the list.
  static std::vector<std::pair<PyObject*, const dlpack::ExchangeApi*>> known;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  for (const auto& [known_type, api] : known) {
    if (known_type == type) return api;
  }
  if (!nb::hasattr(nb::handle(type), "__dlpack_c_exchange_api__")) return nullptr;
  const dlpack::ExchangeApi* api = find_api(type);
  Py_INCREF(type);  // so that no other type gets its address
  known.emplace_back(type, api);
  return api;
}

ArrayViews::~ArrayViews() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

void ArrayViews::refuse_gradient(nb::handle array, std::string_view name) const {
  if (!nb::cast<bool>(array.attr("requires_grad"))) return;
  if (!nb::cast<bool>(nb::module_::import_("torch").attr("is_grad_enabled")())) return;
  fail(op_, name,
       " requires a gradient, expected one that does not, or torch.no_grad(): "
       "flashtile.torch has the functions with gradients");
}

/// The library has said why, PyTorch with the calls that led there, which tell a user nothing.
void ArrayViews::fail_without_memory(std::string_view name) const {
  nb::python_error error;
  std::string text = nb::str(error.value()).c_str();
  text.resize(std::min(text.find('\n'), text.size()));
  fail(op_, name, " has no memory that can be read: ", text);
}

TensorView ArrayViews::from_dlpack(const dlpack::Tensor& tensor, std::string_view name) const {
  const DType dtype = tensor.lanes == 1 ? dtype_of(tensor.type_code, tensor.bits) : DType::kNone;
  if (dtype == DType::kNone) {
    fail(op_, "dtype of ", name, " is DLPack's (", static_cast<int>(tensor.type_code), ", ",
         static_cast<int>(tensor.bits), " bits, ", tensor.lanes,
         " lanes), expected a float of 16, 32 or 64 bits, bf16, i32, i64, u8 or bool");
  }
  if (tensor.ndim > TensorView::kMaxDims) {
    fail(op_, name, " has ", tensor.ndim, " dimensions, expected at most ", TensorView::kMaxDims);
  }
  const auto ndim = static_cast<size_t>(tensor.ndim);
  void* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  const std::span<const int64_t> shape(tensor.shape, ndim);
  TensorView view = tensor.strides == nullptr
                        ? TensorView(data, dtype, shape)
                        : TensorView(data, dtype, shape, std::span(tensor.strides, ndim));
  switch (tensor.device_code) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
      break;
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      view.device = {DeviceType::kCuda, tensor.device_index};
      break;
    default:
      fail(op_, name, " is on DLPack's device ", tensor.device_code,
           ", expected 1 (CPU) or 2 (CUDA)");
  }
  return view;
}

bool ArrayViews::view_buffer(nb::handle array, std::string_view name, TensorView& view) {
  if (PyObject_CheckBuffer(array.ptr()) == 0) return false;
  DType dtype = DType::kNone;
  Py_buffer buffer;
  if (PyObject_GetBuffer(array.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    dtype = dtype_of_name(array);
    if (dtype == DType::kNone) return false;
    nb::object bits = array.attr("view")(dtype == DType::kBF16 ? "uint16" : "uint8");
    if (PyObject_GetBuffer(bits.ptr(), &buffer, PyBUF_STRIDED_RO | PyBUF_FORMAT) != 0) {
      nb::raise_python_error();
    }
    owners_.push_back(std::move(bits));
  }
  buffers_.push_back(buffer);
  if (dtype == DType::kNone) dtype = dtype_of_format(buffer.format, buffer.itemsize);
  if (dtype == DType::kNone) {
    fail(op_, "dtype of ", name, " has the buffer format '", buffer.format ? buffer.format : "",
         "', expected one of f32, f16, bf16, f64, i32, i64, u8 and bool in native byte order");
  }
  if (buffer.readonly != 0) unwritable_.push_back({std::string(name), " is read-only"});
  if (buffer.ndim > TensorView::kMaxDims) {
    fail(op_, name, " has ", buffer.ndim, " dimensions, expected at most ", TensorView::kMaxDims);
  }
  std::array<int64_t, TensorView::kMaxDims> shape{};
  std::array<int64_t, TensorView::kMaxDims> strides{};
  const auto ndim = static_cast<size_t>(buffer.ndim);
  for (size_t i = 0; i < ndim; ++i) {
    shape[i] = buffer.shape[i];
    if (shape[i] > 1 && buffer.strides[i] % buffer.itemsize != 0) {
      fail(op_, name, " has a stride of ", buffer.strides[i], " bytes, expected a multiple of ",
           buffer.itemsize);
    }
    strides[i] = buffer.strides[i] / buffer.itemsize;
  }
  view =
      TensorView(buffer.buf, dtype, std::span(shape.data(), ndim), std::span(strides.data(), ndim));
  return true;
}

TensorView ArrayViews::view_capsule(nb::handle array, std::string_view name) {
  if (full_type_name(array).starts_with("jax") &&
      full_type_name(array).find("Tracer") != std::string::npos) {
    PyErr_Format(PyExc_TypeError,
                 "%s: %s is traced by JAX (jit, grad, vmap), which has no memory: call it outside",
                 std::string(op_).c_str(), std::string(name).c_str());
    nb::raise_python_error();
  }
  if (!nb::hasattr(array, "__dlpack__")) {
    PyErr_Format(PyExc_TypeError, "%s: %s is a %s, expected an array (DLPack or a buffer)",
                 std::string(op_).c_str(), std::string(name).c_str(),
                 full_type_name(array).c_str());
    nb::raise_python_error();
  }
  const std::string library = full_type_name(array);
  if (library.starts_with("jax")) {
    unwritable_.push_back({std::string(name), " is a JAX array, which cannot change"});
  }
  nb::object capsule;
  try {
    capsule = array.attr("__dlpack__")(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
    capsule = array.attr("__dlpack__")();
  }
  owners_.push_back(capsule);  // whose destructor gives the memory back
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const dlpack::ManagedVersioned*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajorVersion) {
      fail(op_, name, " comes with DLPack version ", managed->version.major, ", expected 1");
    }
    if ((managed->flags & dlpack::kReadOnly) != 0) {
      unwritable_.push_back({std::string(name), " is read-only"});
    }
    return from_dlpack(managed->tensor, name);
  }
  const auto* managed =
      static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) nb::raise_python_error();
  return from_dlpack(managed->tensor, name);
}

TensorView ArrayViews::view(nb::handle array, std::string_view name) {
  if (const dlpack::ExchangeApi* api = exchange_api(array)) {
    refuse_gradient(array, name);
    dlpack::Tensor tensor{};
    if (api->tensor_from_object(array.ptr(), &tensor) != 0) fail_without_memory(name);
    return from_dlpack(tensor, name);
  }
  TensorView view;
  if (view_buffer(array, name, view)) return view;
  return view_capsule(array, name);
}

nb::object new_array(nb::handle like, const Device& device, std::span<const int64_t> shape,
                     DType dtype) {
  if (const dlpack::ExchangeApi* api = exchange_api(like)) {
    const auto [code, bits] = dlpack_type(dtype);
    dlpack::Tensor prototype{nullptr,
                             static_cast<int32_t>(device.type),
                             device.index,
                             static_cast<int32_t>(shape.size()),
                             code,
                             bits,
                             1,
                             const_cast<int64_t*>(shape.data()),
                             nullptr,
                             0};
    dlpack::ManagedVersioned* managed = nullptr;
    void* object = nullptr;
    if (api->allocate(&prototype, &managed, nullptr, set_python_error) != 0 ||
        api->managed_to_object(managed, &object) != 0) {
      nb::raise_python_error();
    }
    return nb::steal(static_cast<PyObject*>(object));
  }
  nb::list sizes;
  for (const int64_t size : shape) sizes.append(size);
  return library_hook("new_array")(like, nb::tuple(sizes), std::string(dtype_name(dtype)).c_str());
}

nb::object finished_array(nb::handle like, nb::object array) {
  if (array.type().is(like.type())) return array;
  return library_hook("finished_array")(like, array);
}

void* current_stream(nb::handle like, const Device& device) {
  if (device.type != DeviceType::kCuda) return nullptr;
  if (const dlpack::ExchangeApi* api = exchange_api(like)) {
    void* stream = nullptr;
    if (api->current_stream(static_cast<int32_t>(device.type), device.index, &stream) != 0) {
      nb::raise_python_error();
    }
    return stream;
  }
  return reinterpret_cast<void*>(nb::cast<uintptr_t>(library_hook("current_stream")(like)));
}

}  // namespace flashtile::python
