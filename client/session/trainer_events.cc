#include "client/session/trainer_events.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"

namespace tessera {

void NameGradientEvents(RankClient* client) {
  MappedRank& memory = client->memory();
  std::vector<std::unique_ptr<SharedEvent>> events;
  for (uint32_t i = 0; i < kGradientEvents; ++i) {
    absl::StatusOr<std::unique_ptr<SharedEvent>> event = memory.device->CreateSharedEvent();
    // All or none: an index must mean an event of this process.
    if (!event.ok()) return;  // The trainer waits for its GPU instead.
    client->page()->gradient_events[i] = (*event)->name();
    events.push_back(*std::move(event));
  }
  memory.gradient_events = std::move(events);
}

absl::StatusOr<uint32_t> RecordGradientEvent(RankClient* client) {
  MappedRank& memory = client->memory();
  // Used in turn. There are more of them than backwards run ahead of their GPU.
  const uint32_t index = memory.next_event++ % kGradientEvents;
  // The executor takes the names away where it cannot open what they name.
  if (!memory.gradient_events.empty() &&
      !(client->page()->gradient_events[index] == memory.gradient_events[index]->name())) {
    TESSERA_LOG(WARNING,
                "rank {}: its executor cannot open events of this process, which from now on "
                "waits for its GPU",
                client->rank());
    // For good: the executor that could not open one opens none of the others.
    memory.gradient_events.clear();
  }
  if (memory.gradient_events.empty()) {
    // 0 tells the executor that the gradient is complete.
    RETURN_IF_ERROR(memory.kernels->Finish());
    return 0;
  }
  memory.kernels->Record(memory.gradient_events[index].get());
  return 1 + index;
}

absl::StatusOr<uint32_t> EndWindow(RankClient* client, int unit) {
  if (!client->memory().slot_windows.HasSlot(unit)) return 0;
  return RecordGradientEvent(client);
}

}  // namespace tessera
