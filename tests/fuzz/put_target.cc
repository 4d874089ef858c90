// What a client sends of a put, on its whole way: through the coordinator's writer to two workers,
// which stage it as real ones do.
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/check.h"
#include "base/log.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/live/live_writer.h"
#include "coordinator/storage/memory_journal.h"
#include "job/job_codec.h"
#include "proto/live_put.pb.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/messages.h"
#include "worker/keeper/put_stage.h"

namespace tessera::fuzz {
namespace {

using coordinator::CoordinatorHost;

constexpr char kJob[] = "fuzzed";
constexpr int64_t kNumelOfA = 20, kStep = 5;

ModelSpec Model() {
  ModelSpec model;
  model.units.push_back({"root", {{"a", {kNumelOfA}}, {"b", {3}, DType::kFp32, false}}});
  TensorSpec tied = model.units[0].parameters[0];
  tied.name = "tied";
  tied.shared_with = "a";
  model.units[0].parameters.push_back(tied);
  model.units.push_back({"top", {{"d", {7}, DType::kFp64}}});
  return model;
}

// One that has a rank of the job, takes whatever comes and says that all ranks have it.
class Worker {
 public:
  explicit Worker(const std::string& name)
      : id_(name), outbox_(std::make_shared<coordinator::Outbox>([] {})) {}

  void Register(CoordinatorHost* host) {
    coordinator::Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = 1;
    member.address = "unix:/" + id_.value();
    member.data_host = "127.0.0.1";
    TESSERA_CHECK(host->RegisterWorker({id_, member}).ok());
    TESSERA_CHECK(host->Connect(sender(), "", outbox_).ok());
  }
  // For the job's first epoch.
  void Prepare(CoordinatorHost* host) {
    while (std::optional<coordinator::Command> command = outbox_->Pop()) {
      const auto* prepare = std::get_if<coordinator::PrepareEpoch>(&*command);
      if (prepare == nullptr) continue;
      coordinator::EpochPrepared prepared;
      prepared.job = JobId(kJob);
      prepared.generation = prepare->job.generation;
      prepared.epoch = prepare->job.status.epoch;
      TESSERA_CHECK(host->OnStreamEvent(sender(), outbox_, prepared).ok());
      return;
    }
  }
  void Start(const v1::Job& job, coordinator::PutHub* hub) {
    auto regions = JobRegions::Create(job, *LocalRanksOf(job, id_.value()));
    TESSERA_CHECK(regions.ok());
    regions_ = std::make_unique<JobRegions>(*std::move(regions));
    regions_->group()->initialized.store(1);
    std::thread([this, hub] {
      while (std::optional<coordinator::Command> command = outbox_->Pop()) {
        if (const auto* stage = std::get_if<coordinator::StagePut>(&*command))
          Serve(hub->sessions.Find(stage->session, id_.value()));
      }
    }).detach();
  }

  void Forget() {
    absl::MutexLock lock(&mu_);
    staged_ = nullptr;
    is_offered_ = false;
  }
  bool is_offered() {
    absl::MutexLock lock(&mu_);
    return is_offered_;
  }
  std::shared_ptr<const StagedPut> staged() {
    absl::MutexLock lock(&mu_);
    return staged_;
  }

 private:
  coordinator::Sender sender() const { return {id_, Incarnation(1)}; }

  void Serve(const std::shared_ptr<coordinator::PutLine>& line) {
    if (line == nullptr || !line->Attach([] {})) return;
    std::unique_ptr<PutStage> stage;
    while (std::optional<v1::PutCommand> command = line->Pop()) {
      v1::PutEvent event;
      if (command->has_stage()) {
        auto created =
            PutStage::Create(*regions_, command->stage(), std::filesystem::temp_directory_path());
        TESSERA_CHECK(created.ok());  // The coordinator has checked all of it.
        stage = *std::move(created);
        event.mutable_ready();
      } else if (command->has_piece()) {
        TESSERA_CHECK(stage->Take(command->piece()).ok());
        continue;
      } else if (command->has_seal()) {
        auto staged = stage->Seal();
        TESSERA_CHECK(staged.ok());
        absl::MutexLock lock(&mu_);
        staged_ = *std::move(staged);
        event.mutable_staged();
      } else if (command->has_offer()) {
        absl::MutexLock lock(&mu_);
        is_offered_ = true;
        event.mutable_applied()->set_step(kStep);
      } else {
        event.mutable_withdrawn();
      }
      if (!line->Push(std::move(event))) break;
    }
    line->Detach();
  }

  const WorkerId id_;
  const std::shared_ptr<coordinator::Outbox> outbox_;
  std::unique_ptr<JobRegions> regions_;
  absl::Mutex mu_;
  std::shared_ptr<const StagedPut> staged_ ABSL_GUARDED_BY(mu_);
  bool is_offered_ ABSL_GUARDED_BY(mu_) = false;
};

// A coordinator whose job of two ranks runs, each on a worker of its own. Never ends: its threads
// wait in it.
class Cluster {
 public:
  Cluster() : a_("a"), b_("b") {
    TESSERA_CHECK(SetLogLevel("error").ok());
    CoordinatorHost::Options options;
    options.core.worker_timeout = absl::Hours(10000);
    options.core.placement = coordinator::PlacementRule::kSpread;
    auto host = CoordinatorHost::Create(options, std::make_unique<coordinator::MemoryJournal>());
    TESSERA_CHECK(host.ok());
    host_ = *std::move(host);
    JobConfig config;
    config.world_size = 2;
    config.layout.shard_alignment_bytes = 0;
    const auto spec = coordinator::MakeJobSpec(Model(), config, -1);
    TESSERA_CHECK(spec.ok());
    a_.Register(host_.get());
    b_.Register(host_.get());
    TESSERA_CHECK(host_->CreateJob({"r", JobId(kJob), *spec}).ok());
    a_.Prepare(host_.get());
    b_.Prepare(host_.get());
    const auto view = host_->GetJob(JobId(kJob));
    TESSERA_CHECK(view.ok() && view->status.bound);
    v1::Job job;
    job.set_job_id(kJob);
    *job.mutable_model() = EncodeModel(Model());
    *job.mutable_config() = EncodeJobConfig(config);
    for (size_t rank = 0; rank < view->status.placements.size(); ++rank) {
      v1::RankPlacement* placement = job.add_placements();
      placement->set_rank(static_cast<int>(rank));
      placement->set_worker_id(view->status.placements[rank].worker.value());
    }
    a_.Start(job, &hub_);
    b_.Start(job, &hub_);
  }

  std::vector<Worker*> workers() { return {&a_, &b_}; }
  absl::StatusOr<v1::PutReply> Write(coordinator::LiveWriter::Client client) {
    for (Worker* worker : workers()) worker->Forget();
    v1::PutRequest first;
    if (!client.read(&first) || !first.has_begin())
      return absl::InvalidArgumentError("the put does not begin with a begin");
    return coordinator::LiveWriter(host_.get(), &hub_, {}, std::move(client)).Write(first.begin());
  }

 private:
  Worker a_, b_;
  coordinator::PutHub hub_;
  std::unique_ptr<CoordinatorHost> host_;
};

// `sent_of_a`: of parameter "a" in fp32, which is as it is kept; empty: it was not, or not so.
void CheckStaged(const std::vector<Worker*>& workers, const std::string& sent_of_a) {
  int64_t have_of_a = 0;
  for (Worker* worker : workers) {
    const std::shared_ptr<const StagedPut> put = worker->staged();
    TESSERA_CHECK(put != nullptr && worker->is_offered());
    std::string text(put->manifest_size_bytes, 0);
    TESSERA_CHECK(put->file.Read(put->manifest_offset_bytes, text.data(), text.size()).ok());
    v1::PutManifest manifest;
    TESSERA_CHECK(manifest.ParseFromString(text));
    for (const v1::PutManifest::Range& range : manifest.ranges()) {
      if (range.job_parameter() != 0 || range.array() != 0) continue;
      have_of_a += range.numel();
      std::string values(range.numel() * sizeof(float), 0);
      TESSERA_CHECK(put->file.Read(range.offset_bytes(), values.data(), values.size()).ok());
      if (!sent_of_a.empty()) {
        TESSERA_CHECK(values ==
                      sent_of_a.substr(range.begin_elements() * sizeof(float), values.size()));
      }
    }
  }
  TESSERA_CHECK(sent_of_a.empty() || have_of_a == kNumelOfA);
}

}  // namespace

// What is refused was offered to nobody. What was accepted is with the workers that have its ranks,
// each element once.
void PutRequests(absl::string_view bytes) {
  static Cluster* const cluster = new Cluster();
  Messages messages(bytes);
  std::vector<v1::PutRequest> sent;
  coordinator::LiveWriter::Client client;
  client.read = [&](v1::PutRequest* request) {
    if (!messages.Next(request)) return false;
    sent.push_back(*request);
    return true;
  };
  client.cancelled = [] { return false; };
  client.cancel = [] {};
  const absl::StatusOr<v1::PutReply> reply = cluster->Write(std::move(client));
  if (!reply.ok()) {
    for (Worker* worker : cluster->workers()) TESSERA_CHECK(!worker->is_offered());
    return;
  }
  TESSERA_CHECK(reply->step() == kStep && sent.back().has_end());
  int64_t size_bytes = 0;
  std::string of_a;  // Where it comes first, and as it is kept.
  const v1::PutBegin& begin = sent[0].begin();
  const bool is_first =
      begin.tensors_size() > 0 && begin.tensors(0).array() == v1::LIVE_STATE_ARRAY_PARAMETER &&
      begin.tensors(0).dtype() == v1::DTYPE_FP32 &&
      (begin.tensors(0).parameter() == "a" || begin.tensors(0).parameter() == "tied");
  for (const v1::PutRequest& request : sent) {
    const std::string& data = request.piece().data();
    size_bytes += static_cast<int64_t>(data.size());
    if (is_first && of_a.size() < kNumelOfA * sizeof(float)) of_a += data;
  }
  TESSERA_CHECK(reply->size_bytes() == size_bytes);
  CheckStaged(cluster->workers(), of_a);
}

}  // namespace tessera::fuzz
