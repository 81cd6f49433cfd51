// Everything Tandem offers.
#pragma once

#include "tandem/blocks/transformer_block.h"
#include "tandem/context.h"
#include "tandem/device.h"
#include "tandem/error.h"
#include "tandem/ops/attention.h"
#include "tandem/ops/attention_weights.h"
#include "tandem/ops/causal_conv1d.h"
#include "tandem/ops/gated_output.h"
#include "tandem/ops/gated_scan.h"
#include "tandem/ops/gemm_swiglu.h"
#include "tandem/ops/gla.h"
#include "tandem/ops/linear_scan.h"
#include "tandem/ops/projection.h"
#include "tandem/ops/rms_norm_gemm.h"
#include "tandem/tensor.h"
#include "tandem/variants.h"
