// The part of libtorch that the SDK uses. <torch/torch.h> has it too, and takes twice as long to
// compile, as it instantiates all modules and their functions in each source.
#ifndef TESSERA_TORCH_LIBTORCH_H_
#define TESSERA_TORCH_LIBTORCH_H_

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#endif  // TESSERA_TORCH_LIBTORCH_H_
