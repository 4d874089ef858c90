// Starts threads where a machine that can make no more of them must not end the process.
#ifndef TESSERA_BASE_START_THREAD_H_
#define TESSERA_BASE_START_THREAD_H_

#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// Runs `body` on a thread of its own; `what` names it in the error, e.g. "an executor". The body
// and what it holds are destroyed where this fails.
// Errors: ResourceExhausted  a limit on threads or memory is reached.
template <typename Body>
absl::StatusOr<std::thread> StartThread(absl::string_view what, Body body) {
  try {  // The standard library has no other way to say it.
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create a thread for ", what, ": ", error.what()));
  }
}

}  // namespace tessera

#endif  // TESSERA_BASE_START_THREAD_H_
