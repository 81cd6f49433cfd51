#include "cli/calls/gpu.h"

#include <deque>
#include <exception>

#include "bench/cuda/bench.h"
#include "tandem/error.h"

namespace tandem::tools::gpu {
namespace {

void require(int status) {
  if (status != 0) throw CudaError(tandem_bench_last_error());
}

/// A call on its way through the C timer: what it throws is kept and rethrown behind it.
struct CallOnItsWay {
  const TimedCall& call;
  std::exception_ptr error;
};

int enqueue(void* user, int set, void* stream) {
  auto* timed = static_cast<CallOnItsWay*>(user);
  try {
    timed->call.run(set, stream);
    return 0;
  } catch (...) {
    timed->error = std::current_exception();
    return -1;
  }
}

}  // namespace

Memory::Memory(int device, std::size_t bytes) : device_(device) {
  require(tandem_bench_allocate(device, bytes, &data_));
}

Memory::~Memory() {
  if (data_ != nullptr) tandem_bench_free(device_, data_);
}

void upload(void* device_data, const void* host_data, std::size_t bytes) {
  require(tandem_bench_upload(device_data, host_data, bytes));
}

void download(void* host_data, const void* device_data, std::size_t bytes) {
  require(tandem_bench_download(host_data, device_data, bytes));
}

void copy(void* to, const void* from, std::size_t bytes) {
  require(tandem_bench_copy(to, from, bytes));
}

void fill(void* device_data, int byte, std::size_t bytes) {
  require(tandem_bench_fill(device_data, byte, bytes));
}

bool equal(int device, const std::vector<Pair>& pairs) {
  std::vector<tandem_bench_pair> all;
  all.reserve(pairs.size());
  for (const Pair& pair : pairs) all.push_back({pair.a, pair.b, pair.bytes});
  int equal = 0;
  require(tandem_bench_equal(device, all.data(), all.size(), &equal));
  return equal != 0;
}

void synchronize(int device) { require(tandem_bench_synchronize(device)); }

void profile(int device, bool on) { require(tandem_bench_profile(device, on ? 1 : 0)); }

std::vector<std::vector<double>> time(int device, const std::vector<TimedCall>& calls,
                                      int replays) {
  std::deque<CallOnItsWay> timed;
  std::vector<tandem_bench_timed> all;
  for (const TimedCall& call : calls) {
    all.push_back({enqueue, &timed.emplace_back(CallOnItsWay{call, nullptr}), call.sets});
  }
  std::vector<double> samples(calls.size() * replays);
  const int status =
      tandem_bench_time(device, all.data(), static_cast<int>(all.size()), replays, samples.data());
  for (const CallOnItsWay& one : timed) {
    if (one.error) std::rethrow_exception(one.error);
  }
  require(status);
  std::vector<std::vector<double>> of_calls;
  for (auto at = samples.begin(); at != samples.end(); at += replays) {
    of_calls.emplace_back(at, at + replays);
  }
  return of_calls;
}

Ceilings ceilings(int device) {
  Ceilings measured;
  require(tandem_bench_ceilings(device, &measured.copy_tbps, &measured.bf16_tflops));
  return measured;
}

State state(int device) {
  State now;
  char driver[64] = {};
  now.known = tandem_bench_device_state(device, driver, &now.sm_clock_mhz, &now.power_w,
                                        &now.throttle_reasons) == 0;
  now.driver = driver;
  return now;
}

}  // namespace tandem::tools::gpu
