// Zeroes words that the CTAs of the next kernel of a call exchange.
#pragma once

#include <cstdint>

namespace tandem::cuda {

/// `name` is the call's, for errors. Few words: one CTA does it.
void launch_clear(const char* name, std::uint32_t* words, std::int64_t count, void* stream);

}  // namespace tandem::cuda
