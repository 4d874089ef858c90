#include "tests/testing/beset_coordinator.h"

#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "tests/testing/process_view.h"

namespace tessera::testing_support {
namespace {

constexpr char kJob[] = "honest";

}  // namespace

absl::StatusOr<std::unique_ptr<BesetCoordinator>> BesetCoordinator::Start(
    const std::string& folder, const std::vector<std::string>& flags) {
  std::unique_ptr<BesetCoordinator> made(new BesetCoordinator(folder));
  ASSIGN_OR_RETURN(made->certificates_, TestCertificates::Make());
  const TlsFiles server = made->certificates_->server();
  std::vector<std::string> all = {
      "--listen=127.0.0.1:0",
      absl::StrCat("--listen=unix:", folder, "/socket"),
      absl::StrCat("--tls-cert=", server.certificate_path),
      absl::StrCat("--tls-key=", server.key_path),
      absl::StrCat("--tls-ca=", server.ca_path),
      absl::StrCat("--journal=", folder, "/journal"),
  };
  all.insert(all.end(), flags.begin(), flags.end());
  ASSIGN_OR_RETURN(made->process_, coordinator::CoordinatorProcess::Start(folder, all));
  RETURN_IF_ERROR(made->StartTraining());
  return made;
}

BesetCoordinator::~BesetCoordinator() {
  hostile_.reset();
  worker_.reset();
}

absl::Status BesetCoordinator::StartTraining() {
  const auto connect = [this](const std::string& who) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return OpenChannel({process_->address(), certificates_->FilesOf(who)}, std::move(arguments));
  };
  ASSIGN_OR_RETURN(trainer_, connect("client"));
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> of_worker, connect("worker"));
  worker_ = std::make_unique<coordinator::TestWorker>(of_worker, "node");
  RETURN_IF_ERROR(FromGrpcStatus(worker_->Register(1)));
  worker_->Connect();
  grpc::ClientContext context;
  v1::Job job;
  RETURN_IF_ERROR(FromGrpcStatus(v1::Jobs::NewStub(trainer_)->CreateJob(
      &context, coordinator::MakeCreateJob("r", kJob, /*world_size=*/1), &job)));
  worker_->Await(v1::CoordinatorCommand::kPrepare);
  worker_->Prepared(kJob, 1, 0);
  worker_->Await(v1::CoordinatorCommand::kStart);
  return absl::OkStatus();
}

absl::Status BesetCoordinator::Beset(const std::array<int, kNumHostilities>& clients) {
  HostileClients::Options options;
  options.address = process_->address();
  options.certificate = certificates_->FilesOf("other-client");
  options.unix_socket = absl::StrCat(folder_, "/socket");
  options.clients = clients;
  ASSIGN_OR_RETURN(hostile_, HostileClients::Start(options));
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> BesetCoordinator::GetJob() {
  grpc::ClientContext context;
  context.set_deadline(GrpcDeadline(SteadyNow() + absl::Seconds(20)));
  v1::GetJobRequest request;
  request.set_job_id(kJob);
  v1::Job job;
  RETURN_IF_ERROR(FromGrpcStatus(v1::Jobs::NewStub(trainer_)->GetJob(&context, request, &job)));
  return job;
}

absl::StatusOr<std::vector<absl::Duration>> BesetCoordinator::Train() {
  worker_->Heartbeat();
  worker_->ReportStep(kJob, 1, 0, ++step_);
  std::vector<absl::Duration> took;
  while (true) {
    const absl::Time begin = SteadyNow();
    ASSIGN_OR_RETURN(const v1::Job job, GetJob());
    took.push_back(SteadyNow() - begin);
    if (job.epoch() != 1 || job.state() != v1::JOB_STATE_RUNNING)
      return absl::AbortedError(absl::StrCat("the epoch ended: ", job.state_reason()));
    if (job.committed_step() >= step_) return took;
  }
}

int64_t BesetCoordinator::PeakResidentBytes() const {
  std::istringstream status(ReadFile(absl::StrCat("/proc/", process_->pid(), "/status")));
  std::string word;
  int64_t kib = 0;
  while (status >> word) {
    if (word == "VmHWM:") status >> kib;
  }
  return kib << 10;
}

int BesetCoordinator::NumThreads() const { return testing_support::NumThreads(process_->pid()); }

std::string BesetCoordinator::Log() const { return ReadFile(folder_ + "/stderr.log"); }

}  // namespace tessera::testing_support
