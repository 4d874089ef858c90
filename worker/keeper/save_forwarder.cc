#include "worker/keeper/save_forwarder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tessera {

void SaveForwarder::SendRequest(ExecutorSlot& slot) const {
  if (requested_.generation() == 0) return;  // There never was one.
  v1::ExecutorCommand command;
  *command.mutable_requested_save() = requested_;
  slot.Send(command);
}

void SaveForwarder::Want(const v1::RequestedSave& requested) {
  requested_ = requested;
  // The coordinator may not have heard yet that it is over.
  // Or it would be saved a second time.
  if (requested_.number() <= ended_.request()) requested_.set_number(0);
  for (ExecutorSlot& slot : *executors_) SendRequest(slot);
}

void SaveForwarder::OnReport(Rank rank, v1::SaveReport report) {
  report.set_job_id(context_->job_id);
  report.set_rank(static_cast<int>(rank.value()));
  report.set_generation(context_->generation);
  v1::WorkerEvent event;
  if (report.phase() != v1::SaveReport::ENDED) {
    // Kept, so that a death of the executor can end it.
    open_[rank] = report;
    *event.mutable_save() = std::move(report);
    return context_->emit(event);
  }
  // Without a begin it was refused, or a prior attempt had made it, or this repeats how it ended.
  if (const auto open = open_.find(rank); open != open_.end()) {
    counts_[rank].Add(open->second, report);
    open_.erase(open);
  }
  // All ranks report the same end. It is told once, whichever of them is first.
  if (!ended_.Add(report)) return;
  *event.mutable_save() = std::move(report);
  context_->emit(event);
}

SaveCounts SaveForwarder::CountsOf(Rank rank) const {
  const auto found = counts_.find(rank);
  return found == counts_.end() ? SaveCounts() : found->second;
}

void SaveForwarder::EndOpen(Rank rank, const std::string& how) {
  const auto open = open_.find(rank);
  if (open == open_.end() || open->second.ordinal() == 0) return;
  v1::SaveReport report = std::move(open->second);
  report.set_phase(v1::SaveReport::ENDED);
  // Of a requested save that was aborted the coordinator has another one tried.
  report.set_code(static_cast<int>(absl::StatusCode::kAborted));
  report.set_message(
      PrintableUtf8(absl::StrCat("the executor of rank ", rank.value(), " ended: ", how)));
  OnReport(rank, std::move(report));
}

}  // namespace tessera
