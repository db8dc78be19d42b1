// SPDX-License-Identifier: Apache-2.0
//
// Shapes of the Hopper forward that hopper_sweep times beside each other, those of the plan among
// them.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/plan/attention_fwd_sm90_plan.hpp"

namespace flashtile::bench {

using device::Sm90Reference;

constexpr int64_t kMib = int64_t{1} << 20;

struct Variant {
  std::string name;
  cuda::Sm90Tiling tiling;
  DType dtype = DType::kBF16;
};

inline cuda::Sm90Tiling tiling(int dim, int warpgroups, int block_n, int stages,
                               Sm90Reference reference, int copy_registers, int compute_registers) {
  cuda::Sm90Tiling made;
  made.shape = {
      dim, dim, block_n, warpgroups, stages, dim > 128 ? 1 : 2, dim > 128 && block_n == 64};
  made.reference = reference;
  made.query_in_registers = dim == 128;
  made.takes_turns = dim <= 128;
  made.holds_back = dim == 128 && reference != Sm90Reference::kMaximum;
  made.copy_registers = copy_registers;
  made.compute_registers = compute_registers;
  made.section_bytes = 32 * kMib;
  return made;
}

template <class Change>
Variant changed(Variant variant, const std::string& name, const Change& change) {
  variant.name += name;
  change(variant.tiling);
  return variant;
}

inline std::vector<Variant> variants_of(int64_t dim) {
  constexpr Sm90Reference kMaximum = Sm90Reference::kMaximum;
  constexpr Sm90Reference kFirst = Sm90Reference::kFirstBlock;
  constexpr Sm90Reference kZero = Sm90Reference::kZero;
  const auto small_section = [](cuda::Sm90Tiling& t) { t.section_bytes = 8 * kMib; };
  // Less than 0: tiles are dealt out in turns.
  const auto is_static = [](cuda::Sm90Tiling& t) { t.section_bytes = -32 * kMib; };
  // The last section holds more heads, so that all CTAs end with short tiles.
  const auto short_end = [](cuda::Sm90Tiling& t) {
    t.section_bytes = 8 * kMib;
    t.last_section_bytes = 40 * kMib;
  };
  // A CTA takes all tiles of a head, where heads have 512 keys.
  const auto whole_heads = [dim](cuda::Sm90Tiling& t) {
    t.section_bytes = -132 * 512 * 2 * dim * 2;
  };
  const auto three_buffers = [](cuda::Sm90Tiling& t) { t.shape.num_query_buffers = 3; };
  const auto no_turns = [](cuda::Sm90Tiling& t) { t.takes_turns = false; };
  if (dim == 64) {
    const Variant base = {"3x128 first", tiling(64, 3, 128, 2, kFirst, 32, 160)};
    const Variant small = {"4x64 first", tiling(64, 4, 64, 4, kFirst, 32, 112)};
    const Variant small_three = changed(small, " 3 buffers", three_buffers);
    return {base,
            {"3x128 zero", tiling(64, 3, 128, 2, kZero, 32, 160)},
            {"3x128 maximum", tiling(64, 3, 128, 2, kMaximum, 32, 160)},
            {"3x128 maximum f16", tiling(64, 3, 128, 2, kMaximum, 32, 160), DType::kF16},
            {"2x128 first", tiling(64, 2, 128, 2, kFirst, 40, 232)},
            {"3x128 first 3 stages", tiling(64, 3, 128, 3, kFirst, 32, 160)},
            changed(base, " 3 buffers", three_buffers),
            changed(base, " no-turns", no_turns),
            changed(base, " static", is_static),
            small,
            {"4x64 zero", tiling(64, 4, 64, 4, kZero, 32, 112)},
            {"4x64 maximum f16", tiling(64, 4, 64, 4, kMaximum, 32, 112), DType::kF16},
            changed(small, " no-turns", no_turns),
            changed(small, " 8MB", small_section),
            changed(small, " short end", short_end),
            small_three,
            changed(small_three, " 8MB", small_section),
            changed(small_three, " short end", short_end),
            changed(small, " whole heads", whole_heads)};
  }
  if (dim == 128) {
    const Variant base = {"2x128 first", tiling(128, 2, 128, 2, kFirst, 40, 232)};
    const Variant zero = {"2x128 zero", tiling(128, 2, 128, 2, kZero, 40, 232)};
    const Variant three = changed(base, " 3 buffers", three_buffers);
    const Variant zero_three = changed(zero, " 3 buffers", three_buffers);
    const Variant small_three = changed(
        {"2x64 zero 3 stages", tiling(128, 2, 64, 3, kZero, 40, 232)}, " 3 buffers", three_buffers);
    return {base,
            zero,
            {"2x128 maximum", tiling(128, 2, 128, 2, kMaximum, 40, 232)},
            {"2x128 maximum f16", tiling(128, 2, 128, 2, kMaximum, 40, 232), DType::kF16},
            changed(base, " free", [](cuda::Sm90Tiling& t) { t.holds_back = false; }),
            changed(base, " q-shared",
                    [](cuda::Sm90Tiling& t) { t.query_in_registers = t.holds_back = false; }),
            changed(base, " no-turns", no_turns),
            changed(base, " static", is_static),
            changed(base, " 8MB", small_section),
            changed(zero, " 8MB", small_section),
            three,
            changed(three, " 8MB", small_section),
            changed(three, " short end", short_end),
            zero_three,
            changed(zero_three, " 8MB", small_section),
            changed(zero_three, " short end", short_end),
            changed(zero_three, " whole heads", whole_heads),
            small_three,
            changed(small_three, " short end", short_end),
            {"2x64 zero 4 stages", tiling(128, 2, 64, 4, kZero, 40, 232)},
            changed({"3x64 zero 3 stages", tiling(128, 3, 64, 3, kZero, 32, 160)}, " q-shared",
                    [](cuda::Sm90Tiling& t) { t.query_in_registers = t.holds_back = false; })};
  }
  const Variant base = {"2x64 first", tiling(256, 2, 64, 2, kFirst, 40, 232)};
  return {base,
          {"2x64 zero", tiling(256, 2, 64, 2, kZero, 40, 232)},
          {"2x64 maximum f16", tiling(256, 2, 64, 2, kMaximum, 40, 232), DType::kF16},
          {"2x80 first", tiling(256, 2, 80, 2, kFirst, 40, 232)},
          {"2x80 maximum", tiling(256, 2, 80, 2, kMaximum, 40, 232)},
          changed(base, " staged", [](cuda::Sm90Tiling& t) { t.shape.warps_store = false; }),
          changed(base, " 8MB", small_section),
          changed(base, " short end", short_end),
          changed(base, " whole heads", whole_heads),
          changed(base, " static", is_static),
          changed(base, " turns", [](cuda::Sm90Tiling& t) { t.takes_turns = true; })};
}

inline cuda::Sm90ForwardPlan plan_of(const AttentionProblem& problem, const Variant& variant) {
  cuda::Sm90Tiling made = variant.tiling;
  made.is_dynamic = problem.window_right.has_value() && made.section_bytes >= 0;
  made.section_bytes = std::abs(made.section_bytes);
  return cuda::make_sm90_plan(problem, made);
}

}  // namespace flashtile::bench
