// Values are put into a job and checkpoints of it are asked for, at random, while it trains and its
// executors are killed at random steps. A reference in plain scalar code takes the same steps, and
// after each applies the puts that clients were told to be in it: every reading, every checkpoint
// and the
// last state have its bits, so that each put is wholly in or wholly out.
//
// A failure names its seed; --gtest_random_seed=SEED repeats it. What meets what depends on the
// machine, what is put, saved and killed does not.
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/local_cluster.h"
#include "tests/numerics/random_case.h"
#include "tests/numerics/reference_trainer.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using numerics::Dice;
using numerics::ReferenceTrainer;
using testing_support::CliResult;
using testing_support::LiveReading;
using testing_support::ReadLive;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StoredValues;
using testing_support::TrainerTeam;

constexpr uint64_t kSeed = 30031;
constexpr int kWorldSize = 4, kPerWorker = 2;
constexpr int kPuts = 30, kSaves = 20;
constexpr int64_t kBatch = 4;     // Steps that trainers take without looking up.
constexpr int kBatchesAKill = 3;  // One in so many has one.

std::string BytesOf(const std::vector<double>& values) {
  const std::vector<float> narrow(values.begin(), values.end());
  return std::string(reinterpret_cast<const char*>(narrow.data()), narrow.size() * sizeof(float));
}

struct Put {
  int64_t trained_step = 0, version = 0;
  std::vector<int> parameters;  // Numbered over the model; with PutValue of `seed`.
  std::string seed;
};

// The state after a step and so many puts, by name as files have them.
using State = std::map<std::string, std::string>;
using States = std::map<std::pair<int64_t, int64_t>, State>;

State StateOf(ReferenceTrainer* reference) {
  State state;
  for (int p = 0; p < reference->num_parameters(); ++p) {
    const std::string& name = reference->spec(p).name;
    state[name] = BytesOf(reference->values(p));
    state[absl::StrCat("state.", name, ".exp_avg")] = BytesOf(reference->first_moments(p));
    state[absl::StrCat("state.", name, ".exp_avg_sq")] = BytesOf(reference->second_moments(p));
  }
  return state;
}

// As ToyStep's trainers.
void TrainOneStep(ReferenceTrainer* reference, int64_t step) {
  for (int p = 0; p < reference->num_parameters(); ++p) {
    const std::vector<double>& values = reference->values(p);
    for (int rank = 0; rank < kWorldSize; ++rank) {
      std::vector<double> gradient(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        gradient[i] = testing_support::ToyGradient(static_cast<float>(values[i]),
                                                   static_cast<int64_t>(i), rank, step);
      }
      reference->AddGradient(rank, p, gradient, /*full_precision=*/false);
    }
  }
  for (int unit = reference->UnitOf(reference->num_parameters() - 1); unit >= 0; --unit)
    reference->Reduce(unit, /*full_precision=*/false);
  reference->Step(StepOptions(), /*total_weight=*/0, /*gradient_norm=*/0);
}

class PutSaveRandomTest : public testing::Test {
 protected:
  void SetUp() override {
    const int given = GTEST_FLAG_GET(random_seed);
    if (given != 0) seed_ = static_cast<uint64_t>(given);
    std::string path = testing::TempDir() + "/put-save-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  void Start() {
    Dice dice(seed_, 0);
    LocalCluster::Options options;
    options.num_workers = kWorldSize / kPerWorker;
    options.num_devices = kPerWorker;
    options.executor_binary = "worker/tessera-executor";
    // Every executor dies at one of these, and its successors do: that is late enough to get on.
    const std::string point =
        dice.Of<std::string>({"put.before-vote", "put.after-vote", "put.after-decision",
                              "step.after-vote", "step.after-decision", "save.created"});
    const int hit = absl::StartsWith(point, "step") ? 30 + dice.Below(30) : 2 + dice.Below(3);
    options.executor_flags = {absl::StrCat("--fault-points=", point, "=kill@", hit)};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    coordinator_ = cluster_->coordinator_address();
    options_ = testing_support::ToyOptions(*cluster_, "toy", kWorldSize);
    std::vector<std::string> workers;
    for (int rank = 0; rank < kWorldSize; ++rank)
      workers.push_back(cluster_->worker_address(rank / kPerWorker));
    auto team = TrainerTeam::Open(options_, workers);
    ASSERT_OK(team);
    team_ = std::make_unique<TrainerTeam>(*std::move(team));
    ASSERT_OK(team_->TrainTo(last_step_ = 1));
    for (const UnitSpec& unit : options_.model.units)
      specs_.insert(specs_.end(), unit.parameters.begin(), unit.parameters.end());
  }

  // --- Clients, each on a thread of its own ---

  void PutAtRandom() {
    Dice dice(seed_, 1);
    for (int n = 0; n < kPuts; ++n) {
      Put put;
      put.seed = absl::StrCat("put ", seed_, " ", n);
      std::vector<TensorSpec> tensors;
      std::map<std::string, std::string> as;
      for (size_t p = 0; p < specs_.size(); ++p) {
        if (dice.OneIn(2) && p + 1 < specs_.size()) continue;  // Never none.
        put.parameters.push_back(static_cast<int>(p));
        tensors.push_back(specs_[p]);
        as[specs_[p].name] = put.seed;
      }
      const std::string path = Path(absl::StrCat("put", n, ".safetensors"));
      testing_support::WritePutFile(path, tensors, as);
      const CliResult result =
          RunTessera(coordinator_, {"put", "--job", "toy", "--from", path, "--json"});
      if (result.exit_code != 0) {
        EXPECT_TRUE(absl::StrContains(result.err, "nothing was changed")) << result.err;
        continue;
      }
      const auto json = nlohmann::json::parse(result.out);
      put.trained_step = json["step"];
      put.version = json["committed_step"];
      puts_.push_back(std::move(put));
    }
  }
  void SaveAtRandom() {
    Dice dice(seed_, 2);
    for (int n = 0; n < kSaves; ++n) {
      const std::string path = Path(absl::StrCat("checkpoint", n));
      std::vector<std::string> args = {"save", "--job", "toy", "--to", path, "--json"};
      if (dice.OneIn(2)) args.push_back("--foreground");
      if (dice.OneIn(3)) args.push_back("--max-file-bytes=4096");
      const CliResult result = RunTessera(coordinator_, args);
      if (result.exit_code == 0) {
        saved_[path] = nlohmann::json::parse(result.out)["step"];
      } else {
        EXPECT_TRUE(absl::StrContains(result.err, "given up after 3 tries")) << result.err;
        given_up_.push_back(path);
      }
    }
  }
  void ReadUntil(const std::atomic<bool>& ended) {
    while (!ended.load()) {
      LiveReading reading = ReadLive(coordinator_, "toy", Path("read.safetensors"));
      if (!reading.ok) {
        EXPECT_TRUE(absl::StrContains(reading.error, "UNAVAILABLE")) << reading.error;
        continue;
      }
      readings_.push_back(std::move(reading));
    }
  }

  // The trainers, until the clients are done; now and then one kills an executor as it begins a
  // step, while others are still in the one before.
  void TrainUntil(const std::atomic<bool>& ended) {
    Dice dice(seed_, 3);
    while (!ended.load()) {
      const bool kills = dice.OneIn(kBatchesAKill);
      const int killer = dice.Below(kWorldSize), victim = dice.Below(kWorldSize);
      const int64_t at = last_step_ + 1 + dice.Below(kBatch);
      std::atomic<bool> killed{!kills};
      last_step_ += kBatch;
      ASSERT_OK(team_->RunAll([&](Session* session) {
        return testing_support::TrainToy(session, last_step_, [&](int64_t step) {
          if (session->rank() == killer && step == at && !killed.exchange(true))
            cluster_->KillExecutorForTest("toy", victim);
        });
      }));
      num_kills_ += kills ? 1 : 0;
    }
  }

  // All that the job can have been in.
  States Replay() const {
    ReferenceTrainer reference(options_.model, options_.config,
                               std::vector<int>(kWorldSize / kPerWorker, kPerWorker));
    for (int p = 0, unit = -1, of_unit = 0; p < reference.num_parameters(); ++p, ++of_unit) {
      if (reference.UnitOf(p) != unit) of_unit = 0;
      unit = reference.UnitOf(p);
      std::vector<double>& values = reference.values(p);
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = testing_support::InitialValue(unit, of_unit, static_cast<int64_t>(i));
    }
    States states;
    size_t num_puts = 0;
    for (int64_t step = 1; step <= last_step_; ++step) {
      TrainOneStep(&reference, step);
      states[{step, num_puts}] = StateOf(&reference);
      while (num_puts < puts_.size() && puts_[num_puts].trained_step == step) {
        const Put& put = puts_[num_puts++];
        EXPECT_EQ(put.version, step + static_cast<int64_t>(num_puts)) << put.seed;
        for (const int p : put.parameters) {
          std::vector<double>& values = reference.values(p);
          for (size_t i = 0; i < values.size(); ++i)
            values[i] = testing_support::PutValue(put.seed, static_cast<int64_t>(i));
        }
        states[{step, num_puts}] = StateOf(&reference);
      }
    }
    EXPECT_EQ(num_puts, puts_.size()) << "a put after a step that was never taken";
    return states;
  }
  int64_t PutsUpTo(int64_t step) const {
    return std::count_if(puts_.begin(), puts_.end(),
                         [&](const Put& put) { return put.trained_step <= step; });
  }
  static void ExpectIs(const StoredValues& values, const States& states, int64_t step,
                       int64_t num_puts) {
    SCOPED_TRACE(absl::StrCat("step ", step, " with ", num_puts, " puts"));
    const auto state = states.find({step, num_puts});
    ASSERT_TRUE(state != states.end()) << "the job never was there";
    for (const auto& [name, bytes] : state->second) {
      ASSERT_EQ(values.count(name), 1) << name;
      EXPECT_TRUE(values.at(name).second == bytes) << name;
    }
  }
  // Its step.
  int64_t ExpectSaved(const std::string& path, const States& states) const {
    SCOPED_TRACE(path);
    const auto verified = VerifyCheckpoint(path);
    EXPECT_OK(verified);
    if (!verified.ok()) return -1;
    EXPECT_TRUE(verified->damages.empty());
    const int64_t step = verified->manifest.step;
    ExpectIs(ReadStored(path), states, step, PutsUpTo(step));
    return step;
  }

  uint64_t seed_ = kSeed;
  std::string folder_, coordinator_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
  SessionOptions options_;
  std::vector<TensorSpec> specs_;
  int64_t last_step_ = 0;
  int num_kills_ = 0;
  std::vector<Put> puts_;                 // That were set, in order.
  std::map<std::string, int64_t> saved_;  // Path and step.
  std::vector<std::string> given_up_;     // Paths of those that were not saved in three attempts.
  std::vector<LiveReading> readings_;
};

TEST_F(PutSaveRandomTest, EveryReadingCheckpointAndTheEndAreTheReferencesBits) {
  SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed_));
  ASSERT_NO_FATAL_FAILURE(Start());
  std::atomic<bool> ended{false};
  std::thread reader([&] { ReadUntil(ended); });
  std::thread writers([&] {
    std::thread saver([&] { SaveAtRandom(); });
    PutAtRandom();
    saver.join();
    ended.store(true);
  });
  TrainUntil(ended);
  writers.join();
  reader.join();
  ASSERT_FALSE(HasFatalFailure());

  const States states = Replay();
  for (const LiveReading& reading : readings_)
    ExpectIs(reading.values, states, reading.step, reading.committed_step - reading.step);
  for (const auto& [path, step] : saved_) EXPECT_EQ(ExpectSaved(path, states), step) << path;
  // The last try may have had its name before its epoch ended: then a complete one is there.
  for (const std::string& path : given_up_) {
    if (std::filesystem::exists(path)) (void)ExpectSaved(path, states);
  }
  const LiveReading last = ReadLive(coordinator_, "toy", Path("read.safetensors"));
  ASSERT_TRUE(last.ok) << last.error;
  EXPECT_EQ(last.step, last_step_);
  ExpectIs(last.values, states, last_step_, static_cast<int64_t>(puts_.size()));
  EXPECT_GE(puts_.size(), kPuts / 3);
  EXPECT_GE(saved_.size(), kSaves / 3);
  EXPECT_GE(readings_.size(), 1);
  EXPECT_GE(num_kills_, 1);
}

}  // namespace
}  // namespace tessera
