#include "tests/testing/own_memory.h"

#include <malloc.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "tests/testing/process_view.h"

namespace tessera::testing_support {
namespace {

// Below the state of whatever a test bounds, above what is allocated all the time.
constexpr int kReturnedFromBytes = 256 << 10;

}  // namespace

int64_t AnonymousBytesOf(int pid) {
  const std::string status = ReadFile(absl::StrCat("/proc/", pid, "/status"));
  for (absl::string_view line : absl::StrSplit(status, '\n')) {
    int64_t kib = 0;
    if (!absl::ConsumePrefix(&line, "RssAnon:") || !absl::ConsumeSuffix(&line, "kB")) continue;
    if (absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &kib)) return kib << 10;
  }
  return 0;
}

void ReturnFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, kReturnedFromBytes);
  mallopt(M_TRIM_THRESHOLD, kReturnedFromBytes);
  malloc_trim(0);
}

MemoryPeak::MemoryPeak(std::vector<int> pids)
    : pids_(std::move(pids)), before_bytes_(Bytes()), most_bytes_(before_bytes_), watch_([this] {
        while (!stopped_.load()) {
          most_bytes_.store(std::max(most_bytes_.load(), Bytes()));
          absl::SleepFor(absl::Milliseconds(1));
        }
      }) {}

int64_t MemoryPeak::Bytes() const {
  int64_t bytes = 0;
  for (const int pid : pids_) bytes += AnonymousBytesOf(pid);
  return bytes;
}

int64_t MemoryPeak::Stop() {
  stopped_.store(true);
  if (watch_.joinable()) watch_.join();
  return most_bytes_.load() - before_bytes_;
}

}  // namespace tessera::testing_support
