// What a rank's engine works on and with. Nothing in here is owned; all of it outlives the engine.
#ifndef TESSERA_WORKER_ENGINE_RANK_ENGINE_OPTIONS_H_
#define TESSERA_WORKER_ENGINE_RANK_ENGINE_OPTIONS_H_

#include <cstddef>
#include <vector>

#include "base/ids.h"
#include "job/job_config.h"
#include "job/job_memory.h"
#include "job/rank_topology.h"
#include "layout/model_layout.h"
#include "shm/control_page.h"
#include "shm/parameter_plan.h"
#include "worker/comm/communicator.h"
#include "worker/device/rank_kernels.h"
#include "worker/device/stream.h"
#include "worker/engine/buffer_slots.h"
#include "worker/engine/flight_recorder.h"
#include "worker/engine/gradient_events.h"
#include "worker/engine/group_page.h"
#include "worker/engine/order_gate.h"
#include "worker/engine/put_source.h"
#include "worker/engine/state_files.h"
#include "worker/engine/state_image.h"

namespace tessera {

struct RankEngineOptions {
  const ModelLayout* layout = nullptr;
  const JobConfig* config = nullptr;
  const JobMemory* memory = nullptr;
  const RankTopology* topology = nullptr;
  Rank rank;
  Epoch epoch;

  // --- Memory. Of a rank on a GPU, fields marked [GPU] are there ---
  std::vector<UnitParameters> parameters;  // By unit. [GPU]
  std::byte* state = nullptr;              // The rank's state region. [GPU, unless it is offloaded]
  std::byte* own_gradients = nullptr;      // This rank's slots, which its trainer reads and writes.
  // Where reductions find each rank's gradients: those slots; or of ranks on a GPU, slots there.
  // Null of ranks of other hosts. [GPU]
  std::vector<const std::byte*> gradients_by_rank;
  std::byte* device_gradients = nullptr;      // This rank's; null: no device. [GPU]
  GradientEvents* gradient_events = nullptr;  // Of a device. The stream's.
  GradientEvents* window_events = nullptr;    // The same, the engine's thread's.
  // Of which some rank of the job has slots; null: none has. All ranks order their windows by it.
  const ParameterPlan* slots = nullptr;
  StateImages* images = nullptr;  // Null: this process reads and writes `state` itself.
  // The parameters went with the process that had them before: the state has their values.
  bool must_publish = false;
  RankKernels* kernels = nullptr;         // The engine's thread's.
  RankKernels* stream_kernels = nullptr;  // The stream's: another object.
  ControlPage* control = nullptr;
  GroupPage* group = nullptr;
  UpdateCounts updates;
  BufferSlots* buffers = nullptr;  // The rank's.

  // Its reductions and mapped gathers know the memory above, the rest is called with the host's.
  Communicator* communicator = nullptr;
  // Brings other hosts' parameters, while the one above reduces; with one host, it is that one.
  Communicator* gatherer = nullptr;
  // Among this host's ranks; with one host, it is `communicator`.
  Communicator* host = nullptr;
  Stream* post_backward = nullptr;
  OrderGate* gate = nullptr;
  FlightRecorder* recorder = nullptr;
  StateFiles* files = nullptr;
  PutSource* puts = nullptr;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_RANK_ENGINE_OPTIONS_H_
