/* SPDX-License-Identifier: Apache-2.0 */
/* A program compiled with an older header: its structs end earlier than the library's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "flashtile_0_1_old.h"

static int num_failures = 0;

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "line %d: %s\n  %s\n", __LINE__, #condition, flashtile_last_error()); \
      ++num_failures;                                                                       \
    }                                                                                       \
  } while (0)

/* What lies behind an old struct in memory is not the library's to read or to write. */
typedef struct {
  flashtile_attention_args args;
  unsigned char behind[512];
} args_and_more;

typedef struct {
  flashtile_context context;
  unsigned char behind[512];
} context_and_more;

typedef struct {
  flashtile_op_info info;
  unsigned char behind[512];
} info_and_more;

static int is_untouched(const unsigned char* bytes) {
  for (int i = 0; i < 512; ++i) {
    if (bytes[i] != 0xA5) return 0;
  }
  return 1;
}

static flashtile_tensor tensor_of(float* data, const int64_t* shape) {
  flashtile_tensor tensor;
  flashtile_tensor_init(&tensor, sizeof(tensor));
  tensor.dtype = 1; /* f32 */
  tensor.data = data;
  tensor.ndim = 4;
  tensor.shape = shape;
  return tensor;
}

int main(void) {
  float q[4] = {0.5f, -1, 2, 0.25f}, k[4] = {1, 0.5f, -0.5f, 2}, v[4] = {1, 2, 3, 4}, out[4] = {0};
  const int64_t shape[] = {1, 2, 1, 2};
  const flashtile_tensor tensor_q = tensor_of(q, shape), tensor_k = tensor_of(k, shape),
                         tensor_v = tensor_of(v, shape), tensor_out = tensor_of(out, shape);
  args_and_more call;
  memset(&call, 0xA5, sizeof(call));
  flashtile_attention_args_init(&call.args, sizeof(call.args));
  CHECK(is_untouched(call.behind));
  call.args.q = &tensor_q;
  call.args.k = &tensor_k;
  call.args.v = &tensor_v;
  call.args.out = &tensor_out;
  context_and_more where;
  memset(&where, 0xA5, sizeof(where));
  flashtile_context_init(&where.context, sizeof(where.context));
  where.context.max_workers = 1;
  CHECK(is_untouched(where.behind));
  CHECK(flashtile_attention_fwd(&where.context, &call.args) == FLASHTILE_OK);
  for (int i = 0; i < 2; ++i) {
    double weight[2];
    for (int j = 0; j < 2; ++j) {
      weight[j] = exp((double)(q[2 * i] * k[2 * j] + q[2 * i + 1] * k[2 * j + 1]) / sqrt(2.0));
    }
    for (int d = 0; d < 2; ++d) {
      const double expected =
          (weight[0] * (double)v[d] + weight[1] * (double)v[2 + d]) / (weight[0] + weight[1]);
      CHECK(fabs((double)out[2 * i + d] - expected) < 1e-5);
    }
  }

  info_and_more op;
  memset(&op, 0xA5, sizeof(op));
  flashtile_op_info_init(&op.info, sizeof(op.info));
  CHECK(flashtile_get_op(0, &op.info) == FLASHTILE_OK);
  CHECK(strlen(op.info.name) > 0);
  CHECK(is_untouched(op.behind));
  CHECK(flashtile_get_op(1000, &op.info) == FLASHTILE_INVALID_ARGUMENT);
  return num_failures == 0 ? 0 : 1;
}
