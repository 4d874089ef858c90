#include "coordinator/service/simulated_worker.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {

SimulatedWorker::SimulatedWorker(std::string id, int num_devices, SimulatedDice* dice,
                                 FindTruth find_truth, FindPutLine find_put_line)
    : id_(std::move(id)),
      num_devices_(num_devices),
      dice_(dice),
      find_truth_(std::move(find_truth)),
      find_put_line_(std::move(find_put_line)) {}

v1::RegisterWorkerRequest SimulatedWorker::RegisterRequest() const {
  v1::RegisterWorkerRequest request;
  request.set_request_id(absl::StrCat(id_, "/", incarnation_, "/register"));
  request.set_worker_id(id_);
  request.set_incarnation(incarnation_);
  request.set_key(absl::StrCat("the key of life ", life_));
  request.set_num_devices(num_devices_);
  request.set_address("127.0.0.1:1");
  request.set_data_host("127.0.0.1");
  return request;
}

void SimulatedWorker::OnRegistered(const v1::RegisterWorkerResponse& response) {
  incarnation_ = response.incarnation();
}

SimulatedStreamPtr SimulatedWorker::Connect() {
  stream_ = std::make_shared<SimulatedStream>();
  stream_->owner = id();
  v1::WorkerEvent first = HeartbeatEvent();
  first.set_worker_id(id_);
  first.set_incarnation(incarnation_);
  first.set_key(RegisterRequest().key());
  Emit(std::move(first));
  for (const auto& [id, job] : jobs_) {
    for (v1::WorkerEvent& event : job->Unacknowledged()) Emit(std::move(event));
  }
  return stream_;
}

void SimulatedWorker::Read() {
  if (stream_ == nullptr) return;
  if (!stream_->down.empty()) {
    const v1::CoordinatorCommand command = std::move(stream_->down.front());
    stream_->down.pop_front();
    Handle(command);
  } else if (stream_->coordinator_left) {
    Disconnect();
  }
}

void SimulatedWorker::Disconnect() {
  if (stream_ == nullptr) return;
  stream_->worker_left = true;
  stream_->down.clear();
  // How much of what it has sent is there already, nobody knows.
  stream_->up.resize(dice_->Roll(stream_->up.size() + 1));
  stream_.reset();
}

void SimulatedWorker::Emit(v1::WorkerEvent event) {
  if (stream_ != nullptr) stream_->up.push_back(std::move(event));
}

v1::WorkerEvent SimulatedWorker::HeartbeatEvent() const {
  v1::WorkerEvent event;
  event.mutable_heartbeat();
  for (const auto& [id, job] : jobs_) *event.mutable_heartbeat()->add_jobs() = job->Progress();
  return event;
}

void SimulatedWorker::Heartbeat() { Emit(HeartbeatEvent()); }

void SimulatedWorker::Boot() {
  Disconnect();
  EndPuts();
  for (const auto& [id, job] : jobs_) job->truth().LoseMemory();
  jobs_.clear();
  ++life_;
  incarnation_ = 0;
}

void SimulatedWorker::ReplaceDaemon() {
  if (jobs_.empty()) return Boot();  // There is nothing to go on with.
  Disconnect();
  EndPuts();
  for (const auto& [id, job] : jobs_) job->EndEpochOfDaemonBefore();
}

void SimulatedWorker::Work() {
  if (jobs_.empty()) return;
  std::next(jobs_.begin(), dice_->Roll(jobs_.size()))->second->Work();
}

SimulatedHeldJob* SimulatedWorker::Find(const std::string& job, int64_t generation) const {
  const auto found = jobs_.find(job);
  const bool is_same =
      found != jobs_.end() && found->second->truth().generation() == Generation(generation);
  return is_same ? found->second.get() : nullptr;
}

SimulatedHeldJob* SimulatedWorker::Find(const JobId& job, Generation generation) const {
  return Find(job.value(), generation.value());
}

void SimulatedWorker::Handle(const v1::CoordinatorCommand& command) {
  SimulatedHeldJob* job = nullptr;
  switch (command.command_case()) {
    case v1::CoordinatorCommand::kPrepare:
      return Prepare(command.prepare());
    case v1::CoordinatorCommand::kStart:
      return Start(command.start());
    case v1::CoordinatorCommand::kRelease:
      job = Find(command.release().job_id(), command.release().generation());
      if (job != nullptr) job->Release(command.release());
      return;
    case v1::CoordinatorCommand::kMismatch:
      job = Find(command.mismatch().job_id(), command.mismatch().generation());
      if (job != nullptr) job->Mismatch(command.mismatch());
      return;
    case v1::CoordinatorCommand::kRequestedSave:
      job = Find(command.requested_save().job_id(), command.requested_save().generation());
      if (job != nullptr) job->WantSave(command.requested_save());
      return;
    case v1::CoordinatorCommand::kStagePut:
      return BeginPut(command.stage_put());
    case v1::CoordinatorCommand::kDescribe:
      job = Find(command.describe().job_id(), command.describe().generation());
      if (job != nullptr) Emit(job->Held());
      return;
    case v1::CoordinatorCommand::kDrop:
      return Drop(command.drop());
    default:
      return;
  }
}

void SimulatedWorker::Prepare(const v1::PrepareEpoch& prepare) {
  const std::string& id = prepare.job().job_id();
  const Generation generation(prepare.job().generation());
  const auto held = jobs_.find(id);
  if (held != jobs_.end() && held->second->truth().generation() < generation) {
    if (held->second->has_begun() &&
        held->second->truth().generation() > Generation(prepare.deleted_generation())) {
      return ReportFailure(id, generation.value(), prepare.job().epoch(), kHoldsAnother);
    }
    jobs_.erase(held);
  }
  if (jobs_.count(id) > 0 && jobs_[id]->truth().generation() != generation)
    return ReportFailure(id, generation.value(), prepare.job().epoch(), kHoldsAnother);
  SimulatedHeldJob* job = Find(id, generation.value());
  if (job != nullptr && Epoch(prepare.job().epoch()) < job->epoch()) return;  // Of the past.
  // Its ranks were elsewhere since, or the job's shards are lost.
  if (job != nullptr && job->epoch() < Epoch(prepare.job().epoch()) && job->IsVoid(prepare)) {
    job->truth().CheckDrop(job->has_begun(), job->decided_step());
    jobs_.erase(id);
    job = nullptr;
  }
  if (job == nullptr) {
    jobs_[id] = std::make_unique<SimulatedHeldJob>(
        id_, prepare.job(), find_truth_(JobId(id), generation), dice_,
        [this](v1::WorkerEvent event) { Emit(std::move(event)); });
  }
  jobs_[id]->Prepare(prepare.job());
}

void SimulatedWorker::Start(const v1::StartEpoch& start) {
  SimulatedHeldJob* job = Find(start.job_id(), start.generation());
  if (job != nullptr) return job->Start(start);
  ReportFailure(start.job_id(), start.generation(), start.epoch(), "does not hold the job");
}

void SimulatedWorker::ReportFailure(const std::string& job, int64_t generation, int64_t epoch,
                                    const std::string& reason) {
  v1::WorkerEvent event;
  event.mutable_failure()->set_job_id(job);
  event.mutable_failure()->set_generation(generation);
  event.mutable_failure()->set_epoch(epoch);
  event.mutable_failure()->set_rank(-1);
  event.mutable_failure()->set_reason(reason);
  Emit(std::move(event));
}

void SimulatedWorker::Drop(const v1::DropJob& drop) {
  const auto held = jobs_.find(drop.job_id());
  if (held == jobs_.end() || held->second->truth().generation() != Generation(drop.generation()))
    return;
  held->second->truth().CheckDrop(held->second->has_begun(), held->second->decided_step());
  jobs_.erase(held);
}

void SimulatedWorker::BeginPut(const v1::StagePut& stage) {
  const SimulatedPutLinePtr line = find_put_line_(stage.session());
  if (line == nullptr) return;
  put_sessions_.push_back(
      {JobId(stage.job_id()), Generation(stage.generation()), SimulatedPutSession(line)});
}

void SimulatedWorker::WorkOnPuts() {
  for (size_t i = 0; i < put_sessions_.size();) {
    PutSession& put = put_sessions_[i];
    const SimulatedHeldJob* job = Find(put.job, put.generation);
    const bool goes_on = put.session.Work(job == nullptr ? nullptr : job->puts());
    i = goes_on ? i + 1 : put_sessions_.erase(put_sessions_.begin() + i) - put_sessions_.begin();
  }
}

void SimulatedWorker::EndPuts() {
  for (PutSession& put : put_sessions_) put.session.End(dice_->Roll(put.session.num_said() + 1));
  put_sessions_.clear();
}

std::string SimulatedWorker::Describe() const {
  std::string text = absl::StrCat(id_, "/", incarnation_, connected() ? ", connected" : ", away");
  if (connected()) {
    absl::StrAppend(&text, ", in flight: up ", stream_->up.size(), ", down ", stream_->down.size());
  }
  for (const auto& [id, job] : jobs_) absl::StrAppend(&text, "\n    ", job->Describe());
  return text;
}

}  // namespace tessera::coordinator
