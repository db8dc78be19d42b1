// SPDX-License-Identifier: Apache-2.0
//
// What tests on a GPU share.
#pragma once

#include <gtest/gtest.h>

#include "cuda/jit/kernel_store.hpp"
#include "cuda/runtime/current.hpp"
#include "cuda/runtime/driver.hpp"

namespace flashtile::cuda {

inline Context on_device(int index) {
  Context context;
  context.device = {DeviceType::kCuda, index};
  return context;
}

/// A stream of its own.
class OwnStream {
 public:
  explicit OwnStream(int device = 0) : context_(on_device(device)) {
    const CurrentContext current(context_);
    driver::StreamHandle stream = nullptr;
    current.driver().check(current.api().cuStreamCreate(&stream, driver::kStreamNonBlocking),
                           "stream");
    context_.stream = stream;
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  ~OwnStream() {
    const CurrentContext current(context_);
    current.api().cuStreamDestroy(stream_of(context_));
  }
  const Context& context() const { return context_; }

 private:
  Context context_;
};

/// Work that has been captured from a stream, and can be put on it again and again.
class CapturedGraph {
 public:
  template <class Work>
  CapturedGraph(const Context& context, const Work& work) : context_(context) {
    const CurrentContext current(context_);
    const driver::Api& api = current.api();
    const auto check = [&](driver::Result result) { current.driver().check(result, "capture"); };
    check(api.cuStreamBeginCapture(stream_of(context_), driver::kCaptureGlobal));
    work();
    check(api.cuStreamEndCapture(stream_of(context_), &graph_));
    check(api.cuGraphInstantiate(&exec_, graph_, 0));
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;
  ~CapturedGraph() {
    const CurrentContext current(context_);
    if (exec_ != nullptr) current.api().cuGraphExecDestroy(exec_);
    if (graph_ != nullptr) current.api().cuGraphDestroy(graph_);
  }
  void launch() const {
    const CurrentContext current(context_);
    current.driver().check(current.api().cuGraphLaunch(exec_, stream_of(context_)), "graph");
  }

 private:
  Context context_;
  driver::GraphHandle graph_ = nullptr;
  driver::GraphExecHandle exec_ = nullptr;
};

/// Skips where there is no GPU, or nothing to compile its kernels with.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Driver::get() == nullptr) GTEST_SKIP() << Driver::fault();
    const std::string fault = KernelStore::of_process().fault();
    if (!fault.empty()) GTEST_SKIP() << fault;
  }
};

}  // namespace flashtile::cuda
