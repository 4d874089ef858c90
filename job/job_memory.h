// The layout of a job's memory on one host. Pure arithmetic; the same in the worker, its
// executors and its trainers, so no offset ever travels.
//
//   parameters (one a host)   | unit 0: slice of rank 0 | rank 1 | ... | unit 1 ...   compute dtype
//                             | unit 0 in full precision | unit 1 ...                 full dtype
//   gradients  (one a rank)   | slot 0 (root) | slot 1 | ... | touched | staging |   reduce dtype
//   state      (one a rank)   | p v0 | p v1 | m v0 | m v1 | v v0 | v v1 | reduced |  full dtype
//   on a GPU   (one a rank)   | slot 0 | slot 1 | ... |              as gradients; only on GPUs
//   control    (one a rank)   | ControlPage |                       trainer  <-> executor
//   group      (one a host)   | GroupPage | update counts | slots of buffers | channel |
//                                                                       executor <-> executor
//   flight     (one a rank)   | FlightRing |                        executor  -> worker
//
// A gradient slot holds an unsharded unit; `touched` is a byte for each parameter of the job, not 0
// where it has got a gradient since the last step. Update counts: see UpdateCounts. Staging, and
// slots for two versions: of the model's buffers, of which rank 0 and its worker alone use them and
// others' take no memory: see buffer_memory.h. Without buffers there are none.
//
// The full dtype of a unit is fp32, or fp64 if its parameters are.
//
// Parameter slices of all ranks are adjacent, so rank r's slice *is* its part of the unsharded
// flat parameter and unsharding copies nothing. Of a worker with a GPU, "host" means that GPU for
// parameters and state (but state that is offloaded); a trainer may put gradients into its slots
// there, and everything else goes by those of the host. In full precision there are only the units
// that are not in their full dtype anyway, and their pages take no memory until somebody asks for
// them. Several units share a gradient slot: unit i > 0 has slot 1 + (i - 1) % gradient_slots, so
// two neighbours in the backward order never share one. State arrays hold the rank's shards of all
// units, concatenated. Where a GPU has one rank of several, units share slots of parameters
// instead of having places: see parameter_plan.h.
#ifndef TESSERA_JOB_JOB_MEMORY_H_
#define TESSERA_JOB_JOB_MEMORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "job/buffer_placement.h"
#include "job/job_config.h"
#include "layout/model_layout.h"

namespace tessera {

struct UnitMemory {
  int64_t parameter_offset_bytes = 0;  // In the parameter region; page-aligned.
  int64_t parameter_bytes = 0;         // padded_numel in the compute dtype.
  // The same in the full dtype; the very same memory where that is the compute dtype.
  int64_t full_offset_bytes = 0;
  int64_t full_bytes = 0;
  DType full_dtype = DType::kFp32;     // Of shards and state.
  DType compute_dtype = DType::kFp32;  // The unit's own or else the job's.
  DType reduce_dtype = DType::kFp32;
  int gradient_slot = 0;
  int64_t shard_offset_elements = 0;  // In each state array, of elements of the full dtype.
  int64_t shard_offset_bytes = 0;     // The same.
  int first_parameter = 0;            // Of the job's parameters, which are numbered unit by unit.
};

enum class StateArray { kParameter, kFirstMoment, kSecondMoment };
// Those besides the parameters that an optimizer of this kind uses: SGD just the first.
std::vector<StateArray> MomentsOf(OptimizerKind optimizer);

// How much of a worker's host memory some ranks of a job write, sooner or later. Full precision in
// addition to a lower one is not counted: it takes no memory until it is requested.
struct HostMemory {
  int64_t shared_bytes = 0;  // Once for all ranks of the worker.
  int64_t rank_bytes = 0;    // For each of them.

  int64_t BytesOf(int64_t num_ranks) const { return shared_bytes + num_ranks * rank_bytes; }
};

class JobMemory {
 public:
  // Errors: InvalidArgument  a region would overflow int64.
  static absl::StatusOr<JobMemory> Create(const ModelLayout& layout, const JobConfig& config);

  const std::vector<UnitMemory>& units() const { return units_; }
  // Whether windows in full precision show other memory than those in the compute dtype.
  bool HasOtherFullMemory(int unit) const {
    return units_[unit].compute_dtype != units_[unit].full_dtype;
  }
  int64_t parameter_region_bytes() const { return parameter_region_bytes_; }
  int num_gradient_slots() const { return num_gradient_slots_; }
  int64_t gradient_slot_bytes() const { return gradient_slot_bytes_; }
  // What each of `world_size` ranks can put into a slot that is for all of them.
  int64_t ExchangeNumel(int64_t world_size) const {
    return gradient_slot_bytes_ / static_cast<int64_t>(sizeof(float)) / world_size;
  }
  int num_parameters() const { return num_parameters_; }
  int64_t touched_offset_bytes() const { return gradient_slot_bytes_ * num_gradient_slots_; }
  int64_t gradient_region_bytes() const {
    return buffers_.empty() ? touched_offset_bytes() + num_parameters_
                            : staged_buffers_offset_bytes() + buffers_.bank_bytes();
  }
  const BufferPlacement& buffers() const { return buffers_; }
  int64_t staged_buffers_offset_bytes() const;  // In the gradient region; page-aligned.
  // The slots again, where the rank has a GPU: reductions read these.
  int64_t device_gradient_region_bytes() const { return touched_offset_bytes(); }
  int64_t state_region_bytes() const { return state_array_bytes_ * 7; }
  // What is mapped for one of `world_size` ranks: its own regions, and its part of the parameters.
  int64_t MappedBytesOfRank(int64_t world_size) const {
    return state_region_bytes() + gradient_region_bytes() + parameter_region_bytes_ / world_size;
  }
  // On a GPU, what is not on the host is its own memory.
  HostMemory host_memory(bool parameters_on_host, bool state_on_host) const;
  // Elements of all of a rank's shards together.
  int64_t shard_numel() const { return shard_numel_; }

  int64_t StateOffsetBytes(StateArray array, int version) const {
    return state_array_bytes_ * (2 * static_cast<int>(array) + version);
  }
  int64_t ReducedGradientOffsetBytes() const { return state_array_bytes_ * 6; }

 private:
  // After those that are placed.
  absl::Status PlaceShard(int64_t numel, const std::string& name, UnitMemory* placed);
  absl::Status PlaceFullPrecision();

  std::vector<UnitMemory> units_;
  int64_t parameter_region_bytes_ = 0;
  int num_gradient_slots_ = 1;
  int64_t gradient_slot_bytes_ = 0;
  int num_parameters_ = 0;
  BufferPlacement buffers_;
  int64_t shard_numel_ = 0;
  int64_t state_array_bytes_ = 0;
  int num_moments_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_JOB_JOB_MEMORY_H_
