// Events as a person reads them, and as JSON. Pure. Every field comes from a server and is made safe
// for a terminal.
#ifndef TESSERA_CLIENT_CLI_EVENT_VIEW_H_
#define TESSERA_CLIENT_CLI_EVENT_VIEW_H_

#include <string>

#include "proto/events.pb.h"

namespace tessera::cli {

// "2026-11-27 06:31:59Z WARNING job gpt, rank 3, worker n2: TEXT", without a line's end.
std::string EventLine(const v1::Event& event);

// {"number": 7, "kind": "RANK_MISSING", ...} on one line, without its end. What the event does not
// have (a job, a rank, a worker) is left out.
std::string EventJson(const v1::Event& event);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_EVENT_VIEW_H_
