#include "coordinator/service/simulated_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/job_spec.h"
#include "coordinator/service/record_codec.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

JobSpecPtr MakeSpec(int32_t world_size, int32_t group_size) {
  JobConfig config;
  config.world_size = world_size;
  config.shard_group_size = group_size;
  if (group_size > 0) config.strategy = Strategy::kHybridShard;
  ModelSpec model;
  for (const char* name : {"root", "u1", "u2", "u3", "u4"}) {
    model.units.push_back(
        {name, {TensorSpec{absl::StrCat(name, ".w"), {8}, DType::kFp32, true, ""}}});
  }
  return *MakeJobSpec(std::move(model), config, 0);
}

CoordinatorOptions Options(int32_t group_size) {
  CoordinatorOptions options;
  // Several workers have more to disagree about.
  if (group_size == 0) options.placement = PlacementRule::kSpread;
  return options;
}

OrderEntry EntryAt(int64_t sequence) { return {"unshard", UnitId(sequence), DType::kFp32, 8}; }

}  // namespace

SimulatedCluster::SimulatedCluster(uint32_t seed, int num_workers, int32_t world_size,
                                   int32_t group_size)
    : random_(seed), world_size_(world_size), group_size_(group_size), core_(Options(group_size)) {
  for (int i = 0; i < num_workers; ++i) {
    Worker worker;
    worker.id = WorkerId(absl::StrCat("w", i));
    workers_.push_back(std::move(worker));
  }
  Create();
  for (Worker& worker : workers_) Boot(&worker);
}

void SimulatedCluster::Create() {
  ++num_jobs_;
  EXPECT_OK(Run([&](Effects* effects) {
    const auto view = core_.CreateJob(
        {absl::StrCat("create ", num_jobs_), kJob, MakeSpec(world_size_, group_size_)}, now_,
        effects);
    if (view.ok()) creation_ = view->creation;
    return view.status();
  }));
}

void SimulatedCluster::ReplaceLostJob() {
  const absl::StatusOr<JobView> view = core_.GetJob(kJob);
  if (!view.ok() || view->status.state != JobState::kLost || journal_failures_ > 0) return;
  if (is_hybrid()) {
    EXPECT_FALSE(IsHeld(nullptr)) << "the job is lost, and a worker has all of it";
  }
  past_committed_ += std::exchange(shown_committed_, 0);
  past_epochs_ += std::exchange(shown_epoch_, 0);
  resume_steps_.clear();
  announced_.clear();
  max_decided_ = 0;
  EXPECT_OK(Run([&](Effects* effects) {
    return core_.DeleteJob({absl::StrCat("delete ", num_jobs_), kJob}, now_, effects);
  }));
  Create();
}

absl::Status SimulatedCluster::Run(const Handler& handler) {
  Effects effects;
  if (absl::Status status = handler(&effects); !status.ok()) {
    core_.Rollback();
    return status;
  }
  std::vector<JournalChange> batch;
  for (const OrderRecord& record : effects.order_records) EncodeRecord(record, &batch);
  EXPECT_OK(journal_.Append(batch, Durability::kProcessDeath));
  if (!effects.records.empty() && journal_failures_ > 0) {
    --journal_failures_;
    core_.Rollback();
    return absl::OkStatus();  // As the host does for events of a stream.
  }
  batch.clear();
  for (const StateRecord& record : effects.records) EncodeRecord(record, &batch);
  EXPECT_OK(journal_.Append(batch, Durability::kPowerLoss));
  core_.Accept();
  Deliver(effects);
  CheckShown();
  return absl::OkStatus();
}

void SimulatedCluster::Deliver(const Effects& effects) {
  for (const Outgoing& outgoing : effects.commands) {
    if (const auto* release = std::get_if<OrderRelease>(&outgoing.command)) CheckRelease(*release);
    if (const auto* start = std::get_if<StartEpoch>(&outgoing.command)) {
      // One epoch, one step to resume from, and none that was decided is forgotten.
      const auto [it, is_new] = resume_steps_.emplace(start->epoch, start->resume_step);
      EXPECT_EQ(it->second, start->resume_step);
      if (is_new) {
        EXPECT_GE(start->resume_step.value(), shown_committed_);
      }
    }
    for (Worker& worker : workers_) {
      if (worker.id != outgoing.worker) continue;
      if (worker.connected) worker.inbox.push_back(outgoing.command);
    }
  }
}
void SimulatedCluster::Tell(Worker* worker, const Handler& handler) {
  const absl::Status status = Run(handler);
  // Lost for so long that it was forgotten: it will register again.
  if (absl::IsNotFound(status)) {
    worker->connected = false;
  } else {
    EXPECT_OK(status);
  }
}

void SimulatedCluster::Boot(Worker* worker) {
  const int64_t incarnation = worker->incarnation + 1;
  const WorkerId id = worker->id;
  Disconnect(worker);
  const bool was_silent = is_hybrid() && worker->silent;
  for (Worker& other : workers_) {
    // Whether or not it had been given values: the others' are of no use without.
    if (!worker->ranks.empty() && other.creation == worker->creation) other.is_partial = true;
  }
  *worker = Worker();
  worker->id = id;
  worker->incarnation = incarnation;
  worker->silent = was_silent;
  Connect(worker);
}

void SimulatedCluster::ReplaceDaemon(Worker* worker) {
  if (!worker->has_values) return Boot(worker);  // There is nothing to go on with.
  Disconnect(worker);
  worker->inbox.clear();
  worker->running = false;
  worker->epoch_is_over = true;
}
void SimulatedCluster::Rebuild(Worker* worker) {
  for (const Worker& source : workers_) {
    if (!source.running || source.epoch != worker->epoch || source.creation != worker->creation ||
        source.lacks_values) {
      continue;
    }
    worker->lacks_values = false;
    worker->decided_step = worker->first_step - 1;
    ++num_rebuilt_;
    return;
  }
}

void SimulatedCluster::Disconnect(Worker* worker) {
  if (std::exchange(worker->connected, false)) core_.Disconnected(worker->id);
}

void SimulatedCluster::Connect(Worker* worker) {
  worker->inbox.clear();
  worker->connected = false;
  if (worker->silent) return;
  Member member;
  member.incarnation = Incarnation(worker->incarnation);
  member.num_devices = 2;
  if (is_hybrid()) member.data_host = "127.0.0.1";
  absl::Status status =
      Run([&](Effects* e) { return core_.RegisterWorker(worker->id, member, now_, e); });
  // A coordinator that has just started does not know yet that the life before this one is over.
  if (absl::IsAlreadyExists(status)) return;
  EXPECT_OK(status);
  worker->connected = true;
  status = Run([&](Effects* e) { return core_.Connect(SenderOf(*worker), now_, e); });
  if (!status.ok()) worker->connected = false;  // The registration was not journalled.
  // Until the next epoch, on each connection.
  if (worker->connected && worker->epoch_is_over && !worker->ranks.empty()) {
    Tell(worker, [&](Effects* e) {
      return core_.ReportFailure(SenderOf(*worker),
                                 {kJob, worker->creation, worker->epoch,
                                  Rank(worker->ranks.begin()->first), "daemon replaced"},
                                 now_, e);
    });
  }
  for (auto& [rank, run] : worker->ranks) {
    if (!worker->connected || !worker->running) continue;
    if (run.waiting) Announce(worker, rank);
    // The newest report is sent again.
    const int64_t newest = run.step - 1;
    if (newest >= worker->first_step) {
      Tell(worker, [&, rank = rank](Effects* e) {
        return core_.ReportStep(
            SenderOf(*worker), {kJob, worker->creation, worker->epoch, Rank(rank), Step(newest), 1},
            now_, e);
      });
    }
  }
}

void SimulatedCluster::Handle(Worker* worker, const Command& command) {
  if (const auto* prepare = std::get_if<PrepareEpoch>(&command)) {
    const JobStatus& status = prepare->job.status;
    if (worker->creation != prepare->job.creation) Forget(worker);
    worker->creation = prepare->job.creation;
    EXPECT_GE(status.epoch, worker->epoch) << "an older epoch was prepared";
    // Its ranks were elsewhere since, or the job's shards are lost.
    const bool is_void = std::any_of(
        status.placements.begin(), status.placements.end(), [&](const RankPlacement& place) {
          return place.worker == worker->id && worker->epoch < place.since;
        });
    if (worker->has_values && (is_void || prepare->begin_anew)) {
      Forget(worker);
      worker->creation = prepare->job.creation;
    }
    worker->epoch = status.epoch;
    worker->running = worker->epoch_is_over = false;
    worker->ranks.clear();
    for (size_t rank = 0; rank < status.placements.size(); ++rank) {
      if (status.placements[rank].worker == worker->id) worker->ranks[rank] = {};
    }
    Tell(worker, [&](Effects* e) {
      return core_.ReportPrepared(SenderOf(*worker),
                                  {kJob,
                                   worker->creation,
                                   worker->epoch,
                                   Step(worker->decided_step),
                                   {},
                                   "",
                                   !worker->has_values || worker->lacks_values},
                                  now_, e);
    });
  } else if (const auto* start = std::get_if<StartEpoch>(&command)) {
    HandleStart(worker, *start);
  } else if (const auto* release = std::get_if<OrderRelease>(&command)) {
    auto run = worker->ranks.find(release->rank.value());
    if (release->epoch != worker->epoch || run == worker->ranks.end()) return;
    if (!run->second.waiting || run->second.sequence != release->position.sequence ||
        run->second.step != release->position.step.value()) {
      return;
    }
    run->second.waiting = false;
    ++run->second.sequence;
  } else if (const auto* drop = std::get_if<DropJob>(&command)) {
    if (worker->creation > drop->creation) return;
    if (const auto view = core_.GetJob(kJob); view.ok() && view->creation == worker->creation) {
      EXPECT_TRUE(view->status.state == JobState::kLost || !worker->has_values ||
                  worker->is_partial || max_decided_ == 0 || is_hybrid())
          << "worker " << worker->id.value() << " drops shards: " << Describe() << "\ndecided "
          << max_decided_;
    }
    Forget(worker);
  }
}

void SimulatedCluster::Forget(Worker* worker) {
  worker->creation = Creation();
  worker->epoch = Epoch();
  worker->running = false;
  worker->has_values = false;
  worker->is_partial = false;
  worker->lacks_values = false;
  worker->decided_step = 0;
  worker->ranks.clear();
}

void SimulatedCluster::HandleStart(Worker* worker, const StartEpoch& start) {
  if (start.creation != worker->creation || start.epoch != worker->epoch || worker->running ||
      worker->epoch_is_over) {
    return;
  }
  worker->running = true;
  const bool is_rebuilt =
      std::any_of(worker->ranks.begin(), worker->ranks.end(),
                  [&](const auto& rank) { return start.rebuilt_ranks.count(rank.first) > 0; });
  EXPECT_TRUE(HoldsAll(*worker) || is_rebuilt || start.resume_step == Step(0) ||
              worker->creation != creation_)
      << "there are no shards here";
  worker->has_values = true;
  worker->lacks_values = is_rebuilt;
  worker->decided_step = start.resume_step.value();
  worker->first_step = start.resume_step.value() + 1;
  for (auto& [rank, run] : worker->ranks) {
    run = {};
    run.step = worker->first_step;
  }
}

void SimulatedCluster::Announce(Worker* worker, int32_t rank) {
  RankRun& run = worker->ranks[rank];
  const OrderAnnouncement event{
      kJob,         worker->creation, worker->epoch, Rank(rank), {Step(run.step), run.sequence},
      run.announced};
  if (worker->creation == creation_) {
    announced_[{event.epoch, event.position.step, run.sequence}][event.rank] = event.entry;
  }
  Tell(worker, [&](Effects* e) { return core_.Announce(SenderOf(*worker), event, now_, e); });
}

bool SimulatedCluster::AllVoted(Creation creation, Epoch epoch, int64_t step) const {
  int num_voted = 0;
  for (const Worker& worker : workers_) {
    if (!worker.running || worker.creation != creation || worker.epoch != epoch) continue;
    for (const auto& [rank, run] : worker.ranks) {
      num_voted += run.step > step || (run.step == step && run.voted);
    }
  }
  return num_voted == world_size_;
}

void SimulatedCluster::Work(Worker* worker) {
  if (!worker->running || worker->ranks.empty()) return;
  if (worker->lacks_values) return Rebuild(worker);
  WorkOn(worker, std::next(worker->ranks.begin(), Dice(worker->ranks.size()))->first);
}

void SimulatedCluster::WorkOn(Worker* worker, int32_t rank) {
  RankRun& run = worker->ranks[rank];
  if (run.waiting) return;
  if (run.voted) {
    // Its part is done, and the next step begins, when the data plane has decided this one.
    if (AllVoted(worker->creation, worker->epoch, run.step)) FinishStep(rank, &run, worker);
  } else if (run.sequence == kOperations) {
    run.voted = true;
    if (worker->creation == creation_ && AllVoted(worker->creation, worker->epoch, run.step)) {
      max_decided_ = std::max(max_decided_, run.step);
    }
  } else if (run.step == worker->first_step) {
    run.waiting = true;
    run.announced = EntryAt(run.sequence);
    if (std::exchange(worker->deviates, false)) run.announced.operation = "reduce";
    if (worker->connected) Announce(worker, rank);
  } else {
    ++run.sequence;  // By the record.
  }
}

void SimulatedCluster::FinishStep(int32_t rank, RankRun* run, Worker* worker) {
  const StepReport report{kJob, worker->creation, worker->epoch, Rank(rank), Step(run->step), 1};
  worker->decided_step = std::max(worker->decided_step, run->step);
  ++run->step;
  run->sequence = 0;
  run->voted = false;
  if (!worker->connected) return;
  Tell(worker, [&](Effects* e) { return core_.ReportStep(SenderOf(*worker), report, now_, e); });
}

void SimulatedCluster::SendHeartbeat(Worker* worker) {
  if (worker->creation == Creation()) {
    return Tell(worker,
                [&](Effects* e) { return core_.Heartbeat(SenderOf(*worker), {}, now_, e); });
  }
  JobProgress progress{kJob, worker->creation, worker->epoch, {}};
  for (const auto& [rank, run] : worker->ranks) {
    progress.ranks[rank].step = Step(run.step);
    progress.ranks[rank].sequence = run.sequence;
  }
  Tell(worker, [&](Effects* e) { return core_.Heartbeat(SenderOf(*worker), {progress}, now_, e); });
}

void SimulatedCluster::RestartCoordinator() {
  ++num_restarts_;
  std::vector<StateRecord> records;
  const std::vector<JournalRow> rows = *journal_.ReadAll();
  for (const JournalRow& row : rows) {
    absl::StatusOr<StateRecord> record = DecodeRecord(row);
    ASSERT_OK(record);
    records.push_back(*std::move(record));
  }
  absl::StatusOr<Coordinator> core = Coordinator::Restore(Options(group_size_), records, now_);
  ASSERT_OK(core);
  core_ = *std::move(core);
  for (Worker& worker : workers_) worker.connected = false;
  CheckShown();
}

void SimulatedCluster::Misfortune(Worker* worker) {
  switch (Dice(9)) {
    case 0:
      RestartCoordinator();
      return;
    case 8:
      ReplaceDaemon(worker);
      return;
    case 1:
      Boot(worker);
      return;
    case 2:
      Disconnect(worker);
      return;
    case 3:
      worker->silent = !worker->silent;
      Disconnect(worker);
      return;
    case 4:
      journal_failures_ = 1 + Dice(3);
      return;
    case 5:
      now_ += absl::Seconds(Dice(60));  // The coordinator's machine slept.
      return;
    case 6:
      worker->deviates = true;  // Its next announcement.
      return;
    default:
      if (!worker->connected || worker->ranks.empty()) return;
      const Rank rank(worker->ranks.begin()->first);
      Tell(worker, [&](Effects* e) {
        return core_.ReportFailure(SenderOf(*worker),
                                   {kJob, worker->creation, worker->epoch, rank, "chaos"}, now_, e);
      });
  }
}

void SimulatedCluster::Act(bool chaos) {
  ReplaceLostJob();
  Worker& worker = workers_[Dice(workers_.size())];
  if (chaos && Dice(10 * world_size_) == 0) Misfortune(&worker);
  now_ += absl::Milliseconds(Dice(20));
  if (!worker.connected && Dice(4) == 0) Connect(&worker);
  switch (Dice(8)) {
    case 0:
      EXPECT_OK(Run([&](Effects* e) {
        core_.Tick(now_, e);
        return absl::OkStatus();
      }));
      break;
    case 1:
      if (worker.connected) SendHeartbeat(&worker);
      break;
    case 2:
    case 3:
    case 4:
      if (worker.connected && !worker.inbox.empty()) {
        const Command command = std::move(worker.inbox.front());
        worker.inbox.pop_front();
        Handle(&worker, command);
      }
      break;
    default:
      Work(&worker);
  }
}
void SimulatedCluster::Heal() {
  journal_failures_ = 0;
  for (Worker& worker : workers_) {
    worker.silent = false;
    if (!worker.connected) Connect(&worker);
  }
}

}  // namespace tessera::coordinator
