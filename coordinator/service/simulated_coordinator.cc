#include "coordinator/service/simulated_coordinator.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "coordinator/service/codec.h"
#include "coordinator/service/record_codec.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

absl::Status Died() { return absl::UnavailableError("the coordinator died"); }

}  // namespace

SimulatedCoordinator::SimulatedCoordinator(const CoordinatorOptions& options, SimulatedDice* dice,
                                           std::function<void(const Effects&)> on_durable)
    : options_(options), dice_(dice), on_durable_(std::move(on_durable)), core_(options) {
  Effects effects;
  core_.NameCluster("simulated", &effects);
  Keep(effects);
}

void SimulatedCoordinator::Keep(const Effects& effects) {
  std::vector<JournalChange> batch;
  for (const StateRecord& record : effects.records)
    EncodeRecord(record, &batch, clock_.ForJournal());
  EXPECT_OK(journal_.Append(batch, Durability::kPowerLoss));
  core_.Accept();
}

absl::Status SimulatedCoordinator::Run(Handler handler) {
  Effects effects;
  const int life = num_restarts_;
  absl::Status status = handler(core_, clock_.SteadyNow(), &effects);
  if (status.ok()) status = Write(effects);
  if (life != num_restarts_) return status;
  if (!status.ok()) {
    core_.Rollback();
    return status;
  }
  core_.Accept();
  on_durable_(effects);
  if (Dies()) return Died();
  for (const Outgoing& outgoing : effects.commands) {
    const auto stream = current_.find(outgoing.worker);
    if (stream != current_.end()) stream->second->down.push_back(Encode(outgoing.command));
    if (Dies()) return Died();
  }
  return absl::OkStatus();
}

bool SimulatedCoordinator::Dies() {
  if (points_to_death_ == 0 || --points_to_death_ > 0) return false;
  Restart(/*power_loss=*/dice_->OneIn(3));
  return true;
}

absl::Status SimulatedCoordinator::Write(const Effects& effects) {
  const bool writes = !effects.records.empty() || !effects.order_records.empty();
  if (writes && Dies()) return Died();
  std::vector<JournalChange> batch;
  for (const OrderRecord& record : effects.order_records)
    EncodeRecord(record, &batch, clock_.ForJournal());
  EXPECT_OK(journal_.Append(batch, Durability::kProcessDeath));
  if (effects.records.empty()) return absl::OkStatus();
  if (Dies()) return Died();
  if (journal_failures_ > 0) {
    --journal_failures_;
    return absl::UnavailableError("the journal failed");
  }
  batch.clear();
  for (const StateRecord& record : effects.records)
    EncodeRecord(record, &batch, clock_.ForJournal());
  EXPECT_OK(journal_.Append(batch, Durability::kPowerLoss));
  return absl::OkStatus();
}

bool SimulatedCoordinator::Tick() {
  return Run([](Coordinator& core, absl::Time now, Effects* effects) {
           core.Tick(now, effects);
           return absl::OkStatus();
         })
      .ok();  // Else the next one tries again.
}

absl::StatusOr<v1::RegisterWorkerResponse> SimulatedCoordinator::Register(
    const v1::RegisterWorkerRequest& request) {
  absl::StatusOr<RegisterWorkerEvent> event = Decode(request);
  EXPECT_OK(event);
  Member member = event->member;
  RETURN_IF_ERROR(Run([&](Coordinator& core, absl::Time now, Effects* effects) {
    if (member.incarnation == Incarnation())
      member.incarnation = core.IncarnationOf(event->worker, member.key);
    return core.RegisterWorker(event->worker, member, now, effects);
  }));
  v1::RegisterWorkerResponse response;
  response.set_incarnation(member.incarnation.value());
  return response;
}

bool SimulatedCoordinator::Send(const WorkerId& worker, const Command& command) {
  const auto stream = current_.find(worker);
  if (stream != current_.end()) stream->second->down.push_back(Encode(command));
  return stream != current_.end();
}

void SimulatedCoordinator::ReadFrom(const WorkerId& worker) {
  std::vector<SimulatedStreamPtr> streams;
  for (const SimulatedStreamPtr& stream : streams_) {
    if (stream->owner == worker) streams.push_back(stream);
  }
  if (streams.empty()) return;
  const SimulatedStreamPtr stream = streams[dice_->Roll(streams.size())];
  if (!stream->up.empty()) {
    Read(stream);
  } else if (stream->worker_left) {
    End(stream);
  }
}

void SimulatedCoordinator::Cut(const WorkerId& worker) {
  const auto stream = current_.find(worker);
  if (stream != current_.end()) End(SimulatedStreamPtr(stream->second));
}

void SimulatedCoordinator::Read(const SimulatedStreamPtr& stream) {
  const int life = num_restarts_;
  const v1::WorkerEvent event = std::move(stream->up.front());
  stream->up.pop_front();
  const absl::Status status =
      stream->sender.has_value() ? OnEvent(*stream->sender, event) : Admit(stream, event);
  if (life != num_restarts_) return;
  if (!status.ok()) return End(stream);
}

absl::Status SimulatedCoordinator::Admit(const SimulatedStreamPtr& stream,
                                         const v1::WorkerEvent& first) {
  ASSIGN_OR_RETURN(const Sender sender, DecodeSender(first));
  RETURN_IF_ERROR(core_.CheckKey(sender.worker, sender.incarnation, first.key()));
  const int life = num_restarts_;
  const SimulatedStreamPtr previous = std::exchange(current_[sender.worker], stream);
  const absl::Status status = Run([&](Coordinator& core, absl::Time now, Effects* effects) {
    return core.Connect(sender, now, effects);
  });
  if (life != num_restarts_) return status;
  if (!status.ok()) {
    if (previous != nullptr) {
      current_[sender.worker] = previous;
    } else {
      current_.erase(sender.worker);
    }
    return status;
  }
  stream->sender = sender;
  if (previous != nullptr) {
    // It is cancelled: of its events only the one that its thread has in hand is still told.
    previous->worker_left = true;
    if (previous->up.size() > 1) previous->up.resize(1);
    if (dice_->OneIn(2)) previous->up.clear();
  }
  return OnEvent(sender, first);
}

absl::Status SimulatedCoordinator::OnEvent(const Sender& sender, const v1::WorkerEvent& event) {
  if (event.event_case() == v1::WorkerEvent::EVENT_NOT_SET) return absl::OkStatus();
  absl::StatusOr<StreamEvent> decoded = Decode(event);
  EXPECT_OK(decoded);
  const absl::Status status = Run([&](Coordinator& core, absl::Time now, Effects* effects) {
    struct Visitor {
      Coordinator& core;
      const Sender& sender;
      absl::Time now;
      Effects* effects;
      absl::Status operator()(const HeartbeatEvent& e) {
        return core.Heartbeat(sender, e, now, effects);
      }
      absl::Status operator()(const OrderAnnouncement& e) {
        return core.Announce(sender, e, now, effects);
      }
      absl::Status operator()(const StepReport& e) {
        return core.ReportStep(sender, e, now, effects);
      }
      absl::Status operator()(const RankFailure& e) {
        return core.ReportFailure(sender, e, now, effects);
      }
      absl::Status operator()(const EpochPrepared& e) {
        return core.ReportPrepared(sender, e, now, effects);
      }
      absl::Status operator()(const HeldJob& e) { return core.ReportHeld(sender, e, now, effects); }
      absl::Status operator()(const SaveReport& e) {
        return core.ReportSave(sender, e, now, effects);
      }
    };
    return std::visit(Visitor{core, sender, now, effects}, *decoded);
  });
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;  // The journal failed.
}

void SimulatedCoordinator::End(const SimulatedStreamPtr& stream) {
  stream->coordinator_left = true;
  stream->down.resize(dice_->Roll(stream->down.size() + 1));
  streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
  const auto current = current_.find(stream->owner);
  if (current == current_.end() || current->second != stream) return;
  current_.erase(current);
  core_.Disconnected(stream->owner);
}

bool SimulatedCoordinator::CopyOrGoBack() {
  if (!journal_.has_copy()) {
    journal_.Copy();
    return false;
  }
  journal_.RestoreCopy();
  takes_over_ = true;
  Restart();
  return true;
}

void SimulatedCoordinator::Restart(bool power_loss) {
  ++num_restarts_;
  points_to_death_ = 0;
  if (power_loss) journal_.LosePower();
  clock_.BeginProcess(/*after_boot=*/power_loss);
  while (!streams_.empty()) End(streams_.back());
  std::vector<StateRecord> records;
  const std::vector<JournalRow> rows = *journal_.ReadAll();
  for (const JournalRow& row : rows) {
    absl::StatusOr<StateRecord> record = DecodeRecord(row, clock_.ForJournal());
    ASSERT_OK(record);
    records.push_back(*std::move(record));
  }
  absl::StatusOr<Coordinator> core = Coordinator::Restore(options_, records, clock_.SteadyNow());
  ASSERT_OK(core);
  core_ = *std::move(core);
  // Who starts it says that its journal is older, until it has taken everything over.
  if (takes_over_) TakeOverUntil(absl::InfiniteFuture());
}

void SimulatedCoordinator::TakeOverUntil(absl::Time until) {
  Effects effects;
  core_.TakeOverHeld(until, absl::ToUnixSeconds(clock_.WallNow()), &effects);
  Keep(effects);
}

void SimulatedCoordinator::EndTakeOver() {
  takes_over_ = false;
  TakeOverUntil(clock_.SteadyNow());
}

}  // namespace tessera::coordinator
