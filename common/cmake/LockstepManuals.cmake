# Man pages and bash completion, made by running the tools: target `manuals`, which a plain build does not need. help2man
# makes the man pages from --help; without it the target says that there are none.

find_program(LOCKSTEP_HELP2MAN help2man)
# Dates in man pages and packages are that of the last commit, so that the same sources give the same files.
execute_process(COMMAND git -C ${lockstep_SOURCE_DIR} log -1 --format=%ct OUTPUT_VARIABLE LOCKSTEP_SOURCE_EPOCH
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT LOCKSTEP_SOURCE_EPOCH)  # an unpacked archive, whose files have that date
  file(TIMESTAMP ${lockstep_SOURCE_DIR}/LICENSE LOCKSTEP_SOURCE_EPOCH "%s" UTC)
endif()
add_custom_target(manuals)
if(NOT LOCKSTEP_HELP2MAN)
  message(STATUS "lockstep: the man pages are left out; missing: help2man")
  add_custom_command(TARGET manuals POST_BUILD COMMAND ${CMAKE_COMMAND} -E echo
    "WARNING: help2man is not installed, so there are no man pages: install it and configure again" VERBATIM)
endif()
set(LOCKSTEP_MANUALS ${CMAKE_BINARY_DIR}/manuals)

# lockstep_manual(lockstep-pack 1 lockstep-pack): the man page of this name and section, from the --help of a program, which
# is a target or the path of a script.
function(lockstep_manual name section program)
  if(NOT LOCKSTEP_HELP2MAN)
    return()
  endif()
  set(page ${LOCKSTEP_MANUALS}/${name}.${section}.gz)
  set(path ${program})
  if(TARGET ${program})
    set(path $<TARGET_FILE:${program}>)
  endif()
  add_custom_command(OUTPUT ${page}
    COMMAND ${CMAKE_COMMAND} -E env SOURCE_DATE_EPOCH=${LOCKSTEP_SOURCE_EPOCH} ${CMAKE_COMMAND} -DPROGRAM=${path} -DNAME=${name} -DSECTION=${section} -DPAGE=${page}
            -DHELP2MAN=${LOCKSTEP_HELP2MAN} -P ${lockstep_SOURCE_DIR}/common/cmake/man-page.cmake
    DEPENDS ${program} ${lockstep_SOURCE_DIR}/common/cmake/man-page.cmake VERBATIM)
  add_custom_target(manual_${name} DEPENDS ${page})
  add_dependencies(manuals manual_${name})
  lockstep_install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} OPTIONAL)
endfunction()

# lockstep_tool_manual(lockstep-pack [PATH]): man page and completion of a tool, or of the script at this path.
function(lockstep_tool_manual name)
  set(program ${name})
  if(ARGN)
    set(program ${ARGN})
  endif()
  lockstep_manual(${name} 1 ${program})
  set(completion ${LOCKSTEP_MANUALS}/completions/${name})
  add_custom_command(OUTPUT ${completion}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${LOCKSTEP_MANUALS}/completions
    COMMAND ${program} --completion > ${completion}
    DEPENDS ${program} VERBATIM)
  add_custom_target(completion_${name} DEPENDS ${completion})
  add_dependencies(manuals completion_${name})
  lockstep_install(FILES ${completion} DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions OPTIONAL)
endfunction()
