#include "coordinator/service/journal_clock.h"

#include <time.h>

#include <fstream>

#include "base/steady_time.h"
#include "base/wall_time.h"

namespace tessera::coordinator {

JournalClock JournalClock::OfThisProcess() {
  // Read once: it stays the same for as long as this process can live.
  static const std::string* const boot_id = [] {
    auto* id = new std::string;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> *id;
    return id;
  }();
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  return {WallClockLead(),
          absl::Trunc(absl::TimeFromTimespec(since_boot) - SteadyNow(), absl::Milliseconds(100)),
          *boot_id};
}

}  // namespace tessera::coordinator
