// What a daemon tells the service manager that started it, by systemd's protocol sd_notify: that it
// serves, that it stops, and, where the manager watches it, that its work makes progress.
//
//   manager ── $NOTIFY_SOCKET, $WATCHDOG_USEC ──► daemon ── READY=1, WATCHDOG=1 ..., STOPPING=1 ──►
//
// A daemon without a manager, as one that was started by hand, tells nobody, and nothing here
// fails. What cannot be told is logged. Thread-compatible.
#ifndef TESSERA_BASE_SERVICE_MANAGER_H_
#define TESSERA_BASE_SERVICE_MANAGER_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tessera {

class ServiceManager {
 public:
  // By $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID, which it removes from the environment:
  // children do not speak for this process. Before this process has a second thread.
  // Errors: InvalidArgument  names the variable that cannot be understood
  static absl::StatusOr<std::unique_ptr<ServiceManager>> FromEnvironment();
  ~ServiceManager() { EndWatch(); }

  void Ready() const { Tell("READY=1"); }
  // Where the manager watches, asks `makes_progress` now and each half of the manager's patience,
  // on a thread of its own, until Stopping, and passes each yes on. One that hangs need not return.
  // Once.
  // Errors: ResourceExhausted  no thread can be made
  absl::Status Watch(std::function<bool()> makes_progress);
  // Returns once nobody asks any more.
  void Stopping() {
    Tell("STOPPING=1");
    EndWatch();
  }

 private:
  ServiceManager(std::string address, absl::Duration patience)
      : address_(std::move(address)), patience_(patience) {}
  void Tell(absl::string_view message) const;
  void EndWatch();

  const std::string address_;      // As sun_path has it; empty: no manager.
  const absl::Duration patience_;  // Without a word; 0: it does not watch.
  std::thread watch_;
  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace tessera

#endif  // TESSERA_BASE_SERVICE_MANAGER_H_
