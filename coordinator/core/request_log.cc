#include "coordinator/core/request_log.h"

#include <algorithm>
#include <utility>

namespace tessera::coordinator {

const Request* RequestLog::Find(const std::string& request_id) const {
  auto it = requests_.find(request_id);
  return it == requests_.end() ? nullptr : &it->second;
}

void RequestLog::Put(const std::string& request_id, Request request) {
  // A request of this id may have another sequence, which by_sequence_ would keep.
  Forget(request_id);
  by_sequence_[request.sequence] = request_id;
  requests_[request_id] = std::move(request);
}

void RequestLog::Forget(const std::string& request_id) {
  auto it = requests_.find(request_id);
  if (it == requests_.end()) return;
  by_sequence_.erase(it->second.sequence);
  requests_.erase(it);
}

int64_t RequestLog::NextSequence(int64_t at_least) const {
  const int64_t next = by_sequence_.empty() ? 1 : by_sequence_.rbegin()->first + 1;
  return std::max(next, at_least);
}

std::vector<std::string> RequestLog::Surplus() const {
  std::vector<std::string> surplus;
  // One more than the capacity allows, because another request is about to be put.
  int64_t excess = static_cast<int64_t>(requests_.size()) + 1 - capacity_;
  for (auto it = by_sequence_.begin(); it != by_sequence_.end() && excess > 0; ++it, --excess) {
    surplus.push_back(it->second);
  }
  return surplus;
}

}  // namespace tessera::coordinator
