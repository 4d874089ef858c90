// Reads a job's state for one client, as one step left it.
//
//   1. open a session; tell every worker with a requested slice to open a stream
//   2. all hold ──► the newest step that any of them answers ──► all copy that step and let go
//   3. tensor by tensor, rank by rank: pieces from the workers' streams to the client
//
// In a direct query (live_read_direct.cc) the workers copy while the client fetches from them.
// Step 3 then tells the client where to fetch, and waits until it has done so.
//
// Steps 1 and 2 are tried a few times. A second thread watches: it ends the read when the job is
// deleted, or when the client has read nothing for a while. At most WorkerLine::kMaxQueued pieces per
// worker are buffered here, in addition to gRPC's windows. Use once, by one thread.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/client_watch.h"
#include "coordinator/service/live/job_places.h"
#include "coordinator/service/live/worker_session.h"
#include "job/live_plan.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

struct LiveTimes {
  absl::Duration answer = absl::Seconds(10);  // For a worker to open its stream and to hold.
  absl::Duration copy = absl::Minutes(10);    // For a worker to copy, and to send a piece.
  absl::Duration client = absl::Seconds(60);  // For the client to read a piece.
};

// All reads in progress. One read of a job at a time holds and copies, so that two reads cannot wait
// for each other on two workers. They then serve their clients concurrently.
struct LiveHub {
  LiveSessions sessions;
  JobPlaces readings{4};
  JobPlaces turns{1};
};

// How many elements a worker's piece has, which is the next one of what was asked for: it begins at
// `begin_elements` and has at most `max_elements`. The worker may send anything, and the client
// stores a piece at its offset.
// Errors: Unavailable  it is not such a piece.
absl::StatusOr<int64_t> CheckPiece(const v1::LivePiece& piece, int64_t begin_elements,
                                   int64_t max_elements, int64_t element_bytes,
                                   const std::string& worker);

class LiveRead {
 public:
  struct Client {
    std::function<bool(const v1::LiveStateReply&)> write;  // False: it is gone.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a write; called by another thread.
  };
  // `host` and `hub` outlive this.
  LiveRead(CoordinatorHost* host, LiveHub* hub, const LiveTimes& times, Client client);

  // Errors: as LiveState.GetLiveState in proto/live_state.proto.
  absl::Status Read(const v1::LiveStateQuery& query, const Gate::Caller& caller);

 private:
  absl::Status ReadWatched();
  absl::Status CopyWithTries(v1::LiveStateBegin* begin);
  // Opens the streams, holds and copies, or lets the workers begin to copy. The caller closes the
  // streams and ends the turn.
  absl::Status Copy(v1::LiveStateBegin* begin);
  absl::StatusOr<int64_t> HoldAll();
  absl::Status CopyAll(v1::LiveStateBegin* begin);
  absl::Status ServeAll(v1::LiveStateBegin* begin);
  absl::Status NoteProgress(const std::string& worker, int64_t trained_step,
                            const google::protobuf::RepeatedField<int64_t>& update_counts,
                            const google::protobuf::RepeatedPtrField<v1::ParamGroup>& groups,
                            v1::LiveStateBegin* begin);
  void EndTurn();
  absl::Status OpenLines(const JobView& view);
  absl::Status SendAll(const v1::LiveCommand& command);
  absl::StatusOr<v1::LiveEvent> Await(LiveLine* line, v1::LiveEvent::EventCase kind,
                                      absl::Duration timeout);
  // Waits for an event of this kind from each line.
  absl::Status AwaitAll(const LiveSession::Lines& lines, v1::LiveEvent::EventCase kind,
                        absl::Duration timeout);
  absl::Status NextFailure(LiveLine* line, absl::Time deadline);
  absl::Status Serve(v1::LiveStateBegin begin);
  absl::Status ServeSlice(const LiveSlice& slice);
  absl::Status TellBegin(v1::LiveStateBegin begin);
  // What the client is told of a tensor before its elements.
  v1::LiveTensorInfo InfoOf(size_t tensor) const;
  // In a direct query: tells the client what to fetch and where, then waits until it has.
  absl::Status ServeDirect(v1::LiveStateBegin begin);
  absl::Status TellTensors(const std::vector<int>& source_of_line);
  absl::Status Write(const v1::LiveStateReply& reply);
  bool Cancelled() const { return watch_.has_ended() || client_.cancelled(); }
  absl::StatusOr<JobView> ReadableJob() const;
  absl::Status CheckNotDeleted() const;

  CoordinatorHost* const host_;
  LiveHub* const hub_;
  const LiveTimes times_;
  const Client client_;
  JobId job_;
  Generation generation_;
  LivePlan plan_;
  v1::DType wanted_dtype_ = v1::DTYPE_UNSPECIFIED;
  bool is_direct_ = false, has_turn_ = false;
  std::vector<int> line_of_rank_;       // -1: nothing is asked of it.
  std::vector<int64_t> update_counts_;  // By parameter of the plan.
  // In a direct query, by line: where the client fetches the worker's part.
  std::vector<std::vector<std::string>> addresses_;
  LiveSession session_;
  ClientWatch watch_;  // After what it uses.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_
