// SPDX-License-Identifier: Apache-2.0
#include "core/op_spec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <thread>

#include "flashtile/error.hpp"
#include "support/error_of.hpp"
#include "toy_op.hpp"

namespace flashtile {
namespace {

using test::error_of;

const OpSpec& toy_spec() { return toy::scale_rows_spec(); }
const toy::ScaleRowsArgs& args_of(const OpCall& call) {
  return *static_cast<const toy::ScaleRowsArgs*>(call.args());
}

TEST(OpSpec, BuiltInTablesHaveNoFault) {
  ASSERT_FALSE(built_in_ops().empty());
  for (const OpSpec* spec : built_in_ops()) EXPECT_EQ(spec_fault(*spec), "") << spec->name;
  EXPECT_EQ(spec_fault(toy_spec()), "");
}

TEST(OpSpec, RowsAreFoundByName) {
  EXPECT_EQ(toy_spec().find_tensor("x")->doc, "values");
  EXPECT_EQ(toy_spec().find_tensor("table.any")->name, "table.*");
  EXPECT_EQ(toy_spec().find_tensor("table."), nullptr);
  EXPECT_EQ(toy_spec().find_tensor("tables"), nullptr);
  EXPECT_EQ(toy_spec().find_tensor("z"), nullptr);
  EXPECT_EQ(toy_spec().find_option("extra.e")->name, "extra.*");
  EXPECT_EQ(toy_spec().find_option("x"), nullptr);
  EXPECT_EQ(toy_spec().find_dim("num_cols")->code, "c");
  EXPECT_EQ(toy_spec().find_dim("c"), nullptr);
  EXPECT_EQ(family_suffix("table.*", "table.a"), "a");
  EXPECT_EQ(family_suffix("x", "x"), "");
}

TEST(OpCall, TensorsAreSetAndReadByName) {
  OpCall call(toy_spec());
  float memory[6] = {};
  call.set_tensor("x", TensorView(memory, DType::kF32, {1, 2, 3}));
  call.set_tensor("table.b", TensorView(memory, DType::kF32, {6}));
  EXPECT_EQ(args_of(call).x.data, memory);
  EXPECT_EQ(call.tensor("table.b").ndim, 1);
  EXPECT_FALSE(call.tensor("y"));
  EXPECT_FALSE(call.tensor("table.other"));
  EXPECT_EQ(call.tensor_names(), (std::vector<std::string>{"x", "table.b"}));
  call.set_tensor("x", TensorView());
  EXPECT_EQ(call.tensor_names(), (std::vector<std::string>{"table.b"}));
}

TEST(OpCall, UnknownNamesListTheKnownOnes) {
  OpCall call(toy_spec());
  EXPECT_EQ(error_of([&] { call.set_tensor("z", TensorView()); }),
            "scale_rows has no tensor 'z'; it has x, factor, bias, num_used, dy, table.*, y, dx, "
            "dfactor, dtable.*");
  EXPECT_EQ(error_of([&] { call.option("z"); }),
            "scale_rows has no option 'z'; it has shift, limit, repeat, seed, negate, form, "
            "extra.*");
  EXPECT_EQ(error_of([&] { call.set_tensor("table.a b", TensorView()); }),
            "scale_rows: tensor name is 'table.a b', expected letters, digits and _ behind "
            "'table.'");
  EXPECT_EQ(error_of([&] { call.set_tensor("table.*", TensorView()); }).substr(0, 44),
            "scale_rows: tensor name is 'table.*', expect");
}

TEST(OpCall, CopiesAreIndependent) {
  OpCall call(toy_spec());
  call.set_option("shift", 2.0);
  OpCall copy = call;
  copy.set_option("shift", 3.0);
  EXPECT_EQ(call.option("shift"), OptionValue(2.0));
  call = copy;
  copy.set_option("shift", 4.0);
  EXPECT_EQ(call.option("shift"), OptionValue(3.0));
}

TEST(OpCall, OptionsAtTheirDefaultAreNotNamed) {
  OpCall call(toy_spec());
  EXPECT_TRUE(call.option_names().empty());
  EXPECT_EQ(call.option("repeat"), OptionValue());
  call.set_option("repeat", int64_t{3});
  call.set_option("extra.e", 1.0);
  EXPECT_EQ(call.option_names(), (std::vector<std::string>{"repeat", "extra.e"}));
  call.set_option("repeat", OptionValue());  // back to the default
  call.set_option("extra.e", OptionValue());
  EXPECT_TRUE(call.option_names().empty());
  EXPECT_EQ(args_of(call).repeat, 1);
}

TEST(OpCall, OptionsConvertWhereNothingIsLost) {
  OpCall call(toy_spec());
  call.set_option("repeat", 4.0);
  EXPECT_EQ(args_of(call).repeat, 4);
  call.set_option("repeat", true);
  EXPECT_EQ(args_of(call).repeat, 1);
  call.set_option("negate", int64_t{1});
  EXPECT_TRUE(args_of(call).negate);
  call.set_option("shift", int64_t{-7});
  EXPECT_EQ(args_of(call).shift, -7.0);
  call.set_option("shift", int64_t{1} << 53);
  EXPECT_EQ(args_of(call).shift, 9007199254740992.0);
  call.set_option("seed", int64_t{5});
  EXPECT_EQ(args_of(call).seed, 5u);
  call.set_option("seed", std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(args_of(call).seed, std::numeric_limits<uint64_t>::max());
  call.set_option("seed", 9223372036854775808.0);
  EXPECT_EQ(args_of(call).seed, uint64_t{1} << 63);
}

TEST(OpCall, LossyOptionsAreErrors) {
  OpCall call(toy_spec());
  const auto set = [&](const char* name, OptionValue value) {
    return error_of([&] { call.set_option(name, value); });
  };
  EXPECT_EQ(set("repeat", 1.5), "scale_rows: repeat is 1.5, expected a 64-bit integer");
  EXPECT_EQ(set("repeat", std::string("2")),
            "scale_rows: repeat is the text '2', expected a 64-bit integer");
  EXPECT_EQ(set("repeat", 9223372036854775808.0),
            "scale_rows: repeat is 9223372036854775808, expected a 64-bit integer");
  EXPECT_EQ(set("repeat", std::nan("")), "scale_rows: repeat is nan, expected a 64-bit integer");
  EXPECT_EQ(set("negate", int64_t{2}), "scale_rows: negate is 2, expected true or false");
  EXPECT_EQ(set("seed", int64_t{-1}),
            "scale_rows: seed is -1, expected an unsigned 64-bit integer");
  EXPECT_EQ(set("seed", 18446744073709551616.0),
            "scale_rows: seed is 18446744073709551616, expected an unsigned 64-bit integer");
  EXPECT_EQ(set("shift", (int64_t{1} << 53) + 1),
            "scale_rows: shift is 9007199254740993, expected a number");
  EXPECT_EQ(set("shift", std::numeric_limits<uint64_t>::max()),
            "scale_rows: shift is 18446744073709551615, expected a number");
  EXPECT_EQ(set("form", 1.0), "scale_rows: form is 1, expected a text");
  EXPECT_TRUE(call.option_names().empty());
}

TEST(OpCall, OptionsKeepTheirLimits) {
  OpCall call(toy_spec());
  const auto set = [&](const char* name, OptionValue value) {
    return error_of([&] { call.set_option(name, value); });
  };
  EXPECT_EQ(set("repeat", int64_t{0}),
            "scale_rows: repeat is 0, expected at least 1 and at most 8");
  EXPECT_EQ(set("repeat", int64_t{9}),
            "scale_rows: repeat is 9, expected at least 1 and at most 8");
  EXPECT_EQ(set("repeat", int64_t{8}), "no error");
  EXPECT_EQ(set("limit", 0.0), "scale_rows: limit is 0, expected more than 0");
  EXPECT_EQ(set("limit", std::numeric_limits<double>::denorm_min()), "no error");
  EXPECT_EQ(set("limit", std::numeric_limits<double>::infinity()), "no error");  // its own limit
  EXPECT_EQ(set("limit", std::nan("")), "scale_rows: limit is nan, expected a finite number");
  EXPECT_EQ(set("shift", std::numeric_limits<double>::infinity()),
            "scale_rows: shift is inf, expected a finite number");
}

TEST(OpCall, OptionsAreReadFromText) {
  OpCall call(toy_spec());
  call.set_option_text("shift", "-1.25e-3");
  call.set_option_text("repeat", "8");
  call.set_option_text("negate", "true");
  call.set_option_text("seed", "18446744073709551615");
  call.set_option_text("form", "a = b");
  EXPECT_EQ(args_of(call).shift, -1.25e-3);
  EXPECT_EQ(args_of(call).repeat, 8);
  EXPECT_TRUE(args_of(call).negate);
  EXPECT_EQ(args_of(call).seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(args_of(call).form, "a = b");
  EXPECT_EQ(error_of([&] { call.set_option_text("repeat", "8x"); }),
            "scale_rows: repeat is '8x', expected a 64-bit integer");
  EXPECT_EQ(error_of([&] { call.set_option_text("negate", "yes"); }),
            "scale_rows: negate is 'yes', expected true or false");
}

TEST(OpList, RegisteredOpsAreFoundFromAnyThread) {
  std::vector<std::thread> threads;
  std::array<const OpSpec*, 4> found{};
  for (size_t i = 0; i < found.size(); ++i) {
    threads.emplace_back([&found, i] {
      toy::register_scale_rows();
      found[i] = find_op("scale_rows");
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const OpSpec* spec : found) EXPECT_EQ(spec, &toy_spec());
  EXPECT_EQ(find_op("scale_row"), nullptr);
  const auto all = all_ops();
  EXPECT_EQ(std::count(all.begin(), all.end(), &toy_spec()), 1);
}

TEST(OpList, ListsStayValidWhenAnOpIsAdded) {
  toy::register_scale_rows();
  const auto before = all_ops();
  const std::vector<const OpSpec*> copy(before.begin(), before.end());
  static OpSpec other = toy_spec();
  other.name = "scale_rows_again";
  register_op(other);
  EXPECT_TRUE(std::equal(copy.begin(), copy.end(), before.begin(), before.end()));
  EXPECT_EQ(all_ops().size(), before.size() + 1);
  EXPECT_EQ(error_of([] { register_op(other); }),
            "register_op: there is already an op 'scale_rows_again'");
}

// Each change to the toy's table is one fault.
TEST(OpList, TablesWithFaultsAreRefused) {
  const auto fault = [](auto change) {
    std::vector<DimSpec> dims(toy_spec().dims.begin(), toy_spec().dims.end());
    std::vector<TensorSpec> tensors(toy_spec().tensors.begin(), toy_spec().tensors.end());
    std::vector<OptionSpec> options(toy_spec().options.begin(), toy_spec().options.end());
    change(dims, tensors, options);
    OpSpec spec = toy_spec();
    spec.name = "faulty";
    spec.dims = dims;
    spec.tensors = tensors;
    spec.options = options;
    const std::string text = error_of([&] { register_op(spec); });
    EXPECT_EQ(find_op("faulty"), nullptr);
    return text;
  };
  using Dims = std::vector<DimSpec>;
  using Tensors = std::vector<TensorSpec>;
  using Options = std::vector<OptionSpec>;
  EXPECT_EQ(fault([](Dims& d, Tensors&, Options&) { d[1].code = "b"; }),
            "faulty: code 'b' is used twice");
  EXPECT_EQ(fault([](Dims& d, Tensors&, Options&) { d[1].code = "f"; }),
            "faulty: code 'f' with a number is a dtype");
  EXPECT_EQ(fault([](Dims& d, Tensors&, Options&) { d[2].default_from = "rows"; }),
            "faulty: size 'num_cols' has its default from an unknown one");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[0].shape = "batch_size rows"; }),
            "faulty: tensor 'x' unknown size 'rows'");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[0].shape = "@z: 3; 4"; }),
            "faulty: tensor 'x' unknown tensor 'z'");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[0].shape = "num_rows-1"; }),
            "faulty: tensor 'x' operator table: shape 'num_rows-1': an entry is no size");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[0].dtypes = "f32 f33"; }),
            "faulty: tensor 'x' dtype 'f33' is unknown");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[0].dtypes = "=z"; }),
            "faulty: tensor 'x' dtype '=z' names an unknown tensor");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[1].name = "x"; }),
            "faulty: 'x' stands for two things");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[1].access = nullptr; }),
            "faulty: tensor 'factor' has no accessor");
  EXPECT_EQ(fault([](Dims&, Tensors& t, Options&) { t[7].gradient_of = "y"; }),
            "faulty: tensor 'dx' is the gradient of an unknown input 'y'");
  EXPECT_EQ(fault([](Dims&, Tensors&, Options& o) { o[0].name = "x"; }),
            "faulty: 'x' stands for two things");
  EXPECT_EQ(fault([](Dims&, Tensors&, Options& o) { o[1].min_value = 3, o[1].max_value = 2; }),
            "faulty: option 'limit' has limits in the wrong order");
}

}  // namespace
}  // namespace flashtile
