// A hybrid job of two workers, each with a vault, trains while processes of all roles are killed or
// stood still at random moments, and nodes lose their memory. However often, the final model is the
// same bytes as that of an undisturbed run.
//
//   SOAK_FAULTS   how many, over all runs (default: 40)
//   SOAK_SEED     of the first run; each run has the next one (default: 1)
//   SOAK_LEDGER   a file that gets a line of JSON for each run
//
// tools/soak gives these.
#include <signal.h>
#include <stdlib.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "checkpoint/safetensors/crc32.h"
#include "gtest/gtest.h"
#include "tests/fault/hybrid_cluster.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using testing_support::ExecutorsOf;
using testing_support::VaultOf;

int64_t Number(const char* name, int64_t otherwise) {
  const char* text = getenv(name);
  int64_t number = otherwise;
  if (text != nullptr && !absl::SimpleAtoi(text, &number)) ADD_FAILURE() << name << ": " << text;
  return number;
}

class SoakRun : public HybridCluster {
 public:
  explicit SoakRun(uint64_t seed) : random_(seed), longest_pause_ms_(Draw(0, 2) == 0 ? 60 : 200) {
    steps_ = 400;
    keep_memory_ = "60s";
  }
  void TestBody() override {}

  // At most so many faults while the job trains. The final model.
  std::string Go(int64_t max_faults) {
    SetUp();
    StartBoth();
    const absl::Time deadline = absl::Now() + absl::Minutes(3);
    while (IsRunning() && !HasFailure() && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(Draw(2, longest_pause_ms_)));
      if (num_faults_ < max_faults) DoOne();
      RestartEndedTrainers();
    }
    std::string model = Finish();
    for (const std::string& folder : {folder_, folder_ + "/x"}) {
      if (const int vault = VaultOf(folder); vault > 0) kill(vault, SIGKILL);
    }
    TearDown();
    return model;
  }
  int64_t num_faults() const { return num_faults_; }
  const std::map<std::string, int>& faults() const { return faults_; }

 private:
  int Draw(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }
  bool IsRunning() {
    return std::any_of(trainers_.begin(), trainers_.end(),
                       [](const auto& trainer) { return trainer->running(); });
  }
  // One that ended with an error has lost its worker's memory: its successor continues.
  void RestartEndedTrainers() {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (trainers_[rank]->running() || trainers_[rank]->Wait() == 0) continue;
      StartTrainer(rank, /*replace=*/true);
    }
  }
  // The highest step that any trainer began.
  int64_t Step() {
    int64_t highest = 0;
    for (int rank = 0; rank < world_size_; ++rank) {
      for (const std::string& line : trainers_[rank]->ReadLines()) {
        int64_t step = 0;
        if (absl::StartsWith(line, "step ") && absl::SimpleAtoi(line.substr(5), &step))
          last_step_[rank] = std::max(last_step_[rank], step);
      }
      highest = std::max(highest, last_step_[rank]);
    }
    return highest;
  }
  static void End(demo::ChildProcess* process, int signal) {
    process->Kill(signal);
    process->Wait();
  }
  void StandStill(int pid) {
    if (kill(pid, SIGSTOP) != 0) return;
    absl::SleepFor(absl::Milliseconds(Draw(1, 150)));
    kill(pid, SIGCONT);
  }
  void Count(const std::string& fault) {
    ++faults_[fault];
    ++num_faults_;
  }

  void DoOne() {
    const bool second = Draw(0, 1) == 1;
    auto& worker = second ? second_worker_ : worker_;
    const int rank = Draw(0, world_size_ - 1);
    switch (Draw(0, 11)) {
      case 0:
        // One that did not see the end of a lost node's worker lets its successor in after ten
        // seconds of silence, which it has to live for.
        if (absl::Now() < await_successor_until_) return;
        if (absl::Now() < lost_time_ + kPatience) await_successor_until_ = absl::Now() + kPatience;
        End(coordinator_.get(), SIGKILL);
        StartCoordinator();
        return Count("coordinator killed");
      case 1:
      case 2: {
        const int signal = Draw(0, 1) == 0 ? SIGKILL : SIGTERM;
        End(worker.get(), signal);
        second ? StartSecondWorker() : StartWorker();
        return Count(signal == SIGKILL ? "daemon killed" : "daemon stopped");
      }
      case 3:
      case 4:
        for (const auto& [label, pid] : ExecutorsOf(worker->pid())) {
          if (Draw(0, 1) == 0) continue;
          if (kill(pid, SIGKILL) == 0) Count("executor killed");
        }
        return;
      case 5:
        if (!trainers_[rank]->running()) return;
        End(trainers_[rank].get(), SIGKILL);
        if (trainers_[rank]->Wait() != 0) StartTrainer(rank, /*replace=*/true);
        return Count("trainer killed");
      case 6:
        StandStill(worker->pid());
        return Count("daemon stood still");
      case 7:
        if (!trainers_[rank]->running()) return;
        StandStill(trainers_[rank]->pid());
        return Count("trainer stood still");
      case 8:
        for (const auto& [label, pid] : ExecutorsOf(worker->pid())) {
          StandStill(pid);
          Count("executor stood still");
          break;
        }
        return;
      case 9:
        return LoseNode(second);
      case 10:
        StandStill(coordinator_->pid());
        return Count("coordinator stood still");
      case 11:
        if (const int vault = VaultOf(second ? folder_ + "/x" : folder_); vault > 0) {
          StandStill(vault);
          Count("vault stood still");
        }
        return;
    }
  }

  // All processes of a node but its trainers, and its memory. Once the other node is whole.
  void LoseNode(bool second) {
    const int64_t step = Step();
    if (lost_at_ >= 0 && step < lost_at_ + 3) return;
    if (step < 2) return;  // Before there are values there is nothing to lose.
    lost_at_ = step;
    lost_time_ = absl::Now();
    const int vault = VaultOf(second ? folder_ + "/x" : folder_);
    ASSERT_GT(vault, 0);
    kill(vault, SIGKILL);
    End(second ? second_worker_.get() : worker_.get(), SIGKILL);
    second ? StartSecondWorker() : StartWorker();
    Count("node lost");
  }

  std::mt19937_64 random_;
  const int longest_pause_ms_;  // Between two faults.
  // Where the steps were when a node was lost: three more and it has been rebuilt. -1: never.
  int64_t lost_at_ = -1;
  static constexpr absl::Duration kPatience = absl::Seconds(12);
  absl::Time lost_time_ = absl::InfinitePast();
  absl::Time await_successor_until_ = absl::InfinitePast();
  int64_t num_faults_ = 0;
  std::map<std::string, int> faults_;
};

TEST(SoakTest, ModelHasTheBitsOfAnUndisturbedRunWhateverIsKilledOrStandsStill) {
  const int64_t wanted = Number("SOAK_FAULTS", 40);
  uint64_t seed = Number("SOAK_SEED", 1);
  const char* ledger = getenv("SOAK_LEDGER");
  const std::string undisturbed = SoakRun(0).Go(0);
  ASSERT_FALSE(undisturbed.empty());
  for (int64_t done = 0; done < wanted && !testing::Test::HasFailure(); ++seed) {
    SoakRun run(seed);
    const absl::Time began = absl::Now();
    const std::string model = run.Go(wanted - done);
    EXPECT_TRUE(model == undisturbed) << "seed " << seed;
    done += run.num_faults();
    ASSERT_GT(run.num_faults(), 0) << "seed " << seed;
    const std::string faults =
        absl::StrJoin(run.faults(), ", ", [](std::string* out, const auto& fault) {
          absl::StrAppend(out, "\"", fault.first, "\": ", fault.second);
        });
    const std::string line = absl::StrCat(
        "{\"seed\": ", seed, ", \"seconds\": ", absl::ToDoubleSeconds(absl::Now() - began),
        ", \"same_bits\": ", model == undisturbed ? "true" : "false", ", \"model_crc32\": \"",
        FormatCrc32(Crc32(model)), "\", \"faults\": {", faults, "}}");
    fprintf(stderr, "%lld of %lld faults: %s\n", static_cast<long long>(done),
            static_cast<long long>(wanted), line.c_str());
    if (ledger != nullptr) std::ofstream(ledger, std::ios::app) << line << "\n";
  }
}

}  // namespace
}  // namespace tessera
