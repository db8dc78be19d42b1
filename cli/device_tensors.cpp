// SPDX-License-Identifier: Apache-2.0
#include "device_tensors.hpp"

#include <algorithm>
#include <string>

#include "core/text.hpp"
#include "cuda/runtime/current.hpp"
#include "flashtile/error.hpp"
#include "tensors.hpp"

namespace flashtile::cli {
namespace {

using cuda::CurrentContext;
using cuda::driver::Address;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

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

std::shared_ptr<void> allocate_device(int64_t bytes, const Context& context) {
  if (bytes == 0) return nullptr;
  const CurrentContext current(context);
  Address address = 0;
  current.driver().check(current.api().cuMemAlloc(&address, static_cast<size_t>(bytes)),
                         std::to_string(bytes) + " bytes of device memory");
  return {reinterpret_cast<void*>(address), [context](void* data) {
            const CurrentContext at_end(context);
            at_end.api().cuMemFree(address_of(data));
          }};
}

void wait_for_device(const Context& context) {
  const CurrentContext current(context);
  current.driver().check(current.api().cuStreamSynchronize(cuda::stream_of(context)),
                         "waiting for the device");
}

DeviceCall::DeviceCall(const OpCall& host, const Context& context)
    : context_(context), call_(host) {
  const CurrentContext current(context);
  for (const std::string& name : host.tensor_names()) {
    Piece piece;
    piece.host = host.tensor(name);
    piece.is_written = host.writes(name);
    find_span(piece.host, &piece.first_byte, &piece.num_bytes);
    // Also a tensor without elements has an address.
    const std::shared_ptr<void> memory =
        allocate_device(std::max<int64_t>(piece.num_bytes, 16), context);
    memory_.push_back(memory);
    const char* source = static_cast<const char*>(piece.host.data) + piece.first_byte;
    current.driver().check(current.api().cuMemcpyHtoDAsync(address_of(memory.get()), source,
                                                           static_cast<size_t>(piece.num_bytes),
                                                           cuda::stream_of(context)),
                           "copying " + name + " to the device");
    piece.device = piece.host;
    piece.device.device = context.device;
    piece.device.data = static_cast<char*>(memory.get()) - piece.first_byte;
    call_.set_tensor(name, piece.device);
    pieces_.push_back(piece);
  }
  state_longest_sequences(host, call_);
  // The host's memory may go away, or change.
  wait_for_device(context);
  const int64_t bytes = call_.explain(context_).workspace_bytes;
  if (bytes > 0) {
    memory_.push_back(allocate_device(bytes, context));
    context_.workspace = memory_.back().get();
    context_.workspace_bytes = static_cast<size_t>(bytes);
  }
}

void DeviceCall::download() const {
  wait_for_device(context_);
  const CurrentContext current(context_);
  for (const Piece& piece : pieces_) {
    if (!piece.is_written) continue;
    char* target = static_cast<char*>(piece.host.data) + piece.first_byte;
    const char* source = static_cast<const char*>(piece.device.data) + piece.first_byte;
    current.driver().check(current.api().cuMemcpyDtoHAsync(target, address_of(source),
                                                           static_cast<size_t>(piece.num_bytes),
                                                           cuda::stream_of(context_)),
                           "copying a result from the device");
  }
  wait_for_device(context_);
}

}  // namespace flashtile::cli
