// The clocks of a coordinator's machine in a simulation. Its workers' have none: no time of a
// worker is in what it says. Not thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_SIMULATED_CLOCK_H_
#define TESSERA_COORDINATOR_SERVICE_SIMULATED_CLOCK_H_

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/service/journal_clock.h"

namespace tessera::coordinator {

class SimulatedClock {
 public:
  // Time as it passes, which no process sees, and which is also that since the machine's boot.
  absl::Time now() const { return now_; }
  absl::Time WallNow() const { return now_ + wall_lead_; }
  // Of the process: what the wall clock was when it began, and the time since.
  absl::Time SteadyNow() const { return now_ + process_lead_; }
  absl::Time FromSteady(absl::Time steady) const { return steady - process_lead_; }
  JournalClock ForJournal() const {
    return {wall_lead_ - process_lead_, -process_lead_, absl::StrCat("boot ", num_boots_)};
  }

  void Pass(absl::Duration duration) { now_ += duration; }
  void SetWall(absl::Duration step) { wall_lead_ += step; }
  void BeginProcess(bool after_boot) {
    process_lead_ = wall_lead_;
    num_boots_ += after_boot;
  }

  // When it is, as a process of the machine knows that later: after another boot by the wall clock.
  struct Moment {
    absl::Time time;
    absl::Duration wall_lead;
    int boot = 0;
  };
  Moment Note(absl::Time time) const { return {time, wall_lead_, num_boots_}; }
  absl::Time Recall(const Moment& moment) const {
    return moment.boot == num_boots_ ? moment.time : moment.time + moment.wall_lead - process_lead_;
  }

 private:
  absl::Time now_ = absl::FromUnixSeconds(1'700'000'000);
  absl::Duration wall_lead_, process_lead_;
  int num_boots_ = 0;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_SIMULATED_CLOCK_H_
