// How tests run one body on every rank of a group: in turn, in threads, or in processes. So bodies
// report by Status, and share only the bytes that they are given.
#ifndef TESSERA_WORKER_COMM_RANK_GROUP_H_
#define TESSERA_WORKER_COMM_RANK_GROUP_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"

namespace tessera {

struct RankContext {
  Communicator* comm;
  char* shared;  // The same zeroed bytes on each rank, also across processes.
};

using RankBody = std::function<absl::Status(const RankContext&)>;

struct GroupOptions {
  int size = 1;
  absl::Duration timeout = absl::Minutes(2);  // Of each wait.
  int64_t shared_bytes = 4096;
};

// For bodies: returns an error that names the line.
#define RANK_EXPECT(condition, ...)                                              \
  do {                                                                           \
    if (!(condition)) {                                                          \
      return absl::InternalError(                                                \
          absl::StrCat("line ", __LINE__, ": " #condition, " ", ##__VA_ARGS__)); \
    }                                                                            \
  } while (false)

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_RANK_GROUP_H_
