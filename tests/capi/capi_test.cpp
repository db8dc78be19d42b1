// SPDX-License-Identifier: Apache-2.0
//
// The C face seen from inside: completeness of the bindings, struct sizes, null pointers.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "capi/attention_call.hpp"
#include "capi/status.hpp"
#include "flashtile/error.hpp"
#include "flashtile/flashtile.h"
#include "support/error_of.hpp"

namespace flashtile {
namespace {

using capi::AttentionMember;
using capi::MemberKind;
using test::error_of;

const OpSpec& spec_of(const char* op) { return *find_op(op); }

flashtile_attention_args fresh_args() {
  flashtile_attention_args args;
  flashtile_attention_args_init(&args, sizeof(args));
  return args;
}

OpCall attention_call(const OpSpec& spec, const flashtile_attention_args& given) {
  OpCall call(spec);
  capi::read_attention_args(spec, given, *static_cast<AttentionArgs*>(call.args()));
  return call;
}

TEST(CapiAttention, EveryRowOfTheTablesIsBound) {
  std::set<std::string> rows;
  for (const char* op : {"attention_fwd", "attention_bwd"}) {
    for (const TensorSpec& row : spec_of(op).tensors) rows.emplace(row.name);
    for (const OptionSpec& row : spec_of(op).options) rows.emplace(row.name);
  }
  std::set<std::string> bound;
  for (const AttentionMember& member : capi::attention_members()) {
    EXPECT_TRUE(bound.emplace(member.name).second) << member.name << " is bound twice";
  }
  EXPECT_EQ(bound, rows);
}

TEST(CapiAttention, KindsAndBitsFollowTheTable) {
  std::set<uint64_t> bits;
  for (const AttentionMember& member : capi::attention_members()) {
    const OptionSpec* row = spec_of("attention_fwd").find_option(member.name);
    if (row == nullptr || row->is_family()) continue;
    const MemberKind kinds[] = {MemberKind::kFlag, MemberKind::kInt, MemberKind::kUint,
                                MemberKind::kFloat, MemberKind::kText};
    EXPECT_EQ(member.kind, kinds[static_cast<size_t>(row->type)]) << member.name;
    // An option whose zero is not its default needs a bit.
    OpCall call(spec_of("attention_fwd"));
    bool zero_is_default = row->type == OptionType::kText;
    try {
      if (!zero_is_default) call.set_option(member.name, int64_t{0});
      zero_is_default = call.option_names().empty();
    } catch (const Error&) {
      zero_is_default = false;  // not even legal: "absent" must be sayable all the same
    }
    EXPECT_EQ(member.present_bit == 0, zero_is_default) << member.name;
    if (member.present_bit == 0) continue;
    EXPECT_TRUE(bits.insert(member.present_bit).second) << member.name;
  }
}

// Sets each member alone and looks for it, and for nothing else, in the call.
TEST(CapiAttention, EachMemberReachesItsRow) {
  std::array<float, 4> memory{};
  const int64_t shape[] = {4};
  const flashtile_tensor tensor = flashtile_cpu_tensor(memory.data(), FLASHTILE_F32, 1, shape);
  for (const AttentionMember& member : capi::attention_members()) {
    flashtile_attention_args args = fresh_args();
    char* place = reinterpret_cast<char*>(&args) + member.offset;
    const OpSpec& spec =
        spec_of(spec_of("attention_fwd").find_tensor(member.name) != nullptr ||
                        spec_of("attention_fwd").find_option(member.name) != nullptr
                    ? "attention_fwd"
                    : "attention_bwd");
    const auto put = [&](const auto& value) { std::memcpy(place, &value, sizeof(value)); };
    OptionValue expected;
    args.present = member.present_bit;
    switch (member.kind) {
      case MemberKind::kTensor:
        put(&tensor);
        break;
      case MemberKind::kFlag:
        put(int32_t{1}), expected = true;
        break;
      case MemberKind::kInt:
        put(int64_t{3}), expected = int64_t{3};
        break;
      case MemberKind::kUint:
        put(uint64_t{5}), expected = uint64_t{5};
        break;
      case MemberKind::kFloat:
        put(0.25), expected = 0.25;
        break;
      case MemberKind::kText:
        put(static_cast<const char*>("q_idx")), expected = "q_idx";
        break;
      default:
        continue;  // families have tests of their own
    }
    const OpCall call = attention_call(spec, args);
    if (member.kind == MemberKind::kTensor) {
      EXPECT_EQ(call.tensor_names(), std::vector<std::string>{member.name});
      EXPECT_EQ(call.tensor(member.name).data, memory.data());
      EXPECT_TRUE(call.option_names().empty());
    } else {
      EXPECT_EQ(call.option_names(), std::vector<std::string>{member.name});
      EXPECT_EQ(option_text(call.option(member.name)), option_text(expected)) << member.name;
      EXPECT_TRUE(call.tensor_names().empty());
    }
    if (member.present_bit == 0) continue;
    args.present = 0;
    EXPECT_NE(error_of([&] { attention_call(spec, args); }).find("its bit is not set"),
              std::string::npos)
        << member.name;
  }
}

TEST(CapiAttention, AuxTensorsAndParams) {
  std::array<float, 8> memory{};
  const int64_t shape[] = {4};
  const flashtile_tensor first = flashtile_cpu_tensor(memory.data(), FLASHTILE_F32, 1, shape);
  const flashtile_tensor second = flashtile_cpu_tensor(memory.data() + 4, FLASHTILE_F32, 1, shape);
  flashtile_aux aux[2];
  flashtile_param params[2];
  for (int i = 0; i < 2; ++i) {
    flashtile_aux_init(&aux[i], sizeof(aux[i]));
    flashtile_param_init(&params[i], sizeof(params[i]));
  }
  aux[0].name = "a", aux[0].tensor = &first;
  aux[1].name = "b", aux[1].tensor = &second, aux[1].gradient = &first;
  params[0].name = "p", params[0].value = 0.5;
  params[1].name = "z", params[1].value = 0;
  flashtile_attention_args args = fresh_args();
  args.aux = aux;
  args.num_aux = 2;
  args.params = params;
  args.num_params = 2;
  const OpCall call = attention_call(spec_of("attention_bwd"), args);
  EXPECT_EQ(call.tensor_names(), (std::vector<std::string>{"aux.a", "aux.b", "daux.b"}));
  EXPECT_EQ(call.tensor("daux.b").data, memory.data());
  EXPECT_EQ(call.option("param.p"), OptionValue(0.5));
  EXPECT_EQ(call.option("param.z"), OptionValue(0.0));

  const auto error = [&] {
    return error_of([&] { attention_call(spec_of("attention_bwd"), args); });
  };
  aux[1].name = "a";
  EXPECT_EQ(error(), "attention_bwd: aux has two tensors called 'a'");
  aux[1].name = "not a name";
  EXPECT_NE(error().find("expected letters, digits and _"), std::string::npos);
  aux[1].name = nullptr;
  EXPECT_EQ(error(), "attention_bwd: name of aux[1] is NULL");
  aux[1].name = "b";
  aux[1].tensor = nullptr;
  EXPECT_EQ(error(), "attention_bwd: tensor of aux 'b' is NULL");
  aux[1].tensor = &second;
  aux[1].struct_size = 8;
  EXPECT_NE(error().find("aux[1] has struct_size 8"), std::string::npos);
  args.num_aux = 0;
  params[1].name = "p";
  EXPECT_EQ(error(), "attention_bwd: params has two numbers called 'p'");
  args.params = nullptr;
  EXPECT_EQ(error(), "attention_bwd: params is NULL, expected 2 structs");
}

TEST(CapiStructs, SizesThatCannotBeTrueAreErrors) {
  flashtile_attention_args args = fresh_args();
  const auto error = [&] {
    return error_of([&] { attention_call(spec_of("attention_fwd"), args); });
  };
  args.struct_size = 0;
  EXPECT_NE(error().find("struct_size is 0; call the init function"), std::string::npos);
  args.struct_size = 0xCDCDCDCD;
  EXPECT_NE(error().find("call the init function"), std::string::npos);
  args.struct_size = offsetof(flashtile_attention_args, k) + 2;
  EXPECT_NE(error().find("inside the member k"), std::string::npos);
  args.struct_size = offsetof(flashtile_attention_args, k);
  EXPECT_EQ(error(), "no error");
}

TEST(CapiStructs, NewerCallersMayOnlyUseWhatIsKnown) {
  struct {
    flashtile_attention_args args;
    uint64_t newer[3];
  } call = {fresh_args(), {0, 0, 0}};
  call.args.struct_size = sizeof(call);
  EXPECT_EQ(error_of([&] { attention_call(spec_of("attention_fwd"), call.args); }), "no error");
  call.newer[2] = 1;
  EXPECT_NE(error_of([&] {
              attention_call(spec_of("attention_fwd"), call.args);
            }).find("this library (" FLASHTILE_VERSION_STRING ") knows only the first"),
            std::string::npos);
  flashtile_attention_args args = fresh_args();
  args.present = uint64_t{1} << 40;
  EXPECT_NE(
      error_of([&] { attention_call(spec_of("attention_fwd"), args); }).find("which has bits"),
      std::string::npos);
}

TEST(CapiStructs, MembersThatAnOlderCallerLacksAreNotRead) {
  flashtile_attention_args args = fresh_args();
  args.causal = 77;  // behind the end that struct_size states: somebody else's memory
  args.struct_size = offsetof(flashtile_attention_args, causal);
  EXPECT_TRUE(attention_call(spec_of("attention_fwd"), args).option_names().empty());
}

/// A call by name; freed at the end of a test.
class CapiCall : public testing::Test {
 protected:
  CapiCall() : call_(flashtile_call_new("attention_fwd")) {}
  ~CapiCall() override { flashtile_call_free(call_); }

  static std::string last() { return flashtile_last_error(); }
  std::string problem() const {
    size_t bytes = 0;
    EXPECT_EQ(flashtile_call_problem(call_, nullptr, &bytes), FLASHTILE_OK);
    std::string text(bytes, '?');
    EXPECT_EQ(flashtile_call_problem(call_, text.data(), &bytes), FLASHTILE_OK);
    EXPECT_EQ(text.back(), '\0');
    text.pop_back();
    return text;
  }

  flashtile_call* call_;
  std::array<float, 24> q_{}, k_{}, v_{}, out_{};
};

TEST_F(CapiCall, RunsByName) {
  const int64_t shape[] = {1, 3, 2, 4};
  for (size_t i = 0; i < v_.size(); ++i) v_[i] = static_cast<float>(i % 8);
  const std::pair<const char*, float*> tensors[] = {
      {"q", q_.data()}, {"k", k_.data()}, {"v", v_.data()}, {"out", out_.data()}};
  for (const auto& [name, data] : tensors) {
    const flashtile_tensor tensor = flashtile_cpu_tensor(data, FLASHTILE_F32, 4, shape);
    ASSERT_EQ(flashtile_call_set_tensor(call_, name, &tensor), FLASHTILE_OK) << last();
  }
  ASSERT_EQ(flashtile_call_set_bool(call_, "causal", 1), FLASHTILE_OK);
  ASSERT_EQ(flashtile_call_set_text(call_, "softmax_scale", "0.5"), FLASHTILE_OK);
  ASSERT_EQ(flashtile_call_set_uint(call_, "dropout_seed", ~uint64_t{0}), FLASHTILE_OK);
  EXPECT_EQ(problem(),
            "attention_fwd:b1:hq2:sq3:d4:softmax_scale=0.5:causal:dropout_seed="
            "18446744073709551615:f32");
  ASSERT_EQ(flashtile_call_run(nullptr, call_), FLASHTILE_OK) << last();
  // Queries of 0 weigh the keys that they see alike; v repeats in each row.
  for (size_t i = 0; i < out_.size(); ++i) EXPECT_NEAR(out_[i], v_[i], 1e-6);

  size_t bytes = 0;
  EXPECT_EQ(flashtile_call_explain(nullptr, call_, nullptr, &bytes), FLASHTILE_OK);
  std::string text(bytes, '?');
  EXPECT_EQ(flashtile_call_explain(nullptr, call_, text.data(), &bytes), FLASHTILE_OK);
  EXPECT_NE(text.find("problem: attention_fwd:b1:hq2:sq3:d4"), std::string::npos) << text;
  EXPECT_NE(text.find("attention_fwd_reference"), std::string::npos) << text;

  ASSERT_EQ(flashtile_call_unset(call_, "causal"), FLASHTILE_OK);
  ASSERT_EQ(flashtile_call_set_tensor(call_, "k", nullptr), FLASHTILE_OK);
  EXPECT_EQ(flashtile_call_run(nullptr, call_), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "attention_fwd: k is missing");
}

/// The size that an error of a call with one byte of workspace asks for.
uint64_t bytes_asked_for(const flashtile_call* call, flashtile_context context) {
  alignas(256) static char byte;
  context.workspace = &byte;
  context.workspace_bytes = 1;
  EXPECT_EQ(flashtile_call_run(&context, call), FLASHTILE_OUT_OF_MEMORY);
  const std::string text = flashtile_last_error();
  const std::string before = "the workspace has 1 bytes, ";
  const size_t at = text.find(before);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + before.size()));
}

TEST_F(CapiCall, WorkspaceBytesAreWhatACallAsksForAndEnoughForIt) {
  const int64_t shape[] = {2, 300, 4, 64};
  std::vector<float> x(2 * 300 * 4 * 64, 0.5f);
  std::vector<float> result(x.size());
  const flashtile_tensor in = flashtile_cpu_tensor(x.data(), FLASHTILE_F32, 4, shape);
  const flashtile_tensor to = flashtile_cpu_tensor(result.data(), FLASHTILE_F32, 4, shape);
  for (const char* name : {"q", "k", "v"}) {
    ASSERT_EQ(flashtile_call_set_tensor(call_, name, &in), FLASHTILE_OK);
  }
  ASSERT_EQ(flashtile_call_set_tensor(call_, "out", &to), FLASHTILE_OK);
  flashtile_attention_args args = fresh_args();
  args.q = args.k = args.v = &in;
  args.out = &to;
  flashtile_context context;
  flashtile_context_init(&context, sizeof(context));
  context.max_workers = 1;
  const std::string best = flashtile_get_implementation("attention_fwd", 0);
  context.implementation = best.c_str();
  uint64_t bytes = 0;
  ASSERT_EQ(flashtile_call_workspace_bytes(&context, call_, &bytes), FLASHTILE_OK) << last();
  EXPECT_EQ(bytes, bytes_asked_for(call_, context));
  uint64_t typed_bytes = 0;
  ASSERT_EQ(flashtile_attention_fwd_workspace_bytes(&context, &args, &typed_bytes), FLASHTILE_OK);
  EXPECT_EQ(typed_bytes, bytes);

  std::vector<char> memory(bytes + 255 + 64, 'x');
  const size_t skipped = (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  context.workspace = memory.data() + skipped;
  context.workspace_bytes = bytes;
  ASSERT_EQ(flashtile_call_run(&context, call_), FLASHTILE_OK) << last();
  for (const float value : result) EXPECT_NEAR(value, 0.5f, 1e-6);
  for (size_t i = skipped + bytes; i < memory.size(); ++i) EXPECT_EQ(memory[i], 'x');

  // The reference asks for none; nothing takes f64 on a GPU.
  context.implementation = "attention_fwd_reference";
  ASSERT_EQ(flashtile_call_workspace_bytes(&context, call_, &bytes), FLASHTILE_OK) << last();
  EXPECT_EQ(bytes, 0);
  EXPECT_EQ(flashtile_call_workspace_bytes(&context, call_, nullptr), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "flashtile_call_workspace_bytes: bytes is NULL");
  EXPECT_EQ(flashtile_attention_bwd_workspace_bytes(nullptr, nullptr, &bytes),
            FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "attention_bwd: args is NULL");
}

TEST_F(CapiCall, WorkspaceBytesOfACallThatNothingTakesAreAnError) {
  const int64_t shape[] = {1, 3, 2, 4};
  const flashtile_tensor tensor = flashtile_cpu_tensor(nullptr, FLASHTILE_F64, 4, shape);
  for (const char* name : {"q", "k", "v", "out"}) {
    ASSERT_EQ(flashtile_call_set_tensor(call_, name, &tensor), FLASHTILE_OK);
  }
  flashtile_context context;
  flashtile_context_init(&context, sizeof(context));
  const std::string best = flashtile_get_implementation("attention_fwd", 0);
  if (best == "attention_fwd_reference") GTEST_SKIP() << "no kernels on this machine";
  context.implementation = best.c_str();
  uint64_t bytes = 7;
  EXPECT_EQ(flashtile_call_workspace_bytes(&context, call_, &bytes), FLASHTILE_UNSUPPORTED);
  EXPECT_NE(last().find("f64"), std::string::npos) << last();
  EXPECT_EQ(bytes, 7);
}

TEST_F(CapiCall, BadValuesAreErrors) {
  EXPECT_EQ(flashtile_call_set_bool(call_, "causal", 2), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "attention_fwd: causal is 2, expected true or false");
  EXPECT_EQ(flashtile_call_set_float(call_, "window_left", 1.5), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "attention_fwd: window_left is 1.5, expected a 64-bit integer");
  EXPECT_EQ(flashtile_call_set_int(call_, "window_left", -1), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "attention_fwd: window_left is -1, expected at least 0");
  EXPECT_EQ(flashtile_call_set_int(call_, "windows", 1), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_EQ(last().substr(0, 39), "attention_fwd has no option 'windows'; ");
  EXPECT_EQ(flashtile_call_new("attention"), nullptr);
  EXPECT_EQ(last(), "flashtile_call_new: there is no op 'attention'");
}

TEST_F(CapiCall, BadTensorsAreErrors) {
  const int64_t shape[] = {1, 3, 2, 4, 1, 1, 1, 1, 1};
  const auto error_with = [&](auto change) {
    flashtile_tensor tensor = flashtile_cpu_tensor(q_.data(), FLASHTILE_F32, 4, shape);
    change(tensor);
    EXPECT_EQ(flashtile_call_set_tensor(call_, "q", &tensor), FLASHTILE_INVALID_ARGUMENT);
    return last();
  };
  using T = flashtile_tensor;
  EXPECT_EQ(error_with([](T& t) { t.ndim = 9; }),
            "attention_fwd: q has 9 dimensions, expected 0 to 8");
  EXPECT_EQ(error_with([](T& t) { t.ndim = -1; }),
            "attention_fwd: q has -1 dimensions, expected 0 to 8");
  EXPECT_EQ(error_with([](T& t) { t.shape = nullptr; }), "attention_fwd: shape of q is NULL");
  EXPECT_EQ(error_with([](T& t) { t.dtype = 0; }),
            "attention_fwd: dtype of q is 0 (none), expected one for a tensor");
  EXPECT_EQ(error_with([](T& t) { t.device_type = 7; }),
            "attention_fwd: device_type of q is 7, expected 1 (CPU) or 2 (CUDA)");
  EXPECT_EQ(error_with([](T& t) { t.reserved = 1; }),
            "attention_fwd: q: reserved is 1, expected 0");
  EXPECT_NE(error_with([](T& t) { t.struct_size = 0; }).find("q: flashtile_tensor: struct_size"),
            std::string::npos);
}

TEST(Capi, NullPointersAreErrors) {
  flashtile_call* call = flashtile_call_new("attention_fwd");
  ASSERT_NE(call, nullptr);
  size_t bytes = 0;
  int32_t flag = 0;
  const flashtile_status bad = FLASHTILE_INVALID_ARGUMENT;
  EXPECT_EQ(flashtile_call_new(nullptr), nullptr);
  EXPECT_STREQ(flashtile_last_error(), "flashtile_call_new: op is NULL");
  EXPECT_EQ(flashtile_call_set_tensor(nullptr, "q", nullptr), bad);
  EXPECT_EQ(flashtile_call_set_tensor(call, nullptr, nullptr), bad);
  EXPECT_EQ(flashtile_call_set_bool(nullptr, "causal", 1), bad);
  EXPECT_EQ(flashtile_call_set_int(call, nullptr, 1), bad);
  EXPECT_EQ(flashtile_call_set_uint(nullptr, "causal", 1), bad);
  EXPECT_EQ(flashtile_call_set_float(nullptr, "causal", 1), bad);
  EXPECT_EQ(flashtile_call_set_text(call, "score", nullptr), bad);
  EXPECT_STREQ(flashtile_last_error(), "flashtile_call_set_text: value is NULL");
  EXPECT_EQ(flashtile_call_unset(call, nullptr), bad);
  EXPECT_EQ(flashtile_call_run(nullptr, nullptr), bad);
  EXPECT_EQ(flashtile_call_explain(nullptr, nullptr, nullptr, &bytes), bad);
  EXPECT_EQ(flashtile_call_problem(call, nullptr, nullptr), bad);
  EXPECT_EQ(flashtile_explain(nullptr, nullptr, &bytes), bad);
  EXPECT_EQ(flashtile_explain("attention_fwd:d8", nullptr, nullptr), bad);
  EXPECT_EQ(flashtile_supports(nullptr, &flag), bad);
  EXPECT_EQ(flashtile_supports("attention_fwd:d8", nullptr), bad);
  EXPECT_EQ(flashtile_attention_bwd(nullptr, nullptr), bad);
  EXPECT_EQ(flashtile_get_op(0, nullptr), bad);
  EXPECT_EQ(flashtile_get_tensor(nullptr, 0, nullptr), bad);
  EXPECT_EQ(flashtile_get_option("attention_fwd", 0, nullptr), bad);
  EXPECT_EQ(flashtile_get_implementation(nullptr, 0), nullptr);
  flashtile_call_free(call);
  flashtile_call_free(nullptr);
  flashtile_tensor_init(nullptr, sizeof(flashtile_tensor));
  flashtile_attention_args_init(nullptr, sizeof(flashtile_attention_args));
}

TEST(Capi, EveryExceptionBecomesAStatus) {
  using capi::guarded;
  EXPECT_EQ(guarded([] {}), FLASHTILE_OK);
  EXPECT_EQ(guarded([] { throw Error(ErrorCode::kUnsupported, "why"); }), FLASHTILE_UNSUPPORTED);
  EXPECT_STREQ(flashtile_last_error(), "why");
  EXPECT_EQ(guarded([] { throw std::bad_alloc(); }), FLASHTILE_OUT_OF_MEMORY);
  EXPECT_EQ(guarded([] { throw std::runtime_error("odd"); }), FLASHTILE_INTERNAL);
  EXPECT_STREQ(flashtile_last_error(), "odd");
  EXPECT_EQ(guarded([] { throw 3; }), FLASHTILE_INTERNAL);
}

TEST(Capi, LastErrorBelongsToItsThread) {
  capi::failed(FLASHTILE_INTERNAL, "of the first thread");
  std::thread([] {
    EXPECT_STREQ(flashtile_last_error(), "");
    capi::failed(FLASHTILE_INTERNAL, "of the second");
  }).join();
  EXPECT_STREQ(flashtile_last_error(), "of the first thread");
}

struct Pool {
  int num_runs = 0;
};

TEST(Capi, CallerPoolsRunTheTasks) {
  const int64_t shape[] = {2, 256, 2, 64};  // a tiny call would stay on this thread
  constexpr size_t kSize = 2 * 256 * 2 * 64;
  std::vector<float> q(kSize, 0.5f), k(kSize, 0.25f), v(kSize, 2.0f), out(kSize, 0.0f);
  const flashtile_tensor tensor_q = flashtile_cpu_tensor(q.data(), FLASHTILE_F32, 4, shape);
  const flashtile_tensor tensor_k = flashtile_cpu_tensor(k.data(), FLASHTILE_F32, 4, shape);
  const flashtile_tensor tensor_v = flashtile_cpu_tensor(v.data(), FLASHTILE_F32, 4, shape);
  const flashtile_tensor tensor_out = flashtile_cpu_tensor(out.data(), FLASHTILE_F32, 4, shape);
  flashtile_attention_args args = fresh_args();
  args.q = &tensor_q, args.k = &tensor_k, args.v = &tensor_v, args.out = &tensor_out;
  Pool pool;
  flashtile_context context;
  flashtile_context_init(&context, sizeof(context));
  context.executor_state = &pool;
  context.executor_num_workers = [](void*) -> int32_t { return 2; };
  EXPECT_EQ(flashtile_attention_fwd(&context, &args), FLASHTILE_INVALID_ARGUMENT);
  EXPECT_STREQ(flashtile_last_error(),
               "flashtile_context: executor_num_workers and executor_run must be given together");
  context.executor_run = [](void* state, int64_t num_tasks, flashtile_task task, void* task_state) {
    ++static_cast<Pool*>(state)->num_runs;
    for (int64_t i = num_tasks; i-- > 0;) task(task_state, i, static_cast<int32_t>(i % 2));
  };
  ASSERT_EQ(flashtile_attention_fwd(&context, &args), FLASHTILE_OK) << flashtile_last_error();
  EXPECT_GT(pool.num_runs, 0);
  for (float value : out) EXPECT_NEAR(value, 2.0f, 1e-6);
  context.max_workers = -1;
  EXPECT_EQ(flashtile_attention_fwd(&context, &args), FLASHTILE_INVALID_ARGUMENT);
}

TEST(CapiContext, WhatACallDoesNotHeedIsAnError) {
  std::array<float, 8> q{};
  const int64_t shape[] = {1, 1, 1, 8};
  std::array<float, 8> out{};
  const flashtile_tensor in = flashtile_cpu_tensor(q.data(), FLASHTILE_F32, 4, shape);
  const flashtile_tensor to = flashtile_cpu_tensor(out.data(), FLASHTILE_F32, 4, shape);
  flashtile_attention_args args = fresh_args();
  args.q = args.k = args.v = &in;
  args.out = &to;
  const auto error_with = [&](auto change) -> std::string {
    flashtile_context context;
    flashtile_context_init(&context, sizeof(context));
    EXPECT_EQ(flashtile_attention_fwd(&context, &args), FLASHTILE_OK) << flashtile_last_error();
    change(context);
    EXPECT_EQ(flashtile_attention_fwd(&context, &args), FLASHTILE_INVALID_ARGUMENT);
    return flashtile_last_error();
  };
  EXPECT_EQ(error_with([](flashtile_context& c) { c.device_type = 7; }),
            "flashtile_context: device_type is 7, expected 1 (CPU) or 2 (CUDA)");
  EXPECT_EQ(error_with([](flashtile_context& c) { c.device_type = 0, c.device_index = 2; }),
            "flashtile_context: device_index is 2 without a device_type");
  EXPECT_EQ(error_with([](flashtile_context& c) { c.device_index = 1; }),
            "attention_fwd: tensors are on cpu:0, the context says cpu:1");
  EXPECT_EQ(error_with([](flashtile_context& c) { c.workspace_bytes = 5; }),
            "attention_fwd: workspace_bytes is 5, but workspace is null");
  EXPECT_EQ(error_with([&](flashtile_context& c) { c.stream = &args; }),
            "attention_fwd: a stream is given, expected none for tensors on the CPU");
}

TEST(CapiInfo, TablesAreEnumerated) {
  ASSERT_EQ(flashtile_num_ops(), all_ops().size());
  for (size_t op_idx = 0; op_idx < flashtile_num_ops(); ++op_idx) {
    flashtile_op_info op;
    flashtile_op_info_init(&op, sizeof(op));
    ASSERT_EQ(flashtile_get_op(op_idx, &op), FLASHTILE_OK);
    const OpSpec& spec = *all_ops()[op_idx];
    EXPECT_EQ(op.name, spec.name);
    ASSERT_EQ(op.num_tensors, spec.tensors.size());
    for (size_t i = 0; i < op.num_tensors; ++i) {
      flashtile_tensor_info info;
      flashtile_tensor_info_init(&info, sizeof(info));
      ASSERT_EQ(flashtile_get_tensor(op.name, i, &info), FLASHTILE_OK);
      EXPECT_EQ(info.name, spec.tensors[i].name);
      EXPECT_EQ(info.shape, spec.tensors[i].shape);
      EXPECT_EQ(info.gradient_of, spec.tensors[i].gradient_of);
      EXPECT_EQ(info.is_output != 0, spec.tensors[i].direction == Direction::kOut);
      EXPECT_EQ(info.is_required != 0, spec.tensors[i].required);
    }
    ASSERT_EQ(op.num_options, spec.options.size());
    for (size_t i = 0; i < op.num_options; ++i) {
      flashtile_option_info info;
      flashtile_option_info_init(&info, sizeof(info));
      ASSERT_EQ(flashtile_get_option(op.name, i, &info), FLASHTILE_OK);
      EXPECT_EQ(info.name, spec.options[i].name);
      EXPECT_EQ(info.type, static_cast<int32_t>(spec.options[i].type));
      EXPECT_EQ(info.max_value, spec.options[i].max_value);
    }
    const std::vector<std::string> names = spec.implementations();
    ASSERT_EQ(op.num_implementations, names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(flashtile_get_implementation(op.name, i), names[i]);
    }
    EXPECT_EQ(flashtile_get_implementation(op.name, names.size()), nullptr);
    EXPECT_EQ(flashtile_get_tensor(op.name, spec.tensors.size(), nullptr),
              FLASHTILE_INVALID_ARGUMENT);
  }
  flashtile_op_info op{};
  EXPECT_EQ(flashtile_get_op(0, &op), FLASHTILE_INVALID_ARGUMENT);  // not initialised
  EXPECT_STREQ(flashtile_last_error(),
               "struct_size of flashtile_op_info is 0; call its init function first");
}

}  // namespace
}  // namespace flashtile
