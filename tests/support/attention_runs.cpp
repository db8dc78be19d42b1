// SPDX-License-Identifier: Apache-2.0
#include "support/attention_runs.hpp"

#include <gtest/gtest.h>

#include "flashtile/error.hpp"
#include "op_runs.hpp"
#include "ops/attention/args.hpp"
#include "ops/attention/implementations.hpp"

namespace flashtile::test {
namespace {

/// The shape of q with another last dimension.
std::vector<int64_t> out_shape(const Inputs& inputs) {
  std::vector<int64_t> shape = cli::shape_of(inputs.q);
  const TensorView& v = inputs.v;
  shape.back() = v.shape[static_cast<size_t>(v.ndim - 1)];
  return shape;
}

std::vector<int64_t> lse_shape(const Inputs& inputs) {
  const TensorView& q = inputs.q;
  if (q.ndim == 3) return {q.shape[1], q.shape[0]};
  return {q.shape[0], q.shape[2], q.shape[1]};
}

Tensor like(const TensorView& view) {
  return view ? Tensor(view.dtype, cli::shape_of(view)) : Tensor();
}

Results make_results(const Inputs& inputs) {
  const bool is_double = inputs.q.view().dtype == DType::kF64;
  Results results;
  results.out = Tensor(inputs.q.view().dtype, out_shape(inputs));
  results.lse = Tensor(is_double ? DType::kF64 : DType::kF32, lse_shape(inputs));
  if (!inputs.dout) return results;
  results.dq = like(inputs.q);
  results.dk = like(inputs.k);
  results.dv = like(inputs.v);
  results.dbias = like(inputs.options.bias);
  results.dalibi_slopes = like(inputs.options.alibi_slopes);
  results.dsink = like(inputs.options.sink);
  for (const AuxTensor& aux : inputs.options.aux) {
    if (aux.tensor.dtype == DType::kF32) results.daux[aux.name] = like(aux.tensor);
  }
  return results;
}

/// The options with places for gradients.
AttentionOptions with_gradients(const Inputs& inputs, const Results& results) {
  AttentionOptions options = inputs.options;
  options.dbias = results.dbias;
  options.dalibi_slopes = results.dalibi_slopes;
  options.dsink = results.dsink;
  for (AuxTensor& aux : options.aux) {
    const auto found = results.daux.find(aux.name);
    if (found != results.daux.end()) aux.gradient = found->second;
  }
  return options;
}

OpCall op_call(const Inputs& inputs, const Results& results, bool is_backward) {
  OpCall call(is_backward ? attention_bwd_spec() : attention_fwd_spec());
  auto& args = *static_cast<AttentionArgs*>(call.args());
  static_cast<AttentionOptions&>(args) =
      is_backward ? with_gradients(inputs, results) : inputs.options;
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.out = results.out;
  args.lse = results.lse;
  if (!is_backward) return call;
  args.dout = inputs.dout;
  args.dq = results.dq;
  args.dk = results.dk;
  args.dv = results.dv;
  return call;
}

}  // namespace

Context one_worker() {
  Context context;
  context.max_workers = 1;
  return context;
}

std::vector<std::string> all_implementations() {
  std::vector<std::string> names;
  for (const std::string& name : attention_implementation_names(/*is_backward=*/false)) {
    names.emplace_back(cli::implementation_suffix(attention_fwd_spec(), name));
  }
  return names;
}

std::vector<std::string> all_kernels() {
  std::vector<std::string> names = all_implementations();
  names.pop_back();
  return names;
}

std::map<std::string, Tensor> Results::by_name() const {
  std::map<std::string, Tensor> all = {
      {"out", out}, {"lse", lse},     {"dq", dq},       {"dk", dk},
      {"dv", dv},   {"dbias", dbias}, {"dsink", dsink}, {"dalibi_slopes", dalibi_slopes}};
  for (const auto& [name, tensor] : daux) all["daux." + name] = tensor;
  std::erase_if(all, [](const auto& entry) { return !entry.second; });
  return all;
}

Results run(const Inputs& inputs, const std::string& implementation, const Context& context) {
  Context forced = context;
  forced.implementation = implementation;
  const Results results = make_results(inputs);
  attention_fwd(inputs.q, inputs.k, inputs.v, results.out, results.lse, inputs.options, forced);
  if (!inputs.dout) return results;
  attention_bwd(inputs.dout, inputs.q, inputs.k, inputs.v, results.out, results.lse, results.dq,
                results.dk, results.dv, with_gradients(inputs, results), forced);
  return results;
}

std::string differing(const Results& a, const Results& b) {
  std::string names;
  const std::map<std::string, Tensor> in_b = b.by_name();
  for (const auto& [name, tensor] : a.by_name()) {
    const auto other = in_b.find(name);
    if (other != in_b.end() && same_bits(tensor, other->second)) continue;
    names += (names.empty() ? "" : ", ") + name;
    if (other != in_b.end()) {
      names += " by " + std::to_string(max_difference(tensor, other->second));
    }
  }
  return names;
}

Truth::Truth(const Inputs& inputs) {
  const Results results = make_results(inputs);
  forward_ = cli::reference_expectations(op_call(inputs, results, /*is_backward=*/false), {},
                                         &disagreement_);
  if (!inputs.dout) return;
  const OpCall backward = op_call(inputs, results, /*is_backward=*/true);
  cli::run_forward_of(backward, "reference", one_worker());
  backward_ = cli::reference_expectations(backward, one_worker(), &disagreement_);
}

const cli::Expectation* Truth::find(std::string_view name) const {
  for (const auto* list : {&forward_, &backward_}) {
    for (const cli::Expectation& e : *list) {
      if (e.name == name) return &e;
    }
  }
  return nullptr;
}

const std::vector<double>& Truth::values(std::string_view name) const {
  const cli::Expectation* found = find(name);
  if (found == nullptr) throw Error(ErrorCode::kInternal, "no result " + std::string(name));
  return found->values;
}

std::string Truth::fault_of(const Results& results) const {
  std::string text = disagreement_;
  OpCall forward(attention_fwd_spec());
  OpCall backward(attention_bwd_spec());
  const std::map<std::string, Tensor> all = results.by_name();
  for (const auto& [name, tensor] : all) {
    const bool is_forward = name == "out" || name == "lse";
    (is_forward ? forward : backward).set_tensor(name, tensor);
  }
  for (const auto& [call, list] :
       {std::pair{&forward, &forward_}, std::pair{&backward, &backward_}}) {
    std::vector<cli::Expectation> expected = *list;
    std::erase_if(expected, [&](const auto& e) { return all.find(e.name) == all.end(); });
    const std::string fault = cli::fault_text(cli::judge(*call, expected, cli::NanRule::kRefused));
    if (!fault.empty()) text += (text.empty() ? "" : "; ") + fault;
  }
  return text;
}

std::vector<std::string> visible_keys(int64_t seqlen_q, int64_t seqlen_k,
                                      const AttentionOptions& options,
                                      const std::string& implementation) {
  const Tensor q = Tensor::filled(DType::kF32, {1, seqlen_q, 1, 4}, 0);
  const Tensor k = Tensor::random(DType::kF32, {1, seqlen_k, 1, 4}, 1);
  const Tensor v = Tensor::filled(DType::kF32, {1, seqlen_k, 1, seqlen_k}, 0);
  for (int64_t j = 0; j < seqlen_k; ++j) v.set({0, j, 0, j}, 1);
  const Results results = run({q, k, v, {}, options}, implementation);
  std::vector<std::string> rows;
  for (int64_t i = 0; i < seqlen_q; ++i) {
    std::string row;
    for (int64_t j = 0; j < seqlen_k; ++j) {
      row += results.out.get({0, i, 0, j}) == 0 ? '0' : '1';
    }
    rows.push_back(row);
  }
  return rows;
}

void expect_all_conform(const Inputs& inputs) {
  const Truth truth(inputs);
  for (const std::string& implementation : all_implementations()) {
    try {
      EXPECT_EQ(truth.fault_of(run(inputs, implementation)), "") << implementation;
    } catch (const Error& error) {
      ADD_FAILURE() << implementation << ": " << error.what();
    }
  }
}

}  // namespace flashtile::test
