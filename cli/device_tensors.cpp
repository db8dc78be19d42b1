// SPDX-License-Identifier: Apache-2.0
#include "device_tensors.hpp"

#include <algorithm>
#include <string>

#include "core/text.hpp"
#include "flashtile/error.hpp"
#include "op_runs.hpp"
#include "tensors.hpp"

namespace flashtile::cli {
namespace {

/// The bytes that a tensor spans, relative to its element 0.
void find_span(const TensorView& tensor, int64_t* first, int64_t* count) {
  const int64_t bytes = dtype_bytes(tensor.dtype);
  int64_t low = 0;
  int64_t high = bytes;
  for (int d = 0; d < tensor.ndim; ++d) {
    const auto dim = static_cast<size_t>(d);
    if (tensor.shape[dim] == 0) {
      *first = *count = 0;
      return;
    }
    const int64_t reach = (tensor.shape[dim] - 1) * tensor.strides[dim] * bytes;
    (reach < 0 ? low : high) += reach;
  }
  *first = low;
  *count = high - low;
}

/// Where lengths come as cu_seqlens_X, the library cannot read them on a device: it needs
/// max_seqlen_X, which is an option of such ops.
void state_longest_sequences(const OpCall& host, OpCall& device) {
  for (const std::string which : {"q", "k"}) {
    const std::string lengths = "cu_seqlens_" + which;
    const std::string option = "max_seqlen_" + which;
    if (host.spec().find_tensor(lengths) == nullptr || !host.tensor(lengths)) continue;
    const std::vector<std::string> stated = host.option_names();
    if (std::find(stated.begin(), stated.end(), option) != stated.end()) continue;
    const std::vector<double> begins = to_numbers(host.tensor(lengths));
    double longest = 0;
    for (size_t i = 1; i < begins.size(); ++i)
      longest = std::max(longest, begins[i] - begins[i - 1]);
    device.set_option(option, static_cast<int64_t>(longest));
  }
}

}  // namespace

Device parse_device(std::string_view text) {
  if (text == "cpu") return {};
  if (text == "cuda") return {DeviceType::kCuda, 0};
  if (text.starts_with("cuda:")) {
    const auto index = parse_int(text.substr(5));
    if (index && *index >= 0) return {DeviceType::kCuda, static_cast<int32_t>(*index)};
  }
  throw Error(ErrorCode::kInvalidArgument,
              "device is '" + std::string(text) + "', expected cpu, cuda or cuda:NUMBER");
}

OpCall planned_for_device(const OpCall& host, const Context& context) {
  // As far apart and as even as what a device allocates.
  constexpr uintptr_t kApart = uintptr_t{1} << 42;
  OpCall call(host);
  uintptr_t address = 0;
  for (const std::string& name : host.tensor_names()) {
    TensorView tensor = host.tensor(name);
    int64_t first_byte = 0, num_bytes = 0;
    find_span(tensor, &first_byte, &num_bytes);
    tensor.device = context.device;
    if (const std::string whole = host.whole_of(name); !whole.empty()) {
      tensor.data = call.tensor(whole).data;
      call.set_tensor(name, tensor);
      continue;
    }
    address += kApart;
    tensor.data = reinterpret_cast<char*>(address - static_cast<uintptr_t>(first_byte));
    call.set_tensor(name, tensor);
  }
  state_longest_sequences(host, call);
  return call;
}

Explanation explain_on(const OpCall& host, const Context& context) {
  if (context.device.type == DeviceType::kCpu) return host.explain(context);
  return planned_for_device(host, context).explain(context);
}

DeviceCall::DeviceCall(const OpCall& host, const Context& context) : call_(host) {
  for (const std::string& name : host.tensor_names()) {
    Piece piece;
    piece.host = host.tensor(name);
    if (const std::string whole = host.whole_of(name); !whole.empty()) {
      TensorView device = piece.host;
      device.device = context.device;
      device.data = call_.tensor(whole).data;
      call_.set_tensor(name, device);
      continue;
    }
    piece.is_written = host.writes(name);
    find_span(piece.host, &piece.first_byte, &piece.num_bytes);
    // Also a tensor without elements has an address.
    const auto allocated = static_cast<size_t>(std::max<int64_t>(piece.num_bytes, 16));
    piece.memory = std::make_shared<cuda::DeviceMemory>(allocated, context);
    piece.memory->upload(static_cast<const char*>(piece.host.data) + piece.first_byte,
                         static_cast<size_t>(piece.num_bytes));
    TensorView device = piece.host;
    device.device = context.device;
    device.data = static_cast<char*>(piece.memory->data()) - piece.first_byte;
    call_.set_tensor(name, device);
    pieces_.push_back(std::move(piece));
  }
  state_longest_sequences(host, call_);
  add_workspace(context);
}

DeviceCall DeviceCall::forward(const Context& context) const {
  DeviceCall result(forward_call(call_));
  result.pieces_ = pieces_;
  for (Piece& piece : result.pieces_) piece.is_written = false;
  result.add_workspace(context);
  return result;
}

void DeviceCall::add_workspace(const Context& context) {
  context_ = context;
  const int64_t bytes = call_.explain(context).workspace_bytes;
  if (bytes <= 0) return;
  workspace_ = std::make_shared<cuda::DeviceMemory>(static_cast<size_t>(bytes), context);
  context_.workspace = workspace_->data();
  context_.workspace_bytes = workspace_->bytes();
}

int64_t DeviceCall::memory_bytes() const {
  size_t bytes = workspace_ == nullptr ? 0 : workspace_->bytes();
  for (const Piece& piece : pieces_) bytes += piece.memory->bytes();
  return static_cast<int64_t>(bytes);
}

void DeviceCall::download() const {
  cuda::synchronize(context_);
  for (const Piece& piece : pieces_) {
    if (!piece.is_written) continue;
    piece.memory->download(static_cast<char*>(piece.host.data) + piece.first_byte,
                           static_cast<size_t>(piece.num_bytes));
  }
}

}  // namespace flashtile::cli
