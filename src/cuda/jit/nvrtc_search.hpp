// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace flashtile::cuda {

/// A library file that may be NVRTC.
struct NvrtcCandidate {
  std::string path;  ///< or a bare name for the loader to find
  int major = 0;     ///< by its file name: 13 for libnvrtc.so.13
};

/// Where NVRTC is looked for.
struct NvrtcPlaces {
  std::string explicit_path;    ///< a file or a folder; nothing else is looked at where it is set
  bool has_loader_path = true;  ///< the names that the loader knows
  std::vector<std::string> loaded_libraries;  ///< paths of what is in this process already
  std::vector<std::string> cuda_homes;
  std::vector<std::string> python_prefixes;  ///< with lib/python3.*/site-packages below
};

/// The places of this process and this machine.
NvrtcPlaces nvrtc_places();

/// All candidates, the highest major version first, each file once. Opens none of them.
std::vector<NvrtcCandidate> find_nvrtc_candidates(const NvrtcPlaces& places);

}  // namespace flashtile::cuda
