// SPDX-License-Identifier: Apache-2.0
//
// Calls as XLA makes them, on a device that computes nothing, by a runtime that refuses what XLA
// refuses.
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/jit/nvrtc.hpp"
#include "fake_driver_support.hpp"
#include "xla_call.hpp"

namespace flashtile::python {
namespace {

/// What is asked of the runtime.
struct Asked {
  std::vector<void*> memory;
  std::vector<size_t> sizes;
  int num_freed = 0;
  std::string error;
};
Asked asked;

xla::Error* something() { return reinterpret_cast<xla::Error*>(&asked); }

xla::Error* create_error(xla::ErrorCreate* call) {
  asked.error = call->message;
  return something();
}
xla::Error* get_stream(xla::StreamGet* call) {
  call->stream = nullptr;
  return nullptr;
}
xla::Error* get_device(xla::DeviceOrdinalGet* call) {
  call->device_ordinal = 0;
  return nullptr;
}
xla::Error* allocate(xla::MemoryAllocate* call) {
  constexpr size_t kMostOfXla = 16;
  if (call->alignment > kMostOfXla) return something();
  asked.memory.push_back(std::malloc(call->size));
  asked.sizes.push_back(call->size);
  call->data = asked.memory.back();
  return nullptr;
}
xla::Error* release(xla::MemoryFree* call) {
  EXPECT_EQ(call->data, asked.memory.at(static_cast<size_t>(asked.num_freed)));
  EXPECT_EQ(call->size, asked.sizes.at(static_cast<size_t>(asked.num_freed)));
  std::free(call->data);
  ++asked.num_freed;
  return nullptr;
}

/// Buffers of bf16, and their names.
struct Tensors {
  explicit Tensors(const std::vector<std::vector<int64_t>>& shapes) {
    for (std::vector<int64_t> shape : shapes) {
      dims.push_back(shape);
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      memory.emplace_back(static_cast<size_t>(count) * 2 + 512);
      types.push_back(xla::kBufferType);
    }
    for (size_t i = 0; i < dims.size(); ++i) {
      const auto address = reinterpret_cast<uintptr_t>(memory[i].data());
      buffers.push_back({sizeof(xla::Buffer), nullptr, xla::kBF16,
                         reinterpret_cast<void*>((address + 255) / 256 * 256),
                         static_cast<int64_t>(dims[i].size()), dims[i].data()});
    }
    for (xla::Buffer& buffer : buffers) entries.push_back(&buffer);
  }
  xla::Buffers list() {
    return {sizeof(xla::Buffers), nullptr, static_cast<int64_t>(entries.size()), types.data(),
            entries.data()};
  }
  std::vector<std::vector<int64_t>> dims;
  std::vector<std::vector<char>> memory;
  std::vector<int> types;
  std::vector<xla::Buffer> buffers;
  std::vector<void*> entries;
};

class XlaCall : public fake::FakeDriver {
 protected:
  void SetUp() override {
    FakeDriver::SetUp();
    asked = {};
    if (cuda::Nvrtc::get() == nullptr) GTEST_SKIP() << cuda::Nvrtc::fault();
  }

  static xla::Error* run(const std::string& options) {
    xla::Api api = {};
    api.struct_size = sizeof(api);
    api.error_create = create_error;
    api.stream_get = get_stream;
    api.memory_allocate = allocate;
    api.memory_free = release;
    api.device_ordinal_get = get_device;
    Tensors inputs({{2, 40, 2, 64}, {2, 40, 2, 64}, {2, 40, 2, 64}});
    Tensors outputs({{2, 40, 2, 64}});
    std::vector<std::pair<std::string, std::string>> texts = {{"op", "attention_fwd"},
                                                              {"inputs", "q,k,v"},
                                                              {"outputs", "out"},
                                                              {"options", options},
                                                              {"implementation", ""}};
    std::vector<xla::Bytes> names, values;
    std::vector<int> types(texts.size(), xla::kStringType);
    for (const auto& [name, value] : texts) {
      names.push_back({name.data(), name.size()});
      values.push_back({value.data(), value.size()});
    }
    std::vector<xla::Bytes*> name_list;
    std::vector<void*> value_list;
    for (size_t i = 0; i < texts.size(); ++i) {
      name_list.push_back(&names[i]);
      value_list.push_back(&values[i]);
    }
    xla::CallFrame frame = {};
    frame.struct_size = sizeof(frame);
    frame.api = &api;
    frame.stage = xla::kExecute;
    frame.arguments = inputs.list();
    frame.results = outputs.list();
    frame.attributes = {
        sizeof(xla::Attributes), nullptr,          static_cast<int64_t>(texts.size()), types.data(),
        name_list.data(),        value_list.data()};
    return run_on_cuda(&frame);
  }
};

TEST_F(XlaCall, AsksForAWorkspaceAsXlaGivesIt) {
  EXPECT_EQ(run("mask=q_idx % 2 == k_idx % 2"), nullptr) << asked.error;
  EXPECT_FALSE(state_.launches.empty());
  EXPECT_EQ(asked.memory.size(), 1u);
}

TEST_F(XlaCall, FreesTheWorkspaceOfEachCall) {
  EXPECT_EQ(run("mask=q_idx % 2 == k_idx % 2"), nullptr) << asked.error;
  EXPECT_EQ(run("mask=q_idx % 2 == k_idx % 2"), nullptr) << asked.error;
  EXPECT_EQ(asked.memory.size(), 2u);
  EXPECT_EQ(asked.num_freed, 2);
  // Also where a call fails behind it.
  EXPECT_NE(run("mask=no_such_name"), nullptr);
  EXPECT_EQ(asked.num_freed, static_cast<int>(asked.memory.size()));
}

}  // namespace
}  // namespace flashtile::python
