#include "worker/executor/save/prior_attempt.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/existing_checkpoint.h"
#include "checkpoint/manifest/manifest.h"
#include "checkpoint/manifest/named_folder.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/storage_of.h"
#include "worker/engine/group_page.h"
#include "worker/executor/agreement.h"
#include "worker/executor/save/part_save.h"

namespace tessera {
namespace {

// What a rank found at its path.
struct Found {
  int64_t is_own = 0;  // 1: this request's.
  int64_t step = 0;
  int64_t size_bytes = 0;
  int64_t save_crc32 = 0;  // Of a part: which save's it is.
};

class Search {
 public:
  Search(const v1::SaveRequest& request, const ExecutorMemory& memory, Communicator* communicator)
      : request_(request),
        memory_(memory),
        communicator_(*communicator),
        looks_(request.spec().in_parts() || communicator->rank() == 0),
        path_(request.spec().in_parts() ? PartPath(request, memory.rank) : request.spec().path()) {}

  absl::StatusOr<PriorAttempt> Run() {
    PriorAttempt made;
    Found own;
    if (request_.request_number() != 0) {
      RETURN_IF_ERROR(Name(&made.request));
      // A save that may replace what is there is simply made again.
      if (looks_ && (request_.spec().no_overwrite() || request_.spec().in_parts()))
        own = Look(made.request);
      RETURN_IF_ERROR(Compare(own, &made));
    }
    absl::Status found;
    if (made.is_made) {
      if (looks_) found = Finish(&made.reply);
    } else if (!request_.spec().no_overwrite()) {
      return made;
    } else if (looks_ && own.is_own == 0) {
      // The rank that creates the files checks, so that all learn of it before anything is written.
      // A part that an earlier attempt left does not count.
      found = CheckNoCheckpointAt(path_);
    }
    RETURN_IF_ERROR(AgreeOn("save", found, &communicator_));
    return made;
  }

 private:
  // The request's number counts in the job, and the job's memory is its own: so no other job has
  // this, and none of the same id in another coordinator's journal.
  absl::Status Name(std::string* name) {
    std::array<uint64_t, 2> id = {};
    // Rank 0's host stands for the job. Its page outlives executors, so a later attempt has the
    // same name.
    if (communicator_.rank() == 0) id = IdOf(memory_.group_page());
    RETURN_IF_ERROR(communicator_.Broadcast(id.data(), sizeof(id), /*root=*/0));
    *name = absl::StrFormat("%016x%016x/%d", id[0], id[1], request_.request_number());
    return absl::OkStatus();
  }

  Found Look(const std::string& name) const {
    // What cannot be read is no attempt of ours. Whatever is wrong with it comes later.
    const absl::StatusOr<Manifest> manifest =
        request_.spec().in_parts() ? ReadPartManifest(path_) : ReadManifest(path_);
    if (!manifest.ok() || manifest->request != name) return {};
    Found found = {1, manifest->step, 0, 0};
    for (const auto& [file, info] : manifest->files) {
      if (IsModelFileName(file) || file == kOptimizerFileName || file == kPartFileName)
        found.size_bytes += info.size_bytes;
    }
    if (manifest->part.has_value()) found.save_crc32 = Crc32(manifest->part->save_id);
    return found;
  }

  // It is made only if complete: parts of several attempts are not a checkpoint.
  absl::Status Compare(const Found& own, PriorAttempt* made) {
    std::vector<Found> found(communicator_.size());
    RETURN_IF_ERROR(communicator_.AllGather(&own, found.data(), sizeof(own)));
    // Of a whole checkpoint rank 0 alone has looked.
    if (!request_.spec().in_parts()) found.resize(1);
    // Parts of two attempts have different ids. Together they would be no checkpoint.
    made->is_made = std::all_of(found.begin(), found.end(), [&](const Found& one) {
      return one.is_own != 0 && one.save_crc32 == found[0].save_crc32;
    });
    if (!made->is_made) return absl::OkStatus();
    made->step = found[0].step;
    int64_t size_bytes = 0;
    for (const Found& one : found) size_bytes += one.size_bytes;
    made->reply.set_written_bytes(size_bytes);
    return absl::OkStatus();
  }

  // What the try did not come to. Its name is there, but perhaps not durably.
  absl::Status Finish(v1::SaveReply* reply) const {
    ASSIGN_OR_RETURN(Storage* const storage, StorageOf(path_));
    // The name was given before the process died, and may not have been on disk yet.
    RETURN_IF_ERROR(storage->SyncFolder(ParentOf(path_)));
    RemoveReplaced();
    if (request_.spec().keep_newest() < 1) return absl::OkStatus();
    std::vector<std::string> removed;
    const absl::Status status =
        KeepNewest(path_, memory_.job_id, request_.spec().keep_newest(), &removed);
    if (!status.ok())
      TESSERA_LOG(WARNING, "older checkpoints are not removed: {}", status.ToString());
    for (const std::string& older : removed) reply->add_removed(PrintableUtf8(older));
    return absl::OkStatus();
  }

  // The part that had the name before, which the try did not come to. A whole checkpoint that must
  // not replace another had none: what is there now is another save's.
  void RemoveReplaced() const {
    if (!request_.spec().in_parts()) return;
    const absl::StatusOr<Manifest> replaced = ReadPartManifest(PartialFolder(path_));
    if (replaced.ok() && replaced->job_id == memory_.job_id) DiscardFolder(path_);
  }

  const v1::SaveRequest& request_;
  const ExecutorMemory& memory_;
  Communicator& communicator_;
  const bool looks_;
  const std::string path_;
};

}  // namespace

absl::StatusOr<PriorAttempt> FindPriorAttempt(const v1::SaveRequest& request,
                                              const ExecutorMemory& memory,
                                              Communicator* communicator) {
  if (request.spec().is_model()) return PriorAttempt();
  return Search(request, memory, communicator).Run();
}

}  // namespace tessera
