#include "worker/comm/shm/shm_test_group.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "base/check.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

char* Map(int fd, int64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  TESSERA_CHECK(data != MAP_FAILED);
  return static_cast<char*>(data);
}

absl::Status RunRank(ShmCommunicator::Options options, int rank, char* base, char* shared,
                     const RankBody& body) {
  options.rank = rank;
  options.base = base;
  ASSIGN_OR_RETURN(std::unique_ptr<ShmCommunicator> comm, ShmCommunicator::Create(options));
  return body(RankContext{comm.get(), shared});
}

}  // namespace

SharedMapping::SharedMapping(int64_t bytes)
    : fd_(memfd_create("shm_test", MFD_CLOEXEC)), bytes_(bytes) {
  TESSERA_CHECK(fd_.valid() && ftruncate(fd_.get(), bytes) == 0);
  data_ = Map(fd_.get(), bytes);
}

SharedMapping::~SharedMapping() { munmap(data_, bytes_); }

char* SharedMapping::MapAgain() const { return Map(fd_.get(), bytes_); }

RankProcess::RankProcess(const std::function<absl::Status()>& body) {
  int ends[2];
  TESSERA_CHECK(pipe(ends) == 0);
  pid_ = fork();
  TESSERA_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    const absl::Status status = body();
    std::string text(1, static_cast<char>(status.code()));
    text.append(status.message().data(), status.message().size());
    const ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(ends[1]);
  result_.Reset(ends[0]);
}

void RankProcess::Kill() { kill(pid_, SIGKILL); }

absl::Status RankProcess::Join() {
  std::string text(4096, '\0');
  const ssize_t length = read(result_.get(), text.data(), text.size());
  int status = 0;
  TESSERA_CHECK(waitpid(pid_, &status, 0) == pid_);
  if (WIFSIGNALED(status)) {
    return absl::InternalError(absl::StrCat("killed by signal ", WTERMSIG(status)));
  }
  if (length < 1) return absl::InternalError("the rank ended without a result");
  return absl::Status(static_cast<absl::StatusCode>(text[0]),
                      absl::string_view(text).substr(1, length - 1));
}

ShmCommunicator::Options ShmOptions(const GroupOptions& group, const SharedMapping& mapping) {
  ShmCommunicator::Options options;
  options.base = mapping.data();
  options.bytes = mapping.bytes();
  options.size = group.size;
  options.timeout = group.timeout;
  options.num_channels = 2;
  options.staging_bytes_per_rank = 16 << 10;  // Small, so that tests have many chunks.
  return options;
}

int64_t ShmBytes(const GroupOptions& group) {
  ShmCommunicator::Options options;
  options.num_channels = 2;
  options.staging_bytes_per_rank = 16 << 10;
  return ShmCommunicator::RequiredBytes(group.size, options).value();
}

std::vector<absl::Status> RunShmThreads(const GroupOptions& options, const RankBody& body) {
  const SharedMapping mapping(ShmBytes(options));
  const SharedMapping shared(options.shared_bytes);
  std::vector<absl::Status> statuses(options.size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      statuses[rank] =
          RunRank(ShmOptions(options, mapping), rank, mapping.data(), shared.data(), body);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

namespace {

std::vector<absl::Status> RunProcesses(const GroupOptions& options, bool read_memory,
                                       const RankBody& body) {
  const SharedMapping mapping(ShmBytes(options));
  const SharedMapping shared(options.shared_bytes);
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < options.size; ++rank) {
    ranks.emplace_back([&, rank] {
      ShmCommunicator::Options own = ShmOptions(options, mapping);
      // One that cannot is enough.
      own.reads_peers_memory = read_memory || rank + 1 < options.size;
      return RunRank(own, rank, mapping.MapAgain(), shared.MapAgain(), body);
    });
  }
  std::vector<absl::Status> statuses;
  for (RankProcess& rank : ranks) statuses.push_back(rank.Join());
  return statuses;
}

}  // namespace

std::vector<absl::Status> RunShmProcesses(const GroupOptions& options, const RankBody& body) {
  return RunProcesses(options, /*read_memory=*/true, body);
}

std::vector<absl::Status> RunShmProcessesThatStage(const GroupOptions& options,
                                                   const RankBody& body) {
  return RunProcesses(options, /*read_memory=*/false, body);
}

}  // namespace tessera
