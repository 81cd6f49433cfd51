// The command line as results files record it: quoted for a shell, and with no folder of the
// machine that it ran on.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::tools {

/// Returns "tandem ..." as typed in `folder`. A path inside the checkout, the nearest folder upward
/// that has bench/results, is made relative to it; of any other path only the file's name is kept.
std::string recorded_command(const std::vector<std::string>& arguments,
                             const std::filesystem::path& folder);

}  // namespace tandem::tools
