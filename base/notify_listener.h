// The service manager's end of sd_notify, for tests of daemons. Thread-compatible.
#ifndef TESSERA_BASE_NOTIFY_LISTENER_H_
#define TESSERA_BASE_NOTIFY_LISTENER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"

namespace tessera {

class NotifyListener {
 public:
  // Listens at `path`, and has it and `patience` in this process's environment, for daemons that it
  // starts, until it is destroyed.
  // Errors: as bind
  static absl::StatusOr<std::unique_ptr<NotifyListener>> Start(const std::string& path,
                                                               absl::Duration patience);
  ~NotifyListener();

  // The next message; empty where none comes within `patience`.
  std::string Next(absl::Duration patience = absl::Seconds(20)) const;
  // Whether this message comes, after whichever others.
  bool Await(const std::string& message) const;

 private:
  explicit NotifyListener(UniqueFd socket) : socket_(std::move(socket)) {}

  const UniqueFd socket_;
};

}  // namespace tessera

#endif  // TESSERA_BASE_NOTIFY_LISTENER_H_
