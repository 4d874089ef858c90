#include "worker/keeper/memory_budget.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

// Of the control group that this process is in, or the smallest of those around it.
int64_t GroupLimitBytes() {
  int64_t limit = INT64_MAX;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    absl::string_view group = line;
    if (!absl::ConsumePrefix(&group, "0::")) continue;  // Of version 2.
    while (true) {
      std::ifstream file(absl::StrCat("/sys/fs/cgroup", group, "/memory.max"));
      std::string text;
      int64_t bytes = 0;
      if (std::getline(file, text) && absl::SimpleAtoi(text, &bytes))
        limit = std::min(limit, bytes);
      if (group.empty() || group == "/") break;
      group = group.substr(0, group.rfind('/'));
    }
  }
  return limit;
}

}  // namespace

int64_t MachineMemoryBytes() {
  const int64_t machine_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  return std::min(machine_bytes, GroupLimitBytes());
}

absl::StatusOr<MemoryBudget::Reservation> MemoryBudget::Reserve(absl::string_view what,
                                                                int64_t bytes) {
  absl::MutexLock lock(&mu_);
  if (bytes <= all_bytes_ - reserved_bytes_) {
    reserved_bytes_ += bytes;
    return Reservation(this, bytes);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, " needs ", BytesText(bytes), " of memory here, and ",
                   BytesText(all_bytes_ - reserved_bytes_), " of ", BytesText(all_bytes_),
                   " are free (--memory-bytes)"));
}

int64_t MemoryBudget::free_bytes() const {
  absl::MutexLock lock(&mu_);
  return all_bytes_ - reserved_bytes_;
}

void MemoryBudget::GiveBack(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  reserved_bytes_ -= bytes;
}

std::string BytesText(int64_t bytes) {
  const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B") : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

}  // namespace tessera
