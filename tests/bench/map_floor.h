// What no reader of another process's memory can do without: to connect to its Unix socket, to be
// passed descriptors, and to map them. Nothing else is done, and nothing is touched.
#ifndef TESSERA_TESTS_BENCH_MAP_FLOOR_H_
#define TESSERA_TESTS_BENCH_MAP_FLOOR_H_

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "shm/region.h"

namespace tessera {
namespace bench {

// Passes its regions to each client that connects, one after the other, on a thread that waits for
// nothing else. Requires that the process does not fork afterwards.
class MapFloorServer {
 public:
  MapFloorServer(const std::string& path, int num_regions, int64_t region_bytes);
  ~MapFloorServer();

 private:
  const std::string path_;
  std::vector<SharedRegion> regions_;
  UniqueFd listener_;
  std::thread thread_;
};

// From before the connection to after the last mapping. Ends the process where it fails.
double SecondsForMapFloor(const std::string& path, int num_regions);

}  // namespace bench
}  // namespace tessera

#endif  // TESSERA_TESTS_BENCH_MAP_FLOOR_H_
