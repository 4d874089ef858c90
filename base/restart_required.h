// How an epoch's end says that each rank's program has to be started again: those that went on where
// a process died are at other places than those that were replaced (docs/adr/0091). A number beside
// gRPC's codes, wherever a code tells why an epoch ended.
#ifndef TESSERA_BASE_RESTART_REQUIRED_H_
#define TESSERA_BASE_RESTART_REQUIRED_H_

#include "absl/status/status.h"

namespace tessera {

inline constexpr int kRestartRequired =
    256 + static_cast<int>(absl::StatusCode::kFailedPrecondition);

// What a trainer gets.
inline absl::StatusCode TrainersCode(int code) {
  return code == kRestartRequired ? absl::StatusCode::kFailedPrecondition
                                  : static_cast<absl::StatusCode>(code);
}

}  // namespace tessera

#endif  // TESSERA_BASE_RESTART_REQUIRED_H_
