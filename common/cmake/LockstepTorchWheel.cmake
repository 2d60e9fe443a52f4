# Finds LibTorch in the PyTorch wheel: LOCKSTEP_TORCH_WHEEL is the folder "torch" in site-packages. The wheel's own
# TorchConfig.cmake requires a CUDA toolkit with nvcc, which nothing here needs. CUDA and NCCL come from the wheels that
# PyTorch itself depends on, in the folder "nvidia" beside it, or else from a toolkit (CUDAToolkit_ROOT, /usr/local/cuda).
#
# Targets: torch, c10; for a CUDA build of PyTorch also c10_cuda, lockstep_wheel_cudart and, if NCCL is found,
# lockstep_wheel_nccl.
# Variables: Torch_FOUND, Torch_VERSION, LOCKSTEP_TORCH_CUDA (the major version of CUDA that it was built for, or
# empty), NCCL_FOUND.

get_filename_component(wheel "${LOCKSTEP_TORCH_WHEEL}" ABSOLUTE)
if(NOT EXISTS ${wheel}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "lockstep: LOCKSTEP_TORCH_WHEEL='${wheel}' has no lib/libtorch_cpu.so; it must be the folder "
                      "'torch' of an installed PyTorch: the one that examples/pip_torch.sh prints, or that of "
                      "python3 -c 'import torch; print(torch.__path__[0])'")
endif()
file(STRINGS ${wheel}/version.py version REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" Torch_VERSION "${version}")
file(STRINGS ${wheel}/version.py cuda REGEX "^cuda.*'[0-9]+\\.")
string(REGEX REPLACE ".*'([0-9]+)\\..*" "\\1" LOCKSTEP_TORCH_CUDA "${cuda}")
file(STRINGS ${wheel}/lib/libc10.so strings REGEX "__cxx1112basic_string" LIMIT_COUNT 1)
if(NOT strings)
  message(FATAL_ERROR "lockstep: PyTorch ${Torch_VERSION} uses the std::string from before C++11; install a wheel of 2.6 or later")
endif()
set(Torch_FOUND TRUE)
set(NCCL_FOUND FALSE)

function(lockstep_import target file)
  cmake_parse_arguments(arg "" "" "INCLUDE;LINK" ${ARGN})
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${file} INTERFACE_INCLUDE_DIRECTORIES "${arg_INCLUDE}"
                        INTERFACE_LINK_LIBRARIES "${arg_LINK}")
endfunction()

lockstep_import(c10 ${wheel}/lib/libc10.so INCLUDE ${wheel}/include)
lockstep_import(torch_cpu ${wheel}/lib/libtorch_cpu.so
                INCLUDE ${wheel}/include ${wheel}/include/torch/csrc/api/include LINK c10)
add_library(torch INTERFACE IMPORTED GLOBAL)
target_link_libraries(torch INTERFACE torch_cpu)

# The wheel contains the headers of a newer fmt than the fmt library that all targets link. The headers of that library
# must be found first.
if(EXISTS ${wheel}/include/fmt)
  get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/lockstep-fmt)
  file(CREATE_LINK ${fmt_include}/fmt ${CMAKE_BINARY_DIR}/lockstep-fmt/fmt SYMBOLIC)
  set_property(TARGET c10 torch_cpu PROPERTY INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/lockstep-fmt
               ${wheel}/include ${wheel}/include/torch/csrc/api/include)
endif()

if(LOCKSTEP_TORCH_CUDA)
  get_filename_component(site_packages ${wheel} DIRECTORY)
  set(toolkits ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT} /usr/local/cuda)
  # Up to CUDA 12 each part of CUDA has a separate folder; later versions share one. The libraries have only their
  # run-time names.
  set(cuda_hints ${site_packages}/nvidia/cu${LOCKSTEP_TORCH_CUDA} ${site_packages}/nvidia/cuda_runtime ${toolkits})
  set(nccl_hints ${site_packages}/nvidia/nccl ${toolkits})
  find_path(LOCKSTEP_CUDA_INCLUDE cuda_runtime_api.h HINTS ${cuda_hints} PATH_SUFFIXES include)
  find_library(LOCKSTEP_CUDART libcudart.so.${LOCKSTEP_TORCH_CUDA} HINTS ${cuda_hints} PATH_SUFFIXES lib lib64)
  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include)
  find_library(LOCKSTEP_NCCL libnccl.so.2 HINTS ${nccl_hints} PATH_SUFFIXES lib lib64)
  mark_as_advanced(LOCKSTEP_CUDA_INCLUDE LOCKSTEP_CUDART LOCKSTEP_NCCL_INCLUDE LOCKSTEP_NCCL)
  if(NOT LOCKSTEP_CUDA_INCLUDE OR NOT LOCKSTEP_CUDART)
    message(FATAL_ERROR "lockstep: PyTorch ${Torch_VERSION} is built for CUDA ${LOCKSTEP_TORCH_CUDA}, whose "
                        "cuda_runtime_api.h and libcudart.so.${LOCKSTEP_TORCH_CUDA} were found neither in "
                        "${site_packages}/nvidia nor in a toolkit (CUDAToolkit_ROOT); install the wheels that PyTorch "
                        "depends on, and cuda-toolkit[crt]")
  endif()
  lockstep_import(lockstep_wheel_cudart ${LOCKSTEP_CUDART} INCLUDE ${LOCKSTEP_CUDA_INCLUDE})
  lockstep_import(c10_cuda ${wheel}/lib/libc10_cuda.so LINK c10 lockstep_wheel_cudart)
  if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_NCCL)
    lockstep_import(lockstep_wheel_nccl ${LOCKSTEP_NCCL} INCLUDE ${LOCKSTEP_NCCL_INCLUDE} LINK lockstep_wheel_cudart)
    set(NCCL_FOUND TRUE)
  endif()

  # LibTorch uses CUDA only if libtorch_cuda is loaded, so link it although nothing here calls it. It loads only if all
  # of its libraries are installed; cuDNN is the one that is missing most often.
  find_library(LOCKSTEP_CUDNN libcudnn.so.9 HINTS ${site_packages}/nvidia/cudnn PATH_SUFFIXES lib NO_DEFAULT_PATH)
  mark_as_advanced(LOCKSTEP_CUDNN)
  if(LOCKSTEP_CUDNN)
    target_link_libraries(torch INTERFACE "-Wl,--no-as-needed,${wheel}/lib/libtorch_cuda.so,--as-needed" c10_cuda)
    target_link_options(torch INTERFACE "-Wl,-rpath,${wheel}/lib")
  else()
    message(STATUS "lockstep: without the wheels of CUDA's libraries (cuDNN and others) LibTorch computes on the CPU only")
  endif()
endif()
