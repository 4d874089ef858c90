// `tessera layout --job`: where the parameters of a job are, as the coordinator says. Pure.
#ifndef TESSERA_CLIENT_CLI_JOB_LAYOUT_H_
#define TESSERA_CLIENT_CLI_JOB_LAYOUT_H_

#include <string>

#include "proto/coordinator.pb.h"

namespace tessera::cli {

// A table for each unit, with the ranks that have a part of each parameter.
std::string JobLayoutText(const v1::JobLayout& layout);
std::string JobLayoutJson(const v1::JobLayout& layout);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JOB_LAYOUT_H_
