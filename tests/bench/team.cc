#include "tests/bench/team.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "base/status_macros.h"

namespace tessera {
namespace bench {

constexpr int kMaxSeries = 32;
constexpr int kMaxRounds = 32;
constexpr int kMaxRanks = 64;
constexpr double kForeignShare = 0.10;
constexpr int kMaxAttemptsPerRound = 3;

struct Sample {
  int64_t start_ns;
  int64_t end_ns;
  int64_t repetitions;
  double note;
};

struct TeamControl {
  int size;
  int wanted_rounds;
  // Written by rank 0 between two barriers.
  int round;
  int attempts;
  int loaded_rounds;
  bool done;
  int64_t opened_ns;
  int64_t machine_ns;  // Busy time of all processors when the round was opened.
  int64_t cpu_ns[kMaxRanks];
  int64_t cpu_at_open_ns[kMaxRanks];
  int64_t helpers_ns, helpers_at_open_ns;
  Sample samples[kMaxSeries][kMaxRounds][kMaxRanks];
};

namespace {

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

int64_t OwnCpuNs() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (int64_t{usage.ru_utime.tv_sec} + usage.ru_stime.tv_sec) * 1000000000 +
         (int64_t{usage.ru_utime.tv_usec} + usage.ru_stime.tv_usec) * 1000;
}

// From the first line of /proc/stat: user nice system idle iowait irq softirq.
int64_t MachineBusyNs() {
  FILE* file = fopen("/proc/stat", "r");
  if (file == nullptr) return 0;
  long long user = 0, nice = 0, system = 0, idle = 0, wait = 0, irq = 0, softirq = 0;
  const int read = fscanf(file, "cpu %lld %lld %lld %lld %lld %lld %lld", &user, &nice, &system,
                          &idle, &wait, &irq, &softirq);
  fclose(file);
  if (read != 7) return 0;
  return (user + nice + system + irq + softirq) * (1000000000 / sysconf(_SC_CLK_TCK));
}

void PinTo(int rank) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank % cores, &set);
  sched_setaffinity(0, sizeof(set), &set);  // Best effort: a container may forbid it.
}

void* MapShared(int64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

bool IsLoaded(const TeamControl& control) {
  int64_t own_ns = control.helpers_ns - control.helpers_at_open_ns;
  for (int r = 0; r < control.size; ++r) {
    own_ns += control.cpu_ns[r] - control.cpu_at_open_ns[r];
  }
  const double wall_ns = static_cast<double>(NowNs() - control.opened_ns);
  const double busy_ns = static_cast<double>(MachineBusyNs() - control.machine_ns);
  return busy_ns - own_ns > kForeignShare * wall_ns * sysconf(_SC_NPROCESSORS_ONLN);
}

ShmCommunicator::Options CommOptions(int size, int rank, int channel, void* base) {
  ShmCommunicator::Options options;
  options.base = base;
  options.rank = rank;
  options.size = size;
  options.channel = channel;
  options.num_channels = 2;
  options.bytes = ShmCommunicator::RequiredBytes(size, options).value();
  return options;
}

void RunMember(TeamControl* control, int rank, void* comm_base, char* shared,
               const TeamOptions& options, const std::function<void(TeamMember*)>& body) {
  if (options.pin) PinTo(rank);
  auto lockstep = ShmCommunicator::Create(CommOptions(control->size, rank, 0, comm_base));
  TESSERA_CHECK(lockstep.ok());
  auto comm = ShmCommunicator::Create(CommOptions(control->size, rank, 1, comm_base));
  TESSERA_CHECK(comm.ok());
  TeamMember member(control, rank, *std::move(lockstep), *std::move(comm), shared,
                    &options.helpers_cpu_ns);
  body(&member);
}

TeamResult Collect(const TeamControl& control) {
  TeamResult result;
  result.loaded_rounds = control.loaded_rounds;
  result.series.resize(kMaxSeries);
  for (int s = 0; s < kMaxSeries; ++s) {
    for (int round = 0; round < control.wanted_rounds; ++round) {
      const Sample* ranks = control.samples[s][round];
      int64_t start_ns = ranks[0].start_ns, end_ns = ranks[0].end_ns;
      double notes = 0;
      for (int r = 0; r < control.size; ++r) {
        start_ns = std::min(start_ns, ranks[r].start_ns);
        end_ns = std::max(end_ns, ranks[r].end_ns);
        notes += ranks[r].note;
      }
      if (ranks[0].repetitions == 0) {
        result.series[s].push_back(notes);
      } else {
        result.series[s].push_back(1e-9 * (end_ns - start_ns) / ranks[0].repetitions);
      }
    }
  }
  return result;
}

}  // namespace

TeamMember::TeamMember(TeamControl* control, int rank, std::unique_ptr<ShmCommunicator> lockstep,
                       std::unique_ptr<ShmCommunicator> comm, char* shared,
                       const std::function<int64_t()>* helpers_cpu_ns)
    : control_(control),
      rank_(rank),
      lockstep_(std::move(lockstep)),
      comm_(std::move(comm)),
      shared_(shared),
      helpers_cpu_ns_(helpers_cpu_ns) {}

int TeamMember::rank() const { return rank_; }
int TeamMember::size() const { return control_->size; }
void TeamMember::Barrier() { TESSERA_CHECK(lockstep_->Barrier().ok()); }

int64_t TeamMember::HelpersCpuNs() const {
  return *helpers_cpu_ns_ == nullptr ? 0 : (*helpers_cpu_ns_)();
}

void TeamMember::CloseRound() {
  control_->cpu_ns[rank_] = OwnCpuNs();
  if (rank_ == 0) control_->helpers_ns = HelpersCpuNs();
  Barrier();
  if (rank_ == 0) {
    const bool may_repeat = ++control_->attempts < kMaxAttemptsPerRound * control_->wanted_rounds;
    const bool loaded = IsLoaded(*control_);
    if (!warm_) {
      control_->round = 0;
    } else if (!loaded || !may_repeat) {
      control_->loaded_rounds += loaded ? 1 : 0;
      control_->done = ++control_->round == control_->wanted_rounds;
    }
  }
  warm_ = true;
  Barrier();
}

bool TeamMember::NextRound() {
  if (open_) CloseRound();
  open_ = true;
  if (control_->done) return false;
  control_->cpu_at_open_ns[rank_] = OwnCpuNs();
  if (rank_ == 0) {
    control_->opened_ns = NowNs();
    control_->helpers_at_open_ns = HelpersCpuNs();
    control_->machine_ns = MachineBusyNs();
  }
  Barrier();
  return true;
}

void TeamMember::Time(int series, int repetitions, absl::FunctionRef<void()> op) {
  Barrier();
  Sample* sample = &control_->samples[series][control_->round][rank_];
  sample->start_ns = NowNs();
  for (int i = 0; i < repetitions; ++i) op();
  sample->end_ns = NowNs();
  sample->repetitions = repetitions;
  Barrier();
}

void TeamMember::Note(int series, double value) {
  control_->samples[series][control_->round][rank_].note = value;
}

absl::StatusOr<TeamResult> RunTeam(const TeamOptions& options,
                                   const std::function<void(TeamMember*)>& body) {
  if (options.size < 1 || options.size > kMaxRanks || options.rounds < 1 ||
      options.rounds > kMaxRounds) {
    return absl::InvalidArgumentError("team size or number of rounds out of range");
  }
  const int64_t comm_bytes = CommOptions(options.size, 0, 0, nullptr).bytes;
  auto* control = static_cast<TeamControl*>(MapShared(sizeof(TeamControl)));
  void* comm_base = MapShared(comm_bytes);
  auto* shared = static_cast<char*>(MapShared(options.shared_bytes));
  if (control == nullptr || comm_base == nullptr || shared == nullptr) {
    return absl::ResourceExhaustedError("no shared memory for the team");
  }
  control->size = options.size;
  control->wanted_rounds = options.rounds;
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      RunMember(control, rank, comm_base, shared, options, body);
      _exit(0);
    }
    if (child > 0) children.push_back(child);
  }
  bool failed = static_cast<int>(children.size()) < options.size;
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) failed = true;
  }
  TeamResult result = Collect(*control);
  munmap(control, sizeof(TeamControl));
  munmap(comm_base, comm_bytes);
  munmap(shared, options.shared_bytes);
  if (failed) return absl::InternalError("a rank of the team failed");
  return result;
}

char* WarmMemory(int64_t bytes) {
  constexpr int64_t kHugePageBytes = int64_t{2} << 20;
  void* memory = nullptr;
  TESSERA_CHECK(posix_memalign(&memory, kHugePageBytes, bytes) == 0);
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 0, bytes);
  return static_cast<char*>(memory);
}

}  // namespace bench
}  // namespace tessera
