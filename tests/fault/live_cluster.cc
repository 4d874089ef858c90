#include "tests/fault/live_cluster.h"

#include <signal.h>

#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "grpcpp/grpcpp.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"

namespace tessera {

using demo::ChildProcess;
using testing_support::CliResult;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadFile;
using testing_support::StoredValues;
using testing_support::TrainerTeam;

namespace {

constexpr int64_t kSmallNumel = 37;

ModelSpec ModelOf(int64_t big_numel) {
  return {{{"big", {{"big.w", {big_numel}, DType::kFp32}}},
           {"small", {{"small.w", {kSmallNumel}, DType::kFp32}}}}};
}

std::string BytesOf(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), 0);
  memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

void LiveCluster::TearDown() {
  team_.reset();
  ProcessCluster::TearDown();
}

void LiveCluster::StartJob(int64_t big_numel, const std::string& faults_of_last) {
  // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
  static const auto* const last = new grpc::CompletionQueue();
  ASSERT_NE(last, nullptr);
  StartCoordinator();
  StartWorker(split_ ? "" : faults_of_last);
  if (split_) StartSecondWorker(faults_of_last);
  SessionOptions options;
  options.coordinator_address = coordinator_address();
  options.job_id = "toy";
  options.model = ModelOf(big_numel);
  options.config.world_size = world_size_;
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.groups[0].learning_rate = 0.25;
  options.config.optimizer_in_backward = optimizer_in_backward_;
  options.attach_timeout = absl::Seconds(30);
  options.operation_timeout = absl::Seconds(60);
  std::vector<std::string> workers(world_size_, worker_address());
  if (split_) workers.back() = "unix:" + folder_ + "/x/worker.sock";
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options, workers));
  team_.emplace(std::move(team));
  big_.resize(big_numel);
  for (int64_t i = 0; i < big_numel; ++i) big_[i] = static_cast<float>(i % 8191);
  small_.resize(kSmallNumel);
  for (int64_t i = 0; i < kSmallNumel; ++i) small_[i] = static_cast<float>(i);
  ASSERT_OK(team_->RunAll([this](Session* session) {
    return session->Initialize([this](int unit, int, absl::Span<float> values) {
      const std::vector<float>& from = unit == 0 ? big_ : small_;
      memcpy(values.data(), from.data(), values.size() * sizeof(float));
    });
  }));
  Step();
}

absl::Status LiveCluster::StepOf(Session* session) const {
  std::vector<float> gradient(kSmallNumel);
  for (int64_t i = 0; i < kSmallNumel; ++i)
    gradient[i] = static_cast<float>(session->next_step() + i % 7 + session->rank());
  RETURN_IF_ERROR(session->Unshard(1));
  RETURN_IF_ERROR(session->Reshard(1));
  RETURN_IF_ERROR(session->AddGradient(1, 0, gradient));
  RETURN_IF_ERROR(session->Reduce(1));
  return session->Step().status();
}

std::vector<absl::Status> LiveCluster::TryStep() {
  return team_->Run([this](Session* session) { return StepOf(session); });
}

void LiveCluster::Step() {
  const int64_t step = ++steps_;
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    while (session->next_step() <= step) {
      RETURN_IF_ERROR(session->RunStep([&] { return StepOf(session); }));
    }
    return absl::OkStatus();
  }));
  const float mean_rank = static_cast<float>(world_size_ - 1) / 2;
  for (int64_t i = 0; i < kSmallNumel; ++i)
    small_[i] -= 0.25f * (static_cast<float>(step + i % 7) + mean_rank);
}

LiveCluster::Client LiveCluster::StartClient(std::vector<std::string> args,
                                             const std::string& address) {
  args.insert(args.begin(), "client/cli/tessera");
  args.push_back("--coordinator=" + (address.empty() ? coordinator_address() : address));
  Client client;
  client.log = absl::StrCat(folder_, "/client", ++num_clients_, ".log");
  auto started = ChildProcess::Start(args, client.log);
  EXPECT_OK(started);
  if (started.ok()) client.process = *std::move(started);
  return client;
}

CliResult LiveCluster::Await(Client client, bool trains) {
  CliResult result;
  std::vector<std::string> lines;
  const auto read = [&] {
    for (std::string& line : client.process->ReadLines()) lines.push_back(std::move(line));
  };
  EXPECT_TRUE(Eventually([&] {
    read();
    if (trains && client.process->running()) Step();
    return !client.process->running() || HasFatalFailure();
  })) << "the client does not end";
  client.process->Kill(SIGKILL);  // Nothing, if it has ended.
  result.exit_code = client.process->Wait();
  read();
  result.out = absl::StrJoin(lines, "\n");
  result.err = ReadFile(client.log);
  return result;
}

std::vector<float> LiveCluster::WriteBig(const std::string& path, const std::string& seed) const {
  const std::vector<TensorSpec> tensors = {
      {"big.w", {static_cast<int64_t>(big_.size())}, DType::kFp32}};
  testing_support::WritePutFile(path, tensors, {{"big.w", seed}});
  std::vector<float> values(big_.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = testing_support::PutValue(seed, i);
  return values;
}

void LiveCluster::PutBig(const std::string& path, const std::vector<float>& values) {
  CliResult put;
  do {
    put = Await(StartClient({"put", "--job", "toy", "--from", path}), /*trains=*/true);
  } while (absl::StrContains(put.err, "another client sets its values"));
  EXPECT_EQ(put.exit_code, 0) << put.err;
  big_ = values;
}

void LiveCluster::ExpectRead() {
  const std::string path = Path("now.safetensors");
  const CliResult get = RunClient({"get", "toy", "--out", path});
  ASSERT_EQ(get.exit_code, 0) << get.err;
  const StoredValues values = testing_support::ReadStored(path);
  ASSERT_EQ(values.size(), 2);
  // Not shown where they differ: they are large.
  EXPECT_TRUE(values.at("big.w").second == BytesOf(big_));
  EXPECT_TRUE(values.at("small.w").second == BytesOf(small_)) << "after step " << steps_;
}

void LiveCluster::ExpectTrainersSee() {
  std::vector<float> all = big_;
  all.insert(all.end(), small_.begin(), small_.end());
  EXPECT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<float> seen, testing_support::ReadAll(session));
    EXPECT_TRUE(seen == all) << "rank " << session->rank() << " after step " << steps_;
    return absl::OkStatus();
  }));
}

int LiveCluster::CountSpoolFiles(int pid) {
  int count = 0;
  for (const auto& [fd, what] : DescriptorsOf(pid))
    count += absl::StartsWith(what, "/tmp/#") && absl::EndsWith(what, "(deleted)") ? 1 : 0;
  return count;
}

int LiveCluster::CountSockets(int pid) {
  int count = 0;
  for (const auto& [fd, what] : DescriptorsOf(pid)) count += absl::StartsWith(what, "socket:");
  return count;
}

int LiveCluster::CountHolders() const {
  int count = 0;
  for (const auto* worker : {worker_.get(), second_worker_.get()}) {
    if (worker == nullptr) continue;
    for (const auto& [label, pid] : ExecutorsOf(worker->pid()))
      count += CountSpoolFiles(pid) > 0 ? 1 : 0;
  }
  return count;
}

void LiveCluster::KillWhole(ChildProcess* worker) {
  const std::map<std::string, int> executors = ExecutorsOf(worker->pid());
  worker->Kill(SIGKILL);
  for (const auto& [label, pid] : executors) kill(pid, SIGKILL);
  worker->Wait();
}

absl::StatusOr<v1::Job> LiveCluster::TryJob(absl::Duration timeout) const {
  return GetJob({coordinator_address()}, "toy", absl::Now() + timeout);
}

v1::Job LiveCluster::Job() const {
  const absl::StatusOr<v1::Job> job = TryJob(absl::Seconds(20));
  EXPECT_OK(job);
  return job.ok() ? *job : v1::Job();
}

void LiveCluster::AwaitState(v1::JobState state) const {
  ASSERT_TRUE(Eventually([&] { return Job().state() == state; })) << Job().ShortDebugString();
}

}  // namespace tessera
