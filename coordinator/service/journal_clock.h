// Times of SteadyNow() as a journal keeps them, for the processes to come: by the wall clock, which
// may be set meanwhile, and by the clock of this boot of the machine, which nobody sets. To a tenth
// of a second: what differs by less is left as it is. A plain value; thread-compatible.
#ifndef TESSERA_COORDINATOR_SERVICE_JOURNAL_CLOCK_H_
#define TESSERA_COORDINATOR_SERVICE_JOURNAL_CLOCK_H_

#include <string>

#include "absl/time/time.h"

namespace tessera::coordinator {

struct JournalClock {
  // By how much these clocks are ahead of SteadyNow(); the boot's begins at the Unix epoch.
  absl::Duration wall_lead, boot_lead;
  std::string boot_id;  // Of this boot; empty: not known.

  static JournalClock OfThisProcess();
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_JOURNAL_CLOCK_H_
