// Instantiates launch_walk for every tile of one dtype, in groups of walks: a translation unit
// takes long to compile.
#pragma once

#include "cuda/gla/walk/kernel.cuh"

#define TANDEM_WALK_INSTANCE(...)                                                              \
  template void launch_walk<WalkConfig<__VA_ARGS__>>(const char*, const WalkParams&, unsigned, \
                                                     void*);

#define TANDEM_WALK_TILES(Element, split, walk)        \
  TANDEM_WALK_INSTANCE(Element, 64, 64, split, walk)   \
  TANDEM_WALK_INSTANCE(Element, 64, 128, split, walk)  \
  TANDEM_WALK_INSTANCE(Element, 128, 64, split, walk)  \
  TANDEM_WALK_INSTANCE(Element, 128, 128, split, walk) \
  TANDEM_WALK_INSTANCE(Element, 256, 64, split, walk)  \
  TANDEM_WALK_INSTANCE(Element, 256, 128, split, walk)

#define TANDEM_GRADIENT_TILES(Element, split)     \
  TANDEM_WALK_TILES(Element, split, Walk::kQuery) \
  TANDEM_WALK_TILES(Element, split, Walk::kKey)   \
  TANDEM_WALK_TILES(Element, split, Walk::kValue)

#define TANDEM_INSTANCES_OUTPUT(Element)           \
  namespace tandem::cuda::gla {                    \
  TANDEM_WALK_TILES(Element, false, Walk::kOutput) \
  }

#define TANDEM_INSTANCES_OUTPUT_SPLIT(Element)    \
  namespace tandem::cuda::gla {                   \
  TANDEM_WALK_TILES(Element, true, Walk::kOutput) \
  }

/// Two heads of a group together.
#define TANDEM_INSTANCES_OUTPUT_PAIRS(Element)                     \
  namespace tandem::cuda::gla {                                    \
  TANDEM_WALK_INSTANCE(Element, 64, 128, false, Walk::kOutput, 2)  \
  TANDEM_WALK_INSTANCE(Element, 64, 128, true, Walk::kOutput, 2)   \
  TANDEM_WALK_INSTANCE(Element, 128, 128, false, Walk::kOutput, 2) \
  TANDEM_WALK_INSTANCE(Element, 128, 128, true, Walk::kOutput, 2)  \
  }

/// The walks that save states.
#define TANDEM_SAVING_TILES(Element, split)                             \
  TANDEM_WALK_INSTANCE(Element, 64, 64, split, Walk::kSavingOutput)     \
  TANDEM_WALK_INSTANCE(Element, 64, 128, split, Walk::kSavingOutput)    \
  TANDEM_WALK_INSTANCE(Element, 128, 64, split, Walk::kSavingOutput)    \
  TANDEM_WALK_INSTANCE(Element, 128, 128, split, Walk::kSavingOutput)   \
  TANDEM_WALK_INSTANCE(Element, 256, 64, split, Walk::kSavingOutput)    \
  TANDEM_WALK_INSTANCE(Element, 64, 128, split, Walk::kSavingOutput, 2) \
  TANDEM_WALK_INSTANCE(Element, 128, 128, split, Walk::kSavingOutput, 2)

#define TANDEM_INSTANCES_SAVING(Element) \
  namespace tandem::cuda::gla {          \
  TANDEM_SAVING_TILES(Element, false)    \
  }

#define TANDEM_INSTANCES_SAVING_SPLIT(Element) \
  namespace tandem::cuda::gla {                \
  TANDEM_SAVING_TILES(Element, true)           \
  }

#define TANDEM_INSTANCES_GRADIENTS(Element) \
  namespace tandem::cuda::gla {             \
  TANDEM_GRADIENT_TILES(Element, false)     \
  }

#define TANDEM_INSTANCES_GRADIENTS_SPLIT(Element) \
  namespace tandem::cuda::gla {                   \
  TANDEM_GRADIENT_TILES(Element, true)            \
  }

/// The walk for dk and dv, whose tiles are square.
#define TANDEM_INSTANCES_KEY_VALUE(Element)                       \
  namespace tandem::cuda::gla {                                   \
  TANDEM_WALK_INSTANCE(Element, 64, 64, false, Walk::kKeyValue)   \
  TANDEM_WALK_INSTANCE(Element, 128, 128, false, Walk::kKeyValue) \
  }
