// Maps the state of a running job, as its workers hold it, into a process of the same host and user
// while the job trains: nothing is copied, however large it is, and nothing waits (docs/adr/0052).
//
//   LiveReaderOptions options = {"127.0.0.1:7070"};             the coordinator
//   options.worker_address = "unix:/run/tessera-worker/worker.sock";  ten times as fast, where it
//   ASSIGN_OR_RETURN(auto map, LiveMap::Open(options, query));        has all ranks of the job
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

class MapGrant;
class MappedSource;

struct MappedEntry {
  LiveEntry entry;  // As LiveReader::Get returns it.
  // Its elements from the first to the last: whole ones in each span, aligned to their size, in no
  // more spans than ranks own some of them. Row-major and little-endian.
  std::vector<absl::string_view> spans;
};

// For one thread at a time; Validate() may be called while other threads read the spans.
class LiveMap {
 public:
  // Maps the newest version that all ranks have. At most eight readers may map one job at once.
  // Asks the worker at options.worker_address, if there is one, and then, if that fails, the
  // coordinator, if there is one (docs/adr/0057).
  // Errors, in addition to those of LiveReader::Get:
  //   FailedPrecondition  what is requested is not in memory in that form: a part of a form SHARDED
  //                       or LOCAL, another dtype than the job keeps, state on a GPU; a worker is
  //                       on another host, or another user's
  //   Aborted             steps are faster than one can be mapped; the job was deleted meanwhile
  //   Unimplemented       the coordinator is too old to support mapping
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
  //         Unavailable  a worker or the coordinator is gone, or the job was deleted, is over or
  //                      has started again; some rank does not complete a step that others have:
  //                      open another map
  //         DataLoss     the sequence words of some rank are invalid
  absl::Status Refresh();

 private:
  // A slice of a source.
  struct Place {
    int source = 0, slice = 0;
  };
  LiveMap();
  // What the coordinator, or the worker of the options, allows to map. Errors: as Open.
  absl::Status OpenByCoordinator(const LiveReaderOptions& options, const v1::LiveStateQuery& query);
  absl::Status OpenAtWorker(const LiveReaderOptions& options, const v1::LiveStateQuery& query);
  // Finds the slices of each entry; there must be no others.
  absl::Status FindPlaces();
  // Waits until all ranks have it.
  // Errors: Aborted      it is overwritten already
  //         Unavailable  some rank does not get there
  absl::Status AwaitWhole(int64_t step) const;
  bool Stands(int64_t step) const;
  // Errors: as AwaitWhole.
  absl::Status Show(int64_t step);

  bool has_groups_ = false;  // Of the query.
  std::unique_ptr<MapGrant> grant_;
  std::vector<std::unique_ptr<MappedSource>> sources_;
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
