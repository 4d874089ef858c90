// A team of forked processes that measure in lockstep, pinned rank mod cores.
//
//   round:   Time(a) Time(b) Time(c)   round:   Time(a) Time(b) Time(c)   ...
//
// So both sides of each ratio are measured side by side. A time runs from the first rank's start
// to the last rank's end, between two barriers. The first round warms up and is dropped. A round
// in which other processes took more than a tenth of the machine is dropped and repeated, up to
// three times the wanted rounds; then it is kept and counted as loaded.
#ifndef TESSERA_TESTS_BENCH_TEAM_H_
#define TESSERA_TESTS_BENCH_TEAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "worker/comm/shm/shm_communicator.h"

namespace tessera {
namespace bench {

struct TeamOptions {
  int size = 1;
  int rounds = 7;
  int64_t shared_bytes = 4096;
  bool pin = true;
  // CPU time of processes that work for the team, in nanoseconds; not counted as foreign load.
  std::function<int64_t()> helpers_cpu_ns;
};

struct TeamControl;  // Shared state; in team.cc.

// One rank's view; lives in its process.
class TeamMember {
 public:
  TeamMember(TeamControl* control, int rank, std::unique_ptr<ShmCommunicator> lockstep,
             std::unique_ptr<ShmCommunicator> comm, char* shared,
             const std::function<int64_t()>* helpers_cpu_ns);

  int rank() const;
  int size() const;
  ShmCommunicator* comm() { return comm_.get(); }  // To be measured.
  char* shared() { return shared_; }               // Mapped at one address in all ranks; zeroed.

  // Opens the next round; false after the last. All ranks get the same answer.
  bool NextRound();
  // Runs `op` `repetitions` times on all ranks at once, as sample of `series` in this round.
  void Time(int series, int repetitions, absl::FunctionRef<void()> op);
  // Stores a plain number, the same way.
  void Note(int series, double value);
  void Barrier();

 private:
  void CloseRound();
  int64_t HelpersCpuNs() const;

  TeamControl* control_;
  int rank_;
  std::unique_ptr<ShmCommunicator> lockstep_;
  std::unique_ptr<ShmCommunicator> comm_;
  char* shared_;
  const std::function<int64_t()>* const helpers_cpu_ns_;
  bool warm_ = false;
  bool open_ = false;
};

struct TeamResult {
  // By series, by round: seconds for one operation; for Note, the sum over the ranks.
  std::vector<std::vector<double>> series;
  int loaded_rounds = 0;  // Kept although other processes were running.
};

// Forks the ranks, runs `body` in each, and collects.
// Errors: InvalidArgument    size or rounds are out of range
//         ResourceExhausted  no memory or process
//         Internal           a rank failed
absl::StatusOr<TeamResult> RunTeam(const TeamOptions& options,
                                   const std::function<void(TeamMember*)>& body);

// Memory of this process, faulted in, with huge pages where the system gives them. Never freed.
char* WarmMemory(int64_t bytes);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_TEAM_H_
