# The packages liblockstep and liblockstep-dev. Lockstep's libraries are static, so programs that use them load only other
# packages' libraries: liblockstep installs those on compute nodes.

# Sets `result` to the packages that contain the files.
function(lockstep_packages_of result)
  set(packages "")
  foreach(file IN LISTS ARGN)
    file(REAL_PATH "${file}" real)
    execute_process(COMMAND dpkg-query -S ${real} OUTPUT_VARIABLE line ERROR_QUIET)
    string(REGEX MATCH "^[^:]+" package "${line}")
    if(package)
      list(APPEND packages ${package})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES packages)
  list(JOIN packages ", " packages)
  set(${result} "${packages}" PARENT_SCOPE)
endfunction()

set(loaded "")
foreach(library IN ITEMS torch fmt archive hdf5_serial xxhash png jpeg mpi prometheus-cpp-pull)
  unset(found CACHE)
  find_library(found ${library} HINTS ${MPI_CXX_LIBRARIES} ${hdf5_LIBRARY_DIRS})
  if(found)
    list(APPEND loaded ${found})
  endif()
endforeach()
unset(found CACHE)
lockstep_packages_of(library_depends ${loaded})
# LibTorch is content with the reference BLAS, which is 20 times slower.
set(library_recommends libopenblas0-pthread)
if(library_depends MATCHES libopenmpi)
  string(APPEND library_recommends ", openmpi-bin")
endif()
lockstep_package(lib liblockstep "Libraries that Lockstep's training programs load (metapackage)"
  "Install it on compute nodes. The libraries of Lockstep are part of the\n programs; this package depends on LibTorch, MPI and the others."
  SECTION libs DEPENDS "${library_depends}" RECOMMENDS "${library_recommends}")

lockstep_package(dev liblockstep-dev "Training library for LibTorch: loader, DistributedDataParallel, checkpoints"
  "Headers, static libraries, the CMake package lockstep with its components, and\n lockstep.pc for pkg-config."
  SECTION libdevel COMPONENTS development
  DEPENDS "liblockstep (= ${CPACK_DEBIAN_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}), libtorch-dev, libopenmpi-dev, libfmt-dev, libcli11-dev, nlohmann-json3-dev, libxxhash-dev, libarchive-dev, libhdf5-dev, libpng-dev, libjpeg-dev, prometheus-cpp-dev, pkg-config")
install(CODE "
  file(GLOB libraries \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/liblockstep_*.a\")
  execute_process(COMMAND strip --strip-debug --enable-deterministic-archives \${libraries} COMMAND_ERROR_IS_FATAL ANY)"
  COMPONENT package_dev EXCLUDE_FROM_ALL)
