// The same bytes saved and loaded by PyTorch for Python, to compare with ours: the processes of
// peers/checkpoint_peer.py.
#ifndef TESSERA_TESTS_BENCH_CHECKPOINT_PEER_H_
#define TESSERA_TESTS_BENCH_CHECKPOINT_PEER_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace tessera {
namespace bench {

// Made before a team is forked, used by one of the team's processes, and destroyed after it.
class CheckpointPeer {
 public:
  // `python` runs `script`: as many `ranks`, which keep `num_tensors` tensors of `numel` floats in
  // `folder`, an empty one.
  // Errors: NotFound  it cannot be started
  static absl::StatusOr<std::unique_ptr<CheckpointPeer>> Start(const std::string& python,
                                                               const std::string& script, int ranks,
                                                               const std::string& folder,
                                                               int num_tensors, int64_t numel);
  ~CheckpointPeer();
  CheckpointPeer(const CheckpointPeer&) = delete;
  CheckpointPeer& operator=(const CheckpointPeer&) = delete;

  struct Result {
    double seconds = 0;
    int64_t peak_bytes = 0;  // By which its processes grew at the most.
  };
  // Ends the process where the peer does not answer. See the script for commands.
  Result Run(const std::string& command);
  // What its processes had used of the processors when it answered last.
  int64_t cpu_ns() const { return cpu_ns_; }

 private:
  CheckpointPeer(pid_t pid, UniqueFd to, UniqueFd from)
      : pid_(pid), to_(std::move(to)), from_(std::move(from)) {}

  const pid_t pid_;
  UniqueFd to_, from_;
  int64_t cpu_ns_ = 0;
};

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_CHECKPOINT_PEER_H_
