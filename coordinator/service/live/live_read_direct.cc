// Reads whose bytes the client fetches from the workers: see live_read.h.
#include <utility>

#include "base/status_macros.h"
#include "base/steady_time.h"
#include "coordinator/service/live/live_read.h"

namespace tessera::coordinator {

absl::Status LiveRead::ServeAll(v1::LiveStateBegin* begin) {
  v1::LiveCommand serve;
  serve.mutable_serve()->set_step(begin->step());
  serve.mutable_serve()->set_client_timeout_ms(absl::ToInt64Milliseconds(times_.client));
  RETURN_IF_ERROR(SendAll(serve));
  addresses_.clear();
  for (const auto& line : session_.lines()) {
    ASSIGN_OR_RETURN(const v1::LiveEvent serving,
                     Await(line.get(), v1::LiveEvent::kServing, times_.copy));
    RETURN_IF_ERROR(NoteProgress(line->worker(), serving.serving().trained_step(),
                                 serving.serving().update_counts(), serving.serving().groups(),
                                 begin));
    addresses_.emplace_back(serving.serving().addresses().begin(),
                            serving.serving().addresses().end());
  }
  return absl::OkStatus();
}

absl::Status LiveRead::ServeDirect(v1::LiveStateBegin begin) {
  RETURN_IF_ERROR(TellBegin(std::move(begin)));
  const LiveSession::Lines lines = session_.lines();
  if (lines.empty()) return absl::CancelledError("the reading was ended");
  std::vector<bool> has_any(lines.size(), false);
  RETURN_IF_ERROR(ForEachLiveSlice(*plan_.layout, plan_.tensors, 0,
                                   static_cast<int>(line_of_rank_.size()),
                                   [&](const LiveSlice& slice) {
                                     has_any[line_of_rank_[slice.rank]] = true;
                                     return absl::OkStatus();
                                   }));
  v1::LiveStateReply reply;
  std::vector<int> source_of_line(lines.size(), -1);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!has_any[i]) continue;
    source_of_line[i] = reply.sources().sources_size();
    v1::LiveSource* source = reply.mutable_sources()->add_sources();
    source->set_worker_id(lines[i]->worker());
    source->set_session(session_.name());
    for (const std::string& address : addresses_[i]) source->add_addresses(address);
  }
  reply.mutable_sources();  // Sent even if all tensors are empty.
  RETURN_IF_ERROR(Write(reply));
  RETURN_IF_ERROR(TellTensors(source_of_line));
  RETURN_IF_ERROR(AwaitAll(lines, v1::LiveEvent::kReleased, times_.copy));
  // The workers hold nothing any more, so another read may hold.
  EndTurn();
  LiveSession::Lines sources;
  for (size_t i = 0; i < lines.size(); ++i)
    if (has_any[i]) sources.push_back(lines[i]);
  // As long as the client takes pieces: the workers watch whether it does.
  return AwaitAll(sources, v1::LiveEvent::kSent, absl::InfiniteDuration());
}

absl::Status LiveRead::AwaitAll(const LiveSession::Lines& lines, v1::LiveEvent::EventCase kind,
                                absl::Duration timeout) {
  const absl::Time deadline = SteadyNow() + timeout;
  for (size_t i = 0; i < lines.size(); ++i) {
    // The failure of any worker ends the wait. Otherwise this wait may be for the client, while the
    // client waits for the failed worker.
    LiveLine* failed = nullptr;
    const auto event = lines[i]->Next(deadline, [&] {
      for (size_t other = i + 1; other < lines.size(); ++other)
        if (lines[other]->has_failed() || lines[other]->has_ended()) failed = lines[other].get();
      return Cancelled() || failed != nullptr;
    });
    if (failed != nullptr) return NextFailure(failed, deadline);
    RETURN_IF_ERROR(event.status());
    if (event->event_case() == kind) continue;
    return absl::UnavailableError(
        absl::StrCat("worker '", lines[i]->worker(), "' answered out of order"));
  }
  return absl::OkStatus();
}

absl::Status LiveRead::NextFailure(LiveLine* line, absl::Time deadline) {
  // What the worker sent before it failed comes first.
  while (true) RETURN_IF_ERROR(line->Next(deadline, [this] { return Cancelled(); }).status());
}

absl::Status LiveRead::TellTensors(const std::vector<int>& source_of_line) {
  std::vector<int> source_of_rank;
  for (const int line : line_of_rank_)
    source_of_rank.push_back(line < 0 ? -1 : source_of_line[line]);
  std::vector<v1::LiveTensorInfo> tensors;
  for (size_t tensor = 0; tensor < plan_.tensors.size(); ++tensor)
    tensors.push_back(InfoOf(tensor));
  RETURN_IF_ERROR(
      ForEachLiveSlice(*plan_.layout, plan_.tensors, 0, static_cast<int>(line_of_rank_.size()),
                       [&](const LiveSlice& slice) {
                         // Slices come in order, so neighbours of one source join.
                         const int source = source_of_rank[slice.rank];
                         auto* extents = tensors[slice.tensor].mutable_extents();
                         if (extents->empty() || extents->rbegin()->source() != source)
                           extents->Add()->set_source(source);
                         extents->rbegin()->set_numel(extents->rbegin()->numel() + slice.numel);
                         return absl::OkStatus();
                       }));
  v1::LiveStateReply reply;
  for (v1::LiveTensorInfo& tensor : tensors) {
    *reply.mutable_tensor() = std::move(tensor);
    RETURN_IF_ERROR(Write(reply));
  }
  return absl::OkStatus();
}

}  // namespace tessera::coordinator
