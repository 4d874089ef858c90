#include "worker/device/cuda/kernel_emulator.h"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/emulated_accesses.h"

namespace tessera {
namespace gpu {
namespace {

constexpr unsigned kWarp = 32;

// Where the threads of a block meet.
class Meeting {
 public:
  Meeting() { pthread_barrier_init(&barrier_, nullptr, kThreads); }
  ~Meeting() { pthread_barrier_destroy(&barrier_); }
  void Wait() { pthread_barrier_wait(&barrier_); }
  // All see what each one brought, until they meet again.
  const unsigned long long* Bring(unsigned long long value) {
    values_[threadIdx.x] = value;
    Wait();
    return values_;
  }

 private:
  pthread_barrier_t barrier_;
  unsigned long long values_[kThreads] = {};
};

thread_local Meeting* meeting = nullptr;
// Whether this block's threads met: if so no one begins the next block before all have left this
// one, whose shared memory that has too.
thread_local bool has_met = false;

std::atomic<int64_t> wide_accesses = 0;

}  // namespace

void RunEmulated(int blocks, const std::function<void()>& kernel) {
  static absl::Mutex* const one_at_a_time = new absl::Mutex();
  absl::MutexLock lock(one_at_a_time);
  Meeting own;
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      meeting = &own;
      threadIdx.x = thread;
      blockDim.x = kThreads;
      gridDim.x = blocks;
      for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        has_met = false;
        kernel();
        if (has_met) own.Wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

int64_t WideAccesses() { return wide_accesses; }

void CheckAccess(const void* address, int size_bytes) {
  if (size_bytes == 16) wide_accesses.fetch_add(1, std::memory_order_relaxed);
  if (reinterpret_cast<uintptr_t>(address) % size_bytes == 0) return;
  fprintf(stderr, "an access of %d bytes at %p\n", size_bytes, address);
  abort();
}

void __syncthreads() {
  has_met = true;
  meeting->Wait();
}

int __syncthreads_or(int vote) {
  has_met = true;
  const unsigned long long* const votes = meeting->Bring(vote != 0 ? 1 : 0);
  int any = 0;
  for (int thread = 0; thread < kThreads; ++thread) any |= votes[thread] != 0 ? 1 : 0;
  meeting->Wait();
  return any;
}

unsigned long long __shfl_down_sync(unsigned /*mask*/, unsigned long long value, int offset) {
  has_met = true;
  const unsigned long long* const values = meeting->Bring(value);
  const bool in_warp = threadIdx.x % kWarp + offset < kWarp;
  const unsigned long long taken = in_warp ? values[threadIdx.x + offset] : value;
  meeting->Wait();
  return taken;
}

}  // namespace gpu
}  // namespace tessera
