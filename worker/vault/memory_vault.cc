#include "worker/vault/memory_vault.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/closed_process.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "proto/vault.pb.h"
#include "shm/fd_passing.h"

namespace tessera {
namespace {

constexpr char kSocketName[] = "/vault.sock";
// For a vault that ends just now.
constexpr int kConnectTries = 100;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(20);

class MemoryVault {
 public:
  // Nothing but the daemon's identity.
  bool empty() const { return parts_.empty() || parts_.rbegin()->first.first.empty(); }

  // Does what one daemon asks, until it goes. Whether it put anything.
  bool Serve(int daemon) {
    bool has_put = false;
    while (true) {
      absl::StatusOr<Packet> packet = ReceivePacket(daemon);
      v1::VaultCommand command;
      // A packet that is not a command ends the daemon's connection, never the vault.
      if (!packet.ok() || !command.ParseFromString(packet->bytes) ||
          !Do(daemon, command, std::move(packet->fds))) {
        return has_put;
      }
      has_put |= command.has_put();
    }
  }

 private:
  using Key = std::pair<std::string, std::string>;  // Owner, part.

  bool Do(int daemon, const v1::VaultCommand& command, std::vector<UniqueFd> fds) {
    FaultPoint("vault.command").IgnoreError();  // A place to die or stop in, not to fail.
    v1::VaultAnswer answer;
    switch (command.command_case()) {
      case v1::VaultCommand::kPut:
        // What was held as this part is closed by this.
        // Held before it is answered: what the daemon was told of survives the daemon.
        parts_[{command.put().owner(), command.put().part()}] = std::move(fds);
        return Send(daemon, answer, {});
      case v1::VaultCommand::kDrop:
        // All parts of the owner. Their memory is freed once no other process has it.
        for (auto it = parts_.lower_bound({command.drop().owner(), ""});
             it != parts_.end() && it->first.first == command.drop().owner();) {
          it = parts_.erase(it);
        }
        return Send(daemon, answer, {});
      case v1::VaultCommand::kList:
        // One packet each: descriptors per packet are limited.
        for (const auto& [key, held] : parts_) {
          answer.set_is_part(true);
          answer.set_owner(key.first);
          answer.set_part(key.second);
          if (!Send(daemon, answer, held)) return false;
        }
        return Send(daemon, v1::VaultAnswer(), {});
      case v1::VaultCommand::COMMAND_NOT_SET:
        answer.set_error("the vault does not know this command: it has an older version");
        return Send(daemon, answer, {});
    }
    return false;
  }

  static bool Send(int daemon, v1::VaultAnswer answer, const std::vector<UniqueFd>& held) {
    answer.set_is_answer(true);
    std::vector<int> fds;
    for (const UniqueFd& fd : held) fds.push_back(fd.get());
    return SendPacket(daemon, answer.SerializeAsString(), fds).ok();
  }

  std::map<Key, std::vector<UniqueFd>> parts_;
};

// Has nothing of the process that it was forked from but the listener: so a process that waits for
// the original sees the end of the descriptors that they shared.
[[noreturn]] void BeVault(UniqueFd listener, absl::Duration patience) {
  // Out of the daemon's session: a signal to its group must not end the memory.
  setsid();
  prctl(PR_SET_NAME, "tessera-vault");
  CloseProcess();  // A process that may read its memory could open what it holds.
  const int socket = listener.get();
  listen(socket, SOMAXCONN);  // Again: from now on clients see this process's id as the peer's.
  if (const int null = open("/dev/null", O_RDWR); null >= 0) {
    for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
    if (null > 2) close(null);
  }
  if (socket > 3) syscall(SYS_close_range, 3, socket - 1, 0);
  syscall(SYS_close_range, socket + 1, ~0U, 0);
  // A daemon that dies while it is answered must not end the vault.
  signal(SIGPIPE, SIG_IGN);
  if (const int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); score >= 0) {
    // What it holds is all jobs' memory: it is the last that should be killed.
    (void)!write(score, "-900", 4);
    close(score);
  }
  (void)!chdir("/");
  RunVault(std::move(listener), patience);
  // Without exit handlers: they are those of the process that was forked.
  _exit(0);
}

absl::StatusOr<std::unique_ptr<VaultClient>> ConnectVault(const std::string& path) {
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectPacketSocket(path));
  RETURN_IF_ERROR(Annotate(CheckPeerUser(socket.get()), path));
  auto vault = std::make_unique<VaultClient>(std::move(socket));
  RETURN_IF_ERROR(Annotate(vault->List().status(), path));  // It may be about to end.
  return vault;
}

absl::Status StartVault(const std::string& path, absl::Duration patience) {
  // Before the fork, so that an address in use is this process's error.
  ASSIGN_OR_RETURN(UniqueFd listener, ListenPacketSocket(path));
  ASSIGN_OR_RETURN(auto ours_theirs, CreatePacketSocketPair());
  // The child goes on as a C++ program, so this process must not have other threads yet.
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "start the process that holds the memory");
  if (child == 0) BeVault(std::move(listener), patience);
  ours_theirs.second.Reset();
  // Its end of the pair closes with all other descriptors once it listens.
  (void)ReceivePacket(ours_theirs.first.get());  // Until it listens.
  return absl::OkStatus();
}

}  // namespace

void RunVault(UniqueFd listener, absl::Duration patience) {
  MemoryVault vault;
  const auto longest = std::chrono::nanoseconds(absl::ToInt64Nanoseconds(patience));
  auto since = std::chrono::steady_clock::now();
  while (true) {
    // A daemon that looks and does not stay, as it cannot take over, is none.
    const auto left = longest - (std::chrono::steady_clock::now() - since);
    // One millisecond more, or the last one would be spent in polls that return at once.
    const int64_t left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
    if (left_ms <= 0) return;
    pollfd next = {listener.get(), POLLIN, 0};
    // In pieces: poll takes an int of milliseconds, and patience may be longer.
    const int ready = poll(&next, 1, static_cast<int>(std::min<int64_t>(left_ms, 1'000'000)));
    if (ready < 0 && errno != EINTR) return;
    if (ready <= 0) continue;
    const UniqueFd daemon(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    // The machine is short of descriptors or memory. The daemon stays in the backlog.
    if (!daemon.valid()) poll(nullptr, 0, 100);
    // One daemon at a time. The next one waits in the backlog.
    if (!daemon.valid() || !CheckPeerUser(daemon.get()).ok()) continue;
    // The patience begins when a daemon goes, however long it was there.
    if (vault.Serve(daemon.get())) since = std::chrono::steady_clock::now();
    // Nothing left to hold.
    if (vault.empty()) return;
  }
}

absl::Status EndVault(const std::string& socket_dir, const std::string& worker_id) {
  const absl::StatusOr<std::unique_ptr<VaultClient>> vault = ConnectVault(socket_dir + kSocketName);
  // One that stands still may hold memory, so it does not count as none.
  if (absl::IsPermissionDenied(vault.status()) || absl::IsDeadlineExceeded(vault.status()))
    return vault.status();
  if (!vault.ok()) return absl::OkStatus();  // There is none.
  ASSIGN_OR_RETURN(const auto all, (*vault)->List());
  const auto owner = all.find("");
  v1::VaultedWorker worker;
  if (owner != all.end()) RETURN_IF_ERROR(ReadMessage(owner->second, "worker", &worker));
  if (!worker.worker_id().empty() && worker.worker_id() != worker_id) {
    return absl::FailedPreconditionError(
        absl::StrCat(socket_dir, ": the memory of jobs of worker '", worker.worker_id(),
                     "' is held there: give worker '", worker_id, "' another --socket-dir"));
  }
  // Without anything to hold the vault ends once this connection has.
  for (const auto& [name, parts] : all) RETURN_IF_ERROR((*vault)->Drop(name));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<VaultClient>> ConnectOrStartVault(const std::string& socket_dir,
                                                                 absl::Duration patience) {
  if (mkdir(socket_dir.c_str(), 0700) != 0 && errno != EEXIST)
    return ErrnoStatus(errno, absl::StrCat("folder ", socket_dir));
  const std::string path = socket_dir + kSocketName;
  absl::Status started;
  for (int i = 0; i < kConnectTries; ++i) {
    absl::StatusOr<std::unique_ptr<VaultClient>> vault = ConnectVault(path);
    if (vault.ok() || absl::IsPermissionDenied(vault.status()) ||
        absl::IsDeadlineExceeded(vault.status())) {
      return vault;
    }
    // Another daemon may have started one at the same moment. Then this one connects to it.
    started = StartVault(path, patience);
    if (!started.ok() && !absl::IsAlreadyExists(started)) return started;
    absl::SleepFor(kBetweenTries);
  }
  return absl::UnavailableError(absl::StrCat(path, ": no process answers there"));
}

}  // namespace tessera
