// What tells a session in which clients map live state (docs/adr/0052) from all others: its name.
// Pure; thread-safe.
#ifndef TESSERA_JOB_MAP_SESSION_H_
#define TESSERA_JOB_MAP_SESSION_H_

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline constexpr absl::string_view kMapSessionPrefix = "map-";

inline bool IsMapSession(absl::string_view session) {
  return absl::StartsWith(session, kMapSessionPrefix);
}

}  // namespace tessera

#endif  // TESSERA_JOB_MAP_SESSION_H_
