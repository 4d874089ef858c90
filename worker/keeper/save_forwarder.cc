// Checkpoints of the job: what the coordinator wants, and what executors tell of any.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "worker/keeper/hosted_job.h"

namespace tessera {

void HostedJob::SendWishLocked(HostedRank& slot) {
  if (wish_.creation() == 0) return;  // There never was one.
  v1::ExecutorCommand command;
  *command.mutable_save_wish() = wish_;
  SendLocked(slot, command);
}

void HostedJob::WantSave(const v1::SaveWish& wish) {
  absl::MutexLock lock(&mu_);
  wish_ = wish;
  // The coordinator may not have heard yet that it is over.
  if (wish_.number() <= ended_saves_.wish()) wish_.set_number(0);
  for (HostedRank& slot : ranks_) SendWishLocked(slot);
}

void HostedJob::OnSaveReportLocked(Rank rank, v1::SaveReport report) {
  report.set_job_id(job_id_);
  report.set_rank(static_cast<int>(rank.value()));
  report.set_creation(creation_);
  HostedRank& slot = SlotOf(rank);
  v1::WorkerEvent event;
  if (report.phase() != v1::SaveReport::ENDED) {
    slot.open_save = report;
    *event.mutable_save() = std::move(report);
    return emit_(event);
  }
  slot.open_save.Clear();
  if (!ended_saves_.Add(report)) return;
  *event.mutable_save() = std::move(report);
  emit_(event);
}

void HostedJob::EndOpenSaveLocked(Rank rank, const std::string& how) {
  v1::SaveReport report;
  report.Swap(&SlotOf(rank).open_save);
  if (report.ordinal() == 0) return;
  report.set_phase(v1::SaveReport::ENDED);
  report.set_code(static_cast<int>(absl::StatusCode::kAborted));
  report.set_message(
      PrintableUtf8(absl::StrCat("the executor of rank ", rank.value(), " ended: ", how)));
  OnSaveReportLocked(rank, std::move(report));
}

}  // namespace tessera
