// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <vector>

#include "capi/attention_call.hpp"
#include "capi/convert.hpp"
#include "capi/status.hpp"
#include "capi/structs.hpp"
#include "core/fail.hpp"

namespace flashtile::capi {
namespace {

using Args = flashtile_attention_args;
using enum MemberKind;

#define FLASHTILE_BIND(member, kind, bit) \
  AttentionMember { #member, kind, offsetof(Args, member), sizeof(Args::member), bit }
#define FLASHTILE_TENSOR(member) FLASHTILE_BIND(member, kTensor, 0)

constexpr std::array kMembers = {
    FLASHTILE_TENSOR(q),
    FLASHTILE_TENSOR(k),
    FLASHTILE_TENSOR(v),
    FLASHTILE_TENSOR(out),
    FLASHTILE_TENSOR(lse),
    FLASHTILE_TENSOR(dout),
    FLASHTILE_TENSOR(dlse),
    FLASHTILE_TENSOR(dq),
    FLASHTILE_TENSOR(dk),
    FLASHTILE_TENSOR(dv),
    FLASHTILE_TENSOR(dbias),
    FLASHTILE_TENSOR(dalibi_slopes),
    FLASHTILE_TENSOR(dsink),
    FLASHTILE_TENSOR(bias),
    FLASHTILE_TENSOR(alibi_slopes),
    FLASHTILE_TENSOR(sink),
    FLASHTILE_TENSOR(cu_seqlens_q),
    FLASHTILE_TENSOR(cu_seqlens_k),
    FLASHTILE_TENSOR(seqused_k),
    FLASHTILE_TENSOR(leftpad_k),
    FLASHTILE_TENSOR(block_table),
    FLASHTILE_TENSOR(cache_batch_idx),
    FLASHTILE_TENSOR(block_counts),
    FLASHTILE_TENSOR(block_indices),
    FLASHTILE_TENSOR(max_logit),
    FLASHTILE_TENSOR(weights),
    FLASHTILE_TENSOR(dropout_mask),
    FLASHTILE_TENSOR(k_new),
    FLASHTILE_TENSOR(v_new),
    FLASHTILE_TENSOR(cu_seqlens_new),
    FLASHTILE_TENSOR(rotary_cos),
    FLASHTILE_TENSOR(rotary_sin),
    FLASHTILE_TENSOR(rotary_seqlens),
    FLASHTILE_TENSOR(k_scale),
    FLASHTILE_TENSOR(v_scale),
    FLASHTILE_TENSOR(dropout_seed_tensor),
    FLASHTILE_BIND(rotary_interleaved, kFlag, 0),
    FLASHTILE_BIND(batch_invariant, kFlag, 0),
    FLASHTILE_BIND(softmax_scale, kFloat, FLASHTILE_HAS_SOFTMAX_SCALE),
    FLASHTILE_BIND(softcap, kFloat, FLASHTILE_HAS_SOFTCAP),
    FLASHTILE_BIND(score, kText, 0),
    FLASHTILE_BIND(mask, kText, 0),
    FLASHTILE_BIND(causal, kFlag, 0),
    FLASHTILE_BIND(deterministic, kFlag, 0),
    FLASHTILE_BIND(window_left, kInt, FLASHTILE_HAS_WINDOW_LEFT),
    FLASHTILE_BIND(window_right, kInt, FLASHTILE_HAS_WINDOW_RIGHT),
    FLASHTILE_BIND(query_offset, kInt, FLASHTILE_HAS_QUERY_OFFSET),
    FLASHTILE_BIND(attention_chunk, kInt, FLASHTILE_HAS_ATTENTION_CHUNK),
    FLASHTILE_BIND(max_seqlen_q, kInt, FLASHTILE_HAS_MAX_SEQLEN_Q),
    FLASHTILE_BIND(max_seqlen_k, kInt, FLASHTILE_HAS_MAX_SEQLEN_K),
    FLASHTILE_BIND(block_rows, kInt, 0),
    FLASHTILE_BIND(block_cols, kInt, 0),
    FLASHTILE_BIND(dropout_p, kFloat, 0),
    FLASHTILE_BIND(dropout_seed, kUint, 0),
    FLASHTILE_BIND(dropout_offset, kInt, 0),
    AttentionMember{"aux.*", kAuxTensors, offsetof(Args, aux), sizeof(Args::aux), 0},
    AttentionMember{"daux.*", kAuxGradients, offsetof(Args, aux), sizeof(Args::aux), 0},
    AttentionMember{"param.*", kParams, offsetof(Args, params), sizeof(Args::params), 0},
};

constexpr uint64_t all_present_bits() {
  uint64_t bits = 0;
  for (const AttentionMember& member : kMembers) bits |= member.present_bit;
  return bits;
}

constexpr std::array kAuxMembers = {
    FLASHTILE_MEMBER(flashtile_aux, reserved), FLASHTILE_MEMBER(flashtile_aux, name),
    FLASHTILE_MEMBER(flashtile_aux, tensor), FLASHTILE_MEMBER(flashtile_aux, gradient)};
constexpr std::array kParamMembers = {FLASHTILE_MEMBER(flashtile_param, reserved),
                                      FLASHTILE_MEMBER(flashtile_param, name),
                                      FLASHTILE_MEMBER(flashtile_param, value)};

template <class T>
T read_member(const Args& args, const AttentionMember& member) {
  T value;
  std::memcpy(&value, reinterpret_cast<const char*>(&args) + member.offset, sizeof(value));
  return value;
}

/// The structs of a caller's list. Its elements lie as far apart as the first one says.
template <class T>
std::vector<T> read_list(std::string_view op, std::string_view name, const T* first, uint64_t count,
                         std::string_view type, std::span<const Member> members) {
  std::vector<T> list;
  if (count == 0) return list;
  if (first == nullptr) fail(op, name, " is NULL, expected ", count, " structs");
  const uint32_t step = first->struct_size;
  for (uint64_t i = 0; i < count; ++i) {
    const auto* bytes = reinterpret_cast<const char*>(first) + i * step;
    const T& element = *reinterpret_cast<const T*>(bytes);
    if (element.struct_size != step) {
      fail(op, name, "[", i, "] has struct_size ", element.struct_size, ", expected ", step,
           " as the first one has");
    }
    list.push_back(read_struct(element, type, members));
    if (list.back().name == nullptr) fail(op, "name of ", name, "[", i, "] is NULL");
  }
  return list;
}

void set_aux(OpCall& call, const Args& args, bool is_gradient) {
  const std::string_view op = call.spec().name;
  for (const flashtile_aux& aux :
       read_list(op, "aux", args.aux, args.num_aux, "flashtile_aux", kAuxMembers)) {
    const std::string name = (is_gradient ? "daux." : "aux.") + std::string(aux.name);
    const flashtile_tensor* tensor = is_gradient ? aux.gradient : aux.tensor;
    if (!is_gradient && call.tensor(name)) fail(op, "aux has two tensors called '", aux.name, "'");
    if (!is_gradient && tensor == nullptr) fail(op, "tensor of aux '", aux.name, "' is NULL");
    if (tensor != nullptr) call.set_tensor(name, to_view(op, name, tensor));
  }
}

void set_params(OpCall& call, const Args& args) {
  const std::string_view op = call.spec().name;
  for (const flashtile_param& param :
       read_list(op, "params", args.params, args.num_params, "flashtile_param", kParamMembers)) {
    const std::string name = "param." + std::string(param.name);
    if (call.option(name) != OptionValue()) {
      fail(op, "params has two numbers called '", param.name, "'");
    }
    call.set_option(name, param.value);
  }
}

/// The value of an option member; monostate where it is 0 and so says nothing by itself.
OptionValue read_option(const Args& args, const AttentionMember& member) {
  switch (member.kind) {
    case kFlag: {
      const auto flag = read_member<int32_t>(args, member);
      return flag == 0 ? OptionValue() : OptionValue(int64_t{flag});
    }
    case kInt: {
      const auto number = read_member<int64_t>(args, member);
      return number == 0 ? OptionValue() : OptionValue(number);
    }
    case kUint: {
      const auto number = read_member<uint64_t>(args, member);
      return number == 0 ? OptionValue() : OptionValue(number);
    }
    case kFloat: {
      const auto number = read_member<double>(args, member);
      return number == 0 ? OptionValue() : OptionValue(number);
    }
    case kText: {
      const auto* text = read_member<const char*>(args, member);
      return text == nullptr || *text == '\0' ? OptionValue() : OptionValue(std::string(text));
    }
    default:
      return {};
  }
}

void set_option(OpCall& call, const Args& args, const AttentionMember& member) {
  OptionValue value = read_option(args, member);
  const bool is_present = (args.present & member.present_bit) != 0;
  const bool is_zero = std::holds_alternative<std::monostate>(value);
  if (member.present_bit != 0 && !is_present && !is_zero) {
    fail(call.spec().name, member.name, " is ", option_text(value),
         ", but its bit is not set in `present`");
  }
  if (is_present && is_zero) value = int64_t{0};
  call.set_option(member.name, value);
}

OpCall call_of(const char* op, const Args* args) {
  const OpSpec* spec = find_op(op);
  if (spec == nullptr) fail(op, "this library was built without it");
  return attention_call(*spec, required(args, op, "args"));
}

flashtile_status run(const char* op, const flashtile_context* context, const Args* args) {
  return guarded([&] { call_of(op, args).run(CallContext(context)); });
}

flashtile_status query_workspace(const char* op, const flashtile_context* context, const Args* args,
                                 uint64_t* bytes) {
  return guarded(
      [&] { required(bytes, op, "bytes") = workspace_bytes(call_of(op, args), context); });
}

}  // namespace

std::span<const AttentionMember> attention_members() { return kMembers; }

OpCall attention_call(const OpSpec& spec, const flashtile_attention_args& given) {
  static const std::vector<Member> members = [] {
    std::vector<Member> list = {FLASHTILE_MEMBER(Args, reserved), FLASHTILE_MEMBER(Args, present),
                                FLASHTILE_MEMBER(Args, num_aux),
                                FLASHTILE_MEMBER(Args, num_params)};
    for (const AttentionMember& member : kMembers) {
      list.push_back({member.name, member.offset, member.bytes});
    }
    return list;
  }();
  const Args args = read_struct(given, "flashtile_attention_args", members);
  if (args.reserved != 0) fail(spec.name, "reserved is ", args.reserved, ", expected 0");
  if ((args.present & ~all_present_bits()) != 0) {
    fail(spec.name, "present is ", args.present, ", which has bits that this library (",
         FLASHTILE_VERSION_STRING, ") does not know");
  }
  OpCall call(spec);
  for (const AttentionMember& member : kMembers) {
    switch (member.kind) {
      case kTensor: {
        const auto* tensor = read_member<const flashtile_tensor*>(args, member);
        if (tensor == nullptr) break;
        call.set_tensor(member.name, to_view(spec.name, member.name, tensor));
        break;
      }
      case kAuxTensors:
        set_aux(call, args, /*is_gradient=*/false);
        break;
      case kAuxGradients:
        set_aux(call, args, /*is_gradient=*/true);
        break;
      case kParams:
        set_params(call, args);
        break;
      default:
        set_option(call, args, member);
    }
  }
  return call;
}

}  // namespace flashtile::capi

using flashtile::capi::init_struct;

extern "C" {

void flashtile_aux_init(flashtile_aux* aux, size_t struct_size) { init_struct(aux, struct_size); }

void flashtile_param_init(flashtile_param* param, size_t struct_size) {
  init_struct(param, struct_size);
}

void flashtile_attention_args_init(flashtile_attention_args* args, size_t struct_size) {
  init_struct(args, struct_size);
}

flashtile_status flashtile_attention_fwd(const flashtile_context* context,
                                         const flashtile_attention_args* args) {
  return flashtile::capi::run("attention_fwd", context, args);
}

flashtile_status flashtile_attention_bwd(const flashtile_context* context,
                                         const flashtile_attention_args* args) {
  return flashtile::capi::run("attention_bwd", context, args);
}

flashtile_status flashtile_attention_fwd_workspace_bytes(const flashtile_context* context,
                                                         const flashtile_attention_args* args,
                                                         uint64_t* bytes) {
  return flashtile::capi::query_workspace("attention_fwd", context, args, bytes);
}

flashtile_status flashtile_attention_bwd_workspace_bytes(const flashtile_context* context,
                                                         const flashtile_attention_args* args,
                                                         uint64_t* bytes) {
  return flashtile::capi::query_workspace("attention_bwd", context, args, bytes);
}

}  // extern "C"
