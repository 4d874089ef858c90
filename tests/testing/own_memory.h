// What memory processes have of their own, for tests that bound it: anonymous memory, so not the
// shards, which are memfds, and not the page cache.
#ifndef TESSERA_TESTS_TESTING_OWN_MEMORY_H_
#define TESSERA_TESTS_TESTING_OWN_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace tessera::testing_support {

// 0: no such process.
int64_t AnonymousBytesOf(int pid);

// Has malloc give each larger allocation back as it is freed, in this process from now on.
// Otherwise memory that a test freed before would hide what is taken later.
void ReturnFreedMemory();

// Looks all the time how much more some processes have together than when it was made. What is
// there for less than a look is not seen. Thread-compatible.
class MemoryPeak {
 public:
  explicit MemoryPeak(std::vector<int> pids);
  ~MemoryPeak() { Stop(); }
  MemoryPeak(const MemoryPeak&) = delete;
  MemoryPeak& operator=(const MemoryPeak&) = delete;

  // Ends it. The most that was seen.
  int64_t Stop();

 private:
  int64_t Bytes() const;

  const std::vector<int> pids_;
  const int64_t before_bytes_;
  std::atomic<int64_t> most_bytes_;
  std::atomic<bool> stopped_{false};
  std::thread watch_;
};

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_TESTING_OWN_MEMORY_H_
