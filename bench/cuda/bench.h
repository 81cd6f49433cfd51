// What the measuring programs need of a CUDA device, as a C interface: one shared object, called by
// the tandem program and, through ctypes, by bench/peers. Never linked into the library.
//
// Every function returns 0, or -1 after setting tandem_bench_last_error() (per thread).
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

const char* tandem_bench_last_error(void);

/// Takes memory from the device's pool, which keeps what is given back for the next one.
int tandem_bench_allocate(int device, size_t bytes, void** data);
/// Waits for the device first.
int tandem_bench_free(int device, void* data);
/// Enqueues a copy on the default stream. The host's memory may go when it returns; who goes on on
/// a stream that does not wait for the default one calls tandem_bench_synchronize() first.
int tandem_bench_upload(void* device_data, const void* host_data, size_t bytes);
int tandem_bench_download(void* host_data, const void* device_data, size_t bytes);
/// Sets every byte.
int tandem_bench_fill(void* device_data, int byte, size_t bytes);
/// Enqueues a copy between two places of a device, as tandem_bench_upload() does.
int tandem_bench_copy(void* to, const void* from, size_t bytes);
/// Two places of a device, each a multiple of 16 bytes.
typedef struct {
  const void *a, *b;
  size_t bytes;
} tandem_bench_pair;
/// Waits for the device and sets *equal to whether all bytes of each pair agree. Not to be called
/// by two threads at a time.
int tandem_bench_equal(int device, const tandem_bench_pair* pairs, size_t count, int* equal);
/// Waits for the device and reports what went wrong on it, if anything did.
int tandem_bench_synchronize(int device);
/// Begins (on 1) or ends (0) the range that a profiler counts alone with --profile-from-start off.
int tandem_bench_profile(int device, int on);

/// Enqueues one measured call on `stream` with buffer set `set`. Returns 0, or -1 with its own
/// message kept by the caller; must be capturable into a CUDA graph.
typedef int (*tandem_bench_enqueue)(void* user, int set, void* stream);

/// A call to measure, and the number of its buffer sets.
typedef struct {
  tandem_bench_enqueue enqueue;
  void* user;
  int sets;
} tandem_bench_timed;

/// Makes each of `count` calls once per buffer set directly, captures the same into a CUDA graph of
/// its own, replays the graphs (after warm-up) in turn, `replays` times each, and writes
/// microseconds per call to samples_us[count][replays]. In turn all have the same clocks, which
/// fall while a GPU is busy. Rotating sets of at least 5x the L2 in total keep the cache cold.
int tandem_bench_time(int device, const tandem_bench_timed* calls, int count, int replays,
                      double* samples_us);

/// Ceilings of this device, measured now on random data: TB/s of a large device-to-device copy
/// (bytes read plus written), TFLOP/s of a large bf16 matrix product through cuBLASLt.
int tandem_bench_ceilings(int device, double* copy_tbps, double* bf16_tflops);

/// Driver version, SM clock, board power and why clocks are throttled (0: they are not) at this
/// moment, from NVML. -1 where NVML is absent.
int tandem_bench_device_state(int device, char driver[64], int* sm_clock_mhz, int* power_w,
                              unsigned long long* throttle_reasons);

#ifdef __cplusplus
}
#endif
