#include "coordinator/service/simulated_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::coordinator {
namespace {

CoordinatorOptions Options(const SimulatedShape& shape) {
  CoordinatorOptions options;
  options.placement = shape.placement;
  return options;
}

}  // namespace

SimulatedCluster::SimulatedCluster(uint32_t seed, const SimulatedShape& shape)
    : dice_(seed),
      acts_per_fault_(50 * shape.world_size),
      has_copies_(shape.has_copies),
      calls_(&dice_),
      coordinator_(Options(shape), &dice_, [this](const Effects& effects) { OnDurable(effects); }),
      puts_(&dice_, &coordinator_, [this](const JobId& job, Generation generation) {
        return FindTruth(job, generation);
      }) {
  const auto find_truth = [this](const JobId& job, Generation generation) {
    return FindTruth(job, generation);
  };
  const auto find_put_line = [this](const std::string& session) { return puts_.FindLine(session); };
  for (int i = 0; i < shape.num_workers; ++i) {
    nodes_.emplace_back().worker = std::make_unique<SimulatedWorker>(
        absl::StrCat("w", i), shape.num_devices, &dice_, find_truth, find_put_line);
  }
  for (int i = 0; i < shape.num_jobs; ++i) {
    const int32_t world_size = shape.num_jobs == 1 ? shape.world_size : 1 + i % shape.world_size;
    owners_.push_back(std::make_unique<SimulatedOwner>(
        SimulatedJobRequest(absl::StrCat("job", i), world_size, shape.group_size), &dice_, &calls_,
        &coordinator_, find_truth));
  }
}

SimulatedTruth* SimulatedCluster::FindTruth(const JobId& job, Generation generation) {
  const auto truth = truths_.find({job, generation});
  EXPECT_NE(truth, truths_.end());
  return truth->second.get();
}

void SimulatedCluster::Connect(Node* node) {
  SimulatedWorker* worker = node->worker.get();
  if (node->silent) {
    // Each side notices by itself.
    if (dice_.OneIn(16)) worker->Disconnect();
    if (dice_.OneIn(16)) coordinator_.Cut(worker->id());
  }
  if (node->silent || worker->connected()) return;
  if (!node->waits) return Register(node);
  if (dice_.OneIn(20)) node->waits = false;  // The deadline of the call has passed.
}

void SimulatedCluster::Register(Node* node) {
  node->waits = true;
  calls_.Send(
      [this, node, call = ++node->num_registers, request = node->worker->RegisterRequest()] {
        const absl::StatusOr<v1::RegisterWorkerResponse> response = coordinator_.Register(request);
        if (!node->waits || call != node->num_registers || node->silent || calls_.LosesReply())
          return;
        node->waits = false;
        OnRegistered(node, response);
      });
}

void SimulatedCluster::OnRegistered(Node* node,
                                    const absl::StatusOr<v1::RegisterWorkerResponse>& response) {
  // The life before this one may still be thought to be connected.
  if (absl::IsAlreadyExists(response.status()) || absl::IsUnavailable(response.status())) return;
  if (node->was_forgotten && !response.ok()) {
    // The coordinator had forgotten the worker, and then took a late call of an earlier life for
    // the worker's. A person starts it again.
    node->worker->Boot();
    return;
  }
  ASSERT_OK(response);
  node->worker->OnRegistered(*response);
  coordinator_.Open(node->worker->Connect());
}

void SimulatedCluster::ReadFrom(Node* node) {
  if (node->silent) return;
  node->worker->Read();
}

void SimulatedCluster::Work(Node* node) {
  if (!node->silent) node->worker->WorkOnPuts();
  for (const auto& [id, job] : node->worker->jobs()) {
    if (!job->is_running() || !job->lacks_values()) continue;
    for (const Node& other : nodes_) {
      const SimulatedHeldJob* source =
          other.worker->Find(job->truth().id(), job->truth().generation());
      if (source == nullptr || !source->is_running() || source->epoch() != job->epoch() ||
          source->lacks_values()) {
        continue;
      }
      job->Rebuild(*source);
      ++num_rebuilt_;
      return;
    }
  }
  node->worker->Work();
}

void SimulatedCluster::Misfortune(Node* node) {
  SimulatedWorker* worker = node->worker.get();
  switch (dice_.Roll(11)) {
    case 0:
      if (dice_.OneIn(2)) return coordinator_.DieSoon();
      coordinator_.Restart(/*power_loss=*/dice_.OneIn(3));
      return;
    case 1:
      ++node->num_registers;  // Nobody waits for its calls any more.
      node->waits = false;
      worker->Boot();
      return;
    case 2:
      worker->Disconnect();
      return;
    case 3:
      node->silent = !node->silent && num_gone_back_ == 0;
      return;
    case 4:
      coordinator_.FailJournal(1 + dice_.Roll(3));
      return;
    case 5:
      coordinator_.Sleep(absl::Seconds(dice_.Roll(60)));  // Its machine slept.
      return;
    case 6:
      for (const auto& [id, job] : worker->jobs()) job->Deviate();
      return;
    case 7:
      coordinator_.Cut(worker->id());
      return;
    case 8:
      for (const auto& [id, job] : worker->jobs()) job->Fail("chaos");
      return;
    case 9:
      coordinator_.SetWallClock((dice_.OneIn(2) ? 1 : -1) *
                                (dice_.OneIn(2) ? absl::Hours(1) : absl::Seconds(1)));
      return;
    default:
      ++node->num_registers;
      node->waits = false;
      worker->ReplaceDaemon();
  }
}

void SimulatedCluster::CopyOrGoBack() {
  for (Node& node : nodes_) node.silent = false;  // Who is away cannot be heard.
  if (num_gone_back_ > 0 || !coordinator_.CopyOrGoBack()) return;
  ++num_gone_back_;
  calls_.Clear();
  for (const auto& [key, truth] : truths_) truth->GoBack();
  for (const JobView& view : coordinator_.core().ListJobs())
    FindTruth(view.id, view.generation)->ComeBackAs(view);
  for (const auto& owner : owners_) owner->GoBack();
  statuses_.clear();
}

bool SimulatedCluster::OwnersMayAct() const {
  // With an older journal nobody makes or deletes a job while a worker is away.
  return num_gone_back_ == 0 ||
         std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) { return IsHeard(node); });
}

bool SimulatedCluster::IsHeard(const Node& node) const {
  return IsKnown(node) && coordinator_.Hears(node.worker->id());
}

bool SimulatedCluster::HasTakenOver() const {
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return IsHeard(node) &&
           std::all_of(
               node.worker->jobs().begin(), node.worker->jobs().end(), [&](const auto& job) {
                 const absl::StatusOr<JobView> view = coordinator_.core().GetJob(JobId(job.first));
                 return view.ok() && (view->generation != job.second->truth().generation() ||
                                      view->status.epoch >= job.second->epoch());
               });
  });
}

void SimulatedCluster::Act(bool chaos) {
  Node* node = &nodes_[dice_.Roll(nodes_.size())];
  if (chaos && dice_.OneIn(acts_per_fault_)) Misfortune(node);
  if (chaos && has_copies_ && dice_.OneIn(10 * acts_per_fault_)) CopyOrGoBack();
  coordinator_.Sleep(absl::Milliseconds(dice_.Roll(20)));
  if (coordinator_.takes_over() && HasTakenOver()) coordinator_.EndTakeOver();
  if (dice_.OneIn(4)) Connect(node);
  if (dice_.OneIn(4)) calls_.Deliver();
  if (dice_.OneIn(4)) puts_.Act(chaos);
  switch (dice_.Roll(16)) {
    case 0:
      if (coordinator_.Tick()) CheckDeadlines();
      break;
    case 1:
      if (dice_.OneIn(4)) node->worker->Heartbeat();
      break;
    case 2:
      if (OwnersMayAct()) owners_[dice_.Roll(owners_.size())]->Act(chaos);
      break;
    case 3:
    case 4:
    case 5:
    case 6:
      for (int i = dice_.Roll(4); i >= 0; --i) ReadFrom(node);
      break;
    case 7:
    case 8:
    case 9:
    case 10:
      for (int i = dice_.Roll(4); i >= 0 && !node->silent; --i)
        coordinator_.ReadFrom(node->worker->id());
      break;
    default:
      for (int i = dice_.Roll(4); i >= 0; --i) Work(node);
  }
}

void SimulatedCluster::Heal() {
  calls_.Lose(false);
  coordinator_.FailJournal(0);
  for (Node& node : nodes_) node.silent = false;
}

}  // namespace tessera::coordinator
