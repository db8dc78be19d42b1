// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "variant/expr/op.hpp"

/// The strip program as plain data: what `compile` (program.hpp) makes and what the interpreter of
/// each instruction set (cpu/kernels/strip.hpp) reads. No function lives here, so that files of any
/// instruction set may include it.
namespace flashtile::variant {

/// How often an instruction has to run. kTile: once for given scalars; kRow: for each q_idx;
/// kColumn: for each strip of keys, whatever the row; kElement: for each strip of each row.
enum class Rank : uint8_t { kTile, kRow, kColumn, kElement };

/// One operation. The first two ranks work on scalars, the others on strips of kStrip lanes, each
/// in registers of its own by type: a register number means one of four-by-two banks.
struct StripInstruction {
  Op op = Op::kBoolConst;
  Type type = Type::kBool;    ///< of the arguments; of constants, loads and selects, the result
  bool is_broadcast = false;  ///< copy scalar register `args[0]` into every lane of `out`
  Variable variable = Variable::kScore;
  int32_t out = -1;
  int32_t args[3] = {-1, -1, -1};
  int32_t predicate = -1;    ///< kLoad: bool register of the lanes that read; -1 for all
  int32_t aux = -1;          ///< kLoad: into StripInputs::aux; kParam: into params
  int32_t first_index = -1;  ///< kLoad: into StripProgram::indices
  int64_t int_value = 0;
  float float_value = 0;
};

/// Where a root's value is after a run: a strip register of the bank of its type.
struct StripOutput {
  Type type = Type::kFloat;
  Rank rank = Rank::kElement;  ///< when it changes
  int32_t reg = -1;
};

/// A view of a Program, which has to outlive it.
struct StripProgram {
  const StripInstruction* instructions = nullptr;
  int32_t ends[4] = {0, 0, 0, 0};  ///< where the instructions of each Rank end; they are in order
  const int32_t* indices = nullptr;
  const StripOutput* outputs = nullptr;
  int32_t num_outputs = 0;
  int32_t num_scalars[3] = {0, 0, 0};  ///< registers of each Type
  int32_t num_strips[3] = {0, 0, 0};
};

/// Element types that a strip program reads; the numbers of DType.
enum class StripDType : int32_t { kF32 = 1, kF16 = 2, kBF16 = 3, kF64 = 4, kI32 = 5, kI64 = 6 };

/// An aux tensor: shape and strides in elements.
struct StripAux {
  const void* data = nullptr;
  StripDType dtype = StripDType::kF32;
  int32_t rank = 0;
  int64_t shape[8] = {};
  int64_t strides[8] = {};
};

/// What a program reads besides the score and the two indices.
struct StripInputs {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t head_kv = 0;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t query_offset = 0;
  int64_t leftpad = 0;
  const StripAux* aux = nullptr;  ///< in the order of Program::aux
  const float* params = nullptr;  ///< in the order of Program::params
};

}  // namespace flashtile::variant
