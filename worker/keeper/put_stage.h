// A worker's part of the values that somebody sets in a job: taken piece by piece, widened or
// rounded to what the state is in, and kept in a file without a name until all of it is there.
//
//   file:  the ranges of job/held_ranges.h, concatenated        │ a v1.PutManifest
//
// Nothing of the job is touched. Memory is needed for a piece at a time and some bytes a range.
// Thread-compatible.
#ifndef TESSERA_WORKER_KEEPER_PUT_STAGE_H_
#define TESSERA_WORKER_KEEPER_PUT_STAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/held_ranges.h"
#include "proto/executor.pb.h"
#include "proto/live_put.pb.h"
#include "worker/keeper/job_regions.h"
#include "worker/keeper/spool_file.h"

namespace tessera {

// Whole. Immutable; thread-safe.
struct StagedPut {
  uint64_t put = 0;
  SpoolFile file;
  int64_t manifest_offset_bytes = 0;
  int64_t manifest_size_bytes = 0;
};

class PutStage {
 public:
  static constexpr size_t kMaxPieceBytes = 1 << 20;

  // `request` is untrusted.
  // Errors: InvalidArgument     no such tensors, or elements of a dtype that parameters do not have
  //         FailedPrecondition  the job has no values yet
  //         as SpoolFile::Create
  static absl::StatusOr<std::unique_ptr<PutStage>> Create(const JobRegions& regions,
                                                          const v1::PutStage& request,
                                                          const std::string& spool_folder);
  // The next elements. Errors: InvalidArgument  they are not; as SpoolFile::Append.
  absl::Status Take(const v1::LivePiece& piece);
  // Errors: InvalidArgument  elements are missing; as SpoolFile::Append. Use once, last.
  absl::StatusOr<std::shared_ptr<const StagedPut>> Seal();

 private:
  struct Slot {
    LiveTensor tensor;
    DType comes_in = DType::kFp32, kept_in = DType::kFp32;  // Of a buffer nothing is converted.
    int64_t element_bytes = 0, kept_bytes = 0;              // Of one that comes, and is kept.
  };
  // Errors: InvalidArgument  no such buffer.
  static absl::StatusOr<Slot> BufferSlotOf(const ModelLayout& layout, const v1::PutSlot& from);
  PutStage(uint64_t put, SpoolFile file) : put_(put), file_(std::move(file)) {}

  const uint64_t put_;
  SpoolFile file_;
  std::vector<Slot> slots_;
  std::vector<HeldRange> ranges_;
  v1::PutManifest manifest_;
  size_t next_range_ = 0;
  int64_t done_elements_ = 0;  // Of that range.
  std::string converted_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_PUT_STAGE_H_
