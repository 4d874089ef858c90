// Maps the state of a running job, as its workers hold it, into a process of the same node and user
// while the job trains: nothing is copied, however large it is, and nothing waits (docs/adr/0052).
//
//   LiveReaderOptions options;
//   options.worker_addresses = {"unix:/run/tessera-worker/worker.sock"};  all that have ranks
//   ASSIGN_OR_RETURN(auto map, LiveMap::Open(options, query));
//   for (const MappedEntry& entry : map->entries())
//     for (const absl::string_view span : entry.spans) sum += Sum(span);
//   if (!map->Validate()) ...          what was read is void: map->Refresh(), and repeat
//
// The memory is the job's own, so the contents of a span change once training has continued for one
// to two steps. Nothing that was read may be trusted, let alone be used as an index, before
// Validate() has confirmed it. Without training it stays true. A mapping reader takes no lock: no
// executor knows of it or waits for it, and a reader that hangs or dies leaves nothing to clean up.
//
// VisitLiveState and CopyLiveState do all of this, and fetch where nothing can be mapped.
#ifndef TESSERA_LIVE_MAP_H_
#define TESSERA_LIVE_MAP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tessera/live_reader.h"

namespace tessera {

namespace v1 {
class LiveStateQuery;
}  // namespace v1

class WorkerGrant;

struct MappedEntry {
  LiveEntry entry;  // As LiveReader::Get returns it.
  // Its elements from the first to the last: whole ones in each span, aligned to their size, in no
  // more spans than ranks own some of them. Row-major and little-endian.
  std::vector<absl::string_view> spans;
};

// For one thread at a time; Validate() may be called while other threads read the spans.
class LiveMap {
 public:
  // Maps the newest version that all ranks have. At most eight readers may map one job at once. Asks
  // the workers at options.worker_addresses, and no coordinator (docs/adr/0074).
  // Errors, which name the worker:
  //   NotFound            a worker has no such job, or no name matches
  //   InvalidArgument     a query out of bounds; no worker's address, or not a Unix socket's, or one
  //                       worker twice
  //   FailedPrecondition  what is requested is not in memory in that form: another dtype than the
  //                       job keeps, state on a GPU; a worker is on another node, or another
  //                       user's; other workers than these have a part of it
  //   ResourceExhausted   the limit of maps of the job is reached; no descriptors or memory
  //   Unavailable         a worker does not answer; the workers are not in one epoch of the job
  //   Aborted             steps are faster than one can be mapped
  //   DataLoss            the answers are malformed, or differ
  static absl::StatusOr<std::unique_ptr<LiveMap>> Open(const LiveReaderOptions& options,
                                                       const LiveQuery& query);
  ~LiveMap();  // Its spans end with it.
  LiveMap(const LiveMap&) = delete;
  LiveMap& operator=(const LiveMap&) = delete;

  const LiveVersion& version() const { return version_; }
  const std::vector<MappedEntry>& entries() const { return entries_; }

  // Whether everything that was read from the spans before this call is of version(). Once false,
  // it stays false until Refresh().
  bool Validate() const;
  // Shows the newest version in place of this one, without a call to any server; its spans are
  // other ones, in the same memory. After an error the version that was shown stays.
  // Errors: Aborted      steps are faster than that
  //         Unavailable  a worker is gone, or the job was deleted, is over or has started again;
  //                      some rank does not complete a step that others have: open another map
  //         DataLoss     the sequence words of some rank are invalid
  absl::Status Refresh();

 private:
  // A slice of a worker.
  struct Place {
    int worker = 0, slice = 0;
  };
  LiveMap();
  absl::Status Ask(const LiveReaderOptions& options, const v1::LiveStateQuery& query);
  // Whether the workers' answers are of one job, in one epoch.
  absl::Status CheckAnswers() const;
  // Finds the slices of each entry; there must be no others.
  absl::Status FindPlaces();
  // Waits until all ranks have it.
  // Errors: Aborted      it is overwritten already
  //         Unavailable  some rank does not get there
  absl::Status AwaitWhole(int64_t step) const;
  bool Stands(int64_t step) const;
  // Errors: as AwaitWhole.
  absl::Status Show(int64_t step);

  bool has_groups_ = false;                            // Of the query.
  std::vector<std::unique_ptr<WorkerGrant>> workers_;  // By their ranks.
  LiveVersion version_;
  std::vector<MappedEntry> entries_;
  std::vector<std::vector<Place>> places_;  // By entry.
  std::vector<int> counts_;  // By entry: the number of its update count; of a buffer -1.
};

struct VisitedState {
  LiveVersion version;
  bool is_mapped = false;  // Else it was fetched.
};
// Calls `visit` with a mapped state, and again with a newer one if it was overwritten too soon; or
// with a fetched one, in memory as large as it is. Only the last call counts: discard the results
// and errors of the others. An error of the last one is returned. Errors: as LiveReader::Get.
using LiveVisit =
    absl::FunctionRef<absl::Status(const LiveVersion&, absl::Span<const MappedEntry>)>;
absl::StatusOr<VisitedState> VisitLiveState(const LiveReaderOptions& options,
                                            const LiveQuery& query, LiveVisit visit);

// As reader->Get. Fetches if nothing can be mapped, or if the mapped state is overwritten before
// the sink is done: a sink that waits for a disk gets it fetched at once, by LiveReader. `reader`
// has `options`. Errors: as LiveReader::Get
absl::StatusOr<VisitedState> CopyLiveState(const LiveReaderOptions& options, LiveReader* reader,
                                           const LiveQuery& query, LiveSink* sink);

}  // namespace tessera

#endif  // TESSERA_LIVE_MAP_H_
