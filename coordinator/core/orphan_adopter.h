// Takes over jobs that workers hold and the journal does not know, or knows only in an older epoch
// (orphans.h). Once all of a job's workers have described it, it continues from what they hold.
// Thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_ORPHAN_ADOPTER_H_
#define TESSERA_COORDINATOR_CORE_ORPHAN_ADOPTER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/core/coordinator_state.h"
#include "coordinator/core/effects.h"
#include "coordinator/core/epoch_protocol.h"
#include "coordinator/core/events.h"
#include "coordinator/core/orphans.h"

namespace tessera::coordinator {

class OrphanAdopter {
 public:
  // Both must outlive it. A job that is taken over opens an epoch.
  OrphanAdopter(CoordinatorState* state, EpochProtocol* epochs) : state_(state), epochs_(epochs) {}

  void HearOfHeldJob(const Sender& from, const JobProgress& job, absl::Time now, Effects* effects);
  // Only for a sender that Membership::Hear has accepted.
  // Errors: InvalidArgument  the placements do not fit the job, or two ranks have one device, or
  //                          the journal has the job with another spec
  absl::Status ReportHeld(const Sender& sender, const HeldJob& event, absl::Time now,
                          Effects* effects);
  // A job that only workers know, or whose records cannot be read; nullopt: no such job.
  std::optional<JobView> ViewOrphan(const JobId& id) const;

 private:
  // Where the ranks are, if the job can be taken over now. `why_not` says what is missing.
  std::optional<std::vector<RankPlacement>> PlacesOf(const HeldJob& held,
                                                     const Orphans::Holders& holders,
                                                     std::string* why_not) const;
  void Adopt(const Orphans::Key& key, absl::Time now, Effects* effects);

  CoordinatorState* const state_;
  EpochProtocol* const epochs_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_ORPHAN_ADOPTER_H_
