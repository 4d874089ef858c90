// Two jobs with a worker each, and arbitrary events in any order: failing journals, restarting
// coordinators, lost commands, deaths, deletions. Both jobs can never take the next step.
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/job_spec.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

const JobId kOld("old"), kNew("new");
constexpr int kOldWorld = 2, kNewWorld = 3;

JobSpecPtr Spec(int32_t world_size) {
  JobConfig config;
  config.world_size = world_size;
  ModelSpec model;
  model.units = {{"root", {TensorSpec{"w", {8, 4}, DType::kFp32, true, ""}}}};
  return *MakeJobSpec(model, config, 0);
}

// The state of a worker in its job.
struct WorkerState {
  Generation generation;
  Epoch epoch;
  bool running = false;
  bool frozen = false;
  int64_t decided = 0;
};

class World {
 public:
  explicit World(uint64_t seed) : random_(seed) {
    for (const JobId& job : {kOld, kNew}) Register(job);
    Create(kOld, kOldWorld);
  }

  void Run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFailure(); ++i) {
      Event();
      Check();
    }
  }
  int hand_overs_done() const { return done_; }
  int cancelled() const { return cancelled_; }

 private:
  static Sender SenderOf(const JobId& job) {
    return {WorkerId(job == kOld ? "a" : "b"), Incarnation(1)};
  }
  int Pick(int n) { return static_cast<int>(random_() % n); }
  const JobView* View(const JobId& job) {
    const auto view = core_.GetJob(job);
    if (!view.ok()) return nullptr;
    views_[job] = *view;
    return &views_[job];
  }

  // A handler. Now and then the journal fails; then nothing was done or sent.
  absl::Status Call(const std::function<absl::Status(Effects*)>& handler) {
    Effects effects;
    const absl::Status status = handler(&effects);
    if (!status.ok() || (!effects.records.empty() && Pick(8) == 0)) {
      core_.Rollback();
      return status.ok() ? absl::UnavailableError("the journal") : status;
    }
    core_.Accept();
    for (const StateRecord& record : effects.records) records_.push_back(record);
    for (const Outgoing& o : effects.commands) Deliver(o);
    return absl::OkStatus();
  }
  void Deliver(const Outgoing& outgoing) {
    if (Pick(10) == 0) return;  // Lost with a connection; sent again on the next.
    WorkerState& worker = workers_[outgoing.worker];
    if (const auto* prepare = std::get_if<PrepareEpoch>(&outgoing.command)) {
      const JobView& job = prepare->job;
      if (job.generation < worker.generation) return;
      if (worker.generation < job.generation) worker = {job.generation, Epoch(0), false, false, 0};
      if (job.status.epoch <= worker.epoch) return;
      worker.epoch = job.status.epoch;
      worker.running = false;
    } else if (const auto* start = std::get_if<StartEpoch>(&outgoing.command)) {
      if (start->generation != worker.generation || start->epoch != worker.epoch) return;
      worker.running = true;
      worker.frozen = start->frozen;
    } else if (const auto* drop = std::get_if<DropJob>(&outgoing.command)) {
      if (drop->generation >= worker.generation) worker.running = false;
    }
  }

  void Register(const JobId& job) {
    Member member;
    member.incarnation = Incarnation(1);
    member.num_devices = job == kOld ? kOldWorld : kNewWorld;
    while (!Call([&](Effects* e) {
              return core_.RegisterWorker(SenderOf(job).worker, member, now_, e);
            }).ok()) {
    }
  }
  void Create(const JobId& job, int world_size) {
    (void)Call([&](Effects* e) {
      return core_.CreateJob({absl::StrCat("r", ++requests_), job, Spec(world_size)}, now_, e)
          .status();
    });
  }
  void Prepared(const JobId& job) {
    const WorkerState& worker = workers_[SenderOf(job).worker];
    if (worker.running) return;
    (void)Call([&](Effects* e) {
      return core_.ReportPrepared(
          SenderOf(job), {job, worker.generation, worker.epoch, Step(worker.decided), {}, ""}, now_,
          e);
    });
  }
  void Connect(const JobId& job) {
    (void)Call([&](Effects* e) { return core_.Connect(SenderOf(job), now_, e); });
  }
  void Fail(const JobId& job) {
    const WorkerState& worker = workers_[SenderOf(job).worker];
    (void)Call([&](Effects* e) {
      return core_.ReportFailure(SenderOf(job),
                                 {job, worker.generation, worker.epoch, Rank(-1), "died"}, now_, e);
    });
    if (job == kOld) offered_.clear();
  }
  void Tick() {
    now_ += absl::Seconds(Pick(3) == 0 ? 40 : 1);
    for (const JobId& job : {kOld, kNew})
      (void)Call([&](Effects* e) { return core_.Heartbeat(SenderOf(job), {}, now_, e); });
    (void)Call([&](Effects* e) {
      core_.Tick(now_, e);
      return absl::OkStatus();
    });
  }
  void Restart() {
    auto core = Coordinator::Restore({}, records_, now_);
    ASSERT_OK(core);
    core_ = *std::move(core);
    for (const JobId& job : {kOld, kNew}) Connect(job);
  }
  void Offer() {
    const WorkerState& worker = workers_[SenderOf(kOld).worker];
    const int rank = Pick(kOldWorld);
    HandOverOffer offer = {kOld, worker.generation, worker.epoch, Rank(rank), Step(worker.decided),
                           "",   absl::Seconds(60), ++requests_};
    if (Call([&](Effects* e) { return core_.OfferHandOver(offer, now_, e); }).ok())
      offered_.insert(rank);
    if (Pick(4) == 0) {  // Its trainer gives up or dies.
      core_.WithdrawOffer(offer);
      offered_.erase(rank);
    }
  }
  void Take(bool finish) {
    const JobView* old = View(kOld);
    const WorkerState& worker = workers_[SenderOf(kNew).worker];
    if (old == nullptr || !old->hand_over.has_value()) return;
    const TakeOver event = {kOld,
                            old->generation,
                            old->hand_over->number,
                            kNew,
                            worker.generation,
                            worker.epoch,
                            Rank(Pick(kNewWorld)),
                            finish};
    (void)Call([&](Effects* e) { return core_.TakeOverJob(event, now_, e); });
  }
  // Trainers that do not wait in a hand-over.
  void StepOld() {
    WorkerState& worker = workers_[SenderOf(kOld).worker];
    if (worker.running && !worker.frozen && offered_.empty()) ++worker.decided;
  }

  void Event() {
    switch (Pick(16)) {
      case 0:
      case 1:
      case 2:
        return Offer();
      case 3:
      case 4:
      case 5:
        return Take(/*finish=*/false);
      case 6:
      case 7:
        return Take(/*finish=*/true);
      case 8:
        return Prepared(kOld);
      case 9:
        return Prepared(kNew);
      case 10:
        return Tick();
      case 11:
        return Connect(Pick(2) == 0 ? kOld : kNew);
      case 12:
        return Pick(3) == 0 ? Fail(Pick(2) == 0 ? kOld : kNew) : StepOld();
      case 13:
        return Pick(4) == 0 ? Restart() : Create(kNew, kNewWorld);
      case 14:
        if (Pick(6) == 0) {
          (void)Call([&](Effects* e) {
            return core_.DeleteJob({absl::StrCat("r", ++requests_), kNew}, now_, e);
          });
        }
        return;
      default:
        if (Pick(6) == 0) {
          (void)Call([&](Effects* e) { return core_.CancelHandOver(kOld, "a test", now_, e); });
        }
        return;
    }
  }

  void Check() {
    const JobView* old = View(kOld);
    if (old == nullptr || !old->hand_over.has_value()) return;
    const HandOver& hand_over = *old->hand_over;
    const JobView* taker = View(kNew);
    // Once told that it owns the state, a job can continue from it as long as the job exists.
    if (hand_over.phase == HandOverPhase::kAccepted) owners_.insert(hand_over.taker_generation);
    const bool is_owned = taker != nullptr && owners_.count(taker->generation) > 0;
    const WorkerState& worker = workers_[SenderOf(kOld).worker];
    const bool can_step = worker.running && !worker.frozen;
    EXPECT_FALSE(is_owned && can_step) << "of step " << worker.decided;
    if (is_owned) {
      EXPECT_EQ(hand_over.step.value(), worker.decided) << "a step is lost";
    }
    const bool is_new = last_ != std::make_pair(hand_over.number, hand_over.phase);
    last_ = {hand_over.number, hand_over.phase};
    done_ += is_new && hand_over.phase == HandOverPhase::kDone;
    cancelled_ += is_new && hand_over.phase == HandOverPhase::kCancelled;
    if (hand_over.phase == HandOverPhase::kCancelled) offered_.clear();
  }

  std::mt19937_64 random_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  Coordinator core_{CoordinatorOptions()};
  std::vector<StateRecord> records_;
  std::map<WorkerId, WorkerState> workers_;
  std::map<JobId, JobView> views_;
  std::set<int> offered_;  // Ranks of the old job whose trainers wait.
  std::set<Generation> owners_;
  std::pair<int64_t, HandOverPhase> last_;
  int64_t requests_ = 0;
  int done_ = 0, cancelled_ = 0;
};

TEST(HandOverPropertyTest, NeverCanBothJobsTakeTheNextStep) {
  int done = 0, cancelled = 0;
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    world.Run(400);
    done += world.hand_overs_done();
    cancelled += world.cancelled();
  }
  EXPECT_GT(done, 30) << "it hardly ever got there";
  EXPECT_GT(cancelled, 30);
}

}  // namespace
}  // namespace tessera::coordinator
