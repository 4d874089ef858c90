// Clients that map jobs' states, and the workers' streams that serve them during that time.
//
//   client's call   Expect ─► MapLine ◄─ Find, Attach   worker's stream: offer
//                   AwaitOffered ◄───────────── Answer   offered, or why not
//                   Forget, Close ────────────► its end
//
// Both thread-safe.
#ifndef TESSERA_COORDINATOR_SERVICE_LIVE_MAP_HUB_H_
#define TESSERA_COORDINATOR_SERVICE_LIVE_MAP_HUB_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "proto/live_map.pb.h"

namespace tessera::coordinator {

// One worker's stream of a session.
class MapLine {
 public:
  MapLine(std::string worker, v1::LiveMapOffer offer)
      : worker_(std::move(worker)), offer_(std::move(offer)) {}

  const std::string& worker() const { return worker_; }

  // --- The client's side. Errors name the worker. ---
  // The path of its descriptor socket.
  // Errors: Cancelled    `cancelled` became true, or Close() was called
  //         Unavailable  no answer by `deadline`, or the stream ended; what the worker said
  absl::StatusOr<std::string> AwaitOffered(absl::Time deadline,
                                           absl::FunctionRef<bool()> cancelled);
  bool has_ended();  // The stream.
  void Close();

  // --- The stream's side ---
  const v1::LiveMapOffer& offer() const { return offer_; }
  // `on_close` ends the stream from another thread; it is not called after Detach(). Returns false
  // if the line is closed or has a stream already.
  bool Attach(std::function<void()> on_close);
  void Answer(v1::LiveMapEvent event);
  void Detach();  // The stream is ending.

 private:
  const std::string worker_;
  const v1::LiveMapOffer offer_;
  absl::Mutex mu_;
  std::optional<v1::LiveMapEvent> answer_ ABSL_GUARDED_BY(mu_);
  std::function<void()> on_close_ ABSL_GUARDED_BY(mu_);
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

class MapHub {
 public:
  // Each one has a stream of every worker of the job. A worker serves 64 of them for all jobs.
  static constexpr int kMaxMapsOfAJob = 8;

  // Waits while the job has kMaxMapsOfAJob of them, because one may be about to end.
  // Errors: ResourceExhausted  it still has at `deadline`; Cancelled  `cancelled` became true.
  absl::Status Enter(const JobId& job, absl::Time deadline, absl::FunctionRef<bool()> cancelled);
  void Leave(const JobId& job);
  int num_waiting();  // Calls that wait in Enter, for all jobs.

  static std::string NewSession();  // Cannot be guessed.
  // Accepts the worker's stream of this session, until Forget.
  void Expect(const std::string& session, std::shared_ptr<MapLine> line);
  void Forget(const std::string& session, const std::string& worker);
  // Null: no client expects it.
  std::shared_ptr<MapLine> Find(const std::string& session, const std::string& worker);

 private:
  absl::Mutex mu_;
  std::map<JobId, int> maps_ ABSL_GUARDED_BY(mu_);
  int num_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<MapLine>> lines_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_SERVICE_LIVE_MAP_HUB_H_
