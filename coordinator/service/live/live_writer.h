// Sets values of a job for one client.
//
//   1. check what the client will send as a whole; open a session; every worker of the job is told
//      to open a stream, and answers that it has room
//   2. cut the client's pieces along the ranks' slices; send them to the workers that hold these
//   3. all workers have everything ──► offer it to all ──► the outcome: put_verdict.h
//
// A second thread watches: it ends the put when the job is deleted, or when the client has sent
// nothing for a while. At most one piece of the client, and WorkerLine::kMaxQueued pieces per
// worker, are buffered here, in addition to gRPC's windows. Use once, by one thread.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/live/client_watch.h"
#include "coordinator/service/live/job_places.h"
#include "coordinator/service/live/put_plan.h"
#include "coordinator/service/live/put_verdict.h"
#include "coordinator/service/live/worker_session.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

struct PutTimes {
  absl::Duration answer = absl::Seconds(10);  // For a worker to open its stream and make room.
  absl::Duration worker = absl::Minutes(1);   // For a worker to take a piece, and to have all.
  absl::Duration client = absl::Minutes(1);   // For the client to send a piece.
  absl::Duration step = absl::Minutes(10);    // For the trainers to take a step, by default.
};

// All puts in progress. A job has one at a time.
struct PutHub {
  PutSessions sessions;
  JobPlaces puts{1};
};

class LiveWriter {
 public:
  struct Client {
    std::function<bool(v1::PutRequest*)> read;  // After `begin`. False: nothing more comes.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a read; called by another thread.
  };
  // `host` and `hub` outlive this.
  LiveWriter(CoordinatorHost* host, PutHub* hub, const PutTimes& times, Client client);

  // Errors: as LivePut.PutLiveState in proto/live_put.proto.
  absl::StatusOr<v1::PutReply> Write(const v1::PutBegin& begin);

 private:
  // A worker of the job, with ranks [first_rank, end_rank).
  struct Worker {
    std::shared_ptr<PutLine> line;
    int first_rank = 0, end_rank = 0;
    absl::Status why;  // Why the put is not applied there.
  };
  absl::StatusOr<v1::PutReply> WriteWatched();
  absl::StatusOr<JobView> WritableJob(int64_t wanted_generation) const;
  absl::Status OpenLines();
  absl::Status SendAll(const v1::PutCommand& command);
  absl::Status AwaitAll(v1::PutEvent::EventCase kind, absl::Duration timeout);
  absl::Status ReadRequest(v1::PutRequest* request);
  absl::Status TakeAll();
  absl::Status TakeTensor(size_t index);
  absl::Status Forward(const PutPlan::Tensor& tensor, const v1::LivePiece& piece);
  absl::StatusOr<v1::PutReply> Offer();
  // Waits briefly for the worker's next event; nullopt: there was none.
  std::optional<WorkerPut> Hear(Worker* worker);
  absl::StatusOr<v1::PutReply> Conclude(PutVerdict verdict, const absl::Status& given_up);
  // Why the put should be withdrawn; OK: it should not.
  absl::Status GivenUp(absl::Time deadline);
  absl::Status Deletion() const;  // Why the job is deleted or over; OK: it is neither.
  bool Cancelled() const { return watch_.has_ended() || client_.cancelled(); }

  CoordinatorHost* const host_;
  PutHub* const hub_;
  const PutTimes times_;
  const Client client_;
  JobId job_;
  Generation generation_;
  absl::Duration collective_timeout_, step_timeout_;
  bool has_replicas_ = false;
  PutPlan plan_;
  std::vector<uint64_t> hashes_;  // By tensor, for tied tensors: of the elements.
  std::vector<Worker> workers_;
  v1::PutReply reply_;
  PutSession session_;
  ClientWatch watch_;  // After what it uses.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_
