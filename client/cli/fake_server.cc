#include "client/cli/fake_server.h"

#include <map>
#include <sstream>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/cli.h"
#include "grpcpp/grpcpp.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/events.grpc.pb.h"
#include "proto/worker.grpc.pb.h"

namespace tessera::cli {
namespace {

struct Content {
  mutable absl::Mutex mu;
  std::map<std::string, v1::Job> jobs ABSL_GUARDED_BY(mu);
  v1::ListWorkersResponse workers ABSL_GUARDED_BY(mu);
  std::vector<v1::Event> events ABSL_GUARDED_BY(mu);
  int64_t last_event ABSL_GUARDED_BY(mu) = 0;
  v1::WorkerStatusResponse worker ABSL_GUARDED_BY(mu);
  v1::DumpRankResponse dump ABSL_GUARDED_BY(mu);
  std::vector<std::string> delete_request_ids ABSL_GUARDED_BY(mu);
};

grpc::Status NoSuchJob(const std::string& job_id) {
  return grpc::Status(grpc::StatusCode::NOT_FOUND, absl::StrCat("no job '", job_id, "'"));
}

class FakeJobs : public v1::Jobs::Service {
 public:
  explicit FakeJobs(Content* content) : content_(content) {}

  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest*,
                        v1::ListJobsResponse* response) override {
    absl::MutexLock lock(&content_->mu);
    // Not in order of the names: sorting is the client's business.
    for (auto it = content_->jobs.rbegin(); it != content_->jobs.rend(); ++it) {
      *response->add_jobs() = it->second;
    }
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    absl::MutexLock lock(&content_->mu);
    const auto it = content_->jobs.find(request->job_id());
    if (it == content_->jobs.end()) return NoSuchJob(request->job_id());
    *response = it->second;
    return grpc::Status::OK;
  }
  grpc::Status GetLayout(grpc::ServerContext*, const v1::GetLayoutRequest* request,
                         v1::JobLayout* response) override {
    absl::MutexLock lock(&content_->mu);
    if (content_->jobs.count(request->job_id()) == 0) return NoSuchJob(request->job_id());
    response->set_job_id(request->job_id());
    response->set_world_size(2);
    v1::UnitLayout& unit = *response->add_units();
    unit.set_name("block\x1b");
    unit.set_dtype(v1::DTYPE_FP32);
    unit.set_strategy(v1::STRATEGY_FULL_SHARD);
    unit.set_size_elements(96);
    unit.set_shard_elements(48);
    unit.set_num_shards(2);
    v1::PlacedParameter& weight = *unit.add_parameters();
    weight.set_name("weight");
    weight.add_shape(5);
    weight.add_shape(10);
    weight.set_num_elements(50);
    (*unit.mutable_shared_parameters())["tied"] = "weight";
    return grpc::Status::OK;
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const v1::DeleteJobRequest* request,
                         v1::DeleteJobResponse*) override {
    absl::MutexLock lock(&content_->mu);
    content_->delete_request_ids.push_back(request->request_id());
    if (content_->jobs.erase(request->job_id()) == 0) return NoSuchJob(request->job_id());
    return grpc::Status::OK;
  }

 private:
  Content* const content_;
};

class FakeMembership : public v1::Membership::Service {
 public:
  explicit FakeMembership(Content* content) : content_(content) {}

  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    absl::MutexLock lock(&content_->mu);
    *response = content_->workers;
    return grpc::Status::OK;
  }

 private:
  Content* const content_;
};

class FakeEvents : public v1::Events::Service {
 public:
  explicit FakeEvents(Content* content) : content_(content) {}

  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    constexpr int kPage = 2;  // Small, so that there are several.
    absl::MutexLock lock(&content_->mu);
    if (!content_->events.empty()) response->set_first_number(content_->events[0].number());
    response->set_last_number(content_->last_event);
    for (const v1::Event& event : content_->events) {
      const bool is_of_job = request->job_id().empty() || event.job_id() == request->job_id();
      if (event.number() > request->after_number() && is_of_job &&
          response->events_size() < kPage) {
        *response->add_events() = event;
      }
    }
    return grpc::Status::OK;
  }

 private:
  Content* const content_;
};

class FakeWorker : public v1::Worker::Service {
 public:
  explicit FakeWorker(Content* content) : content_(content) {}

  grpc::Status GetStatus(grpc::ServerContext*, const v1::WorkerStatusRequest*,
                         v1::WorkerStatusResponse* response) override {
    absl::MutexLock lock(&content_->mu);
    *response = content_->worker;
    return grpc::Status::OK;
  }
  grpc::Status DumpRank(grpc::ServerContext*, const v1::DumpRankRequest* request,
                        v1::DumpRankResponse* response) override {
    if (request->job_id() != "gpt" || request->rank() != 0) return NoSuchJob(request->job_id());
    absl::MutexLock lock(&content_->mu);
    *response = content_->dump;
    return grpc::Status::OK;
  }

 private:
  Content* const content_;
};

class GrpcFakeServer : public FakeServer {
 public:
  explicit GrpcFakeServer(const std::string& socket_dir)
      : worker_address_(absl::StrCat("unix:", socket_dir, "/worker.sock")) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.AddListeningPort(worker_address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&jobs_);
    builder.RegisterService(&membership_);
    builder.RegisterService(&events_);
    builder.RegisterService(&worker_);
    server_ = builder.BuildAndStart();
  }

  std::string coordinator_address() const override { return absl::StrCat("127.0.0.1:", port_); }
  std::string worker_address() const override { return worker_address_; }
  void PutJob(const v1::Job& job) override {
    absl::MutexLock lock(&content_.mu);
    content_.jobs[job.job_id()] = job;
  }
  void AddWorker(const v1::WorkerInfo& worker) override {
    absl::MutexLock lock(&content_.mu);
    *content_.workers.add_workers() = worker;
  }
  void AddEvent(v1::Event event) override {
    absl::MutexLock lock(&content_.mu);
    event.set_number(++content_.last_event);
    content_.events.push_back(std::move(event));
  }
  void ForgetEvents(int64_t up_to_number) override {
    absl::MutexLock lock(&content_.mu);
    std::vector<v1::Event>& events = content_.events;
    while (!events.empty() && events[0].number() <= up_to_number) events.erase(events.begin());
  }
  void StartEventsAgain() override {
    absl::MutexLock lock(&content_.mu);
    content_.events.clear();
    content_.last_event = 0;
  }
  void SetWorker(const v1::WorkerStatusResponse& worker) override {
    absl::MutexLock lock(&content_.mu);
    content_.worker = worker;
  }
  void SetDump(const v1::DumpRankResponse& dump) override {
    absl::MutexLock lock(&content_.mu);
    content_.dump = dump;
  }
  std::vector<std::string> delete_request_ids() const override {
    absl::MutexLock lock(&content_.mu);
    return content_.delete_request_ids;
  }

 private:
  const std::string worker_address_;
  int port_ = 0;
  Content content_;
  FakeJobs jobs_{&content_};
  FakeMembership membership_{&content_};
  FakeEvents events_{&content_};
  FakeWorker worker_{&content_};
  std::unique_ptr<grpc::Server> server_;  // Destroyed, and with that stopped, first.
};

}  // namespace

std::unique_ptr<FakeServer> FakeServer::Start(const std::string& socket_dir) {
  return std::make_unique<GrpcFakeServer>(socket_dir);
}

v1::Job MakeJob() {
  v1::Job job;
  job.set_job_id("gpt");
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_epoch(3);
  job.set_committed_step(120);
  job.set_layout_digest(0xb1c2);
  job.mutable_config()->set_world_size(2);
  job.mutable_config()->set_strategy(v1::STRATEGY_FULL_SHARD);
  job.mutable_model()->add_units()->set_name("root");
  for (int rank : {1, 0}) {
    v1::RankPlacement* placement = job.add_placements();
    placement->set_rank(rank);
    placement->set_worker_id(absl::StrCat("w", rank));
    placement->set_device(0);
  }
  v1::RankStatus& status = (*job.mutable_ranks())[0];
  status.set_step(121);
  status.set_sequence(7);
  status.set_doing("unshard blocks.2");
  status.set_attached(true);
  status.set_parameter_bytes(int64_t{3} << 20);
  status.set_gradient_bytes(2048);
  status.set_optimizer_bytes(100);
  status.set_executor_pid(4711);
  return job;
}

CommandResult RunTessera(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int exit_code = RunCli(args, {&out, &err, /*out_is_terminal=*/false});
  return {exit_code, out.str(), err.str()};
}

}  // namespace tessera::cli
