// What `tandem profile` found of one call, for results files and for the log of a kernel's tuning.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/profile/counters.h"
#include "cli/report/results.h"

namespace tandem::tools {

struct Profile {
  ResultsRow row;  // times without a profiler
  Counters total;  // no values where there were no counters
  int launches = 0;
  std::string reading;
};

/// Makes the object that a row's `counters` holds. Its median_us is of the process that profiled:
/// the reading is formed from that, not from the time of another run.
nlohmann::ordered_json counters_json(const Profile& profile);

/// docs/ops/<op>.iterations.jsonl: one object per line and measured version of a kernel.
struct Iteration {
  std::string note;  // what changed
  ResultsRun run;
};

/// Appends a line. Its time_over_previous and time_over_first compare with the lines of the same
/// device, op, direction, case and dtype. Returns the line. Throws std::runtime_error naming the
/// file and the line that is not valid.
nlohmann::ordered_json append_iteration(const std::string& path, const Iteration& iteration,
                                        const Profile& profile);

}  // namespace tandem::tools
