// attention's entries, split over attention.cpp (entries, costs), attention_make.cpp (tensors of a
// case), attention_expect.cpp and attention_backward_expect.cpp (definitions).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cli/calls/operation.h"
#include "cli/cases/case_line.h"
#include "ops/attention.h"

namespace tandem::tools {

/// What a case may say of its inputs' values.
inline constexpr std::array kAttentionValues = {"normal", "large", "infinite", "around_10"};

TensorSet make_attention(const Case& one, DType dtype, std::uint64_t seed);
TensorSet make_attention_backward(const Case& one, DType dtype, std::uint64_t seed);
/// Makes those of a backward that takes what the forward before it writes.
TensorSet make_attention_both(const Case& one, DType dtype, std::uint64_t seed);

std::unique_ptr<Expectation> expect_attention(const TensorSet& set, bool sampled);
std::unique_ptr<Expectation> expect_attention_backward(const TensorSet& set, bool sampled);

/// Limits on relative errors: outputs and gradients.
double attention_limit(DType dtype);
double attention_gradient_limit(DType dtype);

/// How many pairs of a query and a key that it sees there are, of one head.
double pair_count(const AttentionSizes& sizes);

/// Refuses values that are none of kAttentionValues, and infinite ones where they do not fit.
void check_attention_values(const Line& line, const Case& one);

/// At most `wanted` of so many indices, the first, the last and some between.
std::vector<std::int64_t> spread(std::int64_t count, std::int64_t wanted);

/// Tokens of no sequence, as batch and token: queries, or with `of_keys` keys.
std::vector<std::pair<std::int64_t, std::int64_t>> tokens_outside(const AttentionSizes& sizes,
                                                                  bool of_keys);

}  // namespace tandem::tools
