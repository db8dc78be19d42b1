// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <vector>

#include "capi/attention_call.hpp"
#include "capi/convert.hpp"
#include "capi/status.hpp"
#include "capi/structs.hpp"
#include "core/fail.hpp"
#include "core/kept.hpp"
#include "core/text.hpp"

namespace flashtile::capi {
namespace {

using Args = flashtile_attention_args;
using enum MemberKind;

#define FLASHTILE_BIND(member, kind, bit) \
  AttentionMember { #member, kind, offsetof(Args, member), sizeof(Args::member), bit }
#define FLASHTILE_TENSOR(member) FLASHTILE_BIND(member, kTensor, 0)
#define FLASHTILE_TEXT(member)                                                              \
  AttentionMember {                                                                         \
#member, kText, offsetof(Args, member), sizeof(Args::member), 0, &AttentionArgs::member \
  }

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
    FLASHTILE_TEXT(score),
    FLASHTILE_TEXT(mask),
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

/// Calls visit(i, element) for the structs of a caller's list, which lie as far apart as the first
/// one says.
template <class T, class Visit>
void visit_list(std::string_view op, std::string_view name, const T* first, uint64_t count,
                std::string_view type, std::span<const Member> members, const Visit& visit) {
  if (count == 0) return;
  if (first == nullptr) fail(op, name, " is NULL, expected ", count, " structs");
  const uint32_t step = first->struct_size;
  for (uint64_t i = 0; i < count; ++i) {
    const auto* bytes = reinterpret_cast<const char*>(first) + i * step;
    const T& element = *reinterpret_cast<const T*>(bytes);
    if (element.struct_size != step) {
      fail(op, name, "[", i, "] has struct_size ", element.struct_size, ", expected ", step,
           " as the first one has");
    }
    const T known = read_struct(element, type, members);
    if (known.name == nullptr) fail(op, "name of ", name, "[", i, "] is NULL");
    if (!is_identifier(known.name)) {
      fail(op, "name of ", name, "[", i, "] is '", known.name,
           "', expected letters, digits and _, a letter or _ first");
    }
    visit(i, known);
  }
}

/// The next element of a list that is filled again, and where there is none a new one. `what` are
/// its elements; a name that one of them has is an error.
template <class T>
T& next_named(std::string_view op, std::string_view what, std::vector<T>& list, size_t i,
              std::string_view name) {
  for (size_t before = 0; before < i; ++before) {
    if (list[before].name == name) fail(op, what, " called '", name, "'");
  }
  if (i == list.size()) list.emplace_back();
  list[i].name = name;
  return list[i];
}

void read_aux(const OpSpec& spec, const Args& given, std::vector<AuxTensor>& list) {
  const std::string_view op = spec.name;
  const bool takes_gradients = spec.find_tensor("daux.*") != nullptr;
  Kept<std::string> row;
  visit_list(op, "aux", given.aux, given.num_aux, "flashtile_aux", kAuxMembers,
             [&](size_t i, const flashtile_aux& aux) {
               AuxTensor& to = next_named(op, "aux has two tensors", list, i, aux.name);
               if (aux.tensor == nullptr) fail(op, "tensor of aux '", aux.name, "' is NULL");
               to.tensor = to_view(op, (*row = "aux.") += aux.name, aux.tensor);
               to.gradient = to_view(op, (*row = "daux.") += aux.name, aux.gradient);
               if (to.gradient && !takes_gradients) {
                 fail(op, "gradient of aux '", aux.name, "' is given, expected none");
               }
             });
  list.resize(given.num_aux);
}

void read_params(const OpSpec& spec, const Args& given, std::vector<ScalarParam>& list) {
  visit_list(spec.name, "params", given.params, given.num_params, "flashtile_param", kParamMembers,
             [&](size_t i, const flashtile_param& param) {
               next_named(spec.name, "params has two numbers", list, i, param.name).value =
                   param.value;
             });
  list.resize(given.num_params);
}

/// The number of an option member; monostate where it is 0 and so says nothing by itself.
OptionValue read_number(const Args& given, const AttentionMember& member) {
  const auto unless_zero = [](auto number) {
    return number == 0 ? OptionValue() : OptionValue(number);
  };
  switch (member.kind) {
    case kFlag:
      return unless_zero(int64_t{read_member<int32_t>(given, member)});
    case kInt:
      return unless_zero(read_member<int64_t>(given, member));
    case kUint:
      return unless_zero(read_member<uint64_t>(given, member));
    case kFloat:
      return unless_zero(read_member<double>(given, member));
    default:
      return {};
  }
}

void read_option(const OpSpec& spec, const Args& given, const AttentionMember& member,
                 AttentionArgs& args) {
  OptionValue value = read_number(given, member);
  const bool is_present = (given.present & member.present_bit) != 0;
  const bool is_zero = std::holds_alternative<std::monostate>(value);
  if (member.present_bit != 0 && !is_present && !is_zero) {
    fail(spec.name, member.name, " is ", option_text(value),
         ", but its bit is not set in `present`");
  }
  if (!is_present && is_zero) return;
  if (is_zero) value = int64_t{0};
  const OptionSpec& row = spec.option_row(member.name);
  row.set(&args, {}, convert_option(spec, row, member.name, value));
}

/// Makes all members what they are in fresh arguments, but for the two lists, which are filled
/// again.
void reset(AttentionArgs& args) {
  static const AttentionArgs fresh;
  std::vector<AuxTensor> aux = std::move(args.aux);
  std::vector<ScalarParam> params = std::move(args.params);
  args = fresh;
  args.aux = std::move(aux);
  args.params = std::move(params);
}

/// What use(spec, args) gives for the call that a caller describes.
template <class Use>
auto with_call(const char* op, const Args* given, const Use& use) {
  const OpSpec* spec = find_op(op);
  if (spec == nullptr) fail(op, "this library was built without it");
  Kept<AttentionArgs> args;
  read_attention_args(*spec, required(given, op, "args"), *args);
  return use(*spec, &*args);
}

flashtile_status run(const char* op, const flashtile_context* context, const Args* given) {
  return guarded([&] {
    with_call(op, given,
              [&](const OpSpec& spec, const void* args) { spec.run(args, CallContext(context)); });
  });
}

flashtile_status query_workspace(const char* op, const flashtile_context* context,
                                 const Args* given, uint64_t* bytes) {
  return guarded([&] {
    required(bytes, op, "bytes") = with_call(op, given, [&](const OpSpec& spec, const void* args) {
      return workspace_bytes(spec, args, context);
    });
  });
}

}  // namespace

std::span<const AttentionMember> attention_members() { return kMembers; }

void read_attention_args(const OpSpec& spec, const flashtile_attention_args& caller,
                         AttentionArgs& args) {
  static const std::vector<Member> members = [] {
    std::vector<Member> list = {FLASHTILE_MEMBER(Args, reserved), FLASHTILE_MEMBER(Args, present),
                                FLASHTILE_MEMBER(Args, num_aux),
                                FLASHTILE_MEMBER(Args, num_params)};
    for (const AttentionMember& member : kMembers) {
      list.push_back({member.name, member.offset, member.bytes});
    }
    return list;
  }();
  const Args given = read_struct(caller, "flashtile_attention_args", members);
  if (given.reserved != 0) fail(spec.name, "reserved is ", given.reserved, ", expected 0");
  if ((given.present & ~all_present_bits()) != 0) {
    fail(spec.name, "present is ", given.present, ", which has bits that this library (",
         FLASHTILE_VERSION_STRING, ") does not know");
  }
  reset(args);
  for (const AttentionMember& member : kMembers) {
    switch (member.kind) {
      case kTensor: {
        const auto* tensor = read_member<const flashtile_tensor*>(given, member);
        if (tensor == nullptr) break;
        const TensorSpec& row = spec.tensor_row(member.name);
        *row.access(&args, {}, /*create=*/true) = to_view(spec.name, member.name, tensor);
        break;
      }
      case kText: {
        const auto* text = read_member<const char*>(given, member);
        if (text != nullptr) args.*member.text = text;
        break;
      }
      case kAuxTensors:
        read_aux(spec, given, args.aux);
        break;
      case kAuxGradients:
        break;  // beside their tensors
      case kParams:
        read_params(spec, given, args.params);
        break;
      default:
        read_option(spec, given, member, args);
    }
  }
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
