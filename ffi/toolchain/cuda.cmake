# Finds nvcc, from a toolkit or from the nvcc wheels, and enables CUDA without touching libcuda or a GPU.
#
# CMake's own FindCUDAToolkit is not used: it does not know the wheels' layout (lib rather than lib64), and
# everything that is needed here is the compiler and the static runtime.

function(_jaxgemm_find_nvcc out)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
      "import importlib.util as u, pathlib; s = u.find_spec('nvidia'); print(*(p for d in (s.submodule_search_locations if s else ()) for p in pathlib.Path(d).glob('cu13/bin/nvcc')), sep=';')"
    OUTPUT_VARIABLE wheels OUTPUT_STRIP_TRAILING_WHITESPACE)
  find_program(JAXGEMM_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
  if(DEFINED ENV{CUDACXX})
    set(${out} $ENV{CUDACXX} PARENT_SCOPE)
  elseif(JAXGEMM_NVCC)
    set(${out} ${JAXGEMM_NVCC} PARENT_SCOPE)
  elseif(wheels)
    list(GET wheels 0 first)
    set(${out} ${first} PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

# Sets JAXGEMM_CUDA_FOUND and JAXGEMM_CUDART_STATIC.
macro(jaxgemm_enable_cuda)
  set(JAXGEMM_CUDA_FOUND FALSE)
  set(_wanted ${JAXGEMM_CUDA})
  if(_wanted STREQUAL "AUTO")
    set(_wanted OFF)
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
      set(_wanted ON)
    endif()
  endif()
  if(_wanted)
    _jaxgemm_find_nvcc(_nvcc)
    if(NOT _nvcc)
      message(FATAL_ERROR "jaxgemm: no CUDA compiler. Install the CUDA 13 toolkit, or the nvcc wheels listed in "
                          "ffi/toolchain/backend.py, or build without CUDA: JAXGEMM_CUDA=OFF")
    endif()
    # The toolkit's root as nvcc reports it: the nvcc that was found may be a link or a wrapper script.
    execute_process(COMMAND ${_nvcc} --dryrun -c -x cu /dev/null -o /dev/null ERROR_VARIABLE _dryrun)
    string(REGEX MATCH "#\\$ TOP=([^\n\r]*)" _ "${_dryrun}")
    get_filename_component(_root "${CMAKE_MATCH_1}" REALPATH)
    find_library(_cudart NAMES cudart_static PATHS ${_root} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib
                 NO_DEFAULT_PATH REQUIRED)
    get_filename_component(_libdir "${_cudart}" DIRECTORY)
    set(CMAKE_CUDA_COMPILER ${_nvcc})
    set(CMAKE_CUDA_FLAGS_INIT "-L${_libdir}")
    set(CMAKE_CUDA_ARCHITECTURES ${JAXGEMM_CUDA_ARCHS})
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    enable_language(CUDA)
    set(JAXGEMM_CUDA_FOUND TRUE)
    set(JAXGEMM_CUDART_STATIC ${_cudart})
    set(JAXGEMM_CUDA_INCLUDE ${_root}/include)
    message(STATUS "jaxgemm: CUDA ${CMAKE_CUDA_COMPILER_VERSION} from ${_root}, architectures ${JAXGEMM_CUDA_ARCHS}")
  else()
    message(STATUS "jaxgemm: building without CUDA")
  endif()
endmacro()

# Options that every CUDA library of the project shares.
function(jaxgemm_cuda_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${JAXGEMM_CUDA_INCLUDE})
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size --extra-device-vectorization -Xcompiler=-Wall,-Wno-unused-parameter>)
  if(JAXGEMM_LINE_TABLES)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
  endif()
  set_target_properties(${target} PROPERTIES CUDA_SEPARABLE_COMPILATION OFF)
endfunction()
