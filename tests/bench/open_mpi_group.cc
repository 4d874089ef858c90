#include "tests/bench/open_mpi_group.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/unique_fd.h"

extern char** environ;

namespace tessera {
namespace bench {
namespace {

constexpr int kDeadlineSeconds = 60;

bool WaitUntil(sem_t* semaphore, const timespec& deadline) {
  while (sem_timedwait(semaphore, &deadline) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

OpenMpiControl* NewControl(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (fd.get() < 0 || ftruncate(fd.get(), sizeof(OpenMpiControl)) != 0) return nullptr;
  void* memory =
      mmap(nullptr, sizeof(OpenMpiControl), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  auto* control = static_cast<OpenMpiControl*>(memory);
  for (sem_t& go : control->go) TESSERA_CHECK(sem_init(&go, 1, 0) == 0);
  TESSERA_CHECK(sem_init(&control->done, 1, 0) == 0);
  return control;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenMpiGroup>> OpenMpiGroup::Start(const std::string& peer, int size,
                                                                  int64_t max_bytes,
                                                                  const std::string& directory) {
  TESSERA_CHECK(size <= kMaxOpenMpiRanks);
  const std::string path = directory + "/open_mpi_control";
  OpenMpiControl* control = NewControl(path);
  if (control == nullptr) return absl::InternalError(absl::StrCat("cannot map ", path));
  // Shared memory alone, as on a host of one's own. Ranks pin themselves; with more of them than
  // processors they yield where they wait.
  std::vector<std::string> args = {"mpirun",
                                   "--allow-run-as-root",
                                   "--oversubscribe",
                                   "--bind-to",
                                   "none",
                                   "--mca",
                                   "pml",
                                   "ob1",
                                   "--mca",
                                   "btl",
                                   "vader,self",
                                   "-np",
                                   absl::StrCat(size),
                                   peer,
                                   path,
                                   absl::StrCat(max_bytes)};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  if (const int error = posix_spawnp(&pid, "mpirun", nullptr, nullptr, argv.data(), environ);
      error != 0) {
    munmap(control, sizeof(OpenMpiControl));
    return absl::NotFoundError(absl::StrCat("cannot start mpirun: ", strerror(error)));
  }
  std::unique_ptr<OpenMpiGroup> group(new OpenMpiGroup(control, size, pid));
  if (!group->AwaitAll()) return absl::UnavailableError("the ranks of Open MPI did not get ready");
  return group;
}

OpenMpiGroup::~OpenMpiGroup() {
  Order(OpenMpiOp::kQuit, 1, 0);
  // Whatever it does, it is gone after this.
  bool running = true;
  for (int i = 0; i < 100 && running; ++i) {
    running = waitpid(mpirun_, nullptr, WNOHANG) == 0;
    if (running) usleep(100'000);
  }
  if (running) {
    kill(mpirun_, SIGKILL);
    waitpid(mpirun_, nullptr, 0);
  }
  munmap(control_, sizeof(OpenMpiControl));
}

bool OpenMpiGroup::AwaitAll() {
  timespec deadline;
  clock_gettime(CLOCK_REALTIME, &deadline);
  deadline.tv_sec += kDeadlineSeconds;
  for (int r = 0; r < size_; ++r) {
    if (!WaitUntil(&control_->done, deadline)) return false;
  }
  return true;
}

void OpenMpiGroup::Order(OpenMpiOp op, int repetitions, int64_t bytes) {
  control_->op = op;
  control_->repetitions = repetitions;
  control_->num_floats = bytes / static_cast<int64_t>(sizeof(float));
  for (int r = 0; r < size_; ++r) sem_post(&control_->go[r]);
}

double OpenMpiGroup::Seconds(OpenMpiOp op, int repetitions, int64_t bytes) {
  Order(op, repetitions, bytes);
  TESSERA_CHECK(AwaitAll());
  const int64_t begin_ns = *std::min_element(control_->begin_ns, control_->begin_ns + size_);
  const int64_t end_ns = *std::max_element(control_->end_ns, control_->end_ns + size_);
  return 1e-9 * static_cast<double>(end_ns - begin_ns) / repetitions;
}

int64_t OpenMpiGroup::cpu_ns() const {
  int64_t sum = 0;
  for (int r = 0; r < size_; ++r) sum += control_->cpu_ns[r];
  return sum;
}

}  // namespace bench
}  // namespace tessera
