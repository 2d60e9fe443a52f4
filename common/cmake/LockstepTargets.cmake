# Functions that make the project's targets: libraries, programs, tests and benchmarks.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
  set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
  set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
endif()

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
endif()

add_library(lockstep_build_flags INTERFACE)
target_compile_options(lockstep_build_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
# GCC 12 reports overlaps inside std::string's operator+ that cannot happen (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(lockstep_build_flags INTERFACE -Wno-restrict)
endif()
# A unity build includes the sources, so GCC takes them for headers and reports members of unnamed-namespace types.
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(lockstep_build_flags INTERFACE -Wno-subobject-linkage)
endif()
if(LOCKSTEP_WERROR)
  target_compile_options(lockstep_build_flags INTERFACE -Werror)
endif()
if(LOCKSTEP_RELATIVE_PATHS)
  add_compile_options("-ffile-prefix-map=${lockstep_SOURCE_DIR}=.")
endif()
# All symbols are resolved when a program starts, and its table of them cannot be written afterwards.
add_link_options(LINKER:-z,relro,-z,now)
# lockstep_harden(): for the targets of this folder. glibc checks the sizes of buffers, functions check their stacks. Not for
# the training libraries: they take nothing from other users, and all that use LibTorch's precompiled header must have the
# same options.
macro(lockstep_harden)
  if(NOT LOCKSTEP_SANITIZE)
    add_compile_options($<$<CONFIG:Release,RelWithDebInfo>:-D_FORTIFY_SOURCE=2> -fstack-protector-strong)
  endif()
endmacro()
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
  if(LOCKSTEP_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # GCC warns at each fence. The record has two, and its fields are atomic.
  endif()
endif()

# lockstep_library(pack SOURCES a.cpp ... PUBLIC_HEADERS a.h ... HEADERS b.h ... LINK lockstep::common ...
#                  PRIVATE_LINK ... [INTERNAL])
# makes the static library lockstep_pack with the alias lockstep::pack. PUBLIC_HEADERS are for users: they are installed
# under include/lockstep/<the same folder>, and the test `install` compiles each of them alone. HEADERS are internal.
# The library is installed and exported, unless it is INTERNAL: used by our own programs only. All headers are included
# from the root of the tree: "staging/pack/reader.h".
function(lockstep_library name)
  cmake_parse_arguments(arg "INTERNAL" "" "SOURCES;PUBLIC_HEADERS;HEADERS;LINK;PRIVATE_LINK" ${ARGN})
  set(target lockstep_${name})
  if(arg_SOURCES)
    add_library(${target} STATIC ${arg_SOURCES} ${arg_PUBLIC_HEADERS} ${arg_HEADERS})
    set(scope PUBLIC)
    target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK} $<BUILD_INTERFACE:lockstep_build_flags>)
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
    target_link_libraries(${target} INTERFACE ${arg_LINK})
  endif()
  target_compile_features(${target} ${scope} cxx_std_20)
  target_include_directories(${target} ${scope} $<BUILD_INTERFACE:${lockstep_SOURCE_DIR}>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/lockstep>)
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  add_library(lockstep::${name} ALIAS ${target})
  file(RELATIVE_PATH folder ${lockstep_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(NOT arg_INTERNAL)
    install(TARGETS ${target} EXPORT lockstep-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_COMPONENTS ${name})
    set_property(GLOBAL APPEND PROPERTY LOCKSTEP_EXPORTED ${target})
  endif()
  foreach(header IN LISTS arg_PUBLIC_HEADERS)
    get_filename_component(header_folder ${folder}/${header} DIRECTORY)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/lockstep/${header_folder} COMPONENT development)
  endforeach()
  list(TRANSFORM arg_PUBLIC_HEADERS PREPEND ${folder}/)
  list(TRANSFORM arg_HEADERS PREPEND ${folder}/)
  set_property(GLOBAL PROPERTY LOCKSTEP_HEADERS_OF_${target} ${arg_PUBLIC_HEADERS} ${arg_HEADERS})
  set_property(GLOBAL APPEND PROPERTY LOCKSTEP_LIBRARIES ${target})
endfunction()

# All that users and admins install: the tools and the plugin (component "tools").
add_custom_target(tools)

# lockstep_install(...): install(...) for the component "tools", and for the Debian package that LOCKSTEP_PACKAGE names:
# tools, unless a folder sets it to plugin or exporter.
set(LOCKSTEP_PACKAGE tools)
function(lockstep_install)
  install(${ARGN} COMPONENT tools)
  install(${ARGN} COMPONENT package_${LOCKSTEP_PACKAGE} EXCLUDE_FROM_ALL)
endfunction()

# lockstep_program(lockstep-pack SOURCES main.cpp LINK lockstep::pack [INTERNAL]): a tool in bin/, installed unless INTERNAL.
function(lockstep_program name)
  cmake_parse_arguments(arg "INTERNAL" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} lockstep_build_flags)
  target_include_directories(${name} PRIVATE ${lockstep_SOURCE_DIR})
  if(NOT arg_INTERNAL)
    lockstep_install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    add_dependencies(tools ${name})
    lockstep_tool_manual(${name})
  endif()
endfunction()

# lockstep_install_template(NAME.in DESTINATION) installs NAME with the prefix of the installation in the place of
# @CMAKE_INSTALL_PREFIX@. The prefix is known only when the files are installed.
function(lockstep_install_template template destination)
  get_filename_component(name ${template} NAME_WLE)
  install(CODE "
    configure_file([[${CMAKE_CURRENT_SOURCE_DIR}/${template}]] [[${CMAKE_CURRENT_BINARY_DIR}/${name}]] @ONLY)
    file(INSTALL [[${CMAKE_CURRENT_BINARY_DIR}/${name}]] DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${destination}\")"
    COMPONENT tools)
endfunction()

# lockstep_test(pack_test SOURCES x_test.cpp ... LINK lockstep::pack ... [LABELS unit] [RANKS 1 2 3]
#               [TIMEOUT 120] [PROCESSORS 1] [ENVIRONMENT A=B ...] [SERIAL])
# makes a GoogleTest program. Without RANKS each TEST is one ctest case. With RANKS the whole program is one ctest case
# for each number of ranks, under mpirun; 4/2 means 4 ranks on simulated nodes of 2 ranks each. Without RANKS, SERIAL means
# that no other test runs at the same time, and PROCESSORS how many processors a case counts for.
function(lockstep_test name)
  cmake_parse_arguments(arg "SERIAL" "TIMEOUT;PROCESSORS" "SOURCES;LINK;LABELS;RANKS;ENVIRONMENT" ${ARGN})
  if(NOT LOCKSTEP_BUILD_TESTS)
    return()
  endif()
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(LOCKSTEP_SANITIZE)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  if(arg_RANKS)
    set(main "")
  else()
    set(main GTest::gtest_main)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} GTest::gmock GTest::gtest ${main} lockstep_build_flags)
  target_include_directories(${name} PRIVATE ${lockstep_SOURCE_DIR})
  target_compile_options(${name} PRIVATE -O1)  # a third less time to compile; the code under test stays optimised
  if(arg_RANKS)
    foreach(entry IN LISTS arg_RANKS)
      string(REPLACE "/" ";" entry "${entry}")
      list(GET entry 0 ranks)
      set(case ${name}.ranks${ranks})
      set(nodes "")
      list(LENGTH entry parts)
      if(parts EQUAL 2)
        list(GET entry 1 per_node)
        set(case ${case}_${per_node}_per_node)
        set(nodes "LOCKSTEP_RANKS_PER_NODE=${per_node}")
      endif()
      add_test(NAME ${case}
               COMMAND ${lockstep_SOURCE_DIR}/tests/integration/mpirun.sh --allow-run-as-root --oversubscribe --bind-to none -np ${ranks} $<TARGET_FILE:${name}>)
      set_tests_properties(${case} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
        PROCESSORS 2 ENVIRONMENT "OMP_NUM_THREADS=1;OPENBLAS_NUM_THREADS=1;${nodes};${arg_ENVIRONMENT}")
    endforeach()
  else()
    gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} PROCESSORS ${arg_PROCESSORS}
      ENVIRONMENT "${arg_ENVIRONMENT}" RUN_SERIAL ${arg_SERIAL})
  endif()
endfunction()

# lockstep_benchmark(bench_pack SOURCES bench_pack.cpp LINK ...): a benchmark in bin/, not installed, not a test.
function(lockstep_benchmark name)
  if(LOCKSTEP_BUILD_BENCHMARKS)
    lockstep_program(${name} INTERNAL ${ARGN})
  endif()
endfunction()
