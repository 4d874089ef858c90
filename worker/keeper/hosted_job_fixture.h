// One job on a worker, with real executors; the test is the coordinator and the trainer. A fixture.
#ifndef TESSERA_WORKER_KEEPER_HOSTED_JOB_FIXTURE_H_
#define TESSERA_WORKER_KEEPER_HOSTED_JOB_FIXTURE_H_

#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"
#include "worker/keeper/hosted_job.h"

namespace tessera {

// Passes on to a real launcher and counts.
class CountingLauncher : public ExecutorLauncher {
 public:
  explicit CountingLauncher(std::unique_ptr<ExecutorLauncher> launcher)
      : launcher_(std::move(launcher)) {}
  absl::StatusOr<std::unique_ptr<RunningExecutor>> Launch(UniqueFd socket,
                                                          const std::string& label) override {
    ++launches_;
    return launcher_->Launch(std::move(socket), label);
  }
  std::string name() const override { return launcher_->name(); }
  int launches() const { return launches_; }

 private:
  const std::unique_ptr<ExecutorLauncher> launcher_;
  std::atomic<int> launches_ = 0;
};

class HostedJobFixture : public testing::Test {
 protected:
  static constexpr absl::Duration kDeadline = absl::Seconds(20);

  void Host(std::unique_ptr<ExecutorLauncher> launcher, int world_size,
            absl::Duration answer_timeout = HostedJob::kAnswerTimeout) {
    launcher_ = std::make_unique<CountingLauncher>(std::move(launcher));
    model_.units = {{"u", {{"w", {64}, DType::kFp32}}}};
    JobConfig config;
    config.world_size = world_size;
    description_.set_job_id("toy");
    *description_.mutable_model() = EncodeModel(model_);
    *description_.mutable_config() = EncodeJobConfig(config);
    for (int rank = 0; rank < world_size; ++rank) {
      v1::RankPlacement* placement = description_.add_placements();
      placement->set_rank(rank);
      placement->set_worker_id("w");
    }
    LocalRanks local;
    local.topology = RankTopology::OneHost(world_size);
    auto job = HostedJob::Create(
        description_, local, "", launcher_.get(),
        [this](const v1::WorkerEvent& event) {
          absl::MutexLock lock(&mu_);
          events_.push_back(event);
        },
        device_memory_, answer_timeout);
    created_ = job.status();
    if (job.ok()) job_ = *std::move(job);
  }
  void Prepare(int64_t epoch) {
    description_.set_epoch(epoch);
    v1::PrepareEpoch prepare;
    *prepare.mutable_job() = description_;
    job_->Prepare(prepare);
  }
  void Start(int64_t epoch) {
    Prepare(epoch);
    EXPECT_EQ(Await(v1::WorkerEvent::kPrepared).prepared().epoch(), epoch);
    v1::StartEpoch start;
    start.set_epoch(epoch);
    job_->Start(start);
  }
  // Waits for an event of this kind, and forgets all before it.
  v1::WorkerEvent Await(v1::WorkerEvent::EventCase kind) {
    v1::WorkerEvent found;
    absl::MutexLock lock(&mu_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      while (!events_.empty() && found.event_case() != kind) {
        found = events_.front();
        events_.erase(events_.begin());
      }
      return found.event_case() == kind;
    };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&came), kDeadline));
    return found;
  }

  // Of rank 0 of one.
  static constexpr int kTrainerPid = 4242;  // Not a process: nothing is sent to it.
  absl::StatusOr<GivenRank> Attach(bool hosts_executor = false) {
    v1::AttachRequest request;
    request.set_job_id("toy");
    request.set_world_size(1);
    ASSIGN_OR_RETURN(const ModelLayout layout, ModelLayout::Create(model_, JobConfig().layout, 1));
    request.set_layout_digest(LayoutDigest(layout));
    request.set_hosts_executor(hosts_executor);
    return job_->Attach(request, {kTrainerPid, geteuid()}, absl::Now());
  }

  DeviceMemory* device_memory_ = nullptr;  // Of a GPU, if there is one: before Host.
  ModelSpec model_;
  v1::Job description_;
  absl::Mutex mu_;
  std::vector<v1::WorkerEvent> events_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CountingLauncher> launcher_;
  absl::Status created_;
  std::unique_ptr<HostedJob> job_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_HOSTED_JOB_FIXTURE_H_
