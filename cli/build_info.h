// What this build is.
#pragma once

#include <string>

namespace tandem::tools {

extern const char* const kVersion;
/// Short hash, with "-dirty" when more than results, docs and README differed from it; "unknown"
/// without git.
extern const char* const kCommit;
/// "Release, g++ 12.2.0, CUDA off".
std::string build_options();

}  // namespace tandem::tools
