#include "cuda/runtime/call_scope.h"

#include <nvtx3/nvToolsExt.h>

namespace tandem::cuda {
namespace {

nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t created = nvtxDomainCreateA("tandem");
  return created;
}

}  // namespace

Range::Range(const std::string& name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

Range::~Range() { nvtxDomainRangePop(domain()); }

}  // namespace tandem::cuda
