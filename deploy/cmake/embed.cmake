# cmake -DFILES=a;b -DHEADER=out.h -P embed.cmake: writes a header that has the content of each file, as a
# std::string_view in the namespace egeria::embedded whose name is the file's with _ for what no name may have.
set(text "#pragma once\n#include <string_view>\nnamespace egeria::embedded {\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} name)
  file(READ ${file} content HEX)
  string(LENGTH "${content}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "\\\\x\\1" content "${content}")
  string(APPEND text "inline constexpr std::string_view ${name}(\"${content}\", ${size});\n")
endforeach()
file(WRITE ${HEADER} "${text}}  // namespace egeria::embedded\n")
