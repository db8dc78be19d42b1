// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/program.hpp"

#include "cuda/jit/device_text.hpp"

namespace flashtile::cuda {
namespace {

/// Raised when compiled kernels of an older library must not be found any more for a reason that
/// their text does not show, such as other flags that all kernels have.
constexpr std::string_view kKeyVersion = "flashtile kernel 1";

/// With its length in front, so that no two lists of parts give the same bytes.
void add_part(Sha256& hash, std::string_view part) {
  hash.add(std::to_string(part.size()));
  hash.add(":");
  hash.add(part);
}

}  // namespace

Program program_of(const KernelSource& source) {
  Program program;
  program.entry = source.stem;
  program.arch = source.arch;
  program.flags = source.flags;
  program.text = source.config + "\n#include \"cuda/device/kernels/" + source.stem + ".cuh\"\n";
  return program;
}

Digest key_of(const Program& program) {
  Sha256 hash;
  for (std::string_view part :
       {kKeyVersion, device_headers_digest(), std::string_view(program.arch),
        std::string_view(program.entry), std::string_view(program.text)}) {
    add_part(hash, part);
  }
  for (const std::string& flag : program.flags) add_part(hash, flag);
  return hash.finish();
}

}  // namespace flashtile::cuda
