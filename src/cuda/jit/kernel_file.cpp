// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/kernel_file.hpp"

#include "cuda/jit/bytes.hpp"

namespace flashtile::cuda {
namespace {

constexpr std::string_view kEntryMagic = "FTKERNEL";
constexpr uint32_t kEntryFormat = 1;

/// The numbers of a usage in the order of the file.
template <class Usage>
auto members_of(Usage& usage) {
  return std::array{&usage.num_registers, &usage.stack_bytes, &usage.spill_store_bytes,
                    &usage.spill_load_bytes, &usage.static_shared_bytes};
}

}  // namespace

std::string write_kernel_file(const Digest& key, const CompiledKernel& kernel) {
  std::string bytes(kEntryMagic);
  append_number(bytes, kEntryFormat);
  append_number(bytes, static_cast<uint32_t>(kernel.compiler_version));
  bytes += as_text(key);
  for (const int32_t* value : members_of(kernel.usage)) {
    append_number(bytes, static_cast<uint32_t>(*value));
  }
  for (const std::string* text : {&kernel.entry, &kernel.arch, &kernel.notes, &kernel.cubin}) {
    append_number(bytes, uint64_t{text->size()});
  }
  for (const std::string* text : {&kernel.entry, &kernel.arch, &kernel.notes, &kernel.cubin}) {
    bytes += *text;
  }
  bytes += as_text(sha256(bytes));
  return bytes;
}

std::optional<CompiledKernel> read_kernel_file(std::string_view bytes, const Digest& key) {
  if (bytes.size() < sizeof(Digest)) return std::nullopt;
  const std::string_view content = bytes.substr(0, bytes.size() - sizeof(Digest));
  ByteReader reader(content);
  if (reader.text(kEntryMagic.size()) != kEntryMagic || reader.number<uint32_t>() != kEntryFormat) {
    return std::nullopt;
  }
  CompiledKernel kernel;
  kernel.compiler_version = static_cast<int32_t>(reader.number<uint32_t>());
  if (reader.text(sizeof(Digest)) != as_text(key)) return std::nullopt;
  for (int32_t* value : members_of(kernel.usage)) {
    *value = static_cast<int32_t>(reader.number<uint32_t>());
  }
  std::array<uint64_t, 4> sizes{};
  for (uint64_t& size : sizes) size = reader.number<uint64_t>();
  const std::array texts = {&kernel.entry, &kernel.arch, &kernel.notes, &kernel.cubin};
  for (size_t i = 0; i < texts.size(); ++i) *texts[i] = reader.text(sizes[i]);
  if (!reader.is_good() || !reader.is_at_end()) return std::nullopt;
  if (as_text(sha256(content)) != bytes.substr(content.size())) return std::nullopt;
  return kernel;
}

}  // namespace flashtile::cuda
