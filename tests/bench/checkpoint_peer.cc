#include "tests/bench/checkpoint_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"

extern char** environ;

namespace tessera {
namespace bench {

absl::StatusOr<std::unique_ptr<CheckpointPeer>> CheckpointPeer::Start(
    const std::string& python, const std::string& script, int ranks, const std::string& folder,
    int num_tensors, int64_t numel) {
  int to[2], from[2];
  if (pipe2(to, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd to_read(to[0]), to_write(to[1]);
  if (pipe2(from, O_CLOEXEC) != 0) return ErrnoStatus(errno, "make a pipe");
  UniqueFd from_read(from[0]), from_write(from[1]);
  std::vector<std::string> args = {python,
                                   "-B",
                                   "-W",
                                   "ignore",
                                   script,
                                   absl::StrCat(ranks),
                                   folder,
                                   absl::StrCat(num_tensors),
                                   absl::StrCat(numel)};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, to_read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, from_write.get(), STDOUT_FILENO);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, python.c_str(), &files, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0)
    return absl::NotFoundError(absl::StrCat("cannot start ", python, ": ", strerror(error)));
  return std::unique_ptr<CheckpointPeer>(
      new CheckpointPeer(pid, std::move(to_write), std::move(from_read)));
}

CheckpointPeer::~CheckpointPeer() {
  to_.Reset();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
}

CheckpointPeer::Result CheckpointPeer::Run(const std::string& command) {
  const std::string line = command + "\n";
  TESSERA_CHECK(write(to_.get(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  std::string answer;
  char byte = 0;
  while (byte != '\n') {
    const ssize_t got = read(from_.get(), &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    TESSERA_CHECK(got == 1);
    answer += byte;
  }
  Result result;
  long long cpu_ns = 0, peak_bytes = 0;
  TESSERA_CHECK(sscanf(answer.c_str(), "%lf %lld %lld", &result.seconds, &cpu_ns, &peak_bytes) ==
                3);
  cpu_ns_ = cpu_ns;
  result.peak_bytes = peak_bytes;
  return result;
}

}  // namespace bench
}  // namespace tessera
