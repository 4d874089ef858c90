// Reads slices of a handed-over job for one rank of a taker, from the memory of the workers that
// hold them.
//
//   a session; every worker with a part of it is told to open a stream and what to send
//   part by part: pieces from the workers' streams to the client
//
// Nothing is held, copied or written to disk: no step of the job is decided while its hand-over is
// pending. What is read after the end of a hand-over has no meaning, but it cannot be taken for the
// state either, since the hand-over can no longer be accepted. A second thread watches, as in
// LiveRead. At most LiveLine::kMaxEvents pieces per worker are buffered. Use once, by one thread.
#ifndef TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_
#define TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/hand_over/hand_over_plan.h"
#include "coordinator/service/live/live_hub.h"
#include "coordinator/service/live/live_read.h"
#include "proto/hand_over.pb.h"

namespace tessera::coordinator {

// Limits how many reads of a job run at a time; further ones wait. Thread-safe.
class ReadingPlaces {
 public:
  static constexpr int kMaxReadingsOfAJob = 4;

  // Errors: Cancelled  `cancelled` became true.
  absl::Status Enter(const JobId& job, absl::FunctionRef<bool()> cancelled);
  void Leave(const JobId& job);

 private:
  absl::Mutex mu_;
  std::map<JobId, int> readings_ ABSL_GUARDED_BY(mu_);
};

class HandOverReader {
 public:
  struct Client {
    std::function<bool(const v1::HandOverReply&)> write;  // False: it is gone.
    std::function<bool()> cancelled;
    std::function<void()> cancel;  // Ends a write; called by another thread.
  };
  // All arguments outlive this.
  HandOverReader(CoordinatorHost* host, LiveHub* hub, ReadingPlaces* places, const LiveTimes& times,
                 Client client)
      : host_(host), hub_(hub), places_(places), times_(times), client_(std::move(client)) {}

  // Errors: as HandOvers.Read in proto/hand_over.proto.
  absl::Status Read(const v1::ReadHandOverRequest& request);

 private:
  absl::StatusOr<JobView> StandingJob() const;
  absl::Status ReadWatched(const JobView& view);
  absl::Status OpenLines(const JobView& view);
  absl::StatusOr<v1::LiveEvent> Await(LiveLine* line, v1::LiveEvent::EventCase kind);
  absl::Status ServePart(const HandOverPart& part);
  absl::Status Write(const v1::HandOverReply& reply);
  void Watch();
  void End(const absl::Status& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseLines();
  bool Cancelled() const { return ended_.load() || client_.cancelled(); }

  CoordinatorHost* const host_;
  LiveHub* const hub_;
  ReadingPlaces* const places_;
  const LiveTimes times_;
  const Client client_;
  JobId job_;
  Generation generation_;
  int64_t number_ = 0;
  std::vector<HandOverPart> plan_;
  std::string session_;
  std::map<int, int> line_of_rank_;

  std::atomic<bool> ended_{false};  // Set by the watching thread.
  absl::Mutex mu_;
  std::vector<std::shared_ptr<LiveLine>> lines_ ABSL_GUARDED_BY(mu_);
  absl::Time writing_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_HAND_OVER_HAND_OVER_READER_H_
