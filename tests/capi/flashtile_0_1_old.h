/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program may have been compiled with before structs grew: the layout of flashtile.h up to
 * some member, and nothing of what came behind it. old_header.c is built with this file and runs
 * with the library of today. Members here never move.
 */
#ifndef FLASHTILE_FLASHTILE_H
#define FLASHTILE_FLASHTILE_H

#include <stddef.h>
#include <stdint.h>

typedef enum flashtile_status { FLASHTILE_OK = 0, FLASHTILE_INVALID_ARGUMENT = 1 } flashtile_status;

const char* flashtile_last_error(void);

typedef struct flashtile_tensor {
  uint32_t struct_size;
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  void* data;
  const int64_t* shape;
  const int64_t* strides;
  int32_t ndim;
  int32_t reserved;
} flashtile_tensor;

void flashtile_tensor_init(flashtile_tensor* tensor, size_t struct_size);

typedef struct flashtile_context {
  uint32_t struct_size;
  int32_t device_type;
  int32_t device_index;
  int32_t max_workers;
} flashtile_context;

void flashtile_context_init(flashtile_context* context, size_t struct_size);

typedef struct flashtile_attention_args {
  uint32_t struct_size;
  int32_t reserved;
  uint64_t present;
  const flashtile_tensor* q;
  const flashtile_tensor* k;
  const flashtile_tensor* v;
  const flashtile_tensor* out;
} flashtile_attention_args;

void flashtile_attention_args_init(flashtile_attention_args* args, size_t struct_size);

flashtile_status flashtile_attention_fwd(const flashtile_context* context,
                                         const flashtile_attention_args* args);

typedef struct flashtile_op_info {
  uint32_t struct_size;
  int32_t reserved;
  const char* name;
} flashtile_op_info;

void flashtile_op_info_init(flashtile_op_info* info, size_t struct_size);
flashtile_status flashtile_get_op(size_t op_idx, flashtile_op_info* info);

#endif /* FLASHTILE_FLASHTILE_H */
