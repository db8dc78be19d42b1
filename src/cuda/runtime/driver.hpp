// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "cuda/runtime/driver_api.hpp"

namespace flashtile::cuda {

/// The CUDA driver of this machine, opened once at first use and never closed.
class Driver {
 public:
  /// Null where there is no usable driver; fault() says why.
  static const Driver* get();
  /// Why get() gives null; empty where it does not.
  static const std::string& fault();
  /// The driver, or Error(kUnsupported) with the fault.
  static const Driver& required();

  const driver::Api& api() const { return api_; }
  /// 13020 for CUDA 13.2.
  int version() const { return version_; }
  int num_devices() const { return num_devices_; }

  /// "CUDA_ERROR_INVALID_VALUE (invalid argument)".
  std::string error_text(driver::Result result) const;
  /// Throws Error "WHAT: CUDA_ERROR_..." unless the call went well.
  void check(driver::Result result, std::string_view what) const;

 private:
  friend struct DriverSlot;
  /// Opens the library; gives what is wrong, or nothing.
  std::string open();

  driver::Api api_;
  int version_ = 0;
  int num_devices_ = 0;
};

/// "13.2" for 13020.
std::string cuda_version_text(int version);

}  // namespace flashtile::cuda
