#include "coordinator/service/test_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

TestWorker::TestWorker(std::shared_ptr<grpc::Channel> channel, std::string id, int64_t incarnation)
    : id_(std::move(id)),
      incarnation_(incarnation),
      key_(absl::StrCat("the key of a test's worker ", incarnation)),
      stub_(v1::Membership::NewStub(channel)) {}

grpc::Status TestWorker::Register(int num_devices) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::RegisterWorkerRequest request;
  request.set_request_id(absl::StrCat("register-", id_, "-", incarnation_));
  request.set_worker_id(id_);
  request.set_incarnation(incarnation_);
  request.set_num_devices(num_devices);
  request.set_key(key_);
  v1::RegisterWorkerResponse response;
  return stub_->RegisterWorker(&context, request, &response);
}

void TestWorker::Connect() {
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_wait_for_ready(true);
  stream_ = stub_->Connect(context_.get());
  {
    absl::MutexLock lock(&mu_);
    ended_ = false;
    commands_.clear();
  }
  Send({});
  reader_ = std::thread([this] {
    v1::CoordinatorCommand command;
    while (stream_->Read(&command)) {
      absl::MutexLock lock(&mu_);
      if (command.has_prepare()) {
        generations_[command.prepare().job().job_id()] = command.prepare().job().generation();
      }
      commands_.push_back(command);
    }
    absl::MutexLock lock(&mu_);
    ended_ = true;
  });
}

grpc::Status TestWorker::Disconnect() {
  if (context_ != nullptr) context_->TryCancel();
  return AwaitEnd();
}

grpc::Status TestWorker::AwaitEnd() {
  if (!reader_.joinable()) return grpc::Status::OK;
  reader_.join();
  return stream_->Finish();
}

void TestWorker::Send(v1::WorkerEvent event) {
  event.set_worker_id(id_);
  event.set_incarnation(incarnation_);
  event.set_key(key_);
  stream_->Write(event);
}

int64_t TestWorker::GenerationOf(const std::string& job) {
  absl::MutexLock lock(&mu_);
  return generations_[job];
}

void TestWorker::Hold(const std::string& job, int64_t generation) {
  absl::MutexLock lock(&mu_);
  generations_[job] = generation;
}

void TestWorker::Heartbeat() {
  v1::WorkerEvent event;
  event.mutable_heartbeat();
  Send(std::move(event));
}

void TestWorker::HeartbeatAt(const std::string& job, int64_t epoch, int rank, int64_t step,
                             int64_t sequence) {
  v1::WorkerEvent event;
  v1::JobProgress* progress = event.mutable_heartbeat()->add_jobs();
  progress->set_job_id(job);
  progress->set_generation(GenerationOf(job));
  progress->set_epoch(epoch);
  v1::RankStatus& status = (*progress->mutable_ranks())[rank];
  status.set_step(step);
  status.set_sequence(sequence);
  status.set_attached(true);
  Send(std::move(event));
}

void TestWorker::Prepared(const std::string& job, int64_t epoch, int64_t decided_step) {
  v1::WorkerEvent event;
  event.mutable_prepared()->set_job_id(job);
  event.mutable_prepared()->set_generation(GenerationOf(job));
  event.mutable_prepared()->set_epoch(epoch);
  event.mutable_prepared()->set_decided_step(decided_step);
  Send(std::move(event));
}

void TestWorker::Announce(const std::string& job, int64_t epoch, int rank, int64_t step,
                          int64_t sequence, const std::string& operation, int64_t unit) {
  v1::WorkerEvent event;
  v1::OrderAnnouncement* order = event.mutable_order();
  order->set_job_id(job);
  order->set_generation(GenerationOf(job));
  order->set_epoch(epoch);
  order->set_rank(rank);
  order->set_step(step);
  order->set_sequence(sequence);
  order->mutable_entry()->set_operation(operation);
  order->mutable_entry()->set_unit(unit);
  order->mutable_entry()->set_dtype(v1::DTYPE_BF16);
  order->mutable_entry()->set_count(128);
  Send(std::move(event));
}

void TestWorker::ReportStep(const std::string& job, int64_t epoch, int rank, int64_t step,
                            uint64_t hash) {
  v1::WorkerEvent event;
  v1::StepReport* report = event.mutable_step();
  report->set_job_id(job);
  report->set_generation(GenerationOf(job));
  report->set_epoch(epoch);
  report->set_rank(rank);
  report->set_step(step);
  report->set_order_hash(hash);
  Send(std::move(event));
}

void TestWorker::Fail(const std::string& job, int64_t epoch, int rank, const std::string& reason) {
  v1::WorkerEvent event;
  event.mutable_failure()->set_job_id(job);
  event.mutable_failure()->set_generation(GenerationOf(job));
  event.mutable_failure()->set_epoch(epoch);
  event.mutable_failure()->set_rank(rank);
  event.mutable_failure()->set_reason(reason);
  Send(std::move(event));
}

v1::CoordinatorCommand TestWorker::Await(CommandCase kind) {
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  absl::MutexLock lock(&mu_);
  const auto ready = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mu_) { return ended_ || !commands_.empty(); };
  while (mu_.AwaitWithDeadline(absl::Condition(&ready), deadline) && !commands_.empty()) {
    v1::CoordinatorCommand command = std::move(commands_.front());
    commands_.pop_front();
    if (command.command_case() == kind) return command;
  }
  ADD_FAILURE() << "worker " << id_ << " waited in vain for command " << kind;
  return {};
}

int TestWorker::NumCommands() {
  absl::MutexLock lock(&mu_);
  return commands_.size();
}

v1::CreateJobRequest MakeCreateJob(const std::string& request_id, const std::string& job_id,
                                   int world_size, int num_units) {
  v1::CreateJobRequest request;
  request.set_request_id(request_id);
  request.set_job_id(job_id);
  const auto add = [](v1::UnitSpec* unit, const std::string& name) {
    v1::ParameterSpec* parameter = unit->add_parameters();
    parameter->set_name(name);
    parameter->add_shape(8);
    parameter->add_shape(3);
    parameter->set_dtype(v1::DTYPE_FP32);
    parameter->set_requires_grad(true);
  };
  v1::UnitSpec* root = request.mutable_model()->add_units();
  root->set_name("root");
  add(root, "root.w");
  for (int i = 0; i < num_units; ++i) {
    v1::UnitSpec* unit = request.mutable_model()->add_units();
    unit->set_name(absl::StrCat("u", i));
    for (const char* name : {"q", "k", "v", "o"}) add(unit, absl::StrCat("u", i, ".", name));
  }
  v1::JobConfig* config = request.mutable_config();
  config->set_world_size(world_size);
  config->set_strategy(v1::STRATEGY_FULL_SHARD);
  config->set_compute_dtype(v1::DTYPE_BF16);
  config->set_reduce_dtype(v1::DTYPE_FP32);
  config->set_parameter_alignment_bytes(16);
  config->set_shard_alignment_bytes(128);
  config->mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAMW);
  config->mutable_optimizer()->add_groups()->set_learning_rate(1e-3);
  config->set_max_gathered_units(1);
  config->set_collective_timeout_ms(1000);
  return request;
}

}  // namespace tessera::coordinator
