#include "coordinator/service/simulated_saves.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxEnded = 16;
constexpr int kAborted = static_cast<int>(absl::StatusCode::kAborted);

}  // namespace

void SimulatedSaves::Want(const v1::RequestedSave& requested) {
  requested_ = requested;
  if (requested_.number() <= ended_request_) requested_.set_number(0);
  for (auto& [rank, open] : open_) {
    const bool stands = open.save->number == requested_.number() && !requested_.cancelled();
    if (open.save->number != 0 && !stands && !open.save->outcome.has_value())
      open.save->cancelled = true;
  }
}

int64_t SimulatedSaves::WantedBy(int32_t rank) const {
  const bool can =
      !IsUnderWay(rank) && !requested_.cancelled() && requested_.number() > ended_request_;
  return can ? requested_.number() : 0;
}

void SimulatedSaves::Begin(int32_t rank, SimulatedSave* save) {
  open_[rank] = {save};
  Report(ReportOf(*save, rank, v1::SaveReport::BEGUN));
}

void SimulatedSaves::Work(int32_t rank) {
  const auto open = open_.find(rank);
  if (open == open_.end()) return;
  SimulatedSave* save = open->second.save;
  if (!open->second.has_written) {
    open->second.has_written = true;
    truth_->Write(save, rank);
    v1::SaveReport report = ReportOf(*save, rank, v1::SaveReport::WRITING);
    report.set_written_bytes(8);
    return Report(std::move(report));
  }
  if (!save->outcome.has_value()) return;
  open_.erase(open);
  v1::SaveReport report = ReportOf(*save, rank, v1::SaveReport::ENDED);
  report.set_code(static_cast<int>(*save->outcome));
  OnEnd(std::move(report));
}

void SimulatedSaves::EndEpoch() {
  std::map<int32_t, Open> open;
  open.swap(open_);
  for (const auto& [rank, one] : open) {
    v1::SaveReport report = ReportOf(*one.save, rank, v1::SaveReport::ENDED);
    report.set_code(kAborted);
    OnEnd(std::move(report));
  }
}

void SimulatedSaves::Forget() {
  requested_.Clear();
  ended_request_ = 0;
  open_.clear();
  ended_.clear();
}

v1::SaveReport SimulatedSaves::ReportOf(const SimulatedSave& save, int32_t rank,
                                        v1::SaveReport::Phase phase) const {
  v1::SaveReport report;
  report.set_job_id(job_id_);
  report.set_generation(generation_);
  report.set_epoch(save.epoch.value());
  report.set_rank(rank);
  report.set_ordinal(save.ordinal);
  report.set_number(save.number);
  report.mutable_spec()->set_path(save.path);
  report.set_phase(phase);
  report.set_step(save.step);
  report.set_all_bytes(8);
  return report;
}

void SimulatedSaves::Report(v1::SaveReport report) {
  v1::WorkerEvent event;
  *event.mutable_save() = std::move(report);
  emit_(std::move(event));
}

void SimulatedSaves::OnEnd(v1::SaveReport report) {
  if (report.number() != 0 && report.code() != kAborted)
    ended_request_ = std::max(ended_request_, report.number());
  const auto known = std::find_if(ended_.begin(), ended_.end(), [&](const auto& other) {
    return other.epoch() == report.epoch() && other.ordinal() == report.ordinal();
  });
  if (known == ended_.end()) {
    ended_.push_back(report);
    if (ended_.size() > kMaxEnded) {
      // What became of the request is kept: the coordinator waits for it.
      ended_.erase(std::find_if(ended_.begin(), ended_.end(), [&](const auto& other) {
        return other.number() == 0 || other.number() != ended_request_ || other.code() == kAborted;
      }));
    }
  } else if (known->code() == kAborted && report.code() != kAborted) {
    *known = report;  // This rank knows how it ended.
  } else {
    return;  // Every rank says it.
  }
  Report(std::move(report));
}

std::vector<v1::WorkerEvent> SimulatedSaves::Unacknowledged() const {
  std::vector<v1::WorkerEvent> events;
  for (const v1::SaveReport& report : ended_) *events.emplace_back().mutable_save() = report;
  return events;
}

}  // namespace tessera::coordinator
