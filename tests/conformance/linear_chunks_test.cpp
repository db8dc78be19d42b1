// SPDX-License-Identifier: Apache-2.0
//
// Kernels of linear attention, in chunks and row by row, against the recurrent reference and
// against themselves: lengths around chunks and blocks, carried states, packed sequences, NaN.
#include <gtest/gtest.h>

#include <cmath>

#include "flashtile/linear.hpp"
#include "support/attention_runs.hpp"
#include "support/problem_cases.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

class LinearChunkProblems : public testing::TestWithParam<const char*> {};

TEST_P(LinearChunkProblems, AgreeWithTheRecurrence) { expect_problem_conforms(GetParam()); }

constexpr const char* kProblems[] = {
    "simple_gla_fwd:b2:hq3:t1:d8:dv6:g:initial_state:final_state",
    "simple_gla_fwd:b1:hq4:hkv2:t545:d40:dv24:g:g_gamma:initial_state:final_state",
    "simple_gla_bwd:b1:hq4:hkv2:t545:d40:dv24:g:g_gamma:initial_state:dfinal_state",
    "simple_gla_bwd:b1:hq2:t97:d33:dv17:g:f16:initial_state",
    "simple_gla_bwd:b1:hq2:t97:d33:dv17:g:bf16:dfinal_state",
    "simple_gla_bwd:b1:hq1:t70:d300:dv400:g",
    "linear_attention_bwd:hq2:d16:dv24:cu_seqlens={0,70,70,135,136}:initial_state:dfinal_state",
    "retention_bwd:b1:hq2:t130:d64:dv80:bf16",
    "lightning_bwd:b1:hq2:t66:d20:dv65",
    "mamba2_bwd:b1:hq6:num_groups=2:t130:d24:dv16:dt_bias:D:dt_softplus:initial_state:dfinal_state",
    "mamba2_bwd:b1:hq3:t130:d24:dv16:D[hq,dv]:dt_softplus:bf16",
    "mlstm_exp_bwd:b1:hq4:hkv2:t130:d24:dv16:initial_state:initial_norm:initial_max:dfinal_state",
    "mlstm_sig_bwd:b1:hq2:t130:d24:dv16:normalize:dfinal_norm",
    "mamba2_bwd:b1:hq2:num_groups=1:t300:d64:dv64:dt_bias:D:dt_softplus:initial_state:dfinal_state",
    "mlstm_exp_bwd:b1:hq4:t256:d64:dv64",
    "gla_fwd:b1:hq4:hkv2:t97:d33:dv70:initial_state:final_state",
    "gla_fwd:b2:hq2:t70:d24:dv200:bf16",
    "gla_fwd:hq4:d40:dv150:hkv2:cu_seqlens={0,1,1,18,200}:initial_state:final_state:bf16",
    "gla_fwd:b1:hq1:t65:d258:dv64:bf16",
    "gla_bwd:b1:hq4:hkv2:t97:d33:dv70:initial_state:dfinal_state",
    "gla_bwd:b1:hq2:t70:d130:dv24:bf16",
    "rwkv6_bwd:hq4:hkv2:d20:dv24:cu_seqlens={0,40,40,141}:initial_state:dfinal_state",
    "gla_bwd:b1:hq4:hkv2:t97:d33:dv70:initial_state:dfinal_state:bf16",
    "gla_bwd:b1:hq1:t65:d130:dv64:bf16",
    "rwkv6_bwd:hq4:hkv2:d20:dv150:cu_seqlens={0,40,40,141}:initial_state:dfinal_state:bf16",
    "rwkv6_fwd:hq4:hkv2:d20:dv24:cu_seqlens={0,40,40,141}:initial_state",
    "rwkv6_fwd:b1:hq4:hkv2:t95:d33:dv70:initial_state:final_state:bf16",
    "delta_rule_fwd:b1:hq2:num_heads_v=4:t70:d24:dv40:qk_l2norm:f16",
    "gated_delta_rule_fwd:b1:hq2:t130:d128:dv72:initial_state:final_state",
    ("gated_delta_rule_fwd:hq2:hv4:d40:dv150:cu_seqlens={0,1,1,18,200}:initial_state:final_state:"
     "qk_l2norm:bf16"),
    "delta_rule_fwd:b1:hq1:t130:d300:dv300:bf16",
    "kda_fwd:b1:hq2:t70:d24:dv40:bf16:final_state",
    "rwkv7_fwd:b1:hq2:t70:d24:dv40:initial_state:final_state",
    "iplr_delta_rule_fwd:b1:hq2:t70:d24:dv40",
    "gated_delta_rule_bwd:b1:hq2:hv4:t97:d33:dv70:initial_state:dfinal_state:qk_l2norm",
    "gated_delta_rule_bwd:b1:hq2:t70:d130:dv24:bf16",
    ("gated_delta_rule_bwd:hq2:hv4:d40:dv150:cu_seqlens={0,1,1,18,200}:initial_state:dfinal_state:"
     "qk_l2norm:bf16"),
    "delta_rule_bwd:b1:hq1:t145:d300:dv260:bf16",
    "delta_rule_bwd:hq2:hv6:d20:dv24:cu_seqlens={0,40,40,141}:dfinal_state:f16",
    "kda_bwd:b2:hq2:t97:d33:dv70:initial_state:dfinal_state",
    "rwkv7_bwd:b1:hq2:t97:d70:dv33:initial_state:dfinal_state",
    "iplr_delta_rule_bwd:b1:hq2:t70:d24:dv40",
    "gsa_fwd:b2:hq2:t70:d20:dv24:m130:bf16",
    ("gsa_bwd:b1:hq4:hkv2:t97:d33:dv70:m40:initial_state_k:initial_state_v:dfinal_state_k:"
     "dfinal_state_v"),
    "gsa_bwd:hq2:d20:dv24:m70:cu_seqlens={0,40,40,141}",
    ("gsa_fwd:hq4:hkv2:d80:dv50:m70:cu_seqlens={0,5,5,38,200}:initial_state_k:initial_state_v:"
     "final_state_k:final_state_v:bf16"),
    ("gsa_bwd:hq4:hkv2:d50:dv130:m70:cu_seqlens={0,5,5,38,200}:initial_state_k:initial_state_v:"
     "dfinal_state_k:dfinal_state_v:bf16"),
    "gated_delta_rule_step:b2:hq2:hv4:d64:dv150:lines5:state_slots={3,0}:qk_l2norm",
    "mlstm_exp_step:b3:hq4:hkv2:d40:dv300",
    "rwkv6_step:b2:hq4:hkv2:d40:dv129:bf16",
    "mamba2_step:b2:hq4:num_groups=2:d64:dv64:D:dt_softplus",
    "hgrn_fwd:b2:c13:t97:initial_state:final_state:bf16",
    "hgrn_bwd:b2:c130:t97:initial_state:dfinal_state",
    "mamba1_fwd:b2:c96:num_groups=2:t97:d16:D:dt_bias:z:dt_softplus:initial_state:final_state",
    "mamba1_bwd:b2:c200:num_groups=2:t97:d16:D:dt_bias:z:dt_softplus:initial_state:dfinal_state",
    "mamba1_bwd:c5:num_groups=1:cu_seqlens={0,40,40,141}:d3:f16",
    "rwkv4_fwd:b2:c70:t97:initial_state:final_state:f16",
    "rwkv4_bwd:b2:c70:t97:initial_state:dfinal_state",
    "slstm_fwd:b2:hq3:d40:t70:initial_state:initial_norm:initial_max:initial_hidden:final_hidden",
    "slstm_bwd:b2:hq2:d40:t70:initial_state:initial_norm:initial_max:initial_hidden:dfinal_state",
    "slstm_bwd:hq2:d20:cu_seqlens={0,40,40,141}:dfinal_hidden:bf16",
    "slstm_step:b3:hq2:d70:lines5:state_slots={3,0,4}",
    "short_conv_fwd:b2:c200:t97:past3:bias:silu:residual:initial_state:final_state",
    "short_conv_fwd:c21:past4:cu_seqlens={0,2,2,35,99,100}:initial_state:final_state:bf16",
    "short_conv_bwd:b2:c200:t97:past3:bias:silu:residual:initial_state:dfinal_state",
    "short_conv_bwd:c21:past4:cu_seqlens={0,2,2,35,99,100}:bias:initial_state:dfinal_state:f16",
    "short_conv_bwd:b1:c5:t70:past0:silu",
    "short_conv_bwd:b1:c5:t70:past40:initial_state:dfinal_state",
    "short_conv_step:b3:c150:past3:bias:silu:lines5:state_slots={3,0,4}",
    "log_decay_gate_fwd:b2:hq3:t40:d50:bias:A_log",
    "log_decay_gate_bwd:b2:hq3:t600:d50:bias:A_log",
    "log_decay_gate_bwd:hq150:d1:cu_seqlens={0,40,40,141}:bias:A_log:lower_bound=-5",
    "log_decay_gate_bwd:b1:hq3:t70:d50:bias:divisor=16:bf16",
    "log_decay_gate_fwd:b2:hq8:t600:d1:bias:A_log",
    "log_decay_gate_bwd:b2:hq8:t1100:d1:bias:A_log",
    "log_decay_gate_bwd:b1:hq1:t700:d1:bias:A_log",
    "log_decay_gate_bwd:b1:hq3:t700:d1:bias:A_log:lower_bound=-5",
    "log_decay_gate_bwd:b1:hq4:t700:d3:bias:A_log:bf16",
    "log_decay_gate_bwd:hq15:d1:cu_seqlens={0,40,40,641}:bias:A_log",
    "log_decay_gate_bwd:b1:hq17:t700:d1:bias:divisor=16",
    "log_decay_gate_step:b40:hq5:d1:bias:A_log",
    "gated_norm_fwd:b2:hq3:t40:d130:z:weight:f16",
    "gated_norm_bwd:b2:hq3:t600:d33:z:weight",
    "gated_norm_bwd:b1:hq2:t70:d300:z:weight:gate_first",
    "gated_norm_bwd:b1:hq2:t70:d24:z:is_sigmoid:bf16",
    "gated_norm_bwd:hq2:d24:cu_seqlens={0,40,40,141}",
    "gated_norm_bwd:b1:hq3:t40:d64:z:weight",
    "gated_norm_step:b40:hq3:d70:z:weight",
    "gated_norm_step:b40:hq3:d64:z:gate_first",
    "feature_map_fwd:b2:hq3:t40:d130:bf16",
    "feature_map_bwd:b2:hq3:t40:d130:feature_map=softmax",
    "feature_map_bwd:b2:hq3:t40:d64",
    "feature_map_bwd:b2:hq1:t300:d12",
    "feature_map_bwd:b2:hq3:t40:d50:feature_map=relu2",
    "feature_map_bwd:hq3:d50:cu_seqlens={0,40,40,141}:feature_map=relu",
};
INSTANTIATE_TEST_SUITE_P(Problems, LinearChunkProblems, testing::ValuesIn(kProblems),
                         [](const testing::TestParamInfo<const char*>& test) {
                           return std::to_string(test.index) + "_" + test_name(test.param);
                         });

/// simple_gla of packed sequences with two query heads a state: all inputs, states and gradients.
class GlaRun {
 public:
  explicit GlaRun(std::initializer_list<int> cu_seqlens, DType dtype = DType::kF32)
      : GlaRun(*(cu_seqlens.end() - 1), static_cast<int64_t>(cu_seqlens.size()) - 1, dtype) {
    cu_seqlens_ = Tensor::ints(cu_seqlens);
  }

  /// One sequence, with the inputs of rows [begin, end) of this run and states of its own.
  GlaRun part(int64_t begin, int64_t end) const {
    GlaRun other({0, static_cast<int>(end - begin)}, q.view().dtype);
    for (Tensor GlaRun::*member : {&GlaRun::q, &GlaRun::k, &GlaRun::v, &GlaRun::g, &GlaRun::dout}) {
      other.*member = copy_of((this->*member).view().sliced(0, begin, end));
    }
    return other;
  }

  void run(const std::string& implementation) {
    LinearArgs args;
    LinearTensors& in = args.inputs;
    in.q = q, in.k = k, in.v = v, in.g = g;
    args.cu_seqlens = cu_seqlens_;
    args.initial_states.state = initial;
    LinearArgs forward = args;
    for (Tensor* result : {&out, &final_state, &dq, &dk, &dv, &dg, &dinitial}) result->fill(kNan);
    forward.out = out;
    forward.final_states.state = final_state;
    Context context = one_worker();
    context.implementation = implementation;
    simple_gla_fwd(forward, context);
    LinearTensors& gradients = args.gradients;
    gradients.q = dq, gradients.k = dk, gradients.v = dv, gradients.g = dg;
    args.dout = dout;
    args.dfinal_states.state = dfinal;
    args.dinitial_states.state = dinitial;
    simple_gla_bwd(args, context);
  }

  /// Results with a row for each time.
  std::vector<std::pair<const char*, TensorView>> timed() const {
    return {{"out", out}, {"dq", dq}, {"dk", dk}, {"dv", dv}, {"dg", dg}};
  }

  Tensor q, k, v, g, dout, initial, dfinal;
  Tensor out, final_state, dq, dk, dv, dg, dinitial;

 private:
  GlaRun(int64_t num_rows, int64_t num_sequences, DType dtype)
      : q(Tensor::random(dtype, {num_rows, 2, 24}, 1)),
        k(Tensor::random(dtype, {num_rows, 1, 24}, 2)),
        v(Tensor::random(dtype, {num_rows, 1, 40}, 3)),
        g(Tensor::random(DType::kF32, {num_rows, 1}, 4)),
        dout(Tensor::random(dtype, {num_rows, 2, 40}, 5)),
        initial(Tensor::random(DType::kF32, {num_sequences, 1, 24, 40}, 6)),
        dfinal(Tensor::random(DType::kF32, {num_sequences, 1, 24, 40}, 7)),
        out(dtype, {num_rows, 2, 40}),
        final_state(DType::kF32, {num_sequences, 1, 24, 40}),
        dq(dtype, {num_rows, 2, 24}),
        dk(dtype, {num_rows, 1, 24}),
        dv(dtype, {num_rows, 1, 40}),
        dg(DType::kF32, {num_rows, 1}),
        dinitial(DType::kF32, {num_sequences, 1, 24, 40}) {
    for (int64_t t = 0; t < num_rows; ++t) g.set({t, 0}, -std::fabs(g.get({t, 0})) / 4);
  }

  Tensor cu_seqlens_;
};

TensorView sequence_of(const TensorView& states, int64_t b) { return states.sliced(0, b, b + 1); }

TEST(LinearChunks, PackedSequencesHaveTheBitsOfSeparateOnes) {
  constexpr int64_t kBegin[] = {0, 33, 33, 233};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    GlaRun packed({0, 33, 33, 233}, dtype);
    for (const std::string& implementation : all_kernels()) {
      packed.run(implementation);
      for (int64_t b = 0; b < 3; ++b) {
        GlaRun one = packed.part(kBegin[b], kBegin[b + 1]);
        one.initial = copy_of(sequence_of(packed.initial, b));
        one.dfinal = copy_of(sequence_of(packed.dfinal, b));
        one.run(implementation);
        EXPECT_TRUE(same_bits(one.final_state, sequence_of(packed.final_state, b))) << b;
        EXPECT_TRUE(same_bits(one.dinitial, sequence_of(packed.dinitial, b))) << b;
        for (size_t i = 0; i < one.timed().size(); ++i) {
          const TensorView rows = packed.timed()[i].second.sliced(0, kBegin[b], kBegin[b + 1]);
          EXPECT_TRUE(same_bits(one.timed()[i].second, rows))
              << implementation << " " << one.timed()[i].first << " of sequence " << b;
        }
      }
    }
  }
}

TEST(LinearChunks, TwoPartsWithACarriedStateAreTheWhole) {
  constexpr int64_t kSplit = 101, kEnd = 230;
  GlaRun whole({0, kEnd});
  for (const std::string& implementation : all_kernels()) {
    whole.run(implementation);
    GlaRun first = whole.part(0, kSplit), second = whole.part(kSplit, kEnd);
    first.run(implementation);
    second.initial = first.final_state;
    second.run(implementation);
    first.dfinal = second.dinitial;
    first.run(implementation);
    // States are float32 either way; numbers are about 100 at most.
    EXPECT_LT(max_difference(second.final_state, whole.final_state), 1e-4) << implementation;
    EXPECT_LT(max_difference(first.dinitial, whole.dinitial), 1e-4) << implementation;
    for (size_t i = 0; i < whole.timed().size(); ++i) {
      const auto [name, rows] = whole.timed()[i];
      EXPECT_LT(max_difference(first.timed()[i].second, rows.sliced(0, 0, kSplit)), 1e-3) << name;
      EXPECT_LT(max_difference(second.timed()[i].second, rows.sliced(0, kSplit, kEnd)), 1e-3)
          << name;
    }
  }
}

/// 0 times NaN is NaN: rows that do not see it may not be multiplied by it at all.
TEST(LinearChunks, NanReachesWhatSeesItAlone) {
  constexpr int64_t kNanRow = 70, kResetRow = 90, kEnd = 140;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (Tensor GlaRun::*poisoned : {&GlaRun::v, &GlaRun::dout}) {
      GlaRun clean({0, kEnd}, dtype), run({0, kEnd}, dtype);
      for (GlaRun* each : {&clean, &run}) each->g.set({kResetRow, 0}, -kInf);
      (run.*poisoned).set({kNanRow, 0, 3}, kNan);
      const bool is_value = poisoned == &GlaRun::v;
      for (const std::string& implementation : all_kernels()) {
        clean.run(implementation);
        run.run(implementation);
        const auto expect_near = [&](const char* name, const TensorView& a, const TensorView& b,
                                     int64_t begin, int64_t end) {
          EXPECT_LT(max_difference(a.sliced(0, begin, end), b.sliced(0, begin, end)),
                    dtype == DType::kF32 ? 1e-3 : 1)
              << implementation << " " << name << " of rows " << begin << " to " << end;
        };
        for (size_t i = 0; i < clean.timed().size(); ++i) {
          const auto [name, expected] = clean.timed()[i];
          // Behind the reset nothing is left of it; the output before it has not met it.
          expect_near(name, run.timed()[i].second, expected, kResetRow, kEnd);
          if (name == std::string("out") && is_value) {
            expect_near(name, run.out, expected, 0, kNanRow);
          }
        }
        EXPECT_EQ(run.dg.get({kResetRow, 0}), 0) << implementation;
        EXPECT_EQ(std::isnan(run.out.get({kNanRow + 1, 0, 3})), is_value) << implementation;
        EXPECT_TRUE(std::isnan(run.dq.get({kNanRow, 0, 0}))) << implementation;
        EXPECT_LT(max_difference(run.final_state, clean.final_state), 1e-3) << implementation;
      }
    }
  }
}

}  // namespace
}  // namespace flashtile::test
