/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C face of flashtile: C11, and valid C++. docs/c-abi.md explains it with a complete program.
 *
 * Every function that can fail returns a flashtile_status, and flashtile_last_error() has the text.
 * Nothing is thrown, printed or kept: arguments may go out of scope when a call returns.
 *
 * Structs may grow at their end in later versions. Each begins with struct_size, which its init
 * function sets to what the caller was compiled with; members that an older caller does not have
 * count as not given, and members that an older library does not know must be zero. All members are
 * 0, NULL or "not given" after init.
 */
#ifndef FLASHTILE_FLASHTILE_H
#define FLASHTILE_FLASHTILE_H

#include <stddef.h>
#include <stdint.h>

#include "flashtile/version.hpp"

#if defined(__GNUC__)
#define FLASHTILE_C_API __attribute__((visibility("default")))
#else
#define FLASHTILE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ---------------------------------------------------------------------------------- */

typedef enum flashtile_status {
  FLASHTILE_OK = 0,
  FLASHTILE_INVALID_ARGUMENT = 1, /* an argument is wrong: shape, dtype, stride, value, text */
  FLASHTILE_UNSUPPORTED = 2,      /* valid, but no implementation takes it; the text lists why */
  FLASHTILE_OUT_OF_MEMORY = 3,
  FLASHTILE_IO = 4,
  FLASHTILE_INTERNAL = 5 /* a fault of the library */
} flashtile_status;

/* What the last failed call of this thread found and expected: "attention_fwd: head_dim of k is 96,
 * of q 128". Never NULL; valid until the next call of this thread fails. */
FLASHTILE_C_API const char* flashtile_last_error(void);

/* "0.1.0": the version of the library, where FLASHTILE_VERSION_STRING is that of the header. */
FLASHTILE_C_API const char* flashtile_version(void);

/* ---- Tensors --------------------------------------------------------------------------------- */

typedef enum flashtile_dtype {
  FLASHTILE_NONE = 0, /* no tensor */
  FLASHTILE_F32 = 1,
  FLASHTILE_F16 = 2,
  FLASHTILE_BF16 = 3,
  FLASHTILE_F64 = 4,
  FLASHTILE_I32 = 5,
  FLASHTILE_I64 = 6,
  FLASHTILE_U8 = 7,
  FLASHTILE_BOOL = 8,
  FLASHTILE_I8 = 9,
  FLASHTILE_E4M3 = 10, /* 8-bit floats up to 448 */
  FLASHTILE_E5M2 = 11  /* reserved */
} flashtile_dtype;

typedef enum flashtile_device_type {
  FLASHTILE_CPU = 1, /* DLPack's numbers */
  FLASHTILE_CUDA = 2
} flashtile_device_type;

/* A view of memory that the caller owns. Strides count elements and may be 0 (inputs only) or
 * negative; data is the address of element (0, ..., 0). At most 8 dimensions. */
typedef struct flashtile_tensor {
  uint32_t struct_size;
  int32_t dtype;       /* flashtile_dtype */
  int32_t device_type; /* flashtile_device_type; CPU after init */
  int32_t device_index;
  void* data;
  const int64_t* shape;   /* ndim numbers */
  const int64_t* strides; /* ndim numbers; NULL: contiguous, the last dimension innermost */
  int32_t ndim;
  int32_t reserved; /* 0 */
} flashtile_tensor;

FLASHTILE_C_API void flashtile_tensor_init(flashtile_tensor* tensor, size_t struct_size);

/* A contiguous tensor on the CPU. `shape` must live as long as the tensor is used. */
static inline flashtile_tensor flashtile_cpu_tensor(const void* data, flashtile_dtype dtype,
                                                    int32_t ndim, const int64_t* shape) {
  flashtile_tensor tensor;
  flashtile_tensor_init(&tensor, sizeof(tensor));
  tensor.dtype = (int32_t)dtype;
  tensor.data = (void*)(uintptr_t)data; /* the library never writes through inputs */
  tensor.ndim = ndim;
  tensor.shape = shape;
  return tensor;
}

/* ---- Where and how a call runs --------------------------------------------------------------- */

typedef void (*flashtile_task)(void* task_state, int64_t task_idx, int32_t worker_idx);

/* Everything about a call that is not the problem. NULL in place of a context is one after init. */
typedef struct flashtile_context {
  uint32_t struct_size;
  int32_t device_type; /* CPU after init */
  int32_t device_index;
  int32_t max_workers; /* threads to use at most; 0: all that there are */
  void* stream;        /* a CUstream for CUDA tensors */
  void* workspace;     /* memory for temporaries, see flashtile_call_workspace_bytes;
                        * NULL: the library allocates (on a CPU only) */
  uint64_t workspace_bytes;
  const char* implementation; /* force one, such as "attention_fwd_avx2"; NULL: choose */
  /* A pool of the caller: both functions or neither. num_workers gives an upper bound of
   * worker_idx + 1. run calls task(task_state, i, worker_idx) once for each i in [0, num_tasks),
   * from any thread, tasks that run at the same time with different worker_idx, and returns when
   * all are done. */
  void* executor_state;
  int32_t (*executor_num_workers)(void* executor_state);
  void (*executor_run)(void* executor_state, int64_t num_tasks, flashtile_task task,
                       void* task_state);
} flashtile_context;

FLASHTILE_C_API void flashtile_context_init(flashtile_context* context, size_t struct_size);

/* ---- Attention ------------------------------------------------------------------------------- */

/* A tensor that an expression reads as NAME[...], and where its gradient goes. */
typedef struct flashtile_aux {
  uint32_t struct_size;
  int32_t reserved; /* 0 */
  const char* name;
  const flashtile_tensor* tensor;
  const flashtile_tensor* gradient; /* attention_bwd; NULL: not wanted */
} flashtile_aux;

FLASHTILE_C_API void flashtile_aux_init(flashtile_aux* aux, size_t struct_size);

/* A scalar that an expression reads as param.NAME. */
typedef struct flashtile_param {
  uint32_t struct_size;
  int32_t reserved; /* 0 */
  const char* name;
  double value;
} flashtile_param;

FLASHTILE_C_API void flashtile_param_init(flashtile_param* param, size_t struct_size);

/* Bits of flashtile_attention_args.present, for members where 0 has a meaning of its own. */
enum {
  FLASHTILE_HAS_SOFTMAX_SCALE = 1 << 0,
  FLASHTILE_HAS_SOFTCAP = 1 << 1,
  FLASHTILE_HAS_WINDOW_LEFT = 1 << 2,
  FLASHTILE_HAS_WINDOW_RIGHT = 1 << 3,
  FLASHTILE_HAS_QUERY_OFFSET = 1 << 4,
  FLASHTILE_HAS_ATTENTION_CHUNK = 1 << 5,
  FLASHTILE_HAS_MAX_SEQLEN_Q = 1 << 6,
  FLASHTILE_HAS_MAX_SEQLEN_K = 1 << 7
};

/* The arguments of both attention functions. include/flashtile/attention.hpp says what each means;
 * shapes stand beside the members. Tensors that are NULL are not given. A member that has a bit in
 * `present` counts when the bit is set, and must be 0 otherwise. Results and gradients of the other
 * function are an error. */
typedef struct flashtile_attention_args {
  uint32_t struct_size;
  int32_t reserved; /* 0 */
  uint64_t present; /* FLASHTILE_HAS_... */

  const flashtile_tensor* q;   /* (batch, seqlen_q, heads, head_dim) or (total_q, heads, ...) */
  const flashtile_tensor* k;   /* (batch, seqlen_k, heads_kv, head_dim), packed or paged */
  const flashtile_tensor* v;   /* like k, with head_dim_v */
  const flashtile_tensor* out; /* like q, with head_dim_v */
  const flashtile_tensor* lse; /* (batch, heads, seqlen_q) or (heads, total_q), f32 */

  /* attention_bwd */
  const flashtile_tensor* dout; /* like out */
  const flashtile_tensor* dlse; /* like lse */
  const flashtile_tensor* dq;
  const flashtile_tensor* dk;
  const flashtile_tensor* dv;
  const flashtile_tensor* dbias;
  const flashtile_tensor* dalibi_slopes;
  const flashtile_tensor* dsink;

  /* Scores */
  const flashtile_tensor* bias;         /* (batch|1, heads|1, seqlen_q|1, seqlen_k) */
  const flashtile_tensor* alibi_slopes; /* (heads) or (batch, heads), f32 */
  const flashtile_tensor* sink;         /* (heads), f32 */
  double softmax_scale;                 /* default 1/sqrt(head_dim) */
  double softcap;                       /* > 0 */
  const char* score;                    /* expression; NULL: none */
  const char* mask;                     /* expression; NULL: none */
  const flashtile_aux* aux;             /* num_aux of them, with the same struct_size */
  uint64_t num_aux;
  const flashtile_param* params; /* num_params of them, with the same struct_size */
  uint64_t num_params;

  /* Masks */
  int32_t causal;        /* 0 or 1 */
  int32_t deterministic; /* 0 or 1 */
  int64_t window_left;
  int64_t window_right;
  int64_t query_offset; /* default seqlen_k - seqlen_q */
  int64_t attention_chunk;

  /* Which keys there are; all i32 */
  const flashtile_tensor* cu_seqlens_q;    /* (batch + 1) */
  const flashtile_tensor* cu_seqlens_k;    /* (batch + 1) */
  const flashtile_tensor* seqused_k;       /* (batch) */
  const flashtile_tensor* leftpad_k;       /* (batch) */
  const flashtile_tensor* block_table;     /* (batch, pages) */
  const flashtile_tensor* cache_batch_idx; /* (batch) */
  int64_t max_seqlen_q;
  int64_t max_seqlen_k;

  /* Block-sparse lists */
  const flashtile_tensor* block_counts;  /* (batch|1, heads|1, M), i32 */
  const flashtile_tensor* block_indices; /* (batch|1, heads|1, M, N), i32 */
  int64_t block_rows;
  int64_t block_cols;

  /* Dropout */
  double dropout_p; /* in [0, 1) */
  uint64_t dropout_seed;
  int64_t dropout_offset; /* in [0, 2^32) */

  /* Further results of attention_fwd */
  const flashtile_tensor* max_logit;    /* (heads), f32 */
  const flashtile_tensor* weights;      /* (batch, heads, seqlen_q, seqlen_k) */
  const flashtile_tensor* dropout_mask; /* (batch, heads, seqlen_q, seqlen_k), u8 */

  /* attention_fwd stores new keys in k and v behind the seqused_k that are in use, and turns them
   * and the queries; k and v are then written */
  const flashtile_tensor* k_new;          /* (batch, seqlen_new, heads_kv, head_dim) or packed */
  const flashtile_tensor* v_new;          /* like k_new, with head_dim_v */
  const flashtile_tensor* cu_seqlens_new; /* (batch + 1), i32: k_new and v_new are packed */
  const flashtile_tensor* rotary_cos;     /* (positions, rotary_dim / 2) */
  const flashtile_tensor* rotary_sin;     /* like rotary_cos */
  const flashtile_tensor* rotary_seqlens; /* (batch), i32; default seqused_k */
  int32_t rotary_interleaved;             /* 0 or 1: pairs (2n, 2n + 1) */
  int32_t batch_invariant; /* 0 or 1: a row's bits depend on its query and keys alone */

  /* Of k and v of i8 or e4m3, f32: (heads_kv), (batch, heads_kv) or (pages, heads_kv) */
  const flashtile_tensor* k_scale;
  const flashtile_tensor* v_scale;

  const flashtile_tensor* dropout_seed_tensor; /* (1), i64: in the place of dropout_seed */
} flashtile_attention_args;

FLASHTILE_C_API void flashtile_attention_args_init(flashtile_attention_args* args,
                                                   size_t struct_size);

/* out = softmax(mask(score(q k^T))) v. On failure nothing has been written,
 * but where an expression has read an aux tensor outside its shape: that shows on the way. */
FLASHTILE_C_API flashtile_status flashtile_attention_fwd(const flashtile_context* context,
                                                         const flashtile_attention_args* args);

/* Gradients, from out and lse of attention_fwd for the same arguments. */
FLASHTILE_C_API flashtile_status flashtile_attention_bwd(const flashtile_context* context,
                                                         const flashtile_attention_args* args);

/* ---- Any op, by name ------------------------------------------------------------------------- */

/* The arguments of one op. Functions that take a call may be used from any thread, but not two at
 * the same time with the same call. */
typedef struct flashtile_call flashtile_call;

/* NULL when there is no op of that name. */
FLASHTILE_C_API flashtile_call* flashtile_call_new(const char* op);
/* NULL is fine. */
FLASHTILE_C_API void flashtile_call_free(flashtile_call* call);

/* The tensor's description is copied, its memory is not. NULL takes the tensor out. */
FLASHTILE_C_API flashtile_status flashtile_call_set_tensor(flashtile_call* call, const char* name,
                                                           const flashtile_tensor* tensor);
/* Numbers are converted where nothing is lost. */
FLASHTILE_C_API flashtile_status flashtile_call_set_bool(flashtile_call* call, const char* name,
                                                         int32_t value);
FLASHTILE_C_API flashtile_status flashtile_call_set_int(flashtile_call* call, const char* name,
                                                        int64_t value);
FLASHTILE_C_API flashtile_status flashtile_call_set_uint(flashtile_call* call, const char* name,
                                                         uint64_t value);
FLASHTILE_C_API flashtile_status flashtile_call_set_float(flashtile_call* call, const char* name,
                                                          double value);
/* For options of every type: "true", "5", "0.125", an expression. */
FLASHTILE_C_API flashtile_status flashtile_call_set_text(flashtile_call* call, const char* name,
                                                         const char* value);
/* Back to the default. */
FLASHTILE_C_API flashtile_status flashtile_call_unset(flashtile_call* call, const char* name);

FLASHTILE_C_API flashtile_status flashtile_call_run(const flashtile_context* context,
                                                    const flashtile_call* call);

/* ---- Memory for temporaries ------------------------------------------------------------------ */

/* *bytes becomes what the context's workspace must hold for a call, from an address on that is a
 * multiple of 256, for as many workers as the context allows. On a CPU a workspace may be left out;
 * on a GPU it is needed wherever *bytes is not 0. A call that nothing takes is an error, as it is
 * where it runs. Tensors without data will do where all are such, and the context names their
 * device. */
FLASHTILE_C_API flashtile_status flashtile_call_workspace_bytes(const flashtile_context* context,
                                                                const flashtile_call* call,
                                                                uint64_t* bytes);
FLASHTILE_C_API flashtile_status flashtile_attention_fwd_workspace_bytes(
    const flashtile_context* context, const flashtile_attention_args* args, uint64_t* bytes);
FLASHTILE_C_API flashtile_status flashtile_attention_bwd_workspace_bytes(
    const flashtile_context* context, const flashtile_attention_args* args, uint64_t* bytes);

/* ---- What would run -------------------------------------------------------------------------- */

/* Texts go into `buffer`, which has room for *bytes; *bytes becomes the size of the text with its
 * final 0. With NULL for a buffer only the size is given; a buffer that is too small is left alone
 * and is an error. */

/* The problem, the implementation and plan that would be used, and what each other one refuses. */
FLASHTILE_C_API flashtile_status flashtile_call_explain(const flashtile_context* context,
                                                        const flashtile_call* call, char* buffer,
                                                        size_t* bytes);
/* The call as a problem text (docs/problems.md). */
FLASHTILE_C_API flashtile_status flashtile_call_problem(const flashtile_call* call, char* buffer,
                                                        size_t* bytes);
/* Explains a problem text, such as "attention_fwd:b2:hq8:sq129:d64:causal:bf16". */
FLASHTILE_C_API flashtile_status flashtile_explain(const char* problem, char* buffer,
                                                   size_t* bytes);
/* *is_supported becomes 1 when an implementation (any, or the one behind @) takes the problem. */
FLASHTILE_C_API flashtile_status flashtile_supports(const char* problem, int32_t* is_supported);

/* ---- The operator table, for bindings -------------------------------------------------------- */

/* Texts in these structs live as long as the library is loaded; absent ones are "". A name that
 * ends in ".*" stands for any number of tensors or options that the caller names. */

typedef struct flashtile_op_info {
  uint32_t struct_size;
  int32_t reserved;
  const char* name;
  const char* doc;
  uint64_t num_tensors;
  uint64_t num_options;
  uint64_t num_implementations;
} flashtile_op_info;

typedef struct flashtile_tensor_info {
  uint32_t struct_size;
  int32_t is_output;
  int32_t is_required;
  int32_t reserved;
  const char* name;
  const char* doc;
  const char* shape;       /* alternatives, as in the table: "@cu_seqlens_q: total_q ...; ..." */
  const char* dtypes;      /* "f32 f16"; "=q": that of q */
  const char* gradient_of; /* the input that this output is the gradient of */
} flashtile_tensor_info;

typedef enum flashtile_option_type {
  FLASHTILE_OPTION_BOOL = 0,
  FLASHTILE_OPTION_INT = 1,
  FLASHTILE_OPTION_UINT = 2,
  FLASHTILE_OPTION_FLOAT = 3,
  FLASHTILE_OPTION_TEXT = 4
} flashtile_option_type;

typedef struct flashtile_option_info {
  uint32_t struct_size;
  int32_t type; /* flashtile_option_type */
  const char* name;
  const char* doc;
  const char* default_text;
  double min_value; /* limits count where min_value < max_value */
  double max_value;
} flashtile_option_info;

FLASHTILE_C_API void flashtile_op_info_init(flashtile_op_info* info, size_t struct_size);
FLASHTILE_C_API void flashtile_tensor_info_init(flashtile_tensor_info* info, size_t struct_size);
FLASHTILE_C_API void flashtile_option_info_init(flashtile_option_info* info, size_t struct_size);

FLASHTILE_C_API size_t flashtile_num_ops(void);
FLASHTILE_C_API flashtile_status flashtile_get_op(size_t op_idx, flashtile_op_info* info);
FLASHTILE_C_API flashtile_status flashtile_get_tensor(const char* op, size_t tensor_idx,
                                                      flashtile_tensor_info* info);
FLASHTILE_C_API flashtile_status flashtile_get_option(const char* op, size_t option_idx,
                                                      flashtile_option_info* info);
/* Names of implementations on this machine, best first; NULL when there are no more. */
FLASHTILE_C_API const char* flashtile_get_implementation(const char* op, size_t idx);

#ifdef __cplusplus
}
#endif

#endif /* FLASHTILE_FLASHTILE_H */
