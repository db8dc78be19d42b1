// SPDX-License-Identifier: Apache-2.0
//
// Ways to compute the same thing by linear attention, for every op and implementation: in parts
// with the state carried over, packed, with heads repeated instead of shared.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "op_runs.hpp"
#include "support/attention_runs.hpp"
#include "support/linear_problems.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

void run_by(const OpCall& call, const std::string& implementation) {
  const cli::RunResult result = cli::run_forced(call, implementation, one_worker());
  ASSERT_EQ(result.text, "") << implementation;
}

/// Largest difference as a part of the largest element.
double relative_difference(const TensorView& a, const TensorView& b) {
  double size = 1e-30;
  for (const double x : cli::to_numbers(a)) size = std::max(size, std::abs(x));
  return a.numel() == 0 ? 0 : max_difference(a, b) / size;
}

/// What one call has written as `written`X is what the other one reads as `read`X.
void carry(const OpCall& from, const std::string& written, OpCall& to, const std::string& read) {
  for (const std::string& name : from.tensor_names()) {
    if (!name.starts_with(written)) continue;
    const std::string target = read + name.substr(written.size());
    if (to.spec().find_tensor(target) != nullptr) to.set_tensor(target, from.tensor(name));
  }
}

constexpr int64_t kLength = 11;
constexpr int64_t kCuts[] = {0, 4, 4, kLength};  // the middle part is empty

void parts_that_carry_the_state_give_the_whole(const LinearCase& one) {
  const cli::OwnedCall whole = linear_call(one.forward("b2:t11"));
  for (const std::string& implementation : whole.call.spec().implementations()) {
    run_by(whole.call, implementation);
    OpCall previous(whole.call.spec());
    std::vector<cli::OwnedCall> parts;
    for (size_t n = 0; n + 1 < std::size(kCuts); ++n) {
      parts.push_back(part_of(whole.call, kCuts[n], kCuts[n + 1]));
      OpCall& part = parts.back().call;
      if (n > 0) carry(parts[n - 1].call, "final_", part, "initial_");
      run_by(part, implementation);
      const TensorView rows =
          time_slice(whole.call, whole.call.tensor("out"), kCuts[n], kCuts[n + 1]);
      // The carried state is rounded to float32.
      EXPECT_LT(relative_difference(rows, part.tensor("out")), 2e-5) << implementation << " " << n;
    }
    for (const std::string& name : whole.call.tensor_names()) {
      if (!name.starts_with("final_")) continue;
      EXPECT_LT(relative_difference(whole.call.tensor(name), parts.back().call.tensor(name)), 2e-5)
          << implementation << " " << name;
    }
  }
}

TEST(LinearEquivalence, PartsThatCarryTheStateGiveTheWhole) {
  for_each_linear_case(parts_that_carry_the_state_give_the_whole);
}

void gradients_of_parts_are_those_of_the_whole(const LinearCase& one) {
  const cli::OwnedCall whole = linear_call(one.backward("b2:t11"));
  const cli::OwnedCall forward = linear_call(one.forward("b2:t11"));
  for (const std::string& implementation : whole.call.spec().implementations()) {
    run_by(whole.call, implementation);
    // States at the cut, then the gradients from the last part to the first.
    cli::OwnedCall first = part_of(forward.call, 0, 4);
    run_by(first.call, std::string(cli::implementation_suffix(whole.call.spec(), implementation)));
    cli::OwnedCall late = part_of(whole.call, 4, kLength);
    carry(first.call, "final_", late.call, "initial_");
    run_by(late.call, implementation);
    cli::OwnedCall early = part_of(whole.call, 0, 4);
    carry(late.call, "dinitial_", early.call, "dfinal_");
    run_by(early.call, implementation);
    for (const std::string& name : whole.call.tensor_names()) {
      if (!whole.call.writes(name)) continue;
      const TensorView all = whole.call.tensor(name);
      if (name.starts_with("dinitial_")) {
        EXPECT_LT(relative_difference(all, early.call.tensor(name)), 2e-5) << name;
      } else if (is_timed(whole.call, name)) {
        // Judged by the size of the whole, because a part may be small.
        double size = 1e-30;
        for (const double x : cli::to_numbers(all)) size = std::max(size, std::abs(x));
        const auto part = [&](int64_t begin, int64_t end) {
          return time_slice(whole.call, all, begin, end);
        };
        EXPECT_LT(max_difference(part(0, 4), early.call.tensor(name)), 3e-5 * size) << name;
        EXPECT_LT(max_difference(part(4, kLength), late.call.tensor(name)), 3e-5 * size) << name;
      } else {
        const std::vector<double> sum = cli::to_numbers(all);
        const std::vector<double> a = cli::to_numbers(early.call.tensor(name));
        const std::vector<double> b = cli::to_numbers(late.call.tensor(name));
        double size = 1e-30;
        for (size_t i = 0; i < sum.size(); ++i)
          size = std::max({size, std::abs(a[i]), std::abs(b[i])});
        for (size_t i = 0; i < sum.size(); ++i)
          EXPECT_NEAR(sum[i], a[i] + b[i], 3e-5 * size) << name;
      }
    }
  }
}

TEST(LinearEquivalence, GradientsOfPartsAreThoseOfTheWhole) {
  for_each_linear_case(gradients_of_parts_are_those_of_the_whole);
}

void expect_packed_is_separate(const std::string& text) {
  const cli::OwnedCall packed = linear_call(text);
  for (const std::string& implementation : packed.call.spec().implementations()) {
    run_by(packed.call, implementation);
    for (int64_t b = 0; b + 1 < packed.call.tensor("cu_seqlens").shape[0]; ++b) {
      const cli::OwnedCall separate = sequence_of(packed.call, b);
      run_by(separate.call, implementation);
      for (const std::string& name : separate.call.tensor_names()) {
        if (!separate.call.writes(name)) continue;
        const bool is_sum = name.find("initial_") == std::string::npos &&
                            name.find("final_") == std::string::npos &&
                            !is_timed(packed.call, name);
        if (is_sum) continue;  // over all sequences
        TensorView part = packed.call.tensor(name);
        if (is_timed(packed.call, name)) {
          const TensorView list = packed.call.tensor("cu_seqlens");
          part = part.sliced(0, static_cast<int64_t>(get(list, {b})),
                             static_cast<int64_t>(get(list, {b + 1})));
        } else {
          part = part.sliced(0, b, b + 1);
        }
        const std::vector<double> got = cli::to_numbers(part);
        const std::vector<double> want = cli::to_numbers(separate.call.tensor(name));
        EXPECT_EQ(got, want) << implementation << " " << name << " of sequence " << b;
      }
    }
  }
}

void packed_is_separate_bit_by_bit(const LinearCase& one) {
  const std::string lengths = "cu_seqlens={0,3,3,4,13}";
  expect_packed_is_separate(one.forward(lengths));
  expect_packed_is_separate(one.forward(lengths) + ":bf16");
  expect_packed_is_separate(one.backward(lengths));
  expect_packed_is_separate(one.backward(lengths) + ":f16");
  expect_packed_is_separate(one.backward(lengths) + ":bf16");
}

TEST(LinearEquivalence, PackedIsSeparateBitByBit) {
  for_each_linear_case(packed_is_separate_bit_by_bit);
  // Large enough for chunks.
  expect_packed_is_separate(
      "gated_delta_rule_fwd:hq2:d48:dv64:cu_seqlens={0,3,3,4,113}:initial_state:final_state:bf16");
}

/// Lines of a pool that no sequence has are never touched.
void steps_give_the_forward(const LinearCase& one) {
  constexpr int64_t kSlots[] = {3, 0};  // of sequences 0 and 1, among 5 lines
  const cli::OwnedCall whole = linear_call(one.forward("b2:t5"));
  cli::OwnedCall step = linear_call(one.step());
  run_by(whole.call, "reference");
  for (const std::string& implementation : step.call.spec().implementations()) {
    std::vector<Tensor> pools;
    std::vector<std::string> names;
    for (const std::string& name : step.call.tensor_names()) {
      if (step.call.spec().find_tensor(name)->direction != Direction::kInOut) continue;
      const TensorView initial = whole.call.tensor("initial_" + name);
      const TensorView& pool = step.call.tensor(name);
      names.push_back(name);
      pools.emplace_back(pool.dtype, cli::shape_of(pool));
      for (int64_t b = 0; b < 2; ++b) {
        cli::from_numbers(cli::to_numbers(initial.sliced(0, b, b + 1)),
                          pools.back().view().sliced(0, kSlots[b], kSlots[b] + 1));
      }
      step.call.set_tensor(name, pools.back().view());
    }
    for (int64_t t = 0; t < 5; ++t) {
      for (const std::string& name : step.call.tensor_names()) {
        const TensorSpec* row = whole.call.spec().find_tensor(name);
        if (row == nullptr || row->direction != Direction::kIn) continue;
        const TensorView tensor = whole.call.tensor(name);
        const TensorView rows = is_timed(whole.call, name) ? tensor.sliced(1, t, t + 1) : tensor;
        cli::from_numbers(cli::to_numbers(rows), step.call.tensor(name));
      }
      run_by(step.call, implementation);
      const std::vector<double> want =
          cli::to_numbers(whole.call.tensor("out").sliced(1, t, t + 1));
      const std::vector<double> got = cli::to_numbers(step.call.tensor("out"));
      double size = 1e-30;
      for (const double x : want) size = std::max(size, std::abs(x));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_NEAR(got[i], want[i], 2e-5 * size) << implementation << " row " << t;
      }
    }
    for (size_t n = 0; n < names.size(); ++n) {
      for (int64_t b = 0; b < 2; ++b) {
        const TensorView line = pools[n].view().sliced(0, kSlots[b], kSlots[b] + 1);
        const TensorView want = whole.call.tensor("final_" + names[n]).sliced(0, b, b + 1);
        EXPECT_LT(relative_difference(want, line), 2e-5) << implementation << " " << names[n];
      }
      for (const int64_t unused : {1, 2, 4}) {
        for (const double x : cli::to_numbers(pools[n].view().sliced(0, unused, unused + 1))) {
          EXPECT_TRUE(std::isnan(x)) << implementation << " " << names[n];
        }
      }
    }
  }
}

TEST(LinearEquivalence, StepsGiveTheForward) { for_each_linear_case(steps_give_the_forward); }

void no_rows_leave_the_state(const LinearCase& one) {
  for (const char* lengths : {"b2:t0", "cu_seqlens={0,0,0}", "b0:t5"}) {
    const cli::OwnedCall forward = linear_call(one.forward(lengths));
    for (const std::string& implementation : forward.call.spec().implementations()) {
      run_by(forward.call, implementation);
      for (const std::string& name : forward.call.tensor_names()) {
        if (!name.starts_with("final_")) continue;
        EXPECT_TRUE(
            same_bits(forward.call.tensor(name), forward.call.tensor("initial_" + name.substr(6))))
            << implementation << " " << name;
      }
    }
    const cli::OwnedCall backward = linear_call(one.backward(lengths));
    for (const std::string& implementation : backward.call.spec().implementations()) {
      run_by(backward.call, implementation);
      for (const std::string& name : backward.call.tensor_names()) {
        if (!backward.call.writes(name) || is_timed(backward.call, name)) continue;
        const bool is_state = name.starts_with("dinitial_");
        for (const double x : cli::to_numbers(backward.call.tensor(name))) {
          if (!is_state) {
            EXPECT_EQ(x, 0) << implementation << " " << name;
          }
        }
        if (!is_state) continue;
        EXPECT_TRUE(
            same_bits(backward.call.tensor(name), backward.call.tensor("dfinal_" + name.substr(9))))
            << implementation << " " << name;
      }
    }
  }
}

TEST(LinearEquivalence, NoRowsLeaveTheState) { for_each_linear_case(no_rows_leave_the_state); }

void no_row_sees_a_later_one(const LinearCase& one) {
  cli::OwnedCall call = linear_call(one.forward("b2:t11"));
  for (const std::string& implementation : call.call.spec().implementations()) {
    run_by(call.call, implementation);
    const TensorView early = time_slice(call.call, call.call.tensor("out"), 0, 7);
    const Tensor before = copy_of(early);
    cli::OwnedCall changed(call.call);
    for (const std::string& name : call.call.tensor_names()) {
      const bool is_input = call.call.spec().find_tensor(name)->is_input();
      if (!is_input || !is_timed(call.call, name)) continue;
      const TensorView own =
          changed.pool.convert(call.call.tensor(name), call.call.tensor(name).dtype);
      const TensorView late = own.sliced(1, 7, 11);
      std::vector<double> values = cli::to_numbers(late);
      for (double& x : values) x = 0.5 * x - 0.25;
      cli::from_numbers(values, late);
      changed.call.set_tensor(name, own);
    }
    run_by(changed.call, implementation);
    EXPECT_TRUE(same_bits(time_slice(call.call, changed.call.tensor("out"), 0, 7), before))
        << implementation;
  }
}

TEST(LinearEquivalence, NoRowSeesALaterOne) { for_each_linear_case(no_row_sees_a_later_one); }

}  // namespace
}  // namespace flashtile::test
