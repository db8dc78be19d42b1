// SPDX-License-Identifier: Apache-2.0
#include "core/validate.hpp"

#include <algorithm>

#include "core/fail.hpp"
#include "core/shape_spec.hpp"
#include "flashtile/error.hpp"

namespace flashtile {
namespace {

std::string device_text(const Device& device) {
  const auto type = static_cast<int32_t>(device.type);
  std::string text = device.type == DeviceType::kCpu    ? "cpu"
                     : device.type == DeviceType::kCuda ? "cuda"
                                                        : "type " + std::to_string(type);
  return text + ":" + std::to_string(device.index);
}

constexpr std::string_view kDeviceTexts = "cpu:0 or cuda:N";

/// There is one CPU, and GPUs are counted from 0.
bool is_device(const Device& device) {
  return device == Device{} || (device.type == DeviceType::kCuda && device.index >= 0);
}

/// One call under test; every error begins with the op's name.
class Checker {
 public:
  Checker(const OpSpec& spec, const void* args)
      : spec_(spec), args_(args), tensors_(given_tensors(spec, args)) {}

  Sizes run(bool has_memory) const {
    check_required();
    for (const GivenTensor& tensor : tensors_) check_view(tensor);
    check_devices();
    for (const GivenTensor& tensor : tensors_) check_dtype(tensor);
    check_gradients();
    Sizes sizes;
    const std::string fault = bind_sizes(tensors_, sizes);
    if (!fault.empty()) fail(fault);
    check_options();
    if (has_memory) {
      for (const GivenTensor& tensor : tensors_) check_address(tensor);
    }
    check_outputs(has_memory);
    return sizes;
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw Error(ErrorCode::kInvalidArgument, std::string(spec_.name) + ": " + text);
  }

  void check_required() const {
    for (const TensorSpec& row : spec_.tensors) {
      if (row.required && find_given(tensors_, row.name) == nullptr) {
        fail(std::string(row.name) + " is missing");
      }
    }
  }

  // What must hold before anything else may compute with a view.
  void check_view(const GivenTensor& tensor) const {
    const TensorView& view = tensor.view;
    if (dtype_bytes(view.dtype) == 0) {
      fail("dtype of " + tensor.name() + " is the unknown code " +
           std::to_string(static_cast<int32_t>(view.dtype)));
    }
    if (view.ndim < 0 || view.ndim > TensorView::kMaxDims) {
      fail(tensor.name() + " has " + std::to_string(view.ndim) + " dimensions, expected 0 to " +
           std::to_string(TensorView::kMaxDims));
    }
    for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
      if (view.shape[i] < 0) {
        fail("dimension " + std::to_string(i) + " of " + tensor.name() + " is " +
             std::to_string(view.shape[i]) + ", expected at least 0");
      }
    }
    check_span(tensor);
  }

  // Products of sizes and strides stay below 2^63, also as bytes and from the tensor's address.
  void check_span(const GivenTensor& tensor) const {
    const TensorView& view = tensor.view;
    const int64_t bytes = dtype_bytes(view.dtype);
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(view.data));
    int64_t numel = bytes;
    int64_t low = 0;
    int64_t high = bytes;
    bool is_empty = false;
    bool overflows = false;
    for (size_t i = 0; i < static_cast<size_t>(view.ndim); ++i) {
      const int64_t size = view.shape[i];
      is_empty = is_empty || size == 0;
      overflows |= __builtin_mul_overflow(numel, std::max<int64_t>(size, 1), &numel);
      int64_t span = 0;
      overflows |= __builtin_mul_overflow(view.strides[i], bytes, &span);
      if (size <= 1) continue;
      overflows |= __builtin_mul_overflow(span, size - 1, &span);
      int64_t& end = span < 0 ? low : high;
      overflows |= __builtin_add_overflow(end, span, &end);
    }
    int64_t unused = 0;
    overflows |= __builtin_sub_overflow(high, low, &unused);
    if (view.data != nullptr && !is_empty && !overflows) {
      overflows = __builtin_add_overflow(address, high, &unused) ||
                  __builtin_add_overflow(address, low, &unused);
    }
    if (overflows) {
      fail(tensor.name() + " spans more bytes than 64 bits address: " + to_string(view));
    }
  }

  void check_devices() const {
    for (const GivenTensor& tensor : tensors_) {
      if (!is_device(tensor.view.device)) {
        fail("device of " + tensor.name() + " is " + device_text(tensor.view.device) +
             ", expected " + std::string(kDeviceTexts));
      }
      if (tensor.view.device == tensors_.front().view.device) continue;
      fail("device of " + tensor.name() + " is " + device_text(tensor.view.device) + ", of " +
           tensors_.front().name() + " " + device_text(tensors_.front().view.device));
    }
  }

  void check_dtype(const GivenTensor& tensor) const {
    std::string expected;
    std::string_view rest = tensor.row->dtypes;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(' '), rest.size());
      const std::string_view word = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (word.empty()) continue;
      std::string choice(word);
      if (word.starts_with('=')) {
        const GivenTensor* other = find_given(tensors_, word.substr(1), tensor.suffix);
        if (other == nullptr || other->view.dtype == tensor.view.dtype) return;
        choice =
            "that of " + other->name() + " (" + std::string(dtype_name(other->view.dtype)) + ")";
      } else if (dtype_from_name(word) == tensor.view.dtype) {
        return;
      }
      expected += (expected.empty() ? "" : rest.empty() ? " or " : ", ") + choice;
    }
    if (expected.empty()) return;
    fail("dtype of " + tensor.name() + " is " + std::string(dtype_name(tensor.view.dtype)) +
         ", expected " + expected);
  }

  void check_gradients() const {
    for (const GivenTensor& tensor : tensors_) {
      const std::string_view input = tensor.row->gradient_of;
      if (input.empty() || find_given(tensors_, input, tensor.suffix) != nullptr) continue;
      fail(tensor.name() + " is given without " +
           (tensor.row->is_family() ? family_name(input, tensor.suffix) : std::string(input)));
    }
  }

  void check_options() const {
    for (const OptionSpec& row : spec_.options) {
      if (!row.is_family()) {
        check_option(spec_, row, row.name, row.get(args_, {}));
        continue;
      }
      for (const std::string& suffix : row.suffixes(args_)) {
        check_option(spec_, row, family_name(row.name, suffix), row.get(args_, suffix));
      }
    }
  }

  void check_address(const GivenTensor& tensor) const {
    const TensorView& view = tensor.view;
    if (view.numel() == 0) return;
    const auto address = reinterpret_cast<uintptr_t>(view.data);
    if (address == 0) {
      fail("data of " + tensor.name() + " is null, expected memory for " +
           std::to_string(view.numel()) + " elements");
    }
    const auto bytes = static_cast<uintptr_t>(dtype_bytes(view.dtype));
    if (address % bytes != 0) {
      fail("data of " + tensor.name() + " lies " + std::to_string(address % bytes) +
           " bytes behind a multiple of its element size, " + std::to_string(bytes));
    }
  }

  bool is_written(const GivenTensor& tensor) const {
    const TensorSpec& row = *tensor.row;
    if (row.direction != Direction::kInOut) return row.direction == Direction::kOut;
    return row.written_with.empty() || find_given(tensors_, row.written_with) != nullptr;
  }

  void check_outputs(bool has_memory) const {
    for (const GivenTensor& output : tensors_) {
      if (!is_written(output)) continue;
      if (overlaps_itself(output.view)) {
        fail("elements of output " + output.name() + " share memory: " + to_string(output.view));
      }
      if (!has_memory) continue;
      for (const GivenTensor& other : tensors_) {
        if (&other == &output || !views_overlap(output.view, other.view)) continue;
        fail("output " + output.name() + " shares memory with " + other.name() + ": " +
             to_string(output.view) + " and " + to_string(other.view));
      }
    }
  }

  const OpSpec& spec_;
  const void* args_;
  std::vector<GivenTensor> tensors_;
};

}  // namespace

Sizes validate_call(const OpSpec& spec, const void* args) {
  return Checker(spec, args).run(/*has_memory=*/true);
}

void check_context(std::string_view op, const Device& of_tensors, const Context& context) {
  const bool is_cpu = of_tensors.type == DeviceType::kCpu;
  // Where tensors say something else, that is checked with them.
  if (context.device == of_tensors && !is_device(of_tensors)) {
    fail(op, "the context says ", device_text(of_tensors), ", expected ", kDeviceTexts);
  }
  if (context.device != Device{} && context.device != of_tensors) {
    fail(op, "tensors are on ", device_text(of_tensors), ", the context says ",
         device_text(context.device));
  }
  if (context.max_workers < 0) {
    fail(op, "max_workers is ", context.max_workers, ", expected at least 0");
  }
  if (!is_cpu && context.max_workers > 0) {
    fail(op, "max_workers is ", context.max_workers,
         ", expected 0 for tensors on a GPU, all of whose multiprocessors are used");
  }
  if (!is_cpu && context.executor != nullptr) {
    fail(op, "an executor is given, expected none for tensors on a GPU");
  }
  if (is_cpu && context.stream != nullptr) {
    fail(op, "a stream is given, expected none for tensors on the CPU");
  }
  if (context.workspace == nullptr && context.workspace_bytes != 0) {
    fail(op, "workspace_bytes is ", context.workspace_bytes, ", but workspace is null");
  }
}

Sizes validate_shapes(const OpSpec& spec, const void* args) {
  return Checker(spec, args).run(/*has_memory=*/false);
}

}  // namespace flashtile
