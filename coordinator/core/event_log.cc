#include "coordinator/core/event_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tessera::coordinator {
namespace {

// Of the job, or of the worker where it is of no job.
std::string SourceOf(const ClusterEvent& event) {
  return event.job.value().empty() ? absl::StrCat("worker ", event.worker.value())
                                   : absl::StrCat("job ", event.job.value());
}

size_t BytesOf(const ClusterEvent& event) {
  return sizeof(event) + event.text.size() + event.job.value().size() +
         event.worker.value().size() + event.owner.size();
}

}  // namespace

void EventLog::Add(ClusterEvent event, absl::Time time) {
  // Cut first: what is made printable may be four times as long.
  event.text = PrintableUtf8(Utf8Prefix(event.text, kMaxTextBytes));
  event.text = std::string(Utf8Prefix(event.text, kMaxTextBytes));
  event.number = ++last_number_;
  event.time = time;
  ++counts_[event.kind];
  std::deque<int64_t>& of_source = sources_[SourceOf(event)];
  // One job that fails again and again must not push out the events of all others.
  if (of_source.size() == kMaxEventsOfSource) Drop(of_source.front());
  of_source.push_back(event.number);
  bytes_ += BytesOf(event);
  events_.emplace(event.number, std::move(event));
  while (events_.size() > kMaxEvents || bytes_ > kMaxBytes) Drop(events_.begin()->first);
}

void EventLog::Drop(int64_t number) {
  const auto event = events_.find(number);
  bytes_ -= BytesOf(event->second);
  // It is the oldest of its source, since it is the oldest of all or was chosen as that.
  const auto source = sources_.find(SourceOf(event->second));
  source->second.pop_front();
  events_.erase(event);
  if (source->second.empty()) sources_.erase(source);
}

EventLog::Page EventLog::After(int64_t number, size_t max_events, size_t max_bytes,
                               absl::FunctionRef<bool(const ClusterEvent&)> wanted) const {
  Page page;
  page.first_number = events_.empty() ? 0 : events_.begin()->first;
  page.last_number = last_number_;
  size_t bytes = 0;
  for (auto event = events_.upper_bound(number); event != events_.end(); ++event) {
    if (page.events.size() == max_events || bytes >= max_bytes) break;
    if (!wanted(event->second)) continue;
    bytes += BytesOf(event->second);
    page.events.push_back(event->second);
  }
  return page;
}

}  // namespace tessera::coordinator
