// SPDX-License-Identifier: Apache-2.0
#include "core/problem_text.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/validate.hpp"
#include "flashtile/error.hpp"
#include "toy_op.hpp"

namespace flashtile {
namespace {

std::string error_of(std::string_view text) {
  try {
    make_call(parse_problem(text));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

class ProblemTextTest : public testing::Test {
 protected:
  void SetUp() override { toy::register_scale_rows(); }
};

std::string shape_text(const TensorView& view) { return to_string(view); }

TEST_F(ProblemTextTest, EveryKindOfItemIsRead) {
  const ProblemText problem = parse_problem(
      "scale_rows:b2:num_rows=3:c5:negate:shift=-0.125:repeat=4:bias.f64[1,c]:table.low.i32[7]"
      ":num_used={3,0}:f64@float");
  EXPECT_EQ(problem.spec->name, "scale_rows");
  EXPECT_EQ(problem.sizes, (Sizes{{"batch_size", 2}, {"num_rows", 3}, {"num_cols", 5}}));
  EXPECT_EQ(problem.dtype, DType::kF64);
  EXPECT_EQ(problem.implementation, "scale_rows_float");
  ASSERT_EQ(problem.options.size(), 3u);
  EXPECT_EQ(problem.options[0], (std::pair<std::string, OptionValue>{"negate", true}));
  EXPECT_EQ(problem.options[1], (std::pair<std::string, OptionValue>{"shift", -0.125}));
  EXPECT_EQ(problem.options[2], (std::pair<std::string, OptionValue>{"repeat", int64_t{4}}));
  ASSERT_EQ(problem.tensors.size(), 3u);
  EXPECT_EQ(problem.tensors[0].name, "bias");
  EXPECT_EQ(problem.tensors[0].dtype, DType::kF64);
  EXPECT_EQ(problem.tensors[0].dims, (std::vector<std::string>{"1", "c"}));
  EXPECT_EQ(problem.tensors[1].name, "table.low");
  EXPECT_EQ(problem.tensors[1].dtype, DType::kI32);
  EXPECT_EQ(problem.tensors[2].values, (std::vector<int64_t>{3, 0}));
}

TEST_F(ProblemTextTest, TensorsGetShapesAndDtypesFromTheTable) {
  const OpCall call = make_call(parse_problem("scale_rows:b2:r3:c5:bias:dy:table.t[4]:f64"));
  EXPECT_EQ(shape_text(call.tensor("x")), "f64 (2, 3, 5)");
  EXPECT_EQ(shape_text(call.tensor("y")), "f64 (2, 3, 5)");
  EXPECT_EQ(shape_text(call.tensor("factor")), "f32 (3)");  // its only dtype
  EXPECT_EQ(shape_text(call.tensor("bias")), "f64 (2, 5)");
  EXPECT_EQ(shape_text(call.tensor("table.t")), "f32 (4)");
  EXPECT_EQ(call.tensor("x").data, nullptr);
  // Gradients of what is there, and of nothing else.
  EXPECT_EQ(shape_text(call.tensor("dx")), "f64 (2, 3, 5)");
  EXPECT_EQ(shape_text(call.tensor("dfactor")), "f32 (3)");
  EXPECT_EQ(shape_text(call.tensor("dtable.t")), "f32 (4)");
  EXPECT_FALSE(call.tensor("num_used"));
}

TEST_F(ProblemTextTest, GradientsCanBeLeftOutAndIntegersHaveNone) {
  const OpCall call = make_call(
      parse_problem("scale_rows:r3:table.a[2]:table.b.i32[2]:dx=none:dtable.a=none:y.f32:f64"));
  EXPECT_FALSE(call.tensor("dx"));
  EXPECT_FALSE(call.tensor("dtable.a"));
  EXPECT_FALSE(call.tensor("dtable.b"));
  EXPECT_TRUE(call.tensor("dfactor"));
  EXPECT_EQ(shape_text(call.tensor("y")), "f32 (1, 3, 3)");
}

TEST_F(ProblemTextTest, OpenSizesGetTheirDefaults) {
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows")),
            (Sizes{{"batch_size", 1}, {"num_rows", 1}, {"num_cols", 1}}));
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows:r7")),
            (Sizes{{"batch_size", 1}, {"num_rows", 7}, {"num_cols", 7}}));
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows:r0:c2")),
            (Sizes{{"batch_size", 1}, {"num_rows", 0}, {"num_cols", 2}}));
}

TEST_F(ProblemTextTest, ShapesAndValuesFixSizes) {
  // The number of values is the batch size; the op's own rule makes rows of the values.
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows:num_used={2,9,4}:c2")),
            (Sizes{{"batch_size", 3}, {"num_rows", 9}, {"num_cols", 2}}));
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows:factor[4,6]")),
            (Sizes{{"batch_size", 4}, {"num_rows", 6}, {"num_cols", 6}}));
  // What is written out counts first.
  EXPECT_EQ(resolve_sizes(parse_problem("scale_rows:r12:num_used={2,9,4}")).at("num_rows"), 12);
}

TEST_F(ProblemTextTest, ValuesAreWritten) {
  const ProblemText problem = parse_problem("scale_rows:b3:r9:num_used={2,9,-4}");
  int32_t memory[6] = {};
  const int64_t shape[] = {3};
  const int64_t strides[] = {2};
  write_values(*problem.find_tensor("num_used"), TensorView(memory, DType::kI32, shape, strides));
  EXPECT_EQ(memory[0], 2);
  EXPECT_EQ(memory[2], 9);
  EXPECT_EQ(memory[4], -4);
  EXPECT_EQ(memory[1] + memory[3] + memory[5], 0);
}

TEST_F(ProblemTextTest, TextValuesAreQuotedWhereNeeded) {
  const ProblemText problem = parse_problem("scale_rows:form='a ? b''s : @c':c4");
  EXPECT_EQ(std::get<std::string>(problem.options[0].second), "a ? b's : @c");
  EXPECT_EQ(problem.sizes.at("num_cols"), 4);
  EXPECT_EQ(format_problem(problem), "scale_rows:c4:form='a ? b''s : @c':f32");
  EXPECT_EQ(format_problem(parse_problem("scale_rows:form=square")), "scale_rows:form=square:f32");
}

TEST_F(ProblemTextTest, ErrorsNameTheColumn) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"no_such_op:b2", "problem text, column 1: unknown op 'no_such_op'; known: "},
      {"", "problem text, column 1: unknown op ''"},
      {"scale_rows:b2:foo",
       "problem text, column 15: unknown item 'foo'; scale_rows has sizes b r"},
      {"scale_rws:b2",
       "problem text, column 1: unknown op 'scale_rws'; did you mean 'scale_rows'?"},
      {"scale_rows:b2:negat", "column 15: unknown item 'negat'; did you mean 'negate'?"},
      {"scale_rows:b2:bf15", "column 15: unknown item 'bf15'; did you mean 'bf16'?"},
      {"scale_rows:b", "problem text, column 12: unknown item 'b'"},
      {"scale_rows:", "problem text, column 12: expected an item"},
      {"scale_rows:b2:b3", "problem text, column 15: batch_size is given twice"},
      {"scale_rows:f32:f64", "problem text, column 16: dtype is given twice"},
      {"scale_rows:negate:negate", "problem text, column 19: negate is given twice"},
      {"scale_rows:b99999999999999999999", "column 13: expected the size batch_size, found '9999"},
      {"scale_rows:b2 :r3", "problem text, column 14: ' ' is not expected"},
      {"scale_rows:batch_size", "column 22: expected = and a number for the size batch_size"},
      {"scale_rows:batch_size=x", "column 23: expected the size batch_size, found 'x'"},
      {"scale_rows:shift", "column 17: expected = and a value for the option shift"},
      {"scale_rows:shift=abc", "column 18: scale_rows: shift is 'abc', expected a number"},
      {"scale_rows:shift=", "column 18: scale_rows: shift is '', expected a number"},
      {"scale_rows:shift=nan", "column 18: scale_rows: shift is nan, expected a finite number"},
      {"scale_rows:repeat=9",
       "column 19: scale_rows: repeat is 9, expected at least 1 and at most 8"},
      {"scale_rows:limit=0", "column 18: scale_rows: limit is 0, expected more than 0"},
      {"scale_rows:form='a", "column 17: the quote is not closed"},
      {"scale_rows:form='a'b", "column 20: 'b' is not expected"},
      {"scale_rows:bias[1,q]", "column 19: expected a number or a size, found 'q'"},
      {"scale_rows:bias[1,2", "column 20: expected ']' behind the shape of bias"},
      {"scale_rows:bias=3", "column 17: expected '{' and values for the tensor bias"},
      {"scale_rows:bias=bias", "column 17: expected '{' and values for the tensor bias, or"},
      {"scale_rows:num_used={1,x}", "column 24: expected an integer, found 'x'"},
      {"scale_rows:num_used={1,", "column 24: expected an integer, found ''"},
      {"scale_rows:num_used={1", "column 23: expected '}' behind the values of num_used"},
      {"scale_rows@", "column 12: expected the name of an implementation"},
      {"scale_rows@a@b", "column 13: '@' is not expected"},
      {"scale_rows:table.", "column 12: unknown item 'table.'"},
      {"scale_rows:extra.1x=2", "column 12: unknown item 'extra.1x'"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(error_of(text).find(expected), std::string::npos) << text << "\n" << error_of(text);
  }
}

TEST_F(ProblemTextTest, CallsThatCannotBeMadeAreErrors) {
  EXPECT_EQ(error_of("scale_rows:table.t"),
            "scale_rows: table.t has no shape, expected one, such as table.t[16]");
  EXPECT_EQ(error_of("scale_rows:b3:num_used[b]={1,2}"),
            "scale_rows: num_used has 2 values, expected 3");
  EXPECT_EQ(error_of("attention_fwd:sq2:d8:v=k"),
            "attention_fwd: v is to be the first columns of k, but is f32 (1, 2, 1, 8) and "
            "f32 (1, 2, 1, 8)");
  EXPECT_EQ(error_of("attention_fwd:sq2:d8:dv4:k=v"),
            "attention_fwd: k is to be the first columns of v, but is f32 (1, 2, 1, 8) and not "
            "there");
  EXPECT_EQ(error_of("scale_rows:r2:num_used={4294967296}"),
            "scale_rows: value 4294967296 of num_used does not fit into i32");
  EXPECT_EQ(error_of("scale_rows:bias[1,3]={1,2,3}"),
            "scale_rows: bias has values, but its dtype is f32, expected i32 or i64");
  EXPECT_NE(error_of("scale_rows:b4294967296:r4294967296:c2").find("x: TensorView: shape"),
            std::string::npos);
}

TEST_F(ProblemTextTest, CallsHaveATextThatMakesThemAgain) {
  const std::vector<const char*> texts = {
      "scale_rows:b1:r1:f32",
      "scale_rows:b2:r3:c5:f64",
      "scale_rows:b2:r3:negate:f32",
      "scale_rows:b2:r3:repeat=2:bias[1,c]:f32",
      "scale_rows:b2:r3:shift=0.1:dx=none:f32",
      "scale_rows:b2:r3:factor[b,r]:y.f32:f64",
      "scale_rows:b2:r3:table.a[4]:table.b.i32[5]:dtable.a=none:f32",
      "scale_rows:b2:r3:form='x:y':extra.e=2.5:dy:f32",
  };
  for (const char* text : texts) {
    EXPECT_EQ(problem_text(make_call(parse_problem(text))), text);
  }
}

TEST_F(ProblemTextTest, ShortHostValuesArePartOfTheText) {
  OpCall call = make_call(parse_problem("scale_rows:b2:r3:num_used"));
  EXPECT_EQ(problem_text(call), "scale_rows:b2:r3:num_used:f32");
  int32_t values[] = {3, 1};
  call.set_tensor("num_used", TensorView(values, DType::kI32, {2}));
  EXPECT_EQ(problem_text(call), "scale_rows:num_used={3,1}:f32");
  TensorView on_device = call.tensor("num_used");
  on_device.device.type = DeviceType::kCuda;
  call.set_tensor("num_used", on_device);
  EXPECT_EQ(problem_text(call), "scale_rows:b2:r3:num_used:f32");
}

TEST_F(ProblemTextTest, CallsWithFaultsHaveATextToo) {
  OpCall call(toy::scale_rows_spec());
  EXPECT_EQ(problem_text(call), "scale_rows:dx=none:dfactor=none:f32");
  call.set_tensor("x", TensorView(nullptr, DType::kF64, {2, 3, 4}));
  call.set_tensor("y", TensorView(nullptr, DType::kI32, {7}));
  EXPECT_EQ(problem_text(call), "scale_rows:b2:r3:c4:y.i32[7]:dx=none:dfactor=none:f64");
}

// Random problems, made without the parser: the text of each reads back as the same problem, and
// the call that it makes is described by a text that makes the same call.
class RandomProblem {
 public:
  explicit RandomProblem(uint32_t seed) : random_(seed) {}

  ProblemText make() {
    ProblemText problem;
    problem.spec = &toy::scale_rows_spec();
    for (const char* size : {"batch_size", "num_rows", "num_cols"}) {
      if (flip()) problem.sizes.emplace(size, below(40));
    }
    problem.dtype = flip() ? DType::kF32 : DType::kF64;
    if (flip()) problem.implementation = flip() ? "scale_rows_float" : "other_name";
    if (flip()) problem.options.emplace_back("negate", flip());
    if (flip()) problem.options.emplace_back("shift", number());
    if (flip()) problem.options.emplace_back("limit", 0.001 + std::abs(number()));
    if (flip()) problem.options.emplace_back("repeat", 1 + below(8));
    if (flip()) problem.options.emplace_back("seed", (uint64_t{random_()} << 32) | random_());
    if (flip()) problem.options.emplace_back("form", text());
    if (flip()) problem.options.emplace_back("extra.e_1", number());
    add_tensor(problem, "bias", {"1", "num_cols"});
    add_tensor(problem, "x", {"b", "r", "c"});
    add_tensor(problem, "factor", {"b", "r"});
    add_tensor(problem, "table.first", {"16"});
    if (flip()) {
      TensorItem values{"num_used", DType::kNone, false, {}, true, {}, false, {}};
      for (int64_t i = below(4); i > 0; --i) values.values.push_back(below(100) - 50);
      problem.tensors.push_back(values);
    }
    if (flip()) problem.tensors.push_back({"dx", DType::kNone, false, {}, false, {}, true, {}});
    return problem;
  }

 private:
  bool flip() { return (random_() & 1) != 0; }
  int64_t below(uint32_t end) { return static_cast<int64_t>(random_() % end); }
  double number() { return (static_cast<double>(random_()) - 2e9) / 3e7; }
  std::string text() {
    std::string result;
    for (int64_t i = below(12); i > 0; --i) {
      result += ":@'=[]{} ,abc"[static_cast<size_t>(below(13))];
    }
    return result;
  }
  void add_tensor(ProblemText& problem, const char* name, std::vector<std::string> dims) {
    const bool needs_dims = std::string_view(name).starts_with("table");
    if (flip()) return;
    TensorItem item;
    item.name = name;
    if (flip()) item.dtype = DType::kF64;
    item.has_dims = needs_dims || flip();
    if (item.has_dims) item.dims = std::move(dims);
    problem.tensors.push_back(item);
  }

  std::mt19937 random_;
};

bool same_call(const OpCall& a, const OpCall& b) {
  if (a.tensor_names() != b.tensor_names() || a.option_names() != b.option_names()) return false;
  for (const std::string& name : a.tensor_names()) {
    if (shape_text(a.tensor(name)) != shape_text(b.tensor(name))) return false;
  }
  for (const std::string& name : a.option_names()) {
    if (a.option(name) != b.option(name)) return false;
  }
  return true;
}

TEST_F(ProblemTextTest, RandomProblemsRoundTrip) {
  RandomProblem random(7);
  int num_calls = 0;
  for (int i = 0; i < 3000; ++i) {
    const ProblemText problem = random.make();
    const std::string text = format_problem(problem);
    const ProblemText again = parse_problem(text);
    ProblemText expected = problem;
    // A name that lacks the op's prefix gets it.
    if (expected.implementation == "other_name") expected.implementation = "scale_rows_other_name";
    ASSERT_TRUE(again == expected) << text;
    ASSERT_EQ(format_problem(again), format_problem(expected));
    try {
      const OpCall call = make_call(problem);
      const OpCall from_text = make_call(parse_problem(problem_text(call)));
      ++num_calls;
      ASSERT_TRUE(same_call(call, from_text)) << text << "\n" << problem_text(call);
    } catch (const Error&) {
      ASSERT_NE(problem.find_tensor("num_used"), nullptr) << text;  // nothing else may fail
    }
  }
  EXPECT_GT(num_calls, 1000);
}

// The table that matters most: the examples of docs/problems.md.
TEST_F(ProblemTextTest, AttentionTextsOfTheDocs) {
  const OpCall call = make_call(parse_problem(
      "attention_fwd:b2:hq8:hkv2:sq129:sk257:d128:causal:softcap=30:bias[1,hq,1,sk]:bf16@avx512"));
  EXPECT_EQ(shape_text(call.tensor("q")), "bf16 (2, 129, 8, 128)");
  EXPECT_EQ(shape_text(call.tensor("k")), "bf16 (2, 257, 2, 128)");
  EXPECT_EQ(shape_text(call.tensor("out")), "bf16 (2, 129, 8, 128)");
  EXPECT_EQ(shape_text(call.tensor("bias")), "bf16 (1, 8, 1, 257)");
  EXPECT_EQ(call.option("softcap"), OptionValue(30.0));
  EXPECT_EQ(call.option("causal"), OptionValue(true));
  EXPECT_FALSE(call.tensor("lse"));

  const OpCall packed = make_call(
      parse_problem("attention_bwd:hq4:d64:cu_seqlens_q={0,3,10}:cu_seqlens_k={0,5,5}:dk=none:"
                    "sink:out.f32:aux.slope[hq]:f16"));
  EXPECT_EQ(shape_text(packed.tensor("q")), "f16 (10, 4, 64)");
  EXPECT_EQ(shape_text(packed.tensor("v")), "f16 (5, 4, 64)");
  EXPECT_EQ(shape_text(packed.tensor("out")), "f32 (10, 4, 64)");
  EXPECT_EQ(shape_text(packed.tensor("lse")), "f32 (4, 10)");
  EXPECT_EQ(shape_text(packed.tensor("dq")), "f16 (10, 4, 64)");
  EXPECT_EQ(shape_text(packed.tensor("dsink")), "f32 (4)");
  EXPECT_EQ(shape_text(packed.tensor("daux.slope")), "f32 (4)");
  EXPECT_FALSE(packed.tensor("dk"));
  EXPECT_FALSE(packed.tensor("dbias"));

  const OpCall paged = make_call(
      parse_problem("attention_fwd:hq4:hkv1:sq2:d16:page_size=8:block_table[2,2]={0,1,3,2}"));
  EXPECT_EQ(shape_text(paged.tensor("k")), "f32 (4, 8, 1, 16)");
  EXPECT_EQ(shape_text(paged.tensor("q")), "f32 (2, 2, 4, 16)");

  const OpCall inside = make_call(parse_problem("attention_fwd:b2:hq4:hkv1:sq9:d72:dv64:v=k:bf16"));
  EXPECT_EQ(shape_text(inside.tensor("v")), "bf16 (2, 9, 1, 64) strides (648, 72, 72, 1)");
  EXPECT_EQ(inside.whole_of("v"), "k");
  EXPECT_EQ(inside.whole_of("k"), "");
  EXPECT_EQ(problem_text(inside), "attention_fwd:b2:hq4:hkv1:sq9:d72:dv64:v=k:bf16");

  for (const OpCall* each : {&call, &packed, &paged, &inside}) {
    const OpCall again = make_call(parse_problem(problem_text(*each)));
    EXPECT_TRUE(same_call(again, *each)) << problem_text(*each);
  }
}

// Damaged texts give an Error or a call, and nothing else.
TEST_F(ProblemTextTest, DamagedTextsNeverCrash) {
  const std::string_view texts[] = {
      "scale_rows:b2:r5:factor[b,r+1]:repeat=3:form='a:b''c':table.t.i32[2]={1,-2}:dx=none:f64@x",
      "attention_fwd:b2:hq8:hkv2:sq129:sk257:d128:causal:softcap=30:bias[1,hq,1,sk]:bf16@avx512",
      "attention_bwd:hq4:d64:cu_seqlens_q={0,3,10}:cu_seqlens_k={0,5,5}:dk=none:sink:out.f32",
      "attention_fwd:sq2:d16:page_size=8:block_table[2,2]={0,1,3,2}:leftpad_k:param.p=0.5",
      "attention_fwd:sq64:sk99:block_rows=8:block_cols=16:block_counts:block_indices:mask='1'",
  };
  constexpr std::string_view kCharacters = ":=@'[]{},.+-019abdkmnqsx ";
  std::mt19937 random(5);
  int num_calls = 0;
  int num_errors = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text(texts[random() % std::size(texts)]);
    for (uint32_t change = random() % 4; change < 4; ++change) {
      const size_t place = random() % text.size();
      const char c = kCharacters[random() % kCharacters.size()];
      switch (random() % 4) {
        case 0:
          text[place] = c;
          break;
        case 1:
          text.insert(place, 1, c);
          break;
        case 2:
          text.erase(place, 1 + random() % 3);
          break;
        default:
          text.insert(place, text.substr(random() % text.size(), 9));
      }
      if (text.empty()) text = ":";
    }
    try {
      const OpCall call = make_call(parse_problem(text));
      EXPECT_NE(problem_text(call), "");
      ++num_calls;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()), "");
      ++num_errors;
    }
  }
  EXPECT_GT(num_calls, 200);
  EXPECT_GT(num_errors, 500);
}

}  // namespace
}  // namespace flashtile
