/* SPDX-License-Identifier: Apache-2.0 */
/* Attention from C11: forward and backward against plain loops, options, errors, texts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "flashtile/flashtile.h"

enum { kBatch = 2, kSeqlenQ = 5, kSeqlenK = 7, kHeads = 4, kHeadsKv = 2, kDim = 8, kDimV = 6 };
enum {
  kNumQ = kBatch * kSeqlenQ * kHeads * kDim,
  kNumK = kBatch * kSeqlenK * kHeadsKv * kDim,
  kNumV = kBatch * kSeqlenK * kHeadsKv * kDimV,
  kNumOut = kBatch * kSeqlenQ * kHeads * kDimV,
  kNumLse = kBatch * kHeads * kSeqlenQ
};

static int num_failures = 0;

static void check(int is_true, int line, const char* condition) {
  if (is_true) return;
  fprintf(stderr, "line %d: %s\n  last error: %s\n", line, condition, flashtile_last_error());
  if (++num_failures == 20) exit(1);
}

#define CHECK(condition) check((condition), __LINE__, #condition)
#define CHECK_OK(call) CHECK((call) == FLASHTILE_OK)
#define CHECK_FAILS(call, status, text)                    \
  do {                                                     \
    CHECK((call) == (status));                             \
    CHECK(strstr(flashtile_last_error(), (text)) != NULL); \
  } while (0)

static float q[kNumQ], k[kNumK], v[kNumV], out[kNumOut], lse[kNumLse];
static float dout[kNumOut], dq[kNumQ], dk[kNumK], dv[kNumV];
static const int64_t shape_q[] = {kBatch, kSeqlenQ, kHeads, kDim};
static const int64_t shape_k[] = {kBatch, kSeqlenK, kHeadsKv, kDim};
static const int64_t shape_v[] = {kBatch, kSeqlenK, kHeadsKv, kDimV};
static const int64_t shape_out[] = {kBatch, kSeqlenQ, kHeads, kDimV};
static const int64_t shape_lse[] = {kBatch, kHeads, kSeqlenQ};
static flashtile_tensor tensor_q, tensor_k, tensor_v, tensor_out, tensor_lse;
static flashtile_tensor tensor_dout, tensor_dq, tensor_dk, tensor_dv;

static void fill(float* values, int count, unsigned seed) {
  for (int i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

static flashtile_attention_args args_of_tensors(void) {
  flashtile_attention_args args;
  flashtile_attention_args_init(&args, sizeof(args));
  args.q = &tensor_q;
  args.k = &tensor_k;
  args.v = &tensor_v;
  args.out = &tensor_out;
  args.lse = &tensor_lse;
  return args;
}

static double keep_score(double score, int i, int j, int causal, int window_left, int offset) {
  const int position = i + offset;
  if (causal && j > position) return -INFINITY;
  if (window_left >= 0 && j < position - window_left) return -INFINITY;
  return score;
}

/* The loss sum(out * dout) by plain loops in double; with `compare`, checks out and lse as well. */
static double plain_loss(double scale, int causal, int window_left, int compare) {
  double loss = 0;
  for (int b = 0; b < kBatch; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      const int h_kv = h / (kHeads / kHeadsKv);
      for (int i = 0; i < kSeqlenQ; ++i) {
        double score[kSeqlenK];
        double sum = 0;
        for (int j = 0; j < kSeqlenK; ++j) {
          double dot = 0;
          for (int d = 0; d < kDim; ++d) {
            dot += (double)q[((b * kSeqlenQ + i) * kHeads + h) * kDim + d] *
                   (double)k[((b * kSeqlenK + j) * kHeadsKv + h_kv) * kDim + d];
          }
          score[j] = keep_score(dot * scale, i, j, causal, window_left, kSeqlenK - kSeqlenQ);
          sum += exp(score[j]);
        }
        if (compare) CHECK(fabs(lse[(b * kHeads + h) * kSeqlenQ + i] - log(sum)) < 1e-5);
        for (int d = 0; d < kDimV; ++d) {
          double value = 0;
          for (int j = 0; j < kSeqlenK; ++j) {
            value +=
                exp(score[j]) / sum * (double)v[((b * kSeqlenK + j) * kHeadsKv + h_kv) * kDimV + d];
          }
          const int place = ((b * kSeqlenQ + i) * kHeads + h) * kDimV + d;
          if (compare) CHECK(fabs(out[place] - value) < 1e-5);
          loss += value * (double)dout[place];
        }
      }
    }
  }
  return loss;
}

static void test_forward(void) {
  flashtile_attention_args args = args_of_tensors();
  CHECK_OK(flashtile_attention_fwd(NULL, &args));
  plain_loss(1 / sqrt((double)kDim), 0, -1, /*compare=*/1);

  args.causal = 1;
  args.softmax_scale = -0.75;
  args.window_left = 2;
  args.present = FLASHTILE_HAS_SOFTMAX_SCALE | FLASHTILE_HAS_WINDOW_LEFT;
  CHECK_OK(flashtile_attention_fwd(NULL, &args));
  plain_loss(-0.75, 1, 2, /*compare=*/1);

  /* A scale of 0 and a window of 0 are meant when their bits are set. */
  args.softmax_scale = 0;
  args.window_left = 0;
  CHECK_OK(flashtile_attention_fwd(NULL, &args));
  plain_loss(0, 1, 0, /*compare=*/1);
}

static void check_gradient(float* values, const float* gradient, int count) {
  const double scale = 1 / sqrt((double)kDim);
  for (int i = 0; i < count; i += 13) {
    const float value = values[i];
    const float step = 1.0f / 256;
    values[i] = value + step;
    const double above = plain_loss(scale, 1, -1, 0);
    values[i] = value - step;
    const double below = plain_loss(scale, 1, -1, 0);
    values[i] = value;
    CHECK(fabs((above - below) / (2 * (double)step) - (double)gradient[i]) < 1e-3);
  }
}

static void test_backward(void) {
  flashtile_attention_args args = args_of_tensors();
  args.causal = 1;
  CHECK_OK(flashtile_attention_fwd(NULL, &args));
  args.dout = &tensor_dout;
  args.dq = &tensor_dq;
  args.dk = &tensor_dk;
  args.dv = &tensor_dv;
  CHECK_OK(flashtile_attention_bwd(NULL, &args));
  check_gradient(q, dq, kNumQ);
  check_gradient(k, dk, kNumK);
  check_gradient(v, dv, kNumV);
}

static void test_errors(void) {
  flashtile_attention_args args = args_of_tensors();
  CHECK_FAILS(flashtile_attention_fwd(NULL, NULL), FLASHTILE_INVALID_ARGUMENT, "args is NULL");

  args.q = NULL;
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT,
              "attention_fwd: q is missing");
  args = args_of_tensors();

  flashtile_tensor wrong = tensor_k;
  const int64_t shape_wrong[] = {kBatch, kSeqlenK, kHeadsKv, kDim - 1};
  wrong.shape = shape_wrong;
  args.k = &wrong;
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT,
              "attention_fwd: head_dim of k is 7, of q 8");
  args = args_of_tensors();

  args.softmax_scale = 0.5; /* its bit is missing */
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT,
              "softmax_scale is 0.5, but its bit is not set");
  args = args_of_tensors();

  args.causal = 2;
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT,
              "causal is 2, expected true or false");
  args = args_of_tensors();

  args.dq = &tensor_dq; /* belongs to the other function */
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT,
              "attention_fwd has no tensor 'dq'");
  args = args_of_tensors();

  args.score = "score +";
  CHECK_FAILS(flashtile_attention_fwd(NULL, &args), FLASHTILE_INVALID_ARGUMENT, "column");
  args = args_of_tensors();

  args.out = &tensor_q;
  CHECK(flashtile_attention_fwd(NULL, &args) == FLASHTILE_INVALID_ARGUMENT);
  args = args_of_tensors();

  flashtile_context context;
  flashtile_context_init(&context, sizeof(context));
  context.implementation = "no_such";
  CHECK_FAILS(flashtile_attention_fwd(&context, &args), FLASHTILE_INVALID_ARGUMENT, "no_such");
  context.implementation = "attention_fwd_reference";
  CHECK_OK(flashtile_attention_fwd(&context, &args));
}

static void test_texts(void) {
  int32_t is_supported = -1;
  CHECK_OK(flashtile_supports("attention_fwd:b2:hq8:sq129:d64:causal:bf16", &is_supported));
  CHECK(is_supported == 1);
  CHECK_FAILS(flashtile_supports("attention_fwd:b2:what", &is_supported),
              FLASHTILE_INVALID_ARGUMENT, "column 18");

  size_t bytes = 0;
  CHECK_OK(flashtile_explain("attention_fwd:b2:sq9:d64", NULL, &bytes));
  CHECK(bytes > 40);
  char* text = malloc(bytes);
  size_t capacity = bytes - 1;
  text[0] = 'x';
  CHECK_FAILS(flashtile_explain("attention_fwd:b2:sq9:d64", text, &capacity),
              FLASHTILE_INVALID_ARGUMENT, "the buffer has");
  CHECK(text[0] == 'x' && capacity == bytes);
  CHECK_OK(flashtile_explain("attention_fwd:b2:sq9:d64", text, &capacity));
  CHECK(strlen(text) + 1 == bytes);
  CHECK(strstr(text, "attention_fwd_reference") != NULL);
  free(text);
  CHECK(strcmp(flashtile_version(), FLASHTILE_VERSION_STRING) == 0);
}

int main(void) {
  fill(q, kNumQ, 1);
  fill(k, kNumK, 2);
  fill(v, kNumV, 3);
  fill(dout, kNumOut, 4);
  tensor_q = flashtile_cpu_tensor(q, FLASHTILE_F32, 4, shape_q);
  tensor_k = flashtile_cpu_tensor(k, FLASHTILE_F32, 4, shape_k);
  tensor_v = flashtile_cpu_tensor(v, FLASHTILE_F32, 4, shape_v);
  tensor_out = flashtile_cpu_tensor(out, FLASHTILE_F32, 4, shape_out);
  tensor_lse = flashtile_cpu_tensor(lse, FLASHTILE_F32, 3, shape_lse);
  tensor_dout = flashtile_cpu_tensor(dout, FLASHTILE_F32, 4, shape_out);
  tensor_dq = flashtile_cpu_tensor(dq, FLASHTILE_F32, 4, shape_q);
  tensor_dk = flashtile_cpu_tensor(dk, FLASHTILE_F32, 4, shape_k);
  tensor_dv = flashtile_cpu_tensor(dv, FLASHTILE_F32, 4, shape_v);
  test_forward();
  test_backward();
  test_errors();
  test_texts();
  return num_failures == 0 ? 0 : 1;
}
