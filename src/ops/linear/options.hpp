// SPDX-License-Identifier: Apache-2.0
//
// Rows of the option tables.
#pragma once

#include "ops/linear/op.hpp"

namespace flashtile {

inline constexpr double kLinearMaxFloat = 1.7976931348623157e308;
inline constexpr double kLinearInfinity = std::numeric_limits<double>::infinity();

template <auto Member>
constexpr OptionSpec linear_option(std::string_view name, std::string_view default_text,
                                   double min_value, double max_value, std::string_view doc) {
  using Field = std::remove_cvref_t<decltype(std::declval<LinearArgs&>().*Member)>;
  return {name,
          option_type<Field>(),
          default_text,
          min_value,
          max_value,
          doc,
          option_get<LinearArgs, Member>,
          option_set<LinearArgs, Member>,
          nullptr};
}

inline constexpr OptionSpec kScaleOption = linear_option<&LinearArgs::scale>(
    "scale", "1/sqrt(head_dim)", -kLinearMaxFloat, kLinearMaxFloat, "multiplies q");
inline constexpr OptionSpec kNormalizeOption = linear_option<&LinearArgs::normalize>(
    "normalize", "false", 0, 1, "divides by what q reads of the sum of keys");
inline constexpr OptionSpec kUnitScaleOption = linear_option<&LinearArgs::scale>(
    "scale", "1", -kLinearMaxFloat, kLinearMaxFloat, "multiplies r");
inline constexpr OptionSpec kL2NormOption = linear_option<&LinearArgs::qk_l2norm>(
    "qk_l2norm", "false", 0, 1, "q and k are divided by sqrt(sum of squares + 1e-6)");
inline constexpr OptionSpec kLayerOption =
    linear_option<&LinearArgs::layer>("layer", "0", 0, 1e9, "the layer's number, from 0");
inline constexpr OptionSpec kLayersOption =
    linear_option<&LinearArgs::layers>("layers", "1", 1, 1e9, "layers of the model");
inline constexpr OptionSpec kDtSoftplusOption = linear_option<&LinearArgs::dt_softplus>(
    "dt_softplus", "false", 0, 1, "dt + dt_bias goes through softplus");
inline constexpr OptionSpec kDtMinOption = linear_option<&LinearArgs::dt_min>(
    "dt_min", "none", -kLinearInfinity, kLinearInfinity, "step sizes below become this");
inline constexpr OptionSpec kDtMaxOption = linear_option<&LinearArgs::dt_max>(
    "dt_max", "none", -kLinearInfinity, kLinearInfinity, "step sizes above become this");

}  // namespace flashtile
