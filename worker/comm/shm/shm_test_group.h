// Groups of shared-memory ranks for tests: threads of this process, or forked processes that each
// map a memfd at an address of their own.
#ifndef TESSERA_WORKER_COMM_SHM_SHM_TEST_GROUP_H_
#define TESSERA_WORKER_COMM_SHM_SHM_TEST_GROUP_H_

#include <sys/types.h>

#include <functional>
#include <vector>

#include "base/unique_fd.h"
#include "worker/comm/rank_group.h"
#include "worker/comm/shm/shm_communicator.h"

namespace tessera {

// Memory that forked children share with their parent; zeroed.
class SharedMapping {
 public:
  explicit SharedMapping(int64_t bytes);
  ~SharedMapping();
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // A second mapping of the same memory. Never unmapped: for children, which end.
  char* MapAgain() const;

 private:
  UniqueFd fd_;
  int64_t bytes_;
  char* data_;
};

// The child of a fork that runs `body` and ends.
class RankProcess {
 public:
  RankProcess(const std::function<absl::Status()>& body);
  RankProcess(RankProcess&&) = default;

  pid_t pid() const { return pid_; }
  void Kill();
  // What the body returned, or Internal naming the signal that ended the process.
  absl::Status Join();

 private:
  pid_t pid_ = -1;
  UniqueFd result_;
};

ShmCommunicator::Options ShmOptions(const GroupOptions& group, const SharedMapping& mapping);
int64_t ShmBytes(const GroupOptions& group);

std::vector<absl::Status> RunShmThreads(const GroupOptions& options, const RankBody& body);
std::vector<absl::Status> RunShmProcesses(const GroupOptions& options, const RankBody& body);
// Ranks that may not read each other's memory.
std::vector<absl::Status> RunShmProcessesThatStage(const GroupOptions& options,
                                                   const RankBody& body);

}  // namespace tessera

#endif  // TESSERA_WORKER_COMM_SHM_SHM_TEST_GROUP_H_
