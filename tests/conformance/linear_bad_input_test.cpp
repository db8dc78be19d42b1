// SPDX-License-Identifier: Apache-2.0
//
// What is wrong with a call of linear attention is one Error that says so, and nothing is written.
#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "flashtile/linear.hpp"
#include "op_runs.hpp"
#include "support/linear_problems.hpp"
#include "support/tensor.hpp"

namespace flashtile::test {
namespace {

/// The error of a problem text with random inputs, after `change`; empty when it runs.
std::string error_of(const std::string& text, const std::function<void(OpCall&)>& change) {
  cli::OwnedCall owned = cli::random_call(parse_problem(text), 1);
  try {
    change(owned.call);
    owned.call.run({});
  } catch (const Error& error) {
    for (const std::string& name : owned.call.tensor_names()) {
      if (owned.call.spec().find_tensor(name)->direction != Direction::kOut) continue;
      for (const double x : cli::to_numbers(owned.call.tensor(name))) {
        EXPECT_TRUE(std::isnan(x)) << name << " was written before: " << error.what();
      }
    }
    return error.what();
  }
  return "";
}

struct BadCall {
  const char* problem;
  std::function<void(OpCall&)> change;
  const char* error;
};

/// Tensors that a change needs live until the end of the test.
const TensorView& kept(const Tensor& tensor) {
  static std::vector<Tensor> tensors;
  tensors.push_back(tensor);
  return tensors.back().view();
}

auto cut(const char* name, int dim, int64_t end) {
  return [=](OpCall& call) { call.set_tensor(name, call.tensor(name).sliced(dim, 0, end)); };
}

auto without(const char* name) {
  return [=](OpCall& call) { call.set_tensor(name, {}); };
}

auto nothing() {
  return [](OpCall&) {};
}

TEST(LinearBadInput, IsOneClearError) {
  const BadCall calls[] = {
      {"gla_fwd:b2:hq2:t5:d4", without("g"), "gla_fwd: g is missing"},
      {"gla_fwd:b2:hq2:t5:d4", without("out"), "gla_fwd: out is missing"},
      {"gla_bwd:b2:hq2:t5:d4", without("dout"), "gla_bwd: dout is missing"},
      {"gla_fwd:b2:hq2:t5:d4", cut("g", 3, 3), "gla_fwd: head_dim of g is 3, of q 4"},
      {"gla_fwd:b2:hq2:t5:d4", cut("k", 1, 4), "gla_fwd: seqlen of k is 4, of q 5"},
      {"gla_fwd:b2:hq2:t5:d4:initial_state", cut("initial_state", 3, 2),
       "gla_fwd: head_dim_v of initial_state is 2, of v 4"},
      {"gla_bwd:b2:hq2:t5:d4", cut("dg", 1, 4),
       "gla_bwd: shape of dg is (2, 4, 2, 4), expected that of g (2, 5, 2, 4)"},
      {"gla_fwd:b2:hq4:hkv3:t5:d4", nothing(),
       "gla_fwd: num_heads is 4, expected a multiple of num_heads_kv (3)"},
      {"kda_fwd:b2:hq4:hv6:t5:d4", nothing(),
       "kda_fwd: num_heads_v is 6, expected a multiple of num_heads (4)"},
      {"mamba1_fwd:b2:c4:num_groups=3:t5:d4", nothing(),
       "mamba1_fwd: num_channels is 4, expected a multiple of num_groups (3)"},
      {"simple_gla_fwd:b2:hq2:t5:d1025", nothing(),
       "simple_gla_fwd: head_dim is 1025, expected 1 to 1024"},
      {"gsa_fwd:b2:hq2:t5:d4:m0", nothing(), "gsa_fwd: num_slots is 0, expected 1 to 1024"},
      {"gla_fwd:hq2:d4:cu_seqlens={0,3,2,5}", nothing(),
       "gla_fwd: cu_seqlens[2] is 2, less than 3 before it"},
      {"gla_fwd:hq2:d4:cu_seqlens={1,3,5}", nothing(), "gla_fwd: cu_seqlens[0] is 1, expected 0"},
      {"gla_fwd:hq2:d4:total=6:cu_seqlens={0,3,5}", nothing(),
       "gla_fwd: cu_seqlens ends at 5, expected the 6 packed rows"},
      {"mlstm_sig_fwd:hq2:t3:d4:initial_norm", nothing(),
       "mlstm_sig_fwd: initial_norm is given without normalize"},
      {"lightning_fwd:hq2:t3:d4:layer=2:layers=2", nothing(),
       "lightning_fwd: layer is 2, expected less than layers, 2"},
      {"gla_step:b2:hq2:d4:lines3:state_slots={2,3}", nothing(),
       "gla_step: state_slots[1] is 3, the states have 3 lines"},
      {"gla_step:b3:hq2:d4:lines3:state_slots={2,0,2}", nothing(),
       "gla_step: state_slots[2] is 2, and so is state_slots[0]"},
      {"feature_map_fwd:hq2:t3:d4:feature_map=cosine", nothing(),
       "feature_map_fwd: feature_map is 'cosine', expected elu, relu, relu2 or softmax"},
      {"gla_step:b2:hq2:d4", without("state"), "gla_step: state is missing"},
      {"mlstm_sig_step:b2:hq2:d4:normalize", nothing(), "mlstm_sig_step: norm is missing"},
      {"mamba2_fwd:hq2:t3:d4:dt_min=2:dt_max=1", nothing(),
       "mamba2_fwd: dt_min is 2, more than dt_max, 1"},
      {"gla_fwd:b2:hq2:t5:d4",
       [](OpCall& call) {
         call.set_tensor("k", kept(Tensor(DType::kBF16, {2, 5, 2, 4})));
       },
       "gla_fwd: dtype of k is bf16, expected that of q (f32)"},
      {"gla_fwd:b2:hq2:t5:d4:initial_state",
       [](OpCall& call) {
         call.set_tensor("initial_state", kept(Tensor(DType::kF16, {2, 2, 4, 4})));
       },
       "gla_fwd: dtype of initial_state is f16, expected f32 or f64"},
      {"gla_bwd:b2:hq2:t5:d4", [](OpCall& call) { call.set_tensor("dk", call.tensor("dv")); },
       "gla_bwd: output dk shares memory with dv"},
  };
  for (const BadCall& bad : calls) {
    EXPECT_TRUE(error_of(bad.problem, bad.change).starts_with(bad.error))
        << bad.problem << ": " << error_of(bad.problem, bad.change);
  }
}

std::string error_of_call(void (*op)(const LinearArgs&, const Context&), const LinearArgs& args) {
  try {
    op(args, {});
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A call like one before is not checked against the table again, but for what its tensors hold.
TEST(LinearBadInput, DataOfARepeatedCallIsLookedAt) {
  const cli::OwnedCall step = linear_call("gla_step:b2:hq2:d4:lines3:state_slots={2,0}");
  const cli::OwnedCall packed = linear_call("gla_fwd:cu_seqlens={0,3,7}:hq2:d4");
  step.call.run({});
  packed.call.run({});
  set(step.call.tensor("state_slots"), {1}, 2);
  set(packed.call.tensor("cu_seqlens"), {1}, 8);
  EXPECT_THROW(step.call.run({}), Error);
  EXPECT_THROW(packed.call.run({}), Error);
  // Another longest sequence: another plan.
  set(packed.call.tensor("cu_seqlens"), {1}, 1);
  packed.call.run({});
  const cli::OwnedCall fresh = linear_call("gla_fwd:cu_seqlens={0,1,7}:hq2:d4");
  fresh.call.run({});
  EXPECT_TRUE(same_bits(packed.call.tensor("out"), fresh.call.tensor("out")));
}

TEST(LinearBadInput, ArgumentsOfOtherOpsAreRefused) {
  const Tensor x = Tensor::random(DType::kF32, {2, 5, 2, 4}, 1);
  const Tensor gate = Tensor::random(DType::kF32, {2, 5, 2}, 2);
  const Tensor out(DType::kF32, {2, 5, 2, 4});
  LinearArgs args;
  args.inputs.q = args.inputs.k = args.inputs.v = x;
  args.out = out;
  EXPECT_EQ(error_of_call(retention_fwd, args), "");
  args.inputs.f = gate;
  EXPECT_EQ(error_of_call(retention_fwd, args),
            "retention_fwd: there is no tensor 'f', which mlstm_exp_fwd has");
  args.inputs.f = {};
  args.normalize = true;
  EXPECT_EQ(error_of_call(retention_fwd, args),
            "retention_fwd: there is no option 'normalize', which linear_attention_fwd has");
  args.normalize = false;
  args.dout = x;
  EXPECT_EQ(error_of_call(retention_fwd, args),
            "retention_fwd: there is no tensor 'dout', which linear_attention_bwd has");
}

}  // namespace
}  // namespace flashtile::test
