// Every RPC of the coordinator, called by every role.
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status_matchers.h"
#include "coordinator/service/server.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "net/credentials.h"
#include "net/test_certificates.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/events.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/hand_over.grpc.pb.h"
#include "proto/live_put.pb.h"
#include "proto/live_state.pb.h"
#include "proto/saves.grpc.pb.h"

namespace tessera::coordinator {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using testing::HasSubstr;

const std::set<std::string> kAll = {"client", "other-client", "reader", "operator", "worker"};
const std::set<std::string> kCreators = {"client", "other-client", "operator"};
const std::set<std::string> kReaders = {"client", "reader", "operator"};  // "client" is the owner.
const std::set<std::string> kChangers = {"client", "operator"};
const std::set<std::string> kWorkers = {"worker"};

// Who may, by "Service.Method". A new method fails the test until somebody decides it.
const std::map<std::string, std::set<std::string>>& Allowed() {
  static const auto* const allowed = new std::map<std::string, std::set<std::string>>{
      {"Jobs.CreateJob", kCreators},
      {"Jobs.GetJob", kReaders},
      {"Jobs.GetLayout", kReaders},
      {"Jobs.ListJobs", kAll},
      {"Jobs.WatchJob", kReaders},
      {"Jobs.DeleteJob", kChangers},
      {"Membership.RegisterWorker", kWorkers},
      {"Membership.Connect", kWorkers},
      {"Membership.ListWorkers", kAll},
      {"Events.ListEvents", kReaders},  // Of this job; without one, everybody.
      {"Checkpoints.RequestSave", kChangers},
      {"Checkpoints.GetSave", kReaders},
      {"Checkpoints.CancelSave", kChangers},
      {"Checkpoints.ListCheckpoints", kReaders},
      {"LiveState.ListLiveState", kReaders},
      {"LiveState.GetLiveState", kReaders},
      {"LiveRelay.Relay", kWorkers},
      {"LivePut.PutLiveState", kChangers},
      {"LivePutRelay.Relay", kWorkers},
      {"HandOvers.Offer", kChangers},
      {"HandOvers.AwaitEnd", kReaders},
      {"HandOvers.Cancel", kChangers},
      {"HandOvers.Get", kReaders},
      {"HandOvers.Read", kReaders},
      {"HandOvers.TakeOver", kChangers},
  };
  return *allowed;
}

std::vector<const MethodDescriptor*> Methods() {
  std::vector<const MethodDescriptor*> methods;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Job::descriptor()->file(), v1::Event::descriptor()->file(),
        v1::Save::descriptor()->file(), v1::HandOverInfo::descriptor()->file(),
        v1::LiveStateQuery::descriptor()->file(), v1::PutReply::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) {
      if (file->service(s)->name() == "LiveFetch") continue;  // The workers'.
      for (int m = 0; m < file->service(s)->method_count(); ++m)
        methods.push_back(file->service(s)->method(m));
    }
  }
  return methods;
}

std::string NameOf(const MethodDescriptor* method) {
  return absl::StrCat(method->service()->name(), ".", method->name());
}

// Names job "gpt" and worker "node" wherever `message` names one.
void NameJobAndWorker(Message* message, const std::string& request_id) {
  const auto* descriptor = message->GetDescriptor();
  const auto* reflection = message->GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (field->is_repeated()) continue;
    if (field->name() == "job_id" || field->name() == "taker_job_id")
      reflection->SetString(message, field, "gpt");
    if (field->name() == "worker_id") reflection->SetString(message, field, "node");
    if (field->name() == "path") reflection->SetString(message, field, "/saves/x");
    if (field->name() == "request_id") reflection->SetString(message, field, request_id);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE &&
        (field->name() == "hello" || field->name() == "begin" || field->name() == "form"))
      NameJobAndWorker(reflection->MutableMessage(message, field), request_id);
  }
}

class GateTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = TestCertificates::Make();
    if (absl::IsNotFound(made.status())) GTEST_SKIP() << made.status().message();
    ASSERT_OK(made);
    certificates_ = *std::move(made);
    CoordinatorServer::Options options;
    options.listen_address = "127.0.0.1:0";
    options.tls = certificates_->server();
    options.save_roots = {"/saves"};
    ASSERT_OK_AND_ASSIGN(server_, CoordinatorServer::Start(options));
    for (const std::string& who : kAll) {
      ASSERT_OK_AND_ASSIGN(channels_[who], OpenChannel({absl::StrCat("127.0.0.1:", server_->port()),
                                                        certificates_->FilesOf(who)},
                                                       grpc::ChannelArguments()));
    }
  }
  absl::Status CreateJob(const std::string& who, const std::string& job = "gpt") {
    v1::CreateJobRequest request;
    request.set_request_id(absl::StrCat("r", ++num_requests_));
    request.set_job_id(job);
    JobConfig config;
    config.world_size = 2;
    *request.mutable_config() = EncodeJobConfig(config);
    v1::UnitSpec* unit = request.mutable_model()->add_units();
    unit->set_name("unit");
    v1::ParameterSpec* parameter = unit->add_parameters();
    parameter->set_name("w");
    parameter->add_shape(4);
    parameter->set_dtype(v1::DTYPE_FP32);
    parameter->set_requires_grad(true);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::Job reply;
    return FromGrpcStatus(v1::Jobs::NewStub(channels_[who])->CreateJob(&context, request, &reply));
  }
  // Sends one message and reads until the call ends. A call that waits ends by its deadline.
  absl::Status Call(const std::string& who, const MethodDescriptor* method, int deadline_ms) {
    std::unique_ptr<Message> message(
        MessageFactory::generated_factory()->GetPrototype(method->input_type())->New());
    NameJobAndWorker(message.get(), absl::StrCat("call", ++num_requests_));
    grpc::Slice slice(message->SerializeAsString());
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(deadline_ms));
    grpc::CompletionQueue queue;
    grpc::GenericStub stub(channels_[who]);
    const auto call = stub.PrepareCall(
        &context, absl::StrCat("/", method->service()->full_name(), "/", method->name()), &queue);
    const auto await = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    call->StartCall(nullptr);
    bool ok = await();
    if (ok) {
      call->Write(request, nullptr);
      ok = await();
    }
    if (ok) {
      call->WritesDone(nullptr);
      await();
    }
    grpc::ByteBuffer reply;
    for (bool more = true; more;) {
      call->Read(&reply, nullptr);
      more = await();
    }
    grpc::Status status;
    call->Finish(&status, nullptr);
    await();
    return FromGrpcStatus(status);
  }

  int num_requests_ = 0;
  std::unique_ptr<TestCertificates> certificates_;
  std::unique_ptr<CoordinatorServer> server_;
  std::map<std::string, std::shared_ptr<grpc::Channel>> channels_;
};

TEST_F(GateTest, EachRoleMayCallWhatTheTableSaysAndNothingElse) {
  constexpr int kLongMs = 20'000;  // A call that is let in against the table may wait as long.
  constexpr int kShortMs = 200;    // One that may be let in, and then waits for something.
  std::set<std::string> seen;
  for (const MethodDescriptor* method : Methods()) {
    const std::string name = NameOf(method);
    SCOPED_TRACE(name);
    seen.insert(name);
    ASSERT_TRUE(Allowed().count(name) > 0) << "who may call it?";
    for (const std::string& who : kAll) {
      SCOPED_TRACE(who);
      ASSERT_OK(CreateJob("client"));
      const bool may = Allowed().at(name).count(who) > 0;
      const absl::Status status = Call(who, method, may ? kShortMs : kLongMs);
      EXPECT_NE(status.code(), absl::StatusCode::kUnauthenticated) << status;
      EXPECT_NE(status.code(), absl::StatusCode::kUnimplemented) << status;
      EXPECT_EQ(absl::IsPermissionDenied(status), !may) << status;
    }
  }
  EXPECT_EQ(seen.size(), Allowed().size());
}

TEST_F(GateTest, EachCallThatChangesSomethingIsOneAuditLineOfWhoWhereAndWhat) {
  // What the lines name, by "Service.Method"; the callers are the first ones of the table above.
  const std::map<std::string, std::pair<std::string, std::string>> changes = {
      {"Jobs.CreateJob", {"client", "CreateJob job='gpt'"}},
      {"Jobs.DeleteJob", {"client", "DeleteJob job='gpt'"}},
      {"Membership.RegisterWorker", {"tessera:worker:node", "RegisterWorker worker=node"}},
      {"Checkpoints.RequestSave", {"client", "RequestSave job='gpt'"}},
      {"Checkpoints.CancelSave", {"client", "CancelSave job='gpt'"}},
      {"LivePut.PutLiveState", {"client", "PutLiveState job='gpt'"}},
      {"HandOvers.Offer", {"client", "OfferHandOver job='gpt'"}},
      {"HandOvers.Cancel", {"client", "CancelHandOver job='gpt'"}},
      {"HandOvers.TakeOver", {"client", "TakeOver job='gpt'"}},
  };
  constexpr int kLongMs = 20'000;  // None of the changes waits here.
  constexpr int kShortMs = 200;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const MethodDescriptor* const erase = pool.FindMethodByName("tessera.v1.Jobs.DeleteJob");
  const MethodDescriptor* const save = pool.FindMethodByName("tessera.v1.Checkpoints.RequestSave");
  SetLogContext("test");
  testing::internal::CaptureStderr();
  EXPECT_OK(CreateJob("client"));
  for (const MethodDescriptor* method : Methods()) {
    const std::string name = NameOf(method);
    if (name == "Jobs.CreateJob" || name == "Jobs.DeleteJob") continue;
    const bool is_change = changes.count(name) > 0;
    Call(*Allowed().at(name).begin(), method, is_change ? kLongMs : kShortMs).IgnoreError();
  }
  EXPECT_TRUE(absl::IsPermissionDenied(Call("other-client", erase, kLongMs)));
  EXPECT_OK(Call("client", erase, kLongMs));
  EXPECT_TRUE(absl::IsNotFound(Call("client", save, kLongMs)));
  const std::string log = testing::internal::GetCapturedStderr();
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(line, "audit: ")) lines.emplace_back(line);
  }
  const auto line_of = [](const std::string& who, const std::string& what) {
    return testing::ContainsRegex(
        absl::StrCat("audit: certificate:", who, " at ipv4:127.0.0.1:[0-9]+: ", what, ": "));
  };
  std::vector<testing::Matcher<std::string>> expected = {
      line_of("other-client", "DeleteJob job='gpt': PERMISSION_DENIED"),
      line_of("client", "RequestSave job='gpt': NOT_FOUND")};
  for (const auto& [name, who_and_what] : changes)
    expected.push_back(line_of(who_and_what.first, who_and_what.second));
  EXPECT_THAT(lines, testing::UnorderedElementsAreArray(expected));
}

TEST_F(GateTest, EventsOfAJobAreForThoseWhoMayReadItAlsoOnceItIsGone) {
  ASSERT_OK(CreateJob("client", "his"));
  ASSERT_OK(CreateJob("other-client", "others"));
  v1::RegisterWorkerRequest worker;
  worker.set_request_id("w");
  worker.set_worker_id("node");
  worker.set_num_devices(1);
  worker.set_key(std::string(32, 'k'));
  v1::RegisterWorkerResponse registered;
  grpc::ClientContext register_context;
  ASSERT_OK(FromGrpcStatus(v1::Membership::NewStub(channels_["worker"])
                               ->RegisterWorker(&register_context, worker, &registered)));
  v1::DeleteJobRequest erase;
  erase.set_request_id("d");
  erase.set_job_id("his");
  grpc::ClientContext erase_context;
  v1::DeleteJobResponse erased;
  ASSERT_OK(FromGrpcStatus(
      v1::Jobs::NewStub(channels_["client"])->DeleteJob(&erase_context, erase, &erased)));
  // The jobs and workers that events are of; "" after a refusal.
  const auto seen = [&](const std::string& who, const std::string& job) {
    v1::ListEventsRequest request;
    request.set_job_id(job);
    grpc::ClientContext context;
    v1::ListEventsResponse reply;
    std::set<std::string> names;
    const grpc::Status status =
        v1::Events::NewStub(channels_[who])->ListEvents(&context, request, &reply);
    if (status.error_code() == grpc::StatusCode::PERMISSION_DENIED)
      return std::set<std::string>{""};
    EXPECT_OK(FromGrpcStatus(status));
    for (const v1::Event& event : reply.events())
      names.insert(event.job_id().empty() ? event.worker_id() : event.job_id());
    return names;
  };
  using Names = std::set<std::string>;
  EXPECT_EQ(seen("client", ""), (Names{"his", "node"}));
  EXPECT_EQ(seen("other-client", ""), (Names{"others", "node"}));
  EXPECT_EQ(seen("reader", ""), (Names{"his", "others", "node"}));
  EXPECT_EQ(seen("operator", ""), (Names{"his", "others", "node"}));
  EXPECT_EQ(seen("worker", ""), (Names{"node"}));
  EXPECT_EQ(seen("client", "others"), (Names{""}));
  EXPECT_EQ(seen("client", "his"), (Names{"his"})) << "it is gone";
  EXPECT_EQ(seen("other-client", "his"), (Names{}));
  // Another job of the name, of another owner.
  ASSERT_OK(CreateJob("other-client", "his"));
  EXPECT_EQ(seen("client", ""), (Names{"his", "node"})) << "of the job that it had";
  EXPECT_EQ(seen("client", "his"), (Names{""}));
}

TEST_F(GateTest, JobOfAnotherOwnerIsNeitherJoinedNorDeleted) {
  ASSERT_OK(CreateJob("client"));
  ASSERT_OK(CreateJob("client"));
  EXPECT_THAT(CreateJob("other-client"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       HasSubstr("job 'gpt' is not of 'certificate:other-client': its owner is "
                                 "'certificate:client'")));
  EXPECT_OK(CreateJob("operator")) << "who may do all";
}

TEST_F(GateTest, TakeOverNeedsTheRightToBothJobs) {
  ASSERT_OK(CreateJob("client", "his"));
  ASSERT_OK(CreateJob("other-client", "others"));
  const auto take_over = [&](const std::string& job, const std::string& taker) {
    v1::TakeOverRequest request;
    request.set_job_id(job);
    request.set_taker_job_id(taker);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::HandOverInfo reply;
    return FromGrpcStatus(
        v1::HandOvers::NewStub(channels_["client"])->TakeOver(&context, request, &reply));
  };
  EXPECT_THAT(take_over("others", "his"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("job 'others'")));
  EXPECT_THAT(take_over("his", "others"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("job 'others'")));
  EXPECT_NE(take_over("his", "his").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(GateTest, WorkerIsBoundToItsId) {
  v1::RegisterWorkerRequest request;
  request.set_request_id("r");
  request.set_worker_id("another");
  request.set_num_devices(1);
  request.set_key(std::string(32, 'k'));
  const auto membership = v1::Membership::NewStub(channels_["worker"]);
  v1::RegisterWorkerResponse reply;
  const auto register_it = [&] {
    grpc::ClientContext context;
    return FromGrpcStatus(membership->RegisterWorker(&context, request, &reply));
  };
  EXPECT_THAT(register_it(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is not worker 'another'")));
  request.set_worker_id("node");
  EXPECT_OK(register_it());
  EXPECT_EQ(reply.incarnation(), 1);
  EXPECT_OK(register_it());
  EXPECT_EQ(reply.incarnation(), 1) << "it has the same key";
}

TEST_F(GateTest, LifeOfAWorkerIsGoneOnWithByItsKeyAlone) {
  v1::RegisterWorkerRequest request;
  request.set_request_id("r");
  request.set_worker_id("node");
  request.set_num_devices(1);
  request.set_key(std::string(32, 'k'));
  const auto membership = v1::Membership::NewStub(channels_["worker"]);
  v1::RegisterWorkerResponse reply;
  const auto register_it = [&] {
    grpc::ClientContext context;
    return FromGrpcStatus(membership->RegisterWorker(&context, request, &reply));
  };
  const auto connect = [&](const std::string& key, int64_t incarnation) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const auto stream = membership->Connect(&context);
    v1::WorkerEvent first;
    first.set_worker_id("node");
    first.set_incarnation(incarnation);
    first.set_key(key);
    stream->Write(first);
    stream->WritesDone();
    v1::CoordinatorCommand command;
    while (stream->Read(&command)) continue;
    return FromGrpcStatus(stream->Finish());
  };
  ASSERT_OK(register_it());
  EXPECT_OK(connect(std::string(32, 'k'), 1));
  EXPECT_THAT(connect(std::string(32, 'x'), 1),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another process")));
  request.set_key(std::string(32, 'x'));
  request.set_incarnation(1);
  EXPECT_THAT(register_it(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another process")));
  request.set_incarnation(0);
  EXPECT_OK(register_it());
  EXPECT_EQ(reply.incarnation(), 2) << "a new life, since the one before is not connected";
  EXPECT_THAT(connect(std::string(32, 'y'), 2),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("another process")));
  EXPECT_OK(connect(std::string(32, 'x'), 2));
  EXPECT_THAT(connect(std::string(32, 'k'), 1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stale")));
}

TEST_F(GateTest, CheckpointsOutsideTheSaveRootsAreRefused) {
  ASSERT_OK(CreateJob("client"));
  const auto save = [&](const std::string& who, const std::string& path) {
    grpc::ClientContext context;
    v1::RequestSaveRequest request;
    request.set_request_id(absl::StrCat("s", ++num_requests_));
    request.set_job_id("gpt");
    request.mutable_spec()->set_path(path);
    v1::Save reply;
    return FromGrpcStatus(
        v1::Checkpoints::NewStub(channels_[who])->RequestSave(&context, request, &reply));
  };
  EXPECT_OK(save("client", "/saves/gpt"));
  for (const char* who : {"client", "operator"}) {
    EXPECT_THAT(save(who, "/etc/x"),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("--save-root")));
    EXPECT_THAT(save(who, "/saves/../etc/x"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("..")));
  }
}

}  // namespace
}  // namespace tessera::coordinator
