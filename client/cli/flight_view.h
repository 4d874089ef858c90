// Flight records of ranks as a person reads them and as JSON. Pure. Every field comes from a worker
// and is made safe for a terminal.
#ifndef TESSERA_CLIENT_CLI_FLIGHT_VIEW_H_
#define TESSERA_CLIENT_CLI_FLIGHT_VIEW_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/worker.pb.h"

namespace tessera::cli {

// "waiting" until the operation started, "running" until it was done, then "done". Of an epoch that
// is over, what was not done will not be: "cut off, waiting" and "cut off, running".
std::string FlightState(const v1::FlightRecord& record, const v1::DumpRankResponse& dump);

// When `steady_ns` was on the wall, by the dump's anchor.
absl::Time WallTime(int64_t steady_ns, const v1::DumpRankResponse& dump);

// The rank's headline, a table of its newest `last` operations and of older ones in flight, and
// the worker's own text.
std::string FlightText(const v1::DumpRankResponse& dump, int last);

// {"ranks": [{"job_id": "gpt", "rank": 0, ..., "records": [{"number": 0, ...}]}]}, all records.
// Times are integers of nanoseconds; what has not happened is null.
std::string FlightJson(const std::vector<v1::DumpRankResponse>& dumps);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_FLIGHT_VIEW_H_
