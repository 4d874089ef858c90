#include "worker/keeper/job_vault.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/version.h"
#include "worker/engine/group_page.h"
#include "worker/memory/region.h"

namespace tessera {
namespace {

constexpr char kWorker[] = "worker", kJob[] = "job", kExecutor[] = "executor ";
// For a killed process to end: one that stands in the kernel takes its time.
constexpr int kEndMs = 30'000;

std::string OwnerOf(const std::string& job_id, int64_t creation) {
  return absl::StrCat(job_id, "/", creation);
}

// Ends a process and waits for that. `pidfd`: a descriptor of it.
absl::Status EndProcess(int pidfd, const std::string& what) {
  (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);  // It may have ended.
  pollfd ended = {pidfd, POLLIN, 0};
  int ready;
  do {
    ready = poll(&ended, 1, kEndMs);
  } while (ready < 0 && errno == EINTR);
  if (ready > 0) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("the ", what, " of the daemon before was killed and does not end"));
}

absl::Status EndExecutors(const VaultClient::Parts& parts) {
  for (const auto& [part, fds] : parts) {
    if (!absl::StartsWith(part, kExecutor)) continue;
    if (fds.empty())
      return absl::FailedPreconditionError(
          absl::StrCat("the ", part, " is in a trainer's process"));
    RETURN_IF_ERROR(EndProcess(fds[0].get(), part));
  }
  return absl::OkStatus();
}

// Whether it ever had an epoch: else there is nothing in it.
absl::StatusOr<bool> HasBegun(const JobDescriptors& memory) {
  const auto shared = memory.find("");
  if (shared == memory.end() || shared->second.size() != 2)
    return absl::DataLossError("its ranks' common memory is not there");
  ASSIGN_OR_RETURN(const Mapping group,
                   Mapping::CreateWhole(shared->second[1].get(), Access::kReadOnly));
  if (group.size_bytes() < static_cast<int64_t>(sizeof(GroupPage)))
    return absl::DataLossError("its ranks' common memory is too small");
  return reinterpret_cast<const GroupPage*>(group.data())->has_begun.load() != 0;
}

absl::StatusOr<JobVault::HeldJob> TakeOverJob(VaultClient::Parts parts) {
  JobVault::HeldJob held;
  v1::VaultedJob job;
  RETURN_IF_ERROR(ReadMessage(parts, kJob, &job));
  held.job = std::move(*job.mutable_job());
  RETURN_IF_ERROR(EndExecutors(parts));
  for (auto& [part, fds] : parts) {
    if (part != kJob && !absl::StartsWith(part, kExecutor)) held.memory[part] = std::move(fds);
  }
  ASSIGN_OR_RETURN(const bool has_begun, HasBegun(held.memory));
  if (!has_begun) return absl::NotFoundError("no epoch of it had begun");
  return held;
}

}  // namespace

absl::StatusOr<JobVault::Held> JobVault::TakeOver(const std::string& worker_id) {
  ASSIGN_OR_RETURN(auto all, vault_->List());
  Held held;
  const auto of_worker = all.find("");
  if (of_worker != all.end()) {
    held.worker.emplace();
    RETURN_IF_ERROR(ReadMessage(of_worker->second, kWorker, &*held.worker));
    all.erase(of_worker);
  }
  if (all.empty()) return held;
  if (!held.worker.has_value())
    return absl::FailedPreconditionError("memory of jobs is held, of an unknown worker");
  RETURN_IF_ERROR(CheckVersion("the daemon that left its jobs' memory here", held.worker->version(),
                               held.worker->protocol()));
  if (held.worker->worker_id() != worker_id) {
    return absl::FailedPreconditionError(absl::StrCat("the memory of jobs that is held is worker '",
                                                      held.worker->worker_id(), "'s: give worker '",
                                                      worker_id, "' another --socket-dir"));
  }
  for (auto& [owner, parts] : all) {
    absl::StatusOr<HeldJob> job = TakeOverJob(std::move(parts));
    // Its executor may still write: whoever used the memory now would share it with that.
    if (absl::IsDeadlineExceeded(job.status())) return job.status();
    if (job.ok()) {
      held.jobs.push_back(*std::move(job));
      continue;
    }
    TESSERA_LOG(WARNING, "job {}: cannot be taken over: {}", owner, job.status().ToString());
    Check(vault_->Drop(owner));
  }
  return held;
}

void JobVault::Check(const absl::Status& status) {
  if (status.ok()) return;
  TESSERA_LOG(ERROR, "jobs will not outlive this daemon: {}", status.ToString());
}

void JobVault::PutWorker(const v1::VaultedWorker& worker) {
  Check(vault_->PutMessage("", kWorker, worker));
}

void JobVault::PutJob(const v1::Job& job, const JobRegions& regions) {
  const std::string owner = OwnerOf(job.job_id(), job.creation());
  for (const auto& [part, fds] : regions.Descriptors()) Check(vault_->Put(owner, part, fds));
  NoteJob(job);
}

void JobVault::NoteJob(const v1::Job& job) {
  v1::VaultedJob vaulted;
  *vaulted.mutable_job() = job;
  Check(vault_->PutMessage(OwnerOf(job.job_id(), job.creation()), kJob, vaulted));
}

void JobVault::NoteExecutor(const std::string& job_id, int64_t creation, Rank rank, int pid) {
  const std::string part = absl::StrCat(kExecutor, rank.value());
  const UniqueFd process(
      pid == 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  const std::vector<int> fds =
      process.valid() ? std::vector<int>{process.get()} : std::vector<int>();
  Check(vault_->Put(OwnerOf(job_id, creation), part, fds));
}

void JobVault::Drop(const std::string& job_id, int64_t creation) {
  Check(vault_->Drop(OwnerOf(job_id, creation)));
}

}  // namespace tessera
