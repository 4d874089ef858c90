// The places of a sweep in which executors are killed, and the same places where they are stopped,
// as by SIGSTOP, until their worker kills them for it. Stateless; thread-safe.
#ifndef TESSERA_TESTS_FAULT_KILLED_AND_STOPPED_H_
#define TESSERA_TESTS_FAULT_KILLED_AND_STOPPED_H_

#include <stdlib.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tessera {

// Of places with an `action`, as base/fault_point.h names it. Each that is stopped takes the
// worker's patience, so there are all of them only with $FULL_SWEEP in the environment, else a
// third, by a seed.
template <typename Place>
std::vector<Place> KilledAndStopped(std::vector<Place> places) {
  std::vector<Place> stopped = places;
  for (Place& place : stopped) place.action = "stop";
  if (getenv("FULL_SWEEP") == nullptr) {
    std::shuffle(stopped.begin(), stopped.end(), std::mt19937(1));
    stopped.resize((stopped.size() + 2) / 3);
  }
  places.insert(places.end(), stopped.begin(), stopped.end());
  return places;
}

}  // namespace tessera

#endif  // TESSERA_TESTS_FAULT_KILLED_AND_STOPPED_H_
