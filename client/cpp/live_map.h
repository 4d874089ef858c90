// The state of a job as its workers have it, mapped by a process of their own host and user while
// it trains: nothing is copied, however large it is, and nothing waits (docs/adr/0052).
//
//   LiveReaderOptions options = {"127.0.0.1:7070"};             the coordinator
//   options.worker_address = "unix:/run/tessera-worker/worker.sock";  ten times as fast, where it
//   ASSIGN_OR_RETURN(auto map, LiveMap::Open(options, query));        has all ranks of the job
//   for (const MappedEntry& entry : map->entries())
//     for (const absl::string_view span : entry.spans) sum += Sum(span);
//   if (!map->StillTrue()) ...          what was read is void: map->Renew(), and once more
//
// The memory is the job's own, so that what lies in a span changes once training has gone on for
// one to two steps: of what is read nothing may be taken for true, let alone be used as an index,
// before StillTrue() has said so. Where nobody trains, it stays true. No executor knows of who
// maps its memory: none ever waits for it, and of a process that hangs or dies nothing is left.
//
// VisitLiveState and CopyLiveState do all of this, and fetch where nothing can be mapped.
#ifndef TESSERA_CLIENT_CPP_LIVE_MAP_H_
#define TESSERA_CLIENT_CPP_LIVE_MAP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/cpp/live_reader.h"
#include "proto/live_state.pb.h"

namespace tessera {

class MapGrant;
class MappedSource;

struct MappedEntry {
  LiveEntry entry;  // As LiveReader::Get gives it.
  // Its elements from the first to the last: whole ones in each, aligned as they want to be, in no
  // more spans than ranks have some of them. Row-major and little-endian.
  std::vector<absl::string_view> spans;
};

// For one thread at a time; StillTrue() is thread-safe beside readers of the spans.
class LiveMap {
 public:
  // Of the newest version that all ranks have. As many may map one job as may at once (eight).
  // Asks the worker at options.worker_address, if there is one, and then, unless it can be mapped
  // that way, the coordinator, if there is one (docs/adr/0057).
  // Errors, beside those of LiveReader::Get:
  //   FailedPrecondition  what is asked for lies nowhere as it is to be given: a part of a form
  //                       SHARDED or LOCAL, another dtype than the job keeps, state on a GPU; a
  //                       worker is on another host, or another user's
  //   Aborted             steps are faster than one can be mapped; the job was deleted meanwhile
  //   Unimplemented       the coordinator is of before there were maps
  static absl::StatusOr<std::unique_ptr<LiveMap>> Open(const LiveReaderOptions& options,
                                                       const LiveQuery& query);
  ~LiveMap();  // Spans end with it.
  LiveMap(const LiveMap&) = delete;
  LiveMap& operator=(const LiveMap&) = delete;

  const LiveVersion& version() const { return version_; }
  const std::vector<MappedEntry>& entries() const { return entries_; }

  // Whether all that was read of the spans before this call is of version(). Once false, it stays
  // so until Renew().
  bool StillTrue() const;
  // Shows the newest version in place of this one, which asks nobody; spans are others then, in the
  // same memory. Errors: Aborted  steps are faster than that
  //         Unavailable  a worker or the coordinator is gone, or the job was deleted, is over or
  //                      has begun anew; some rank does not complete a step that others have: open
  //                      another one
  //         DataLoss     the words of some rank lie
  // What is shown stays as it was, whichever it is.
  absl::Status Renew();

 private:
  // A slice of a source.
  struct Place {
    int source = 0, slice = 0;
  };
  LiveMap();
  // What the coordinator lets be mapped, or the worker of the options. Errors: as Open.
  absl::Status OpenByCoordinator(const LiveReaderOptions& options, const v1::LiveStateQuery& query);
  absl::Status OpenAtWorker(const LiveReaderOptions& options, const v1::LiveStateQuery& query);
  // Finds the slices of each entry, which are to be all that came.
  absl::Status FindPlaces();
  // Waits until all ranks have it. Errors: Aborted  it does not stand any more; Unavailable  some
  // rank does not get there.
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
// Calls `visit` with a state that is mapped, and once more with a newer one if it stood for too
// short; or else with one that was fetched, into memory as large as it is. The last call counts:
// what others have made of what they saw is void, and their errors as well. An error of the last
// one is returned. Errors: as LiveReader::Get.
using LiveVisit =
    absl::FunctionRef<absl::Status(const LiveVersion&, absl::Span<const MappedEntry>)>;
absl::StatusOr<VisitedState> VisitLiveState(const LiveReaderOptions& options,
                                            const LiveQuery& query, LiveVisit visit);

// As reader->Get, which fetches where nothing can be mapped, or what is mapped does not stand for
// as long as the sink takes: one that waits for a disk has it fetched at once, by LiveReader.
// `reader` has `options`. Errors: as LiveReader::Get
absl::StatusOr<VisitedState> CopyLiveState(const LiveReaderOptions& options, LiveReader* reader,
                                           const LiveQuery& query, LiveSink* sink);

}  // namespace tessera

#endif  // TESSERA_CLIENT_CPP_LIVE_MAP_H_
