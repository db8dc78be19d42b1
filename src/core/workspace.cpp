// SPDX-License-Identifier: Apache-2.0
#include "core/workspace.hpp"

#include <cstdint>
#include <new>
#include <sstream>

#include "flashtile/error.hpp"

namespace flashtile {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void Workspace::Free::operator()(char* data) const { ::operator delete(data, kAlignment); }

Workspace::Workspace(std::string_view op, const Context& context, int64_t bytes) {
  if (context.workspace == nullptr) {
    data_ = static_cast<char*>(
        ::operator new(static_cast<size_t>(bytes) + 1, kAlignment, std::nothrow));
    owned_.reset(data_);
    if (data_ != nullptr) return;
    std::ostringstream text;
    text << op << ": " << bytes << " bytes of workspace cannot be allocated";
    throw Error(ErrorCode::kOutOfMemory, text.str());
  }
  const auto address = reinterpret_cast<uintptr_t>(context.workspace);
  const uintptr_t skipped = (64 - address % 64) % 64;
  data_ = static_cast<char*>(context.workspace) + skipped;
  if (static_cast<int64_t>(context.workspace_bytes) >= bytes + static_cast<int64_t>(skipped)) {
    return;
  }
  std::ostringstream text;
  text << op << ": the workspace has " << context.workspace_bytes << " bytes, " << bytes
       << " are needed (aligned to 64)";
  throw Error(ErrorCode::kOutOfMemory, text.str());
}

}  // namespace flashtile
