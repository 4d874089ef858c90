# Tessera::torch: the adapter of libtorch, compiled in this project against its libtorch, since no
# two versions of that have the same binary interface.
#
# libtorch is found by find_package(Torch), unless Tessera_TORCH_ROOT names a folder that has its
# include and lib, like site-packages/torch of PyPI's package. Torch's own configuration of a build
# for CUDA asks for a CUDA toolkit, which programs do not need.
if(TARGET Tessera::torch)
  return()
endif()

add_library(tessera_libtorch INTERFACE)
# PyPI's libtorch exports std::filesystem of its own. The C++ library comes before it, so that all of
# a process uses one.
target_link_libraries(tessera_libtorch INTERFACE -Wl,--push-state,--no-as-needed,-lstdc++,--pop-state)
if(Tessera_TORCH_ROOT)
  if(NOT EXISTS "${Tessera_TORCH_ROOT}/lib/libtorch.so")
    message(FATAL_ERROR "Tessera_TORCH_ROOT: ${Tessera_TORCH_ROOT} has no lib/libtorch.so")
  endif()
  target_include_directories(tessera_libtorch SYSTEM INTERFACE
    "${Tessera_TORCH_ROOT}/include" "${Tessera_TORCH_ROOT}/include/torch/csrc/api/include")
  # libtorch.so brings the devices' libraries, to which nothing refers.
  target_link_libraries(tessera_libtorch INTERFACE
    "-Wl,--push-state,--no-as-needed,${Tessera_TORCH_ROOT}/lib/libtorch.so,--pop-state"
    "${Tessera_TORCH_ROOT}/lib/libtorch_cpu.so" "${Tessera_TORCH_ROOT}/lib/libc10.so")
else()
  find_dependency(Torch)
  target_link_libraries(tessera_libtorch INTERFACE ${TORCH_LIBRARIES})
endif()

get_filename_component(_tessera_sources "${CMAKE_CURRENT_LIST_DIR}/../../tessera/src" ABSOLUTE)
file(GLOB _tessera_torch_sources "${_tessera_sources}/client/torch/*.cc")
add_library(tessera_torch STATIC EXCLUDE_FROM_ALL ${_tessera_torch_sources})
add_library(Tessera::torch ALIAS tessera_torch)
set_target_properties(tessera_torch PROPERTIES POSITION_INDEPENDENT_CODE ON)
# The warnings that a project asks for are of its own sources.
target_compile_options(tessera_torch PRIVATE -w)
target_include_directories(tessera_torch PRIVATE "${_tessera_sources}")
target_precompile_headers(tessera_torch PRIVATE <tessera/torch/libtorch.h>)
target_link_libraries(tessera_torch
  PUBLIC Tessera::tessera tessera_libtorch
  PRIVATE absl::flat_hash_map absl::synchronization)
