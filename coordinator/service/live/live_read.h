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
// deleted, or when the client has read nothing for a while. At most LiveLine::kMaxEvents pieces per
// worker are buffered here, in addition to gRPC's windows. Use once, by one thread.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/gate.h"
#include "coordinator/service/live/live_hub.h"
#include "coordinator/service/live/live_phase.h"
#include "job/live_plan.h"
#include "proto/live_state.pb.h"

namespace tessera::coordinator {

struct LiveTimes {
  absl::Duration answer = absl::Seconds(10);  // For a worker to open its stream and to hold.
  absl::Duration copy = absl::Minutes(10);    // For a worker to copy, and to send a piece.
  absl::Duration client = absl::Seconds(60);  // For the client to read a piece.
};

class LiveRead {
 public:
  struct Client {
    std::function<bool(const v1::LiveStateReply&)> write;  // False: it is gone.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a write; called by another thread.
  };
  // `host` and `hub` outlive this.
  LiveRead(CoordinatorHost* host, LiveHub* hub, const LiveTimes& times, Client client)
      : host_(host), hub_(hub), times_(times), client_(std::move(client)) {}

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
  // For moments in the form LOCAL: checks that each unit has one count of updates.
  absl::Status CheckOneCountAUnit() const;
  void EndTurn();
  absl::Status OpenLines(const JobView& view);
  absl::StatusOr<v1::LiveEvent> Await(LiveLine* line, v1::LiveEvent::EventCase kind,
                                      absl::Duration timeout);
  static absl::Status OutOfOrder(const LiveLine& line);
  // Waits for an event of this kind from each line.
  absl::Status AwaitAll(const std::vector<std::shared_ptr<LiveLine>>& lines,
                        v1::LiveEvent::EventCase kind, absl::Duration timeout);
  absl::Status NextFailure(LiveLine* line, absl::Time deadline);
  void CloseLines();
  absl::Status Serve(v1::LiveStateBegin begin);
  absl::Status ServeSlice(const LiveSlice& slice);
  absl::Status TellBegin(v1::LiveStateBegin begin);
  // What the client is told of an entry before its elements.
  v1::LiveTensorInfo InfoOf(size_t entry);
  int64_t UpdateCountOf(const LiveTensor& tensor) const;
  // In a direct query: tells the client what to fetch and where, then waits until it has.
  absl::Status ServeDirect(v1::LiveStateBegin begin);
  absl::Status TellTensors(const std::vector<int>& source_of_line);
  std::vector<std::shared_ptr<LiveLine>> Lines();
  absl::Status Write(const v1::LiveStateReply& reply);
  void Watch();
  void End(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Cancelled() const { return ended_.load() || client_.cancelled(); }
  absl::StatusOr<JobView> ReadableJob() const;

  CoordinatorHost* const host_;
  LiveHub* const hub_;
  const LiveTimes times_;
  const Client client_;
  JobId job_;
  Generation generation_;
  LivePlan plan_;
  v1::DType wanted_dtype_ = v1::DTYPE_UNSPECIFIED;
  v1::LiveStateForm wanted_form_ = v1::LIVE_STATE_FORM_FULL;
  LivePhase phase_ = LivePhase::kHolding;
  bool is_direct_ = false, has_turn_ = false;
  std::string session_;
  std::vector<int> line_of_rank_;       // -1: nothing is asked of it.
  std::vector<int64_t> update_counts_;  // By parameter of the plan.
  // In a direct query, by line: where the client fetches the worker's part.
  std::vector<std::vector<std::string>> addresses_;

  std::atomic<bool> ended_{false};  // Set by the watching thread.
  absl::Mutex mu_;
  std::vector<std::shared_ptr<LiveLine>> lines_ ABSL_GUARDED_BY(mu_);
  absl::Time writing_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_READ_H_
