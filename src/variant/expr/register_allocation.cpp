// SPDX-License-Identifier: Apache-2.0
#include "variant/expr/register_allocation.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace flashtile::variant {
namespace {

bool is_scalar(Rank rank) { return rank == Rank::kTile || rank == Rank::kRow; }

class Allocator {
 public:
  Allocator(std::vector<StripValue> values, std::span<const int32_t> roots)
      : values_(std::move(values)), roots_(roots.begin(), roots.end()) {}

  Program run() {
    add_broadcasts();
    find_last_uses();
    registers_.assign(values_.size(), -1);
    for (const Rank rank : {Rank::kTile, Rank::kRow, Rank::kColumn, Rank::kElement}) {
      for (size_t n = 0; n < values_.size(); ++n) {
        if (values_[n].rank == rank) place(static_cast<int32_t>(n));
      }
      program_.ends[static_cast<size_t>(rank)] = static_cast<int32_t>(program_.instructions.size());
    }
    for (const int32_t root : roots_) {
      const StripValue& value = at(root);
      program_.outputs.push_back({value.type, value.rank, registers_[static_cast<size_t>(root)]});
    }
    return std::move(program_);
  }

 private:
  StripValue& at(int32_t value) { return values_[static_cast<size_t>(value)]; }
  bool is_strip(int32_t value) {
    return !is_scalar(at(value).rank) || at(value).instruction.is_broadcast;
  }

  // The value itself, or its copy in every lane.
  int32_t as_strip(int32_t value) {
    if (is_strip(value)) return value;
    const auto [found, is_new] =
        broadcasts_.try_emplace(value, static_cast<int32_t>(values_.size()));
    if (is_new) {
      StripValue copy;
      copy.type = at(value).type;
      copy.rank = at(value).rank;
      copy.instruction.is_broadcast = true;
      copy.instruction.type = copy.type;
      copy.args = {value};
      values_.push_back(std::move(copy));  // after what it copies; nothing scalar reads it
    }
    return found->second;
  }

  void add_broadcasts() {
    const size_t num_values = values_.size();
    for (size_t n = 0; n < num_values; ++n) {
      if (is_scalar(values_[n].rank)) continue;
      for (size_t arg = 0; arg < values_[n].args.size(); ++arg) {
        const int32_t strip = as_strip(values_[n].args[arg]);
        values_[n].args[arg] = strip;
      }
      if (values_[n].predicate >= 0) {
        const int32_t strip = as_strip(values_[n].predicate);
        values_[n].predicate = strip;
      }
    }
    for (int32_t& root : roots_) root = as_strip(root);
  }

  void find_last_uses() {
    last_use_.assign(values_.size(), -1);
    for (size_t n = 0; n < values_.size(); ++n) {
      const auto use = [&](int32_t value) {
        last_use_[static_cast<size_t>(value)] = static_cast<int32_t>(n);
      };
      for (const int32_t arg : values_[n].args) use(arg);
      if (values_[n].predicate >= 0) use(values_[n].predicate);
    }
    for (const int32_t root : roots_) last_use_[static_cast<size_t>(root)] = kForever;
  }

  void place(int32_t number) {
    StripValue& value = at(number);
    StripInstruction instruction = value.instruction;
    const auto reg = [&](int32_t argument) { return registers_[static_cast<size_t>(argument)]; };
    if (instruction.op == Op::kLoad && !instruction.is_broadcast) {
      instruction.first_index = static_cast<int32_t>(program_.indices.size());
      for (const int32_t arg : value.args) program_.indices.push_back(reg(arg));
    } else {
      for (size_t n = 0; n < value.args.size(); ++n) instruction.args[n] = reg(value.args[n]);
    }
    if (value.predicate >= 0) instruction.predicate = reg(value.predicate);
    // The result first, so that it is never one of the arguments.
    instruction.out = take(value, is_strip(number));
    registers_[static_cast<size_t>(number)] = instruction.out;
    program_.instructions.push_back(instruction);
    if (value.rank == Rank::kElement) {
      std::vector<int32_t> ended = value.args;
      if (value.predicate >= 0) ended.push_back(value.predicate);
      if (last_use_[static_cast<size_t>(number)] < 0) ended.push_back(number);
      std::ranges::sort(ended);
      ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
      for (const int32_t arg : ended) {
        const bool ends = arg == number || last_use_[static_cast<size_t>(arg)] == number;
        if (ends && at(arg).rank == Rank::kElement) {
          free_[static_cast<size_t>(at(arg).type)].push_back(reg(arg));
        }
      }
    }
  }

  int32_t take(const StripValue& value, bool strip) {
    const auto type = static_cast<size_t>(value.type);
    if (!strip) return program_.num_scalars[type]++;
    std::vector<int32_t>& free = free_[type];
    if (value.rank != Rank::kElement || free.empty()) return program_.num_strips[type]++;
    const int32_t reg = free.back();
    free.pop_back();
    return reg;
  }

  static constexpr int32_t kForever = 1 << 30;

  std::vector<StripValue> values_;
  std::vector<int32_t> roots_;
  std::map<int32_t, int32_t> broadcasts_;
  std::vector<int32_t> last_use_;
  std::vector<int32_t> registers_;
  std::array<std::vector<int32_t>, 3> free_;
  Program program_;
};

}  // namespace

Program allocate_registers(std::vector<StripValue> values, std::span<const int32_t> roots) {
  return Allocator(std::move(values), roots).run();
}

}  // namespace flashtile::variant
