// What a load says of names, as executors are asked. Pure; thread-safe.
#ifndef TESSERA_CLIENT_CHECKPOINT_LOAD_REQUEST_H_
#define TESSERA_CLIENT_CHECKPOINT_LOAD_REQUEST_H_

#include "layout/name_selection.h"
#include "proto/checkpoint.pb.h"

namespace tessera {

void EncodeNames(const NameSelection& names, v1::LoadRequest* request);

}  // namespace tessera

#endif  // TESSERA_CLIENT_CHECKPOINT_LOAD_REQUEST_H_
