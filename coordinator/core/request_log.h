// What the newest mutating requests did, so that a retry gets the first attempt's reply, even after
// a restart. Bounded: the oldest are forgotten first. Copyable value; thread-compatible.
#ifndef TESSERA_COORDINATOR_CORE_REQUEST_LOG_H_
#define TESSERA_COORDINATOR_CORE_REQUEST_LOG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "coordinator/core/job.h"

namespace tessera::coordinator {

enum class RequestKind { kCreateJob, kDeleteJob };

struct Request {
  RequestKind kind = RequestKind::kCreateJob;
  JobId job;
  JobStatus reply;       // kCreateJob: as returned. kDeleteJob: the job's last status.
  int64_t sequence = 0;  // Order of requests; assigned by the log's owner from NextSequence().
};

class RequestLog {
 public:
  explicit RequestLog(int64_t capacity = 4096) : capacity_(capacity) {}

  const Request* Find(const std::string& request_id) const;
  void Put(const std::string& request_id, Request request);
  void Forget(const std::string& request_id);

  // Larger than any earlier one, forgotten ones included: the newest is never forgotten. At least
  // `at_least`, which is a time, so that a new log repeats no number of a lost one.
  int64_t NextSequence(int64_t at_least) const;
  // Ids to forget before another one is put.
  std::vector<std::string> Surplus() const;

 private:
  int64_t capacity_;
  std::map<std::string, Request> requests_;
  std::map<int64_t, std::string> by_sequence_;
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_REQUEST_LOG_H_
