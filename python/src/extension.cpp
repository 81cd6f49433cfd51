// Tandem's ops for torch's dispatcher. This folder alone sees torch, and of torch only its stable
// ABI: one build loads in torch 2.10 and every later one, with or without CUDA.
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "call.h"
#include "python.h"

namespace tandem::extension {
namespace {

constexpr std::size_t kMostCalls = 64;

template <std::size_t... places>
constexpr auto boxed_functions(std::index_sequence<places...>) {
  return std::array{&boxed<places>...};
}

template <class Library>
void add_functions(Library& library) {
  constexpr auto kFunctions = boxed_functions(std::make_index_sequence<kMostCalls>());
  for (std::size_t i = 0; i < bindings().size(); ++i) {
    library.impl(bindings()[i].signature->name(), kFunctions.at(i));
  }
}

}  // namespace
}  // namespace tandem::extension

STABLE_TORCH_LIBRARY(tandem, m) {
  for (const tandem::extension::Binding& binding : tandem::extension::bindings()) {
    m.def(binding.schema().c_str());
  }
}

STABLE_TORCH_LIBRARY_IMPL(tandem, CPU, m) { tandem::extension::add_functions(m); }

STABLE_TORCH_LIBRARY_IMPL(tandem, CUDA, m) { tandem::extension::add_functions(m); }

/// Says why no CUDA device can be used, "" where one can.
TANDEM_FOR_PYTHON const char* tandem_cuda_unavailable_reason() {
  static const std::string reason = tandem::cuda_unavailable_reason();
  return reason.c_str();
}

/// Makes all later calls batch-invariant, or no longer so.
TANDEM_FOR_PYTHON void tandem_set_batch_invariant(bool wanted) {
  tandem::extension::batch_invariant = wanted;
}

/// Whether calls are batch-invariant, by that switch or by the environment's: "0", "1", or what is
/// wrong with the environment's. It holds until the thread's next call.
TANDEM_FOR_PYTHON const char* tandem_is_batch_invariant() {
  static thread_local std::string error;
  try {
    const bool by_environment = tandem::batch_invariant_switch();
    return tandem::extension::batch_invariant || by_environment ? "1" : "0";
  } catch (const std::exception& thrown) {
    error = std::string("ValueError: ") + thrown.what();
    return error.c_str();
  }
}

/// Returns the tables of all calls, as JSON.
TANDEM_FOR_PYTHON const char* tandem_tables() {
  static const std::string tables = tandem::extension::tables_as_json();
  return tables.c_str();
}

/// Returns what a call would refuse of such arguments, in the order of torch's schema: "", or a
/// text that begins with the class of the error. It holds until the thread's next call.
TANDEM_FOR_PYTHON const char* tandem_refusal(const char* name,
                                             const tandem::extension::Described* arguments) {
  using tandem::extension::Binding;
  static thread_local std::string refusal;
  refusal.clear();
  for (const Binding& binding : tandem::extension::bindings()) {
    if (std::string_view(binding.signature->name()) != name) continue;
    try {
      tandem::extension::with_class([&] { check_call(binding, arguments); });
    } catch (const std::exception& error) {
      refusal = error.what();
    }
  }
  return refusal.c_str();
}
