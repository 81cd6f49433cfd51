// What attention and attention_weights check and take of their queries and keys.
#pragma once

#include <string>

#include "core/check.h"
#include "ops/attention_problem.h"
#include "ops/scale.h"
#include "ops/signature.h"

namespace tandem {

/// Checks that HKV divides H, where there are any.
template <class Args>
void check_head_groups(const Signature& signature, const Args& args) {
  if (args.q.shape.rank() != 4 || args.k.shape.rank() != 4) return;  // refused with its shape
  const std::int64_t H = args.q.shape[2], HKV = args.k.shape[2];
  if (HKV < 1 || H < 1 || H % HKV == 0) return;
  refuse(signature.name(), "k must have a number of heads HKV that divides H = " +
                               std::to_string(H) + ", got HKV = " + std::to_string(HKV));
}

/// Sets the sizes that checked queries and keys have, and the scale; B sequences.
template <class Args>
void set_sizes(const Signature& signature, const Args& args, AttentionSizes& sizes) {
  sizes.dtype = args.q.dtype;
  sizes.device = args.q.device;
  sizes.B = sizes.N = args.q.shape[0];
  sizes.TQ = args.q.shape[1];
  sizes.TK = args.k.shape[1];
  sizes.H = static_cast<int>(args.q.shape[2]);
  sizes.HKV = static_cast<int>(args.k.shape[2]);
  sizes.K = static_cast<int>(args.q.shape[3]);
  set_scale(signature, args.scale, sizes);
}

}  // namespace tandem
