// What plans of calls are made of: arithmetic, limits and the layout of a workspace. Pure
// functions; device code takes the limits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::cuda {

constexpr std::int64_t kMaxIndex = (std::int64_t{1} << 31) - 1;  // of a grid, of TMA, of an int
constexpr int kSharedMemoryPerBlock = 232448;                    // bytes on sm_90, by opting in
constexpr int kSharedMemoryPerMultiprocessor = 233472;  // bytes; each block takes 1024 more
constexpr std::size_t kWorkspaceAlignment = 256;        // bytes

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Lays the parts of a workspace one behind the other.
class WorkspaceLayout {
 public:
  /// Begins behind `used` bytes, which other parts share.
  explicit WorkspaceLayout(std::size_t used = 0) : bytes_(used) {}

  /// Adds a part, and returns its offset, a multiple of kWorkspaceAlignment. A part of no bytes
  /// takes none.
  std::size_t add(std::int64_t bytes) {
    const std::size_t offset = bytes_;
    constexpr std::int64_t kAlignment = kWorkspaceAlignment;
    bytes_ += static_cast<std::size_t>(ceil_div(bytes, kAlignment) * kAlignment);
    return offset;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_;
};

}  // namespace tandem::cuda
