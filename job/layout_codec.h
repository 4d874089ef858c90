// A layout as the message that GetLayout answers with. Pure; thread-safe.
#ifndef TESSERA_JOB_LAYOUT_CODEC_H_
#define TESSERA_JOB_LAYOUT_CODEC_H_

#include "layout/model_layout.h"
#include "proto/coordinator.pb.h"

namespace tessera {

// Without what the layout does not know: the job's id and generation.
v1::JobLayout EncodeLayout(const ModelLayout& layout);

}  // namespace tessera

#endif  // TESSERA_JOB_LAYOUT_CODEC_H_
