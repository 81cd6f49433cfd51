// The sequences of a call on the CPU: rows of a batch, or what cu_seqlens lists.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::cpu {

/// Tokens [begin,end) of batch row b.
struct Sequence {
  std::int64_t n;
  std::int64_t b;
  std::int64_t begin;
  std::int64_t end;
};

/// Throws InvalidArgument in the name of `op` for cu_seqlens [N+1] that decrease or leave [0,T].
/// Null is no cu_seqlens. `name` and `axis` are what the texts call it and T.
void check_cu_seqlens(const char* op, const std::int32_t* cu_seqlens, std::int64_t N,
                      std::int64_t T, const char* name = "cu_seqlens", const char* axis = "T");

/// Returns all N sequences, in order. After check_cu_seqlens.
std::vector<Sequence> sequences_of(const std::int32_t* cu_seqlens, std::int64_t N, std::int64_t T);

}  // namespace tandem::cpu
