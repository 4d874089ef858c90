#include "tests/fault/process_cluster.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "tests/testing/process_view.h"

namespace tessera {

using demo::ChildProcess;
using testing_support::Eventually;
using testing_support::ReadFile;

void ProcessCluster::SetUp() {
  folder_ = "/tmp/tessera-kill-XXXXXX";
  ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  port_ = 0;
  last_step_.clear();
}

void ProcessCluster::TearDown() {
  trainers_.clear();
  worker_.reset();
  second_worker_.reset();
  spare_worker_.reset();
  coordinator_.reset();
  if (HasFailure()) {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (!absl::EndsWith(entry.path().string(), ".log")) continue;
      fprintf(stderr, "--- %s\n%s", entry.path().c_str(), ReadFile(entry.path().string()).c_str());
    }
  }
  std::filesystem::remove_all(folder_);
}

void ProcessCluster::StartCoordinator(const std::string& faults) {
  unlink((folder_ + "/port").c_str());
  std::vector<std::string> args = {
      "coordinator/tessera-coordinator", "--listen=" + coordinator_address(),
      "--port-file=" + folder_ + "/port", "--journal=" + folder_ + journal_name_};
  if (!hosts_.empty()) args.push_back("--insecure-listen");
  if (trainer_uid_ >= 0) args.push_back("--listen=" + coordinator_socket());
  args.insert(args.end(), coordinator_flags_.begin(), coordinator_flags_.end());
  if (!faults.empty()) args.push_back("--fault-points=" + faults);
  if (worker_timeout_.has_value()) {
    args.push_back("--worker-timeout=" + absl::FormatDuration(*worker_timeout_));
    args.push_back("--heartbeat-interval=" + absl::FormatDuration(*worker_timeout_ / 10));
  }
  auto started = ChildProcess::Start(args, folder_ + "/coordinator.log");
  ASSERT_OK(started);
  coordinator_ = *std::move(started);
  ASSERT_TRUE(Eventually([this] { return absl::SimpleAtoi(ReadFile(folder_ + "/port"), &port_); }));
}

void ProcessCluster::PlaceOnHost(size_t host, std::vector<std::string>* args) const {
  if (hosts_.empty()) {
    args->push_back("--data-host=127.0.0.1");
    return;
  }
  args->insert(args->end(),
               {"--data-host=" + hosts_[host].address, "--insecure-data", "--insecure-connect"});
  args->insert(args->begin(),
               {"/usr/bin/nsenter", absl::StrCat("--net=/proc/", hosts_[host].pid, "/ns/net")});
}

void ProcessCluster::StartWorker(const std::string& executor_faults) {
  std::vector<std::string> args = {
      "worker/tessera-worker",
      "--coordinator=" + dialled_address(),
      "--worker-id=w",
      absl::StrCat("--devices=", split_ ? world_size_ - on_second_ : world_size_),
      "--socket-dir=" + folder_,
      "--executor-binary=worker/tessera-executor",
      "--keep-memory=" + keep_memory_};
  if (debuggable_) args.push_back("--debuggable");
  if (split_) PlaceOnHost(1, &args);
  if (!daemon_faults_.empty()) args.push_back("--fault-points=" + daemon_faults_);
  if (!executor_faults.empty()) args.push_back("--executor-fault-points=" + executor_faults);
  auto started = ChildProcess::Start(args, folder_ + "/worker.log");
  ASSERT_OK(started);
  worker_ = *std::move(started);
}

void ProcessCluster::StartSecondWorker(const std::string& executor_faults) {
  std::vector<std::string> args = {"worker/tessera-worker",
                                   "--coordinator=" + dialled_address(),
                                   "--worker-id=" + second_id_,
                                   absl::StrCat("--devices=", on_second_),
                                   "--socket-dir=" + folder_ + "/" + second_id_,
                                   "--executor-binary=worker/tessera-executor",
                                   "--keep-memory=" + keep_memory_};
  if (debuggable_) args.push_back("--debuggable");
  PlaceOnHost(2, &args);
  if (!executor_faults.empty()) args.push_back("--executor-fault-points=" + executor_faults);
  auto started = ChildProcess::Start(args, folder_ + "/second.log");
  ASSERT_OK(started);
  second_worker_ = *std::move(started);
}

void ProcessCluster::StartSpareWorker() {
  const std::string sockets = folder_ + "/spare";
  std::filesystem::create_directory(sockets);
  auto started = ChildProcess::Start(
      {"worker/tessera-worker", "--coordinator=" + dialled_address(), "--worker-id=w2",
       absl::StrCat("--devices=", world_size_), "--socket-dir=" + sockets,
       "--executor-binary=worker/tessera-executor", "--keep-memory=0"},
      folder_ + "/spare.log");
  ASSERT_OK(started);
  spare_worker_ = *std::move(started);
  ASSERT_TRUE(Eventually([&] {
    return absl::StrContains(ReadFile(folder_ + "/spare.log"), "connected to coordinator");
  }));
}

void ProcessCluster::StartTrainer(int rank, bool replace) {
  std::vector<std::string> args = {
      "tests/fault/toy_trainer",
      "--coordinator=" + (trainer_uid_ < 0 ? dialled_address() : coordinator_socket()),
      absl::StrCat("--uid=", trainer_uid_),
      "--worker=" + (split_ && rank >= world_size_ - on_second_
                         ? absl::StrCat("unix:", folder_, "/", second_id_, "/worker.sock")
                         : worker_address()),
      absl::StrCat("--rank=", rank),
      absl::StrCat("--world-size=", world_size_),
      absl::StrCat("--steps=", steps_),
      absl::StrCat("--pause-at=", pause_at_),
      "--resume-file=" + folder_ + "/resume",
      "--save=" + model_path(),
      absl::StrCat("--shard-group-size=", group_size_)};
  args.insert(args.end(), trainer_flags_.begin(), trainer_flags_.end());
  if (replace) args.push_back("--replace");
  if (!hosts_.empty()) args.push_back("--insecure-connect");
  if (collective_timeout_.has_value()) {
    args.push_back(
        absl::StrCat("--collective-timeout-ms=", absl::ToInt64Milliseconds(*collective_timeout_)));
  }
  auto started = ChildProcess::Start(args, folder_ + "/trainer.log");
  ASSERT_OK(started);
  trainers_.resize(world_size_);
  trainers_[rank] = *std::move(started);
}

void ProcessCluster::StartAll(const std::string& executor_faults) {
  StartCoordinator();
  StartWorker(executor_faults);
  for (int rank = 0; rank < world_size_; ++rank) StartTrainer(rank);
}

void ProcessCluster::Resume() { std::ofstream(folder_ + "/resume").flush(); }

void ProcessCluster::AwaitStep(int rank, int64_t step) {
  const bool begun = Eventually([&] {
    for (const std::string& line : trainers_[rank]->ReadLines()) {
      int64_t number;
      if (absl::StartsWith(line, "step ") && absl::SimpleAtoi(line.substr(5), &number)) {
        last_step_[rank] = std::max(last_step_[rank], number);
      }
    }
    return last_step_[rank] >= step || !trainers_[rank]->running();
  });
  ASSERT_TRUE(begun && last_step_[rank] >= step) << "rank " << rank << " never began step " << step;
}

int ProcessCluster::AwaitEnd(int rank) {
  const bool ended = Eventually([&] {
    (void)trainers_[rank]->ReadLines();
    return !trainers_[rank]->running();
  });
  EXPECT_TRUE(ended) << "the trainer of rank " << rank << " does not end";
  if (!ended) trainers_[rank]->Kill(SIGKILL);  // So that this test ends, and shows the logs.
  return trainers_[rank]->Wait();
}

const std::string& ProcessCluster::UndisturbedModel() {
  static const std::string* const model = new std::string([] {
    class Run : public ProcessCluster {
     public:
      void TestBody() override {}
      std::string Go() {
        SetUp();
        StartAll();
        std::string model = Finish();
        TearDown();
        return model;
      }
    };
    return Run().Go();
  }());
  return *model;
}

std::string ProcessCluster::Finish() {
  for (int rank = 0; rank < world_size_; ++rank) EXPECT_EQ(AwaitEnd(rank), 0) << "rank " << rank;
  return ReadFile(model_path());
}

}  // namespace tessera
