/* SPDX-License-Identifier: Apache-2.0 */
/* With q = 0 all weights are equal, so that the result is the mean of v: 2.5. */
#include <stdio.h>

#include "flashtile/flashtile.h"

int main(void) {
  const int64_t q_shape[4] = {1, 1, 1, 1};
  const int64_t k_shape[4] = {1, 4, 1, 1};
  const float q_data[1] = {0};
  const float k_data[4] = {1, 2, 3, 4};
  float out_data[1] = {0};
  flashtile_tensor q = flashtile_cpu_tensor(q_data, FLASHTILE_F32, 4, q_shape);
  flashtile_tensor k = flashtile_cpu_tensor(k_data, FLASHTILE_F32, 4, k_shape);
  flashtile_tensor out = flashtile_cpu_tensor(out_data, FLASHTILE_F32, 4, q_shape);

  flashtile_attention_args args;
  flashtile_attention_args_init(&args, sizeof(args));
  args.q = &q;
  args.k = &k;
  args.v = &k;
  args.out = &out;
  if (flashtile_attention_fwd(NULL, &args) != FLASHTILE_OK) {
    fprintf(stderr, "%s\n", flashtile_last_error());
    return 1;
  }
  printf("%g\n", (double)out_data[0]);
  return 0;
}
