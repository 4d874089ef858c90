#include "client/units/node_owners.h"

#include <algorithm>
#include <utility>

namespace tessera {

// From this number on nodes are of the innermost forward that is under way.
void NodeOwners::Thread::Add(uint64_t from) {
  std::shared_ptr<const UnitForward> forward = under_way.empty() ? nullptr : under_way.back();
  // Old nodes are not asked for any more: their graphs are gone.
  if (marks.size() >= kMaxMarks) marks.erase(marks.begin(), marks.begin() + kMaxMarks / 2);
  // Two changes at one number: the later one holds.
  if (!marks.empty() && marks.back().from == from) {
    marks.back().forward = std::move(forward);
  } else {
    marks.push_back({from, std::move(forward)});
  }
}

void NodeOwners::Begin(uint64_t thread, uint64_t next, std::shared_ptr<const UnitForward> forward) {
  Thread& of_thread = threads_[thread];
  of_thread.under_way.push_back(std::move(forward));
  of_thread.Add(next);
}

void NodeOwners::End(uint64_t thread, uint64_t next) {
  Thread& of_thread = threads_[thread];
  of_thread.under_way.pop_back();
  of_thread.Add(next);
}

NodeOwners::Depths NodeOwners::depths() const {
  Depths depths;
  for (const auto& [thread, of_thread] : threads_)
    if (!of_thread.under_way.empty()) depths[thread] = of_thread.under_way.size();
  return depths;
}

void NodeOwners::EndDownTo(const Depths& depths, uint64_t this_thread, uint64_t next) {
  for (auto& [thread, of_thread] : threads_) {
    const auto depth = depths.find(thread);
    const size_t wanted = depth == depths.end() ? 0 : depth->second;
    if (of_thread.under_way.size() <= wanted) continue;
    of_thread.under_way.resize(wanted);
    // How far another thread has come is not known here. Its last nodes are not used any more.
    of_thread.Add(thread == this_thread ? next : of_thread.marks.back().from);
  }
}

std::shared_ptr<const UnitForward> NodeOwners::Find(uint64_t thread, uint64_t number) const {
  const auto of_thread = threads_.find(thread);
  // A thread without forwards made these nodes: they are of no unit.
  if (of_thread == threads_.end()) return nullptr;
  const std::vector<Mark>& marks = of_thread->second.marks;
  auto behind =
      std::upper_bound(marks.begin(), marks.end(), number,
                       [](uint64_t value, const Mark& mark) { return value < mark.from; });
  return behind == marks.begin() ? nullptr : (--behind)->forward;
}

void NodeOwners::Forget() {
  for (auto& [thread, of_thread] : threads_) {
    if (of_thread.marks.empty()) continue;
    const uint64_t from = of_thread.marks.back().from;
    of_thread.marks.clear();
    of_thread.Add(from);
  }
}

}  // namespace tessera
