#include "worker/keeper/job_vault.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "base/version.h"
#include "shm/region.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

constexpr char kWorker[] = "worker", kJob[] = "job", kExecutor[] = "executor ",
               kTrainer[] = "trainer ";
// For a killed process to end: one that stands in the kernel takes its time.
constexpr int kEndMs = 30'000;

// Ends a process and waits for that. `pidfd`: a descriptor of it.
// By descriptor: the pid may belong to another process by now.
absl::Status EndProcess(int pidfd, const std::string& what) {
  (void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);  // It may have ended.
  // A killed process is readable once it has ended. Until then it may write to the job's memory.
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
    // It has no process of its own to end, and may still run: the memory is not usable.
    if (fds.empty())
      return absl::FailedPreconditionError(
          absl::StrCat("the ", part, " is in a trainer's process"));
    RETURN_IF_ERROR(EndProcess(fds[0].get(), part));
  }
  return absl::OkStatus();
}

// Whether what is noted of a job is the last that was so of its memory, and that has values.
absl::Status CheckMemory(const v1::Job& job, const JobDescriptors& memory) {
  const auto shared = memory.find("");
  if (shared == memory.end() || shared->second.size() != 2)
    return absl::DataLossError("its ranks' common memory is not there");
  ASSIGN_OR_RETURN(const Mapping mapping,
                   Mapping::CreateWhole(shared->second[1].get(), Access::kReadOnly));
  if (mapping.size_bytes() < static_cast<int64_t>(sizeof(GroupPage)))
    // What the vault holds is only as good as the daemon that put it there: sizes are checked.
    return absl::DataLossError("its ranks' common memory is too small");
  const auto* group = reinterpret_cast<const GroupPage*>(mapping.data());
  if (group->has_begun.load() == 0) return absl::NotFoundError("no epoch of it had begun");
  // The note is made first.
  // A daemon that died between the two leaves a note that is newer than the word, never older.
  if (group->prepared_epoch.load() <= job.epoch()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its note is of epoch ", job.epoch(),
                                          ", not of its last epoch, ",
                                          group->prepared_epoch.load()));
}

absl::StatusOr<JobVault::HeldJob> TakeOverJob(const std::string& owner, VaultClient::Parts parts) {
  JobVault::HeldJob held;
  held.owner = owner;
  v1::VaultedJob job;
  RETURN_IF_ERROR(ReadMessage(parts, kJob, &job));
  held.job = std::move(*job.mutable_job());
  // Before anything is read of the memory: its executors may still write.
  RETURN_IF_ERROR(EndExecutors(parts));
  for (auto& [part, fds] : parts) {
    absl::string_view rank_text = part;
    int rank = 0;
    if (absl::ConsumePrefix(&rank_text, kTrainer)) {
      if (absl::SimpleAtoi(rank_text, &rank) && fds.size() == 1)
        held.trainers[rank] = std::move(fds[0]);
    } else if (part != kJob && !absl::StartsWith(part, kExecutor)) {
      held.memory[part] = std::move(fds);
    }
  }
  // Last: its executors have ended, so nothing in the page changes any more.
  RETURN_IF_ERROR(CheckMemory(held.job, held.memory));
  return held;
}

}  // namespace

absl::StatusOr<JobVault::Held> JobVault::TakeOver(const std::string& worker_id, int num_devices) {
  ASSIGN_OR_RETURN(auto all, vault_->List());
  Held held;
  const auto of_worker = all.find("");
  if (of_worker != all.end()) {
    held.worker.emplace();
    RETURN_IF_ERROR(ReadMessage(of_worker->second, kWorker, &*held.worker));
    // So that what is left are jobs.
    all.erase(of_worker);
  }
  if (all.empty()) return held;
  if (!held.worker.has_value())
    return absl::FailedPreconditionError("the vault holds jobs' memory of an unknown worker");
  // Before any message or page is read: another protocol may have laid them out otherwise.
  RETURN_IF_ERROR(CheckVersion("the daemon that left its jobs' memory here", held.worker->version(),
                               held.worker->protocol()));
  // Refused and left alone: it may be a mistake in a flag, and the memory stays for --keep-memory.
  if (held.worker->worker_id() != worker_id) {
    return absl::FailedPreconditionError(absl::StrCat("the memory of jobs that is held is worker '",
                                                      held.worker->worker_id(), "'s: give worker '",
                                                      worker_id, "' another --socket-dir"));
  }
  if (held.worker->num_devices() != num_devices) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker '", worker_id, "' has jobs, and had --devices ", held.worker->num_devices(),
        ": it keeps that number until they are gone, not ", num_devices));
  }
  for (auto& [owner, parts] : all) {
    absl::StatusOr<HeldJob> job = TakeOverJob(owner, std::move(parts));
    // Its executor may still write to the memory.
    // It would be dropped, and its memory reused, under a writer.
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

// A vault that fails costs the next daemon its jobs, not this one.
void JobVault::Check(const absl::Status& status) {
  if (status.ok()) return;
  TESSERA_LOG(ERROR, "jobs will not outlive this daemon: {}", status.ToString());
}

void JobVault::PutWorker(const v1::VaultedWorker& worker) {
  Check(vault_->PutMessage("", kWorker, worker));
}

std::string JobVault::PutJob(const v1::Job& job, const JobRegions& regions) {
  // A job may be created again while a reader still holds its earlier memory: the time tells the
  // two apart.
  const std::string owner =
      absl::StrCat(job.job_id(), "/", job.generation(), "/", absl::ToUnixNanos(WallNow()));
  // Descriptors first, the note last: an owner without a note is not taken over.
  for (const auto& [part, fds] : regions.Descriptors()) Check(vault_->Put(owner, part, fds));
  NoteJob(owner, job);
  return owner;
}

void JobVault::NoteJob(const std::string& owner, const v1::Job& job) {
  v1::VaultedJob vaulted;
  *vaulted.mutable_job() = job;
  Check(vault_->PutMessage(owner, kJob, vaulted));
}

void JobVault::NoteProcess(const std::string& owner, const std::string& part, int pid) {
  // A child that was not reaped keeps its pid. A trainer's is only ever asked whether it runs.
  const UniqueFd process(
      pid == 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  // None where the process has none of its own: the part then says that it cannot be ended.
  const std::vector<int> fds =
      process.valid() ? std::vector<int>{process.get()} : std::vector<int>();
  Check(vault_->Put(owner, part, fds));
}

void JobVault::NoteExecutor(const std::string& owner, Rank rank, int pid) {
  NoteProcess(owner, absl::StrCat(kExecutor, rank.value()), pid);
}

void JobVault::NoteTrainer(const std::string& owner, Rank rank, int pid) {
  NoteProcess(owner, absl::StrCat(kTrainer, rank.value()), pid);
}

void JobVault::Drop(const std::string& owner) { Check(vault_->Drop(owner)); }

}  // namespace tessera
