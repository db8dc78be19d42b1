// SPDX-License-Identifier: Apache-2.0
//
// Any text: the parser refuses it with an Error, or everything made from it agrees with itself. The
// first byte chooses between a score and a mask.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#define FLASHTILE_ISA fuzz
#include "cpu/kernels/strip.hpp"
#include "flashtile/error.hpp"
#include "variant/expr/affine.hpp"
#include "variant/expr/bounds.hpp"
#include "variant/expr/derivative.hpp"
#include "variant/expr/evaluate.hpp"
#include "variant/expr/parse.hpp"
#include "variant/expr/print.hpp"
#include "variant/expr/program.hpp"
#include "variant/expr/substitute.hpp"

namespace flashtile::variant {
namespace {

constexpr int64_t kLength = 5;

void require(bool holds) {
  if (!holds) std::abort();
}

struct Tensors {
  std::vector<float> f = {0.5f, -1, 2, 0, 3};
  std::vector<int32_t> n = {0, 1, 1, 4, -2};
  std::vector<AuxSignature> signatures = {{"f", 1, true}, {"g", 2, true}, {"n", 1, false}};

  TensorView view(const AuxSignature& aux) const {
    if (aux.name == "n") return TensorView(n.data(), DType::kI32, {5});
    if (aux.name == "f") return TensorView(f.data(), DType::kF32, {5});
    return TensorView(f.data(), DType::kF32, {2, 2});
  }
  std::vector<TensorView> views(const Expr& expr) const {
    std::vector<TensorView> out;
    for (const AuxSignature& aux : expr.aux) out.push_back(view(aux));
    return out;
  }
};

Variables variables(int64_t q_idx, int64_t k_idx) {
  Variables at;
  at.score = 0.75 * static_cast<double>(q_idx) - 1.25 * static_cast<double>(k_idx);
  at.batch = 1;
  at.head = 3;
  at.head_kv = 1;
  at.q_idx = q_idx;
  at.k_idx = k_idx;
  at.seqlen_q = kLength;
  at.seqlen_k = kLength;
  return at;
}

Expr parse(const std::string& text, bool is_score, const Tensors& tensors) {
  return is_score ? parse_score(text, tensors.signatures) : parse_mask(text, tensors.signatures);
}

void check_print(const Expr& expr, bool is_score, const Tensors& tensors) {
  try {
    require(parse(print(expr), is_score, tensors) == expr);
  } catch (const Error& error) {
    // The text of a shared subtree is repeated, which may lead beyond the limits.
    const std::string what = error.what();
    require(what.find("longer than") != std::string::npos ||
            what.find("deeper than") != std::string::npos ||
            what.find("too large") != std::string::npos);
  }
}

void check_bounds(const Expr& mask, const Tensors& tensors) {
  const std::vector<double> params(mask.params.size(), 0.3);
  Evaluator evaluator(mask, tensors.views(mask), params);
  Bounds bounds(mask, tensors.views(mask), params);
  for (int64_t q = 0; q < kLength; q += 2) {
    for (int64_t k = 0; k < kLength; k += 3) {
      int64_t kept = 0, pairs = 0;
      for (int64_t i = q; i < std::min(q + 2, kLength); ++i) {
        for (int64_t j = k; j < std::min(k + 3, kLength); ++j, ++pairs) {
          kept += evaluator.truth(variables(i, j));
        }
      }
      const Truth truth =
          bounds.over(variables(0, 0), q, std::min(q + 2, kLength), k, std::min(k + 3, kLength));
      if (evaluator.index_error() != nullptr) return;  // then the mask has no meaning
      require(truth != Truth::kFalse || kept == 0);
      require(truth != Truth::kTrue || kept == pairs);
    }
  }
}

// Runs all roots as strips; masks of integers have to agree with the evaluator.
void check_strips(const std::vector<Expr>& roots, const Tensors& tensors) {
  namespace strips = cpu::FLASHTILE_ISA;
  const Program program = compile(roots);
  const StripProgram view = program.view();
  std::vector<StripAux> aux;
  for (const AuxSignature& each : program.aux) aux.push_back(strip_aux(tensors.view(each)));
  const std::vector<float> params(program.params.size(), 0.3f);
  StripInputs inputs;
  inputs.batch = 1;
  inputs.head = 3;
  inputs.head_kv = 1;
  inputs.seqlen_q = inputs.seqlen_k = kLength;
  inputs.aux = aux.data();
  inputs.params = params.data();
  const auto bytes = static_cast<size_t>((strips::strip_bytes(view) + 127) / 64 * 64);
  const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, bytes),
                                                           std::free);
  strips::StripMachine machine;
  strips::strip_open(machine, view, memory.get());
  strips::strip_tile(machine, inputs);
  strips::strip_columns(machine, 0, kLength);
  bool is_exact = roots.size() == 1 && roots[0].nodes.back().type == Type::kBool;
  for (const Node& node : roots[0].nodes) is_exact = is_exact && node.type != Type::kFloat;
  Evaluator evaluator(roots[0], tensors.views(roots[0]),
                      std::vector<double>(roots[0].params.size(), 0.3));
  for (int64_t q = 0; q < kLength; ++q) {
    float score[strips::kStrip] = {};
    for (int64_t k = 0; k < kLength; ++k) score[k] = static_cast<float>(variables(q, k).score);
    strips::strip_row(machine, q);
    strips::strip_run(machine, score);
    for (int64_t k = 0; k < kLength && is_exact; ++k) {
      const bool kept = evaluator.truth(variables(q, k));
      const bool is_valid = evaluator.index_error() == nullptr;
      if (is_valid) require(kept == (strips::strip_bools(machine, 0)[k] != 0));
    }
    if (is_exact) require((evaluator.index_error() == nullptr) == (machine.error == 0));
  }
}

void check(const std::string& text, bool is_score) {
  static const Tensors tensors;
  const Expr expr = parse(text, is_score, tensors);
  require(simplify(expr) == expr);
  check_print(expr, is_score, tensors);
  if (expr.nodes.size() > 300) return;  // what follows is meant for more, but not a million times
  std::vector<Expr> roots = {expr};
  if (is_score) {
    roots.push_back(derivative_score(expr));
    for (LoadSite& site : load_gradients(expr)) {
      roots.push_back(std::move(site.active));
      roots.push_back(std::move(site.derivative));
      for (Expr& index : site.index) roots.push_back(std::move(index));
    }
    check_bounds(compose(parse_score("score > 0", {}), expr), tensors);
  } else {
    for (const Expr& part : conjuncts(expr)) match_band(part);
    check_bounds(expr, tensors);
  }
  check_strips(roots, tensors);
}

}  // namespace
}  // namespace flashtile::variant

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    flashtile::variant::check(text, data[0] % 2 == 0);
  } catch (const flashtile::Error&) {
    // Refusing is fine; anything else that is thrown is a finding.
  }
  return 0;
}
