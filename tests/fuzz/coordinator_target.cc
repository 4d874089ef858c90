// What clients and workers tell a coordinator, and the rows of its journal.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "base/check.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/service/codec.h"
#include "coordinator/service/coordinator_host.h"
#include "coordinator/service/record_codec.h"
#include "coordinator/service/save_codec.h"
#include "coordinator/storage/memory_journal.h"
#include "proto/coordinator.pb.h"
#include "proto/saves.pb.h"
#include "proto/vault.pb.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/fuzz/messages.h"

namespace tessera::fuzz {
namespace {

using coordinator::Coordinator;
using coordinator::CoordinatorHost;
using coordinator::Effects;
using coordinator::JobView;

// What a peer gets must be what it can read: above all, text in UTF-8.
template <typename Message>
void CheckReadable(const Message& message) {
  Message again;
  TESSERA_CHECK(again.ParseFromString(message.SerializeAsString()));
}

// A coordinator whose journal stays when it goes.
class Rows : public coordinator::Journal {
 public:
  explicit Rows(std::shared_ptr<coordinator::MemoryJournal> rows) : rows_(std::move(rows)) {}

  absl::Status Append(absl::Span<const coordinator::JournalChange> batch,
                      coordinator::Durability durability) override {
    return rows_->Append(batch, durability);
  }
  absl::StatusOr<std::vector<coordinator::JournalRow>> ReadAll() override {
    return rows_->ReadAll();
  }
  int64_t num_changes() const override { return rows_->num_changes(); }

 private:
  const std::shared_ptr<coordinator::MemoryJournal> rows_;
};

std::unique_ptr<CoordinatorHost> HostOf(const std::shared_ptr<coordinator::MemoryJournal>& rows) {
  CoordinatorHost::Options options;
  options.tick_interval = absl::Hours(1);
  auto host = CoordinatorHost::Create(options, std::make_unique<Rows>(rows));
  return host.ok() ? *std::move(host) : nullptr;
}

// Runs events on a core, together with its journal.
class Core {
 public:
  template <typename Handler>
  bool Run(Handler handler) {
    Effects effects;
    const bool ok = handler(&effects);
    if (!ok) {
      core_.Rollback();
      return false;
    }
    std::vector<coordinator::JournalChange> batch;
    for (const auto& record : effects.records) coordinator::EncodeRecord(record, &batch);
    for (const auto& record : effects.order_records) coordinator::EncodeRecord(record, &batch);
    TESSERA_CHECK(rows_->Append(batch, coordinator::Durability::kPowerLoss).ok());
    core_.Accept();
    for (const coordinator::Outgoing& outgoing : effects.commands)
      CheckReadable(coordinator::Encode(outgoing.command));
    return true;
  }

  void Hear(const coordinator::Sender& sender, const coordinator::StreamEvent& event) {
    Run([&](Effects* effects) {
      return std::visit([&](const auto& e) { return Take(sender, e, effects).ok(); }, event);
    });
  }

  Coordinator& core() { return core_; }
  absl::Time now() const { return now_; }
  void Advance(absl::Duration by) {
    now_ += by;
    Run([this](Effects* effects) {
      core_.Tick(now_, effects);
      return true;
    });
    Run([this](Effects* effects) {
      core_.WatchRanks(now_, effects);
      return true;
    });
  }
  const std::shared_ptr<coordinator::MemoryJournal>& rows() const { return rows_; }

 private:
  absl::Status Take(const coordinator::Sender& s, const std::vector<coordinator::JobProgress>& e,
                    Effects* effects) {
    return core_.Heartbeat(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::OrderAnnouncement& e,
                    Effects* effects) {
    return core_.Announce(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::StepReport& e,
                    Effects* effects) {
    return core_.ReportStep(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::RankFailure& e,
                    Effects* effects) {
    return core_.ReportFailure(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::EpochPrepared& e,
                    Effects* effects) {
    return core_.ReportPrepared(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::HeldJob& e, Effects* effects) {
    return core_.ReportHeld(s, e, now_, effects);
  }
  absl::Status Take(const coordinator::Sender& s, const coordinator::SaveReport& e,
                    Effects* effects) {
    return core_.ReportSave(s, e, now_, effects);
  }

  absl::Time now_ = absl::FromUnixSeconds(1'000'000);
  Coordinator core_{coordinator::CoordinatorOptions()};
  const std::shared_ptr<coordinator::MemoryJournal> rows_ =
      std::make_shared<coordinator::MemoryJournal>();
};

void Apply(const std::string& kind, Messages* messages, Core* core) {
  v1::CreateJobRequest create;
  v1::DeleteJobRequest erase;
  v1::RegisterWorkerRequest worker;
  v1::RequestSaveRequest save;
  v1::CancelSaveRequest cancel;
  v1::WorkerEvent event;
  const absl::Time now = core->now();
  if (kind == "c" && messages->Next(&create)) {
    const auto decoded = coordinator::Decode(create);
    if (!decoded.ok()) return;
    core->Run([&](Effects* e) { return core->core().CreateJob(*decoded, now, e).ok(); });
  } else if (kind == "d" && messages->Next(&erase)) {
    const auto decoded = coordinator::Decode(erase);
    if (!decoded.ok()) return;
    core->Run([&](Effects* e) { return core->core().DeleteJob(*decoded, now, e).ok(); });
  } else if (kind == "w" && messages->Next(&worker)) {
    auto decoded = coordinator::Decode(worker);
    if (!decoded.ok()) return;
    coordinator::Member member = decoded->member;
    if (member.incarnation == Incarnation())
      member.incarnation = core->core().members().IncarnationOf(decoded->worker, member.key);
    core->Run([&](Effects* e) {
      return core->core().RegisterWorker(decoded->worker, member, now, e).ok();
    });
  } else if (kind == "s" && messages->Next(&save)) {
    const auto decoded = coordinator::Decode(save);
    if (!decoded.ok()) return;
    core->Run([&](Effects* e) { return core->core().RequestSave(*decoded, now, e).ok(); });
  } else if (kind == "x" && messages->Next(&cancel)) {
    core->Run([&](Effects* e) {
      return core->core().CancelSave(JobId(cancel.job_id()), cancel.number(), now, e).ok();
    });
  } else if ((kind == "e" || kind == "o") && messages->Next(&event)) {
    const auto sender = coordinator::DecodeSender(event);
    if (!sender.ok()) return;
    if (kind == "o") {
      core->Run([&](Effects* e) { return core->core().Connect(*sender, now, e).ok(); });
      return;
    }
    const auto decoded = coordinator::Decode(event);
    if (decoded.ok()) core->Hear(*sender, *decoded);
  } else if (kind == "t") {
    core->Advance(absl::Seconds(4));
  }
}

std::map<std::string, std::string> JobsOf(const std::vector<JobView>& views) {
  std::map<std::string, std::string> jobs;
  for (JobView view : views) {
    view.ranks.clear();          // Not journalled.
    view.status.reason.clear();  // Says what is waited for, too.
    const v1::Job job = coordinator::Encode(view);
    CheckReadable(job);
    jobs[view.id.value()] = job.SerializeAsString();
  }
  return jobs;
}

}  // namespace

// Whatever was said, the next coordinator starts from the journal, and has the same jobs.
void CoordinatorEvents(absl::string_view bytes) {
  Messages messages(bytes);
  Core core;
  v1::GetJobRequest kind;  // Its text says what comes next.
  for (int i = 0; i < 64 && messages.Next(&kind); ++i) Apply(kind.job_id(), &messages, &core);
  const std::map<std::string, std::string> jobs = JobsOf(core.core().ListJobs());
  for (const JobView& view : core.core().ListJobs()) {
    const auto saves = core.core().ListSaves(view.id);
    if (!saves.ok()) continue;
    for (const auto& save : *saves) CheckReadable(coordinator::Encode(view.id, save));
  }
  const std::unique_ptr<CoordinatorHost> next = HostOf(core.rows());
  TESSERA_CHECK(next != nullptr);
  std::map<std::string, std::string> kept = JobsOf(next->ListJobs());
  for (const auto& [id, job] : kept) {
    const auto before = jobs.find(id);
    TESSERA_CHECK(before != jobs.end());
    v1::Job then, now;
    TESSERA_CHECK(then.ParseFromString(before->second) && now.ParseFromString(job));
    TESSERA_CHECK(then.generation() == now.generation() && then.epoch() <= now.epoch() + 1);
    TESSERA_CHECK(then.model().SerializeAsString() == now.model().SerializeAsString());
  }
}

// Of anybody's, as keys and values, each after its length.
void JournalRows(absl::string_view bytes) {
  Messages messages(bytes);
  v1::VaultPut row;  // Any message of two texts.
  const auto rows = std::make_shared<coordinator::MemoryJournal>();
  std::vector<coordinator::JournalChange> batch;
  while (messages.Next(&row))
    batch.push_back({coordinator::JournalChange::Kind::kPut, row.part(), row.owner()});
  TESSERA_CHECK(rows->Append(batch, coordinator::Durability::kPowerLoss).ok());
  const std::unique_ptr<CoordinatorHost> host = HostOf(rows);
  if (host == nullptr) return;  // Refused.
  for (const JobView& view : host->ListJobs()) {
    CheckReadable(coordinator::Encode(view));
    const auto saves = host->ListSaves(view.id);
    if (!saves.ok()) continue;
    for (const auto& save : *saves) CheckReadable(coordinator::Encode(view.id, save));
  }
}

}  // namespace tessera::fuzz
