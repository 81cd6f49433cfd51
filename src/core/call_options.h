// What a call of a backend is told beside its problem and its context.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

/// An op's calls of other ops pass no variant: those have variants of their own.
struct CallOptions {
  std::string_view variant = {};  // the only variant that may run; empty: any
  std::string* chosen = nullptr;  // set to the name of the variant that was chosen
  bool batch_invariant = false;   // as Context's: passed on to the calls of other ops, too
};

}  // namespace tandem
