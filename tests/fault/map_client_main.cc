// A client that maps a job's state and keeps it: what a test kills, or stops.
//
//   map_client WORKER JOB FILE
//
// Prints "mapped STEP" and, once FILE is there, "true" or "void"; then hangs.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "absl/time/clock.h"
#include "tessera/live_map.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  tessera::LiveReaderOptions options;
  options.worker_addresses = {argv[1]};
  tessera::LiveQuery query;
  query.job_id = argv[2];
  query.moments = true;
  const auto map = tessera::LiveMap::Open(options, query);
  if (!map.ok()) {
    fprintf(stderr, "%s\n", map.status().ToString().c_str());
    return 1;
  }
  printf("mapped %lld\n", static_cast<long long>((*map)->version().committed_step));
  fflush(stdout);
  struct stat info;
  while (stat(argv[3], &info) != 0) absl::SleepFor(absl::Milliseconds(1));
  printf("%s\n", (*map)->Validate() ? "true" : "void");
  fflush(stdout);
  while (true) pause();
}
