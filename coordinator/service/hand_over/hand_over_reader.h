// Reads slices of a handed-over job for one rank of a taker, from the memory of the workers that
// hold them.
//
//   a session; every worker with a part of it is told to open a stream and what to send
//   part by part: pieces from the workers' streams to the client
//
// Nothing is held, copied or written to disk: no step of the job is decided while its hand-over is
// pending. What is read after the end of a hand-over has no meaning, but it cannot be taken for the
// state either, since the hand-over can no longer be accepted. A second thread watches, as in
// LiveRead. At most WorkerLine::kMaxQueued pieces per worker are buffered. Use once, by one thread.
#ifndef TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_
#define TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_

#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/hand_over/hand_over_plan.h"
#include "coordinator/service/live/client_watch.h"
#include "coordinator/service/live/job_places.h"
#include "coordinator/service/live/live_read.h"
#include "coordinator/service/live/worker_session.h"
#include "proto/hand_over.pb.h"

namespace tessera::coordinator {

class HandOverReader {
 public:
  struct Client {
    std::function<bool(const v1::HandOverReply&)> write;  // False: it is gone.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a write; called by another thread.
  };
  // All arguments outlive this.
  // Further reads wait for one of `places`.
  HandOverReader(CoordinatorHost* host, LiveSessions* hub, JobPlaces* places,
                 const LiveTimes& times, Client client);

  // Errors: as HandOvers.Read in proto/hand_over.proto.
  absl::Status Read(const v1::ReadHandOverRequest& request);

 private:
  absl::StatusOr<JobView> StandingJob() const;
  absl::Status ReadWatched(const JobView& view);
  absl::Status OpenLines(const JobView& view);
  absl::StatusOr<v1::LiveEvent> Await(LiveLine* line, v1::LiveEvent::EventCase kind);
  absl::Status ServePart(const HandOverPart& part);
  absl::Status Write(const v1::HandOverReply& reply);
  bool Cancelled() const { return watch_.has_ended() || client_.cancelled(); }

  CoordinatorHost* const host_;
  JobPlaces* const places_;
  const LiveTimes times_;
  const Client client_;
  JobId job_;
  Generation generation_;
  int64_t number_ = 0;
  std::vector<HandOverPart> plan_;
  std::map<int, int> line_of_rank_;
  LiveSession session_;
  ClientWatch watch_;  // After what it uses.
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_
