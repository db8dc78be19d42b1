// SPDX-License-Identifier: Apache-2.0
#include "cuda/jit/cubin.hpp"

#include <elf.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "flashtile/error.hpp"

namespace flashtile::cuda {
namespace {

constexpr uint16_t kMachineCuda = 190;
constexpr std::string_view kReservedShared = ".nv.shared.reserved.0";
/// Shared memory that the driver keeps for itself in front of a kernel's own, since sm_90.
constexpr int32_t kReservedSharedBytes = 1024;

// Records of .nv.info: a format byte, an attribute byte, a 16-bit size or value, and the bytes. The
// ones read here have eight: a symbol's number and a value.
constexpr uint8_t kFormatSized = 0x04;
constexpr uint8_t kAttributeFrameBytes = 0x11;
constexpr uint8_t kAttributeNumRegisters = 0x2f;

[[noreturn]] void damaged(std::string_view what) {
  throw Error(ErrorCode::kIo, "cubin: " + std::string(what));
}

template <class T>
T read_at(std::string_view bytes, size_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) damaged("cut short");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

std::string_view text_at(std::string_view table, size_t offset) {
  if (offset >= table.size()) damaged("a name lies outside of its table");
  const size_t end = table.find('\0', offset);
  if (end == std::string_view::npos) damaged("a name has no end");
  return table.substr(offset, end - offset);
}

class Elf {
 public:
  explicit Elf(std::string_view bytes) : bytes_(bytes) {
    const auto header = read_at<Elf64_Ehdr>(bytes, 0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) damaged("not an ELF file");
    if (header.e_machine != kMachineCuda) damaged("not machine code of a GPU");
    for (size_t i = 0; i < header.e_shnum; ++i) {
      sections_.push_back(read_at<Elf64_Shdr>(bytes, header.e_shoff + i * sizeof(Elf64_Shdr)));
    }
    if (header.e_shstrndx >= sections_.size()) damaged("no table of section names");
    names_ = content(sections_[header.e_shstrndx]);
  }

  const Elf64_Shdr* find(std::string_view name) const {
    for (const Elf64_Shdr& section : sections_) {
      if (text_at(names_, section.sh_name) == name) return &section;
    }
    return nullptr;
  }

  std::string_view content(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS) return {};
    if (section.sh_offset > bytes_.size() || section.sh_size > bytes_.size() - section.sh_offset) {
      damaged("a section lies outside of the file");
    }
    return bytes_.substr(section.sh_offset, section.sh_size);
  }

  /// The number of the symbol in the symbol table.
  std::optional<uint32_t> symbol_idx(std::string_view name) const {
    const Elf64_Shdr* symbols = find(".symtab");
    const Elf64_Shdr* texts = find(".strtab");
    if (symbols == nullptr || texts == nullptr) damaged("no symbols");
    const std::string_view table = content(*symbols);
    for (size_t i = 0; (i + 1) * sizeof(Elf64_Sym) <= table.size(); ++i) {
      const auto symbol = read_at<Elf64_Sym>(table, i * sizeof(Elf64_Sym));
      if (text_at(content(*texts), symbol.st_name) == name) return static_cast<uint32_t>(i);
    }
    return std::nullopt;
  }

 private:
  std::string_view bytes_;
  std::string_view names_;
  std::vector<Elf64_Shdr> sections_;
};

/// The value that an attribute of .nv.info has for a symbol.
std::optional<int32_t> info_value(std::string_view info, uint8_t attribute, uint32_t symbol_idx) {
  size_t offset = 0;
  while (offset + 4 <= info.size()) {
    const auto format = read_at<uint8_t>(info, offset);
    const auto code = read_at<uint8_t>(info, offset + 1);
    const auto size = read_at<uint16_t>(info, offset + 2);
    offset += 4;
    if (format != kFormatSized) continue;
    if (code == attribute && size >= 8 && read_at<uint32_t>(info, offset) == symbol_idx) {
      return read_at<int32_t>(info, offset + 4);
    }
    offset += size;
  }
  return std::nullopt;
}

}  // namespace

ResourceUsage read_cubin_usage(std::string_view cubin, std::string_view entry) {
  const Elf elf(cubin);
  const Elf64_Shdr* info_section = elf.find(".nv.info");
  const std::optional<uint32_t> symbol_idx = elf.symbol_idx(entry);
  if (info_section == nullptr || !symbol_idx) {
    damaged("there is no kernel '" + std::string(entry) + "' in it");
  }
  const std::string_view info = elf.content(*info_section);
  const std::optional<int32_t> num_registers =
      info_value(info, kAttributeNumRegisters, *symbol_idx);
  if (!num_registers) damaged("the registers of '" + std::string(entry) + "' are not in it");
  ResourceUsage usage;
  usage.num_registers = *num_registers;
  usage.stack_bytes = info_value(info, kAttributeFrameBytes, *symbol_idx).value_or(0);
  const Elf64_Shdr* shared = elf.find(".nv.shared." + std::string(entry));
  if (shared != nullptr) {
    usage.static_shared_bytes = static_cast<int32_t>(shared->sh_size);
    if (elf.find(kReservedShared) != nullptr) usage.static_shared_bytes -= kReservedSharedBytes;
  }
  return usage;
}

}  // namespace flashtile::cuda
