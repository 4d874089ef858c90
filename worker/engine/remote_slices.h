// The slices of units that other hosts hold, brought to this one while windows are open on them.
//
//   GatherAhead ──► Open ──► Close      FULL_SHARD: each window gathers, the last one that closes
//        └───────────┘                  on this host gives the memory back
//                                       the other strategies: gathered once a step, given back when
//                                       the step is taken
//
// All ranks of the job gather alike, so they must open windows in one order. Where there is one
// host, or a hybrid unit's group is, there is nothing to bring and all of this is free. Confined to
// the engine's thread.
//
// Source: _unshard, _reshard and reshard_after_forward of torch/distributed/fsdp.
#ifndef TESSERA_WORKER_ENGINE_REMOTE_SLICES_H_
#define TESSERA_WORKER_ENGINE_REMOTE_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "job/rank_topology.h"
#include "layout/model_layout.h"
#include "shm/parameter_plan.h"
#include "worker/comm/communicator.h"
#include "worker/device/rank_kernels.h"
#include "worker/engine/window_count.h"

namespace tessera {

class RemoteSlices {
 public:
  // Nothing in here is owned; all of it outlives this.
  struct Options {
    const ModelLayout* layout = nullptr;
    const JobConfig* config = nullptr;
    const JobMemory* memory = nullptr;
    const RankTopology* topology = nullptr;
    Rank rank;
    Epoch epoch;
    const std::vector<UnitParameters>* parameters = nullptr;  // By unit.
    RankKernels* kernels = nullptr;    // For a slice that is not in the gathered memory.
    WindowWord* windows = nullptr;     // By unit; the host's.
    Communicator* gatherer = nullptr;  // Null: there is one host.
    bool gives_memory_back = true;     // False: a GPU's parameter region keeps its memory.
  };
  explicit RemoteSlices(const Options& options);

  // Whether other hosts have slices of the unit that this one has not.
  bool Spans(int unit) const;
  // Whether each window gathers, instead of each step.
  bool GathersEachWindow(int unit) const { return each_window_[unit]; }
  // What this rank fetches, for its host, for a window that opens; 0 where it is here already.
  int64_t CountGatheredBytes(int unit, int64_t step);

  // All of these: the slices as of `step`, which this host's ranks have published.
  // Errors: as AllGatherMapped.
  absl::Status GatherAhead(int unit, int64_t step);  // For the next window.
  absl::Status Open(int unit, int64_t step);
  void Close(int unit);
  void Drop(int unit);  // What was gathered ahead, which no window will have.
  // The slices of windows that stay open changed.
  absl::Status Refresh(int unit, int64_t step);
  // A step is over, and all windows of this host's ranks with it.
  void StepTaken();

 private:
  absl::Status Gather(int unit, int64_t step);
  void End(int unit, uint64_t tag);  // Of a window, or what was gathered for one.
  void GiveBack(std::byte* base, int64_t slice_bytes);

  const Options options_;
  std::vector<bool> each_window_;
  std::vector<int64_t> gathered_;  // Of which step they are here; -1: none. Not of each_window_.
  std::vector<int64_t> counted_;   // The same of what CountGatheredBytes told.
  // Tags of the window that is open and of that which was gathered ahead; 0: none.
  std::vector<uint64_t> open_, ahead_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_REMOTE_SLICES_H_
