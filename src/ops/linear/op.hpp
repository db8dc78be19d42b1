// SPDX-License-Identifier: Apache-2.0
//
// An op of linear attention as an entry: which rows its table has, and how they map onto the
// computation of its family. table.hpp makes the operator tables from it.
#pragma once

#include <span>
#include <string_view>

#include "core/op_spec.hpp"
#include "core/registry.hpp"
#include "flashtile/linear.hpp"

namespace flashtile {

struct LinearProblem;
struct LinearPlan;
using LinearImplementation = Implementation<LinearProblem, LinearPlan, LinearArgs>;

/// One family is one recurrence, with one reference and one set of kernels.
enum class LinearFamily : uint8_t {
  kReferenceOnly,  ///< a recurrence that no kernel knows: the op's reference runs
  kScalarDecay,    ///< S = exp(a) S + w k v', a number for a head (src/ops/scalar_decay)
  kVectorDecay,    ///< S = Diag(exp(g)) S + k v' (src/ops/vector_decay)
  kSlots,          ///< two of those with a softmax between them (src/ops/vector_decay)
  kDelta,          ///< what k or a reads of the state is written back (src/ops/delta)
  // Element by element (src/ops/scan).
  kHgrn,
  kMamba1,
  kRwkv4,
  kSlstm,
  // What layers have around these (src/ops/layer_parts).
  kShortConv,
  kLogDecayGate,
  kGatedNorm,
  kFeatureMap,
};

/// The ops NAME_fwd, NAME_bwd and NAME_step.
enum class LinearPass : uint8_t { kForward, kBackward, kStep };

/// Where log decay and input weight come from.
enum class LinearGate : uint8_t {
  kNone,            ///< no decay
  kRetention,       ///< log(1 - 2^(-5-h))
  kLightning,       ///< -(8/H) (1 - layer/layers) h
  kLogDecay,        ///< g + g_gamma, a number for a head
  kVectorLogDecay,  ///< g, a number for a key dimension
  kStep,            ///< mamba: d A with d of dt, which is the input weight too
  kSigmoid,         ///< logsigmoid(f), sigmoid(i)
  kExponential,     ///< logsigmoid(f) and exp(i), both relative to a running maximum
};

/// How a row changes the decayed state R.
enum class LinearUpdate : uint8_t {
  kAdd,      ///< R + k v'
  kDelta,    ///< R + k (beta (v - R' k))'
  kLowRank,  ///< R + b (S' a)' + k v' with S before the decay
};

/// What the output is divided by, with d = (scale q).n.
enum class LinearNormalizer : uint8_t {
  kNone,
  kSum,           ///< d + 1e-10
  kAtLeastOne,    ///< max(|d|, 1) + 1e-6
  kAtLeastFloor,  ///< max(|d|, exp(-m)) + 1e-6
};

using TensorAccess = TensorView* (*)(void* args, std::string_view suffix, bool create);

/// One input: a row of each table, and with it that of its gradient.
struct LinearInput {
  std::string_view name;  ///< "d" and it is the gradient's
  bool is_timed = true;   ///< batch and seqlen, or total, come before `shape`
  bool required = true;
  std::string_view shape;
  std::string_view dtypes;
  std::string_view doc;
  TensorAccess access = nullptr;
  TensorAccess access_gradient = nullptr;  ///< null: there is no gradient
  Fill fill = Fill::kNormal;

 private:
  // Before its first use, as clang wants it in constant expressions.
  template <class Change>
  constexpr LinearInput changed(const Change& change) const {
    LinearInput copy = *this;
    change(copy);
    return copy;
  }

 public:
  constexpr LinearInput filled(Fill how) const {
    return changed([&](auto& row) { row.fill = how; });
  }
  constexpr LinearInput optional() const {
    return changed([](auto& row) { row.required = false; });
  }
  /// The same at all times.
  constexpr LinearInput untimed() const {
    return changed([](auto& row) { row.is_timed = false; });
  }
  constexpr LinearInput without_gradient() const {
    return changed([](auto& row) { row.access_gradient = nullptr; });
  }
};

template <auto Group, auto Member>
TensorView* access_member(void* args, std::string_view, bool) {
  return &((static_cast<LinearArgs*>(args)->*Group).*Member);
}

/// A required input that runs over time and has a gradient.
template <auto Member>
constexpr LinearInput linear_input(std::string_view name, std::string_view shape,
                                   std::string_view dtypes, std::string_view doc) {
  LinearInput input;
  input.name = name;
  input.shape = shape;
  input.dtypes = dtypes;
  input.doc = doc;
  input.access = access_member<&LinearArgs::inputs, Member>;
  input.access_gradient = access_member<&LinearArgs::gradients, Member>;
  return input;
}

/// One state: the rows initial_NAME and final_NAME, and their gradients; of a step the row NAME.
struct LinearState {
  std::string_view name;
  std::string_view shape;  ///< behind the sequences
  std::string_view doc;
  TensorAccess access_initial = nullptr;
  TensorAccess access_final = nullptr;
  TensorAccess access_in_place = nullptr;
  TensorAccess access_dinitial = nullptr;  ///< null, like the next one, where there is no gradient
  TensorAccess access_dfinal = nullptr;
  Fill fill = Fill::kNormal;

  constexpr LinearState filled(Fill how) const {
    LinearState copy = *this;
    copy.fill = how;
    return copy;
  }

  constexpr LinearState without_gradient() const {
    LinearState copy = *this;
    copy.access_dinitial = copy.access_dfinal = nullptr;
    return copy;
  }
};

template <auto Member>
constexpr LinearState linear_state(std::string_view name, std::string_view shape,
                                   std::string_view doc) {
  return {name,
          shape,
          doc,
          access_member<&LinearArgs::initial_states, Member>,
          access_member<&LinearArgs::final_states, Member>,
          access_member<&LinearArgs::states, Member>,
          access_member<&LinearArgs::dinitial_states, Member>,
          access_member<&LinearArgs::dfinal_states, Member>};
}

struct LinearOp {
  std::string_view name;  ///< without _fwd, _bwd and _step
  std::string_view doc;
  LinearFamily family = LinearFamily::kReferenceOnly;
  /// Double precision, recurrent, plain loops: what the op means. Not asked for a step.
  LinearImplementation (*reference)(LinearPass pass) = nullptr;
  LinearGate gate = LinearGate::kNone;
  LinearUpdate update = LinearUpdate::kAdd;
  LinearNormalizer normalizer = LinearNormalizer::kNone;  ///< with option `normalize`, or always
  bool is_always_normalized = false;
  bool reads_before = false;  ///< o_t reads the state before row t
  /// The scale where none is given: 1, or else 1/sqrt(head_dim).
  bool has_unit_scale = false;
  std::span<const LinearInput> inputs;  ///< the first one's dtype is that of the call
  std::span<const LinearState> states;
  std::string_view out_shape;  ///< behind batch and seqlen, or total
  std::span<const OptionSpec> options = {};
};

/// "simple_gla_fwd".
std::string_view linear_op_name(const LinearOp& op, LinearPass pass);

}  // namespace flashtile
