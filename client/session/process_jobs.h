// Which jobs the sessions of this process are attached to. Thread-safe.
#ifndef TESSERA_CLIENT_SESSION_PROCESS_JOBS_H_
#define TESSERA_CLIENT_SESSION_PROCESS_JOBS_H_

#include <string>

namespace tessera {

// Counts one session of a job, for as long as it lives.
class ProcessJob {
 public:
  explicit ProcessJob(std::string job_id);
  ~ProcessJob();
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;

  // Whether no session of another job lives.
  static bool IsOnlyOne();

 private:
  const std::string job_id_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_PROCESS_JOBS_H_
