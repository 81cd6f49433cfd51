// What a call of a backend is told beside its problem and its context.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

/// An op's calls of other ops pass none: those have variants of their own.
struct CallOptions {
  std::string_view variant;       // the only variant that may run; empty: any
  std::string* chosen = nullptr;  // set to the name of the variant that was chosen
};

}  // namespace tandem
