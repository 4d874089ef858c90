// Flight records as Chrome trace events, which Perfetto opens: a process a rank, a track a stream.
//
//   rank 0   engine         [unshard blocks.0][unshard blocks.1]        [step     ]
//            post-backward                            [reduce blocks.1] [reduce blocks.0]
//
// A slice is an operation from its start to its end; what was under way ends at the dump, and what
// an epoch's end cut off ends where the next epoch's first operation was enqueued. What never
// started is an instant. Times are microseconds of the worker's monotonic clock. Pure.
#ifndef TESSERA_CLIENT_CLI_FLIGHT_TRACE_H_
#define TESSERA_CLIENT_CLI_FLIGHT_TRACE_H_

#include <string>
#include <vector>

#include "proto/worker.pb.h"

namespace tessera::cli {

std::string FlightTrace(const std::vector<v1::DumpRankResponse>& dumps);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_FLIGHT_TRACE_H_
