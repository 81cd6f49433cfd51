// What the roles of attention_forward_kernel share.
#pragma once

#include "cuda/attention/forward_items.cuh"
#include "cuda/parts/panel.cuh"
#include "cuda/parts/ring.cuh"

namespace tandem::cuda::attention {

template <class Config>
struct ForwardShared {
  alignas(1024) char q[Config::kGroups][Config::kQueryBytes];
  alignas(1024) char k[Config::kStages][Config::kKeyBytes];
  alignas(1024) char v[Config::kStages][Config::kValueBytes];
  Ring<Config::kStages> keys;
  Ring<Config::kStages> values;
  Ring<1> queries[Config::kGroups];
  Ring<Config::kItemSlots> item_ring;
  ForwardItem items[Config::kItemSlots];
};

}  // namespace tandem::cuda::attention
