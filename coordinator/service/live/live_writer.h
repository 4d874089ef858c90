// Sets values of a job for one client.
//
//   1. what the client will send is checked as a whole; a session; every worker of the job is told
//      to open a stream, and says that it has room
//   2. the client's pieces are cut along the ranks' slices and sent to the workers that hold them
//   3. all workers have all of it ──► all are offered it ──► what became of it: put_verdict.h
//
// A thread beside it watches: it ends the put when the job is deleted, and when the client has sent
// nothing for a while. What lies here of a put is one piece of the client's and at most
// PutLine::kMaxCommands pieces a worker, beside what gRPC has in its windows. Use once, by one
// thread.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/live/put_hub.h"
#include "coordinator/service/live/put_plan.h"
#include "coordinator/service/live/put_verdict.h"
#include "proto/live_put.pb.h"

namespace tessera::coordinator {

struct PutTimes {
  absl::Duration answer = absl::Seconds(10);  // Of a worker, to open its stream and make room.
  absl::Duration worker = absl::Minutes(1);   // Of a worker, to take a piece; to have them all.
  absl::Duration client = absl::Minutes(1);   // To send a piece.
  absl::Duration step = absl::Minutes(10);    // For the trainers to take a step, if not told.
};

class LiveWriter {
 public:
  struct Client {
    std::function<bool(v1::PutRequest*)> read;  // After `begin`. False: nothing more comes.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a read; called by another thread.
  };
  // `host` and `hub` outlive this.
  LiveWriter(CoordinatorHost* host, PutHub* hub, const PutTimes& times, Client client)
      : host_(host), hub_(hub), times_(times), client_(std::move(client)) {}

  // Errors: as LivePut.PutLiveState in proto/live_put.proto.
  absl::StatusOr<v1::PutReply> Write(const v1::PutBegin& begin);

 private:
  // A worker of the job, with ranks [first_rank, end_rank).
  struct Worker {
    std::shared_ptr<PutLine> line;
    int first_rank = 0, end_rank = 0;
    WorkerPut state = WorkerPut::kPending;
    absl::Status why;  // Where it is out or lost.
  };
  absl::StatusOr<v1::PutReply> WriteWatched();
  absl::StatusOr<JobView> WritableJob(int64_t wanted_creation) const;
  absl::Status OpenLines();
  absl::Status SendAll(const v1::PutCommand& command);
  absl::Status AwaitAll(v1::PutEvent::EventCase kind, absl::Duration timeout);
  absl::Status ReadRequest(v1::PutRequest* request);
  absl::Status TakeAll();
  absl::Status TakeTensor(size_t index);
  absl::Status Forward(const PutPlan::Tensor& tensor, const v1::LivePiece& piece);
  absl::StatusOr<v1::PutReply> Offer();
  // Waits a little for what the worker says next.
  void Hear(Worker* worker);
  absl::StatusOr<v1::PutReply> Conclude(PutVerdict verdict, const absl::Status& given_up);
  // Why it is not wanted any more; OK: it is.
  absl::Status GivenUp(absl::Time deadline);
  absl::Status Deletion() const;  // Or the job's end. OK: there is none.
  void CloseLines();
  void Watch();
  void End(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Cancelled() const { return ended_.load() || client_.cancelled(); }

  CoordinatorHost* const host_;
  PutHub* const hub_;
  const PutTimes times_;
  const Client client_;
  JobId job_;
  Creation creation_;
  absl::Duration collective_timeout_, step_timeout_;
  PutPlan plan_;
  std::vector<uint64_t>
      hashes_;  // By tensor: of the elements of those that others are the same as.
  std::string session_;
  std::vector<Worker> workers_;
  v1::PutReply reply_;

  std::atomic<bool> ended_{false};
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  absl::Time reading_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  std::vector<std::shared_ptr<PutLine>> lines_ ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_LIVE_WRITER_H_
