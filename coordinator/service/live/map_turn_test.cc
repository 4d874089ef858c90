// A client that waits until it may map, and a job that is deleted meanwhile, over real gRPC. The
// test is the coordinator's only worker.
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/service/call_server.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/live/map_hub.h"
#include "coordinator/service/live/map_service.h"
#include "coordinator/service/outbox.h"
#include "coordinator/storage/memory_journal.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "net/access_token.h"
#include "net/caller_identity.h"
#include "net/credentials.h"
#include "proto/grpc_status.h"
#include "proto/live_map.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using ::testing::HasSubstr;

class MapTurnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CoordinatorHost::Options options;
    options.core.worker_timeout = absl::Hours(1000);
    ASSERT_OK_AND_ASSIGN(host_,
                         CoordinatorHost::Create(options, std::make_unique<MemoryJournal>()));
    Member member;
    member.incarnation = sender_.incarnation;
    member.num_devices = 1;
    member.address = "unix:/w";
    ASSERT_OK(host_->RegisterWorker({sender_.worker, member}));
    ASSERT_OK(host_->Connect(sender_, "", outbox_));
    ASSERT_OK_AND_ASSIGN(AccessRules rules, AccessRules::Make(OwnIdentity(), {}, {}));
    ASSERT_OK_AND_ASSIGN(const std::string token_file, AccessTokenPath());
    ASSERT_OK_AND_ASSIGN(std::string token, ReadOrMakeAccessToken(token_file));
    gate_ = std::make_unique<Gate>(host_.get(), std::move(rules),
                                   CallerIdentities(std::move(token), nullptr), Gate::Limits());
    service_ = std::make_unique<LiveMapService>(host_.get(), gate_.get(), &hub_, LiveTimes());
    calls_ = std::make_unique<CallServer>(gate_.get());
    service_->AddTo(calls_.get());
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    calls_->AddTo(&builder);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    ASSERT_OK(calls_->Start());
  }
  void TearDown() override {
    server_->Shutdown();
    host_->Stop();
    calls_->Stop();
  }
  void CreateJob(const std::string& request, int world_size) {
    JobConfig config;
    config.world_size = world_size;
    ModelSpec model;
    model.units.push_back({"root", {{"a", {20}, DType::kFp32}}});
    ASSERT_OK_AND_ASSIGN(const JobSpecPtr spec, MakeJobSpec(model, config, -1));
    ASSERT_OK(host_->CreateJob({request, job_, spec}).status());
  }
  void Prepare() {
    while (std::optional<Command> command = outbox_->Pop()) {
      const auto* prepare = std::get_if<PrepareEpoch>(&*command);
      if (prepare == nullptr) continue;
      EpochPrepared prepared;
      prepared.job = job_;
      prepared.generation = prepare->job.generation;
      prepared.epoch = prepare->job.status.epoch;
      ASSERT_OK(host_->OnStreamEvent(sender_, prepared));
      return;
    }
  }
  std::future<absl::Status> Map() {
    return std::async(std::launch::async, [this] {
      const auto stub = v1::LiveMap::NewStub(*OpenChannel({absl::StrCat("127.0.0.1:", port_)}, {}));
      grpc::ClientContext context;
      const auto stream = stub->MapLiveState(&context);
      v1::LiveStateQuery query;
      query.set_job_id(job_.value());
      v1::LiveMapReply reply;
      if (stream->Write(query)) {
        while (stream->Read(&reply)) continue;
      }
      return FromGrpcStatus(stream->Finish());
    });
  }

  const JobId job_{"gpt"};
  const Sender sender_{WorkerId("w"), Incarnation(1)};
  const std::shared_ptr<Outbox> outbox_ = std::make_shared<Outbox>([] {});
  MapHub hub_;
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<LiveMapService> service_;
  std::unique_ptr<CallServer> calls_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(MapTurnTest, JobThatIsMadeAnewMeanwhileIsAnotherOneAlsoWhereItHasNoRanksYet) {
  ASSERT_NO_FATAL_FAILURE(CreateJob("r1", 1));
  Prepare();
  for (int i = 0; i < MapHub::kMaxMapsOfAJob; ++i)
    ASSERT_OK(hub_.Enter(job_, absl::InfinitePast(), [] { return false; }));
  std::future<absl::Status> mapped = Map();
  while (hub_.num_waiting() == 0 &&
         mapped.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready)
    continue;
  ASSERT_EQ(hub_.num_waiting(), 1) << mapped.get();
  ASSERT_OK(host_->DeleteJob({"d1", job_}));
  ASSERT_NO_FATAL_FAILURE(CreateJob("r2", 2));  // There are too few devices for it.
  ASSERT_OK_AND_ASSIGN(const JobView again, host_->GetJob(job_));
  ASSERT_TRUE(again.status.placements.empty());
  hub_.Leave(job_);
  EXPECT_THAT(mapped.get(),
              StatusIs(absl::StatusCode::kAborted, HasSubstr("job 'gpt' was deleted meanwhile")));
}

}  // namespace
}  // namespace tessera::coordinator
